//! A set of slots: those that hold a page or a version newer than the HDD's, or the candidates of a zone.

use crate::SlotId;

/// One bit per slot.
#[derive(Debug, Default)]
pub struct SlotSet {
    words: Vec<u64>,
}

impl SlotSet {
    pub fn set(&mut self, slot: SlotId, member: bool) {
        let word = slot.at() / 64;
        if word >= self.words.len() {
            // What an absent word means: nothing to record.
            if !member {
                return;
            }
            self.words.resize(word + 1, 0);
        }
        let bit = 1 << (slot.at() % 64);
        if member {
            self.words[word] |= bit;
        } else {
            self.words[word] &= !bit;
        }
    }

    pub fn contains(&self, slot: SlotId) -> bool {
        self.words.get(slot.at() / 64).is_some_and(|word| word >> (slot.at() % 64) & 1 != 0)
    }

    /// Removes all slots.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Counts the slots.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_in_the_set_from_when_it_is_said_until_it_is_taken_back() {
        let mut slots = SlotSet::default();
        slots.set(SlotId(200), false);
        assert!(slots.words.is_empty());
        for slot in [0, 63, 64, 200] {
            slots.set(SlotId(slot), true);
        }
        slots.set(SlotId(64), false);
        let dirty: Vec<u32> = (0..300).filter(|&slot| slots.contains(SlotId(slot))).collect();
        assert_eq!(dirty, [0, 63, 200]);
        assert_eq!(slots.len(), 3);
        slots.clear();
        assert!(slots.len() == 0 && !slots.contains(SlotId(63)));
    }
}
