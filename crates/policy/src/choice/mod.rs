//! Policies by name: conversion between the text of a command line or configuration file and the typed
//! choices.

mod pool;
mod ssd;

pub use pool::PoolPolicy;
pub use ssd::SsdPolicy;

use std::convert::Infallible;
use std::error::Error;
use std::fmt;

/// A text that names no policy, or a policy with unknown options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPolicy {
    /// The tier that the policy was to serve: `pool` or `SSD`.
    pub tier: &'static str,
    /// The rejected text.
    pub text: String,
    /// The known names and options.
    pub known: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} policy {:?}; known policies: {}", self.tier, self.text, self.known)
    }
}

impl Error for UnknownPolicy {}

impl From<Infallible> for UnknownPolicy {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Splits `name:part,part` into the name and the options, in lower case.
pub(crate) fn split(text: &str) -> (String, Vec<String>) {
    let text = text.trim().to_ascii_lowercase();
    match text.split_once(':') {
        None => (text, Vec::new()),
        Some((name, options)) => (name.to_owned(), options.split(',').map(|o| o.trim().to_owned()).collect()),
    }
}

/// Writes `name`, followed by the enabled options.
pub(crate) fn write_options(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    options: impl IntoIterator<Item = String>,
) -> fmt::Result {
    f.pad(&joined(name, options))
}

/// `name` with more options than those that it may have already.
pub(crate) fn joined(name: &str, options: impl IntoIterator<Item = String>) -> String {
    options.into_iter().fold(name.to_owned(), |name, option| {
        let separator = if name.contains(':') { ',' } else { ':' };
        format!("{name}{separator}{option}")
    })
}

/// Implements what both choices offer besides `Display`: reading from a name, also in other forms of strings,
/// and serde by name. `$tier` is the tier's name in messages, `$names` its names in a catalogue.
macro_rules! by_name {
    ($choice:ident, $tier:literal, $names:ident) => {
        impl $choice {
            /// Every name, registered ones included.
            fn names() -> Vec<String> {
                let registered = crate::custom::registered();
                let registered = registered.iter().flat_map(|catalogue| catalogue.$names);
                let own = Self::ALL.iter().map(ToString::to_string);
                own.chain(registered.map(|name| (*name).to_owned())).collect()
            }
        }

        impl std::str::FromStr for $choice {
            type Err = crate::UnknownPolicy;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let (name, options) = crate::choice::split(text);
                let found = match Self::ALL.iter().find(|policy| policy.to_string() == name) {
                    Some(policy) => {
                        options.iter().try_fold(*policy, |policy, option| policy.with_option(option))
                    }
                    None => Self::in_catalogues(&name, options),
                };
                let unknown =
                    || crate::UnknownPolicy { tier: $tier, text: text.to_owned(), known: Self::known() };
                found.ok_or_else(unknown)
            }
        }

        impl TryFrom<&str> for $choice {
            type Error = crate::UnknownPolicy;

            fn try_from(text: &str) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl TryFrom<&String> for $choice {
            type Error = crate::UnknownPolicy;

            fn try_from(text: &String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl TryFrom<String> for $choice {
            type Error = crate::UnknownPolicy;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl serde::Serialize for $choice {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $choice {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use by_name;
