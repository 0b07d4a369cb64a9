//! Policies by name: what a command line or a configuration file says, and the typed choices that it stands
//! for.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;

/// A text that names no policy, or not with such options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPolicy {
    /// `pool` or `SSD`.
    pub tier: &'static str,
    /// The text.
    pub text: String,
    /// The names and options that there are.
    pub known: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no {} policy; there are: {}", self.text, self.tier, self.known)
    }
}

impl Error for UnknownPolicy {}

impl From<Infallible> for UnknownPolicy {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// The parts of `name:part,part`, in lower case: the name, and the options behind it.
pub(crate) fn split(text: &str) -> (String, Vec<String>) {
    let text = text.trim().to_ascii_lowercase();
    match text.split_once(':') {
        None => (text, Vec::new()),
        Some((name, options)) => (name.to_owned(), options.split(',').map(|o| o.trim().to_owned()).collect()),
    }
}

/// Writes `name`, and behind it the options that are on.
pub(crate) fn write_options(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    options: impl IntoIterator<Item = String>,
) -> fmt::Result {
    let options: Vec<String> = options.into_iter().collect();
    let colon = if options.is_empty() { "" } else { ":" };
    f.pad(&format!("{name}{colon}{}", options.join(",")))
}

/// What both choices offer beside `FromStr` and `Display`: conversion from strings, and serde by name.
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
