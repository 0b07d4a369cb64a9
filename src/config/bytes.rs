//! Sizes as they are written in configuration files and on command lines: `64MiB`.

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use std::fmt;

/// The units, each with its number of bytes as a power of two.
const UNITS: [(&str, u32); 5] = [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// The text is not a size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is not a size: give a number of bytes, or a number with KiB, MiB, GiB or TiB, such as 64MiB"
)]
pub struct BytesError {
    /// The text.
    pub text: String,
}

/// The number of bytes that `text` says: digits, then nothing, `B`, `KiB`, `MiB`, `GiB` or `TiB`, in any case
/// and perhaps after a space. For command lines; [`Options`](crate::Options) reads its sizes like this, too.
///
/// ```
/// use pagetier::parse_bytes;
///
/// assert_eq!(parse_bytes("64MiB"), Ok(64 << 20));
/// assert_eq!(parse_bytes("4096"), Ok(4096));
/// assert!(parse_bytes("64MB").unwrap_err().to_string().contains("such as 64MiB"));
/// ```
///
/// # Errors
/// The text is another one, among them `64M` and `64MB`, which some read as powers of ten; or the size is
/// above 2^64 - 1.
pub fn parse_bytes(text: &str) -> Result<u64, BytesError> {
    let refused = || BytesError { text: text.to_owned() };
    let digits = text.trim().trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text.trim()[digits.len()..].trim_start();
    let power = UNITS.iter().find(|(name, _)| unit.is_empty() || unit.eq_ignore_ascii_case(name));
    let (_, power) = power.ok_or_else(refused)?;
    // `parse` would take a sign.
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| plain).ok_or_else(refused)?;
    number.checked_mul(1 << power).ok_or_else(refused)
}

/// A size in a serialised form: a number of bytes, or a text.
struct Bytes(u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, or a text such as \"64MiB\"")
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }

            // Some formats have signed numbers only.
            fn visit_i64<E: Error>(self, bytes: i64) -> Result<Bytes, E> {
                u64::try_from(bytes).map(Bytes).map_err(|_| E::custom("a size is not negative"))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
                parse_bytes(text).map(Bytes).map_err(E::custom)
            }
        }

        from.deserialize_any(Reader)
    }
}

/// Reads a size.
pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Bytes::deserialize(from).map(|bytes| bytes.0)
}

/// Reads a size that may be missing.
pub(super) fn read_some<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<Bytes>::deserialize(from)?.map(|bytes| bytes.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::options::Options;

    #[test]
    fn sizes_are_read_in_every_spelling_and_others_are_refused() {
        let good = [("0", 0), ("4096", 4096), ("7B", 7), ("64KiB", 64 << 10), (" 64 mib ", 64 << 20)];
        for (text, bytes) in good.into_iter().chain([("3GiB", 3 << 30), ("2TIB", 2 << 40)]) {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "64M", "64MB", "-1", "+1", "1.5GiB", "1 2", "64MiB64", "99999999TiB", "0x40"]
        {
            assert_eq!(parse_bytes(text).unwrap_err().text, text);
        }
        let message = parse_bytes("64MB").unwrap_err().to_string();
        assert!(["64MB", "KiB", "MiB", "GiB", "TiB"].iter().all(|part| message.contains(part)), "{message}");
    }

    #[test]
    fn options_take_sizes_as_numbers_or_texts() {
        let json = r#"{ "ssd_bytes": "1GiB", "pool_bytes": 4194304, "low_room": "0", "page_bytes": null }"#;
        let options: Options = serde_json::from_str(json).unwrap();
        assert_eq!((options.ssd_bytes, options.pool_bytes), (Some(1 << 30), 4 << 20));
        assert_eq!((options.low_room, options.page_bytes), (0, None));
        let again: Options = serde_json::from_str(&serde_json::to_string(&options).unwrap()).unwrap();
        assert_eq!(again, options);
        for (wrong, why) in [("\"64MB\"", "such as 64MiB"), ("true", "64MiB"), ("-5", "negative")] {
            let error = serde_json::from_str::<Options>(&format!("{{ \"pool_bytes\": {wrong} }}"));
            let error = error.unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
