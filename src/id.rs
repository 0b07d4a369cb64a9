//! The ids of stores and SSDs: 16 random bytes, written as a UUID (version 4).

use rustix::rand::{GetRandomFlags, getrandom};
use std::hash::{BuildHasher, RandomState};

/// A new id.
pub(crate) fn new_id() -> [u8; 16] {
    let mut id = [0; 16];
    // The kernel fills this few bytes completely, or fails. Where the call is blocked, the seeds of the
    // standard library's hash tables have to serve.
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
    let mut text = String::with_capacity(36);
    for (at, byte) in id.into_iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
    }
    text
}

/// The bytes of an id; zeroes for malformed text.
pub(crate) fn id_bytes(text: &str) -> [u8; 16] {
    parse(text).unwrap_or_default()
}

fn parse(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<&str> = text.split('-').collect();
    if !groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) {
        return None;
    }
    let digits: Vec<u8> = groups.concat().chars().map(hex).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| (pair[0] << 4) | pair[1]).collect();
    bytes.try_into().ok()
}

fn hex(digit: char) -> Option<u8> {
    digit.to_digit(16).and_then(|value| u8::try_from(value).ok())
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
