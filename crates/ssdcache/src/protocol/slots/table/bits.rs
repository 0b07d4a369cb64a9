//! A bit per slot. Slots whose bit is set are found, copied and combined a word at a time, so that a
//! checkpoint need not look at every slot while the state is locked.

use pagetier_policy::SlotId;

const WORD_BITS: u32 = u64::BITS;

#[derive(Debug)]
pub(crate) struct Bits {
    words: Vec<u64>,
    ones: usize,
}

impl Bits {
    /// A bit for each of `slots` slots, all of them `one`.
    pub(super) fn new(slots: u32, one: bool) -> Self {
        let mut words = vec![if one { u64::MAX } else { 0 }; slots.div_ceil(WORD_BITS) as usize];
        if let Some(last) = words.last_mut().filter(|_| !slots.is_multiple_of(WORD_BITS)) {
            *last &= (1 << (slots % WORD_BITS)) - 1;
        }
        Self { words, ones: if one { slots as usize } else { 0 } }
    }

    pub(crate) fn has(&self, slot: SlotId) -> bool {
        self.words[slot.at() / 64] & bit_of(slot) != 0
    }

    pub(super) fn set(&mut self, slot: SlotId, one: bool) {
        let word = &mut self.words[slot.at() / 64];
        self.ones -= usize::from(*word & bit_of(slot) != 0);
        if one {
            *word |= bit_of(slot)
        } else {
            *word &= !bit_of(slot)
        }
        self.ones += usize::from(one);
    }

    /// The number of slots whose bit is set.
    pub(crate) fn count(&self) -> usize {
        self.ones
    }

    /// The bits, 64 slots to a word, the lowest slot in the lowest bit.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Sets each word to what `of` returns for its place.
    pub(super) fn set_words(&mut self, of: impl Fn(usize) -> u64) {
        self.ones = 0;
        for (at, word) in self.words.iter_mut().enumerate() {
            *word = of(at);
            self.ones += word.count_ones() as usize;
        }
    }

    /// Clears the bits that are not set in `other`, which has as many.
    pub(super) fn keep_those_in(&mut self, other: &Self) {
        self.ones = 0;
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
            self.ones += word.count_ones() as usize;
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}

/// The slots whose bits are set in `words`, in order.
pub(super) fn slots_of(words: impl Iterator<Item = u64>) -> impl Iterator<Item = SlotId> {
    words.zip(0_u32..).flat_map(|(mut word, at)| {
        std::iter::from_fn(move || {
            let bit = (word != 0).then(|| word.trailing_zeros())?;
            word &= word - 1;
            Some(SlotId(at * WORD_BITS + bit))
        })
    })
}

fn bit_of(slot: SlotId) -> u64 {
    1 << (slot.0 % WORD_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slots_are_those_that_were_set() {
        for slots in [0, 1, 63, 64, 65, 200] {
            let mut bits = Bits::new(slots, true);
            assert_eq!(bits.count(), slots as usize);
            assert!(slots_of(bits.words().iter().copied()).eq((0..slots).map(SlotId)));
            for slot in (0..slots).filter(|slot| slot % 3 > 0) {
                bits.set(SlotId(slot), false);
                bits.set(SlotId(slot), false);
            }
            assert!(slots_of(bits.words().iter().copied()).eq((0..slots).step_by(3).map(SlotId)));
            assert_eq!(bits.count(), slots.div_ceil(3) as usize);
            let copy = bits.words().to_vec();
            let mut other = Bits::new(slots, false);
            assert_eq!(other.count(), 0);
            other.set_words(|at| copy[at]);
            assert_eq!(other.count(), bits.count());
            assert!((0..slots).all(|slot| other.has(SlotId(slot)) == (slot % 3 == 0)));
        }
    }
}
