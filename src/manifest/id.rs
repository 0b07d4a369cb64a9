//! The ids of stores and SSDs: 16 random bytes, written as a UUID (version 4).

use rustix::rand::{GetRandomFlags, getrandom};
use std::hash::{BuildHasher, RandomState};

/// A random id, in the form of a version 4 UUID.
pub(crate) fn new_id() -> [u8; 16] {
    let mut id = [0; 16];
    // The kernel fills this few bytes completely, or fails. Where the call is blocked, the seeds of the
    // standard library's hash tables serve instead.
    if getrandom(&mut id, GetRandomFlags::empty()) != Ok(id.len()) {
        let halves = [RandomState::new().hash_one(0), RandomState::new().hash_one(1)].map(u64::to_le_bytes);
        id.copy_from_slice(halves.as_flattened());
    }
    id[6] = (id[6] & 0x0f) | 0x40;
    id[8] = (id[8] & 0x3f) | 0x80;
    id
}

/// The text of an id: lower-case hexadecimal digits in five groups.
pub(crate) fn id_text(id: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(id));
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// The bytes of an id; zeroes for malformed text.
pub(crate) fn id_bytes(text: &str) -> [u8; 16] {
    let groups: Vec<&str> = text.split('-').collect();
    let formed = groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|digit| digit.is_ascii_hexdigit()));
    let id = if formed { u128::from_str_radix(&groups.concat(), 16).unwrap_or(0) } else { 0 };
    id.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_id_gives_its_bytes_back() {
        let id =
            [0x12, 0x3e, 0x45, 0x67, 0xe8, 0x9b, 0x12, 0xd3, 0xa4, 0x56, 0x42, 0x66, 0x14, 0x17, 0x40, 0x0f];
        assert_eq!(id_text(id), "123e4567-e89b-12d3-a456-42661417400f");
        assert_eq!(id_bytes("123E4567-e89b-12d3-a456-42661417400f"), id);
        let (one, two) = (new_id(), new_id());
        assert_ne!(one, two);
        assert_eq!(id_bytes(&id_text(one)), one);
    }

    #[test]
    fn malformed_text_is_no_id() {
        for text in [
            "",
            "ring",
            "123e4567e89b12d3a45642661417400f",
            "123e4567-e89b-12d3-a456-42661417400",
            "123e4567-e89b-12d3-a456-42661417400g",
            "123e456-7e89b-12d3-a456-42661417400f",
            "123e4567-e89b-12d3-a456-4266141740\u{e9}",
        ] {
            assert_eq!(id_bytes(text), [0; 16], "{text}");
        }
    }
}
