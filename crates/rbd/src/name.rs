//! Names of images.

use crate::RbdError;
use std::fmt;
use std::str::FromStr;

/// An image's name: `POOL/IMAGE` or `POOL/NAMESPACE/IMAGE`, with or without `rbd:` before it. With
/// `@SNAPSHOT` behind it, it is the image as it was, which can only be read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ImageName {
    pub(crate) pool: String,
    /// Empty for the default namespace.
    pub(crate) namespace: String,
    pub(crate) image: String,
    pub(crate) snapshot: Option<String>,
}

impl FromStr for ImageName {
    type Err = RbdError;

    fn from_str(text: &str) -> Result<Self, RbdError> {
        let name = text.strip_prefix("rbd:").unwrap_or(text);
        let (name, snapshot) = match name.split_once('@') {
            Some((name, snapshot)) => (name, Some(snapshot.to_owned())),
            None => (name, None),
        };
        let parts: Vec<&str> = name.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err(RbdError::Name(text.to_owned())),
        };
        let is_snapshot = |name: &String| !name.is_empty() && !name.contains(['@', '/']);
        // A C string ends at a zero.
        let is_name = !pool.is_empty() && !image.is_empty() && !text.contains('\0');
        if !is_name || !snapshot.as_ref().is_none_or(is_snapshot) {
            return Err(RbdError::Name(text.to_owned()));
        }
        let [pool, namespace, image] = [pool, namespace, image].map(str::to_owned);
        Ok(Self { pool, namespace, image, snapshot })
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, namespace, image, snapshot } = self;
        match namespace.is_empty() {
            true => write!(f, "rbd:{pool}/{image}"),
            false => write!(f, "rbd:{pool}/{namespace}/{image}"),
        }?;
        snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{snapshot}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_shown() {
        for text in ["rbd:rbd/homes", "rbd:fast/tenant/homes", "rbd:rbd/homes@monday"] {
            assert_eq!(text.parse::<ImageName>().unwrap().to_string(), text);
        }
        assert_eq!("rbd/homes".parse::<ImageName>().unwrap().to_string(), "rbd:rbd/homes");
    }

    #[test]
    fn what_is_no_name_is_refused_with_the_forms_that_are() {
        for text in [
            "",
            "homes",
            "rbd:homes",
            "/homes",
            "rbd/",
            "a//b",
            "a/b/c/d",
            "rbd/homes@",
            "a/b@c@d",
            "a@b/c",
            "a/b\0",
        ] {
            let error = text.parse::<ImageName>().unwrap_err().to_string();
            assert!(error.contains("POOL/IMAGE"), "{text:?}: {error}");
        }
    }
}
