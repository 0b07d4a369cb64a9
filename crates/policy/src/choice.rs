//! Policies by name: conversion between the text of a command line or configuration file and the typed
//! choices.

use crate::custom::{Catalogue, registered};
use crate::rivals;
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

/// The catalogues by precedence: the rivals, then what the program registered.
pub(crate) fn catalogues() -> Vec<&'static Catalogue> {
    std::iter::once(&rivals::CATALOGUE).chain(registered()).collect()
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
    let options: Vec<String> = options.into_iter().collect();
    let colon = if options.is_empty() { "" } else { ":" };
    f.pad(&format!("{name}{colon}{}", options.join(",")))
}

/// Implements what both choices offer besides `FromStr` and `Display`: conversion from strings, and serde by
/// name.
macro_rules! by_name {
    ($choice:ty) => {
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
