//! The bytes in which a policy saves what it has learned ([`SlotPolicy::save`](crate::SlotPolicy::save)).
//!
//! Whole numbers take seven bits a byte, the lowest first (LEB128), since most of them are small. Fractions
//! take 8 bytes.

use crate::PageId;

/// What a policy writes at a time, in bytes.
const CHUNK: usize = 4096;

/// Writes numbers to a sink, in chunks.
pub(crate) struct Writer<'a> {
    out: &'a mut dyn FnMut(&[u8]),
    chunk: Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut dyn FnMut(&[u8])) -> Self {
        Self { out, chunk: Vec::with_capacity(CHUNK + 16) }
    }

    pub(crate) fn put(&mut self, number: impl Into<u64>) {
        let mut rest = number.into();
        while rest >= 0x80 {
            self.chunk.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.chunk.push(rest as u8);
        if self.chunk.len() >= CHUNK {
            self.flush();
        }
    }

    pub(crate) fn put_page(&mut self, page: PageId) {
        self.put(page.space.0);
        self.put(page.no);
    }

    pub(crate) fn put_fraction(&mut self, number: f64) {
        self.put_bytes(&number.to_bits().to_le_bytes());
    }

    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) {
        self.flush();
        (self.out)(bytes);
    }

    fn flush(&mut self) {
        (self.out)(&self.chunk);
        self.chunk.clear();
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Reads what a [`Writer`] wrote. The bytes may be anything: each method returns `None` for what no writer
/// writes, and at the end.
pub(crate) struct Reader<'a> {
    from: &'a mut dyn FnMut(&mut [u8]) -> usize,
    chunk: [u8; CHUNK],
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(from: &'a mut dyn FnMut(&mut [u8]) -> usize) -> Self {
        Self { from, chunk: [0; CHUNK], at: 0, end: 0 }
    }

    fn byte(&mut self) -> Option<u8> {
        if self.at == self.end {
            // Not more than it was given room for, whatever it says.
            self.end = (self.from)(&mut self.chunk).min(CHUNK);
            self.at = 0;
        }
        let byte = *self.chunk[..self.end].get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    pub(crate) fn take(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A number of a smaller type; `None` if it does not fit.
    pub(crate) fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        self.take()?.try_into().ok()
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> Option<usize> {
        self.number().filter(|&number| number < end)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        self.below(2).map(|flag| flag == 1)
    }

    pub(crate) fn page(&mut self) -> Option<PageId> {
        Some(PageId::new(crate::SpaceId(self.number()?), self.number()?))
    }

    /// A fraction that is finite and not negative, as all are.
    pub(crate) fn fraction(&mut self) -> Option<f64> {
        let mut bytes = [0; 8];
        self.bytes(&mut bytes)?;
        Some(f64::from_bits(u64::from_le_bytes(bytes))).filter(|number| number.is_finite() && *number >= 0.0)
    }

    pub(crate) fn bytes(&mut self, bytes: &mut [u8]) -> Option<()> {
        for byte in bytes {
            *byte = self.byte()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives out `bytes` in pieces of `piece`.
    fn source(bytes: &[u8], piece: usize) -> impl FnMut(&mut [u8]) -> usize {
        let mut left = bytes;
        move |buf| {
            let n = piece.min(left.len()).min(buf.len());
            buf[..n].copy_from_slice(&left[..n]);
            left = &left[n..];
            n
        }
    }

    proptest! {
        #[test]
        fn what_was_written_reads_back(
            numbers in prop::collection::vec(any::<u64>().prop_flat_map(|n| 0..=n), 0..900),
            fraction in 0.0..1e300_f64,
            piece in 1..5000_usize,
        ) {
            let mut bytes = Vec::new();
            let mut put = |piece: &[u8]| bytes.extend_from_slice(piece);
            let mut out = Writer::new(&mut put);
            numbers.iter().for_each(|&number| out.put(number));
            out.put_fraction(fraction);
            drop(out);
            let mut from = source(&bytes, piece);
            let mut read = Reader::new(&mut from);
            for &number in &numbers {
                prop_assert_eq!(read.take(), Some(number));
            }
            prop_assert_eq!(read.fraction(), Some(fraction));
            prop_assert_eq!(read.take(), None);
        }
    }

    #[test]
    fn what_no_writer_writes_is_nothing() {
        fn read(bytes: &[u8]) -> (Option<u64>, Option<u8>, Option<bool>) {
            let of = || source(bytes, 3);
            let taken = Reader::new(&mut of()).take();
            let narrow = Reader::new(&mut of()).number();
            (taken, narrow, Reader::new(&mut of()).flag())
        }
        assert_eq!(read(&[]), (None, None, None));
        assert_eq!(read(&[0x80]), (None, None, None));
        assert_eq!(read(&[0xff; 11]), (None, None, None));
        assert_eq!(read(&[0x80, 0x02]), (Some(256), None, None));
        assert_eq!(read(&[2]), (Some(2), Some(2), None));
        for number in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(Reader::new(&mut source(&number.to_le_bytes(), 8)).fraction(), None);
        }
        // A source that says that it gave more than it had room for.
        assert_eq!(Reader::new(&mut |_| usize::MAX).take(), Some(0));
    }
}
