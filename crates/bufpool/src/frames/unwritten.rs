//! Which frames may hold changes that the storage below lacks: a set that a `sync` can walk without looking
//! at every frame.
//!
//! A bit per frame, in words of 64, and above them a bit per word. A frame is added when it becomes dirty
//! or gets a recovery LSN, and leaves when a walk finds it clean: each change pays for one later look at
//! its frame, so a walk costs as much as there were changes since the last one, whatever the pool's size.
//!
//! **No change is missed.** A frame's state changes first, then the frame's bit, then the bit above, each
//! by a read-modify-write even if the bit seems to be set: a plain load could see a bit that a walk is
//! about to clear. A walk clears first and looks again afterwards. Of the two read-modify-writes of one
//! bit, one comes first: if it is the adder's, the walk's second look sees the frame's new state and
//! restores the bit; if it is the walk's, the adder's bit stays. Between clearing and restoring, another
//! walk would miss the frame, so walks exclude each other.

use crate::frames::frame::Frame;
use crate::frames::memory::Growable;
use crate::sync::{AtomicU64, Mutex};
use pagetier_policy::FrameId;
use std::sync::atomic::Ordering;

const BITS: usize = 64;
/// Bounds the time of one [`Unwritten::forget`]: the rest is left to later ones.
const FORGOTTEN_WORDS_MAX: usize = 256;

/// See the module.
#[derive(Debug)]
pub(crate) struct Unwritten {
    frames: Growable<AtomicU64>,
    /// Which words of `frames` are not zero.
    words: Growable<AtomicU64>,
    walking: Mutex<()>,
}

/// The number of words of each level, for `frames` frames.
fn words_for(frames: usize) -> (usize, usize) {
    let words = frames.div_ceil(BITS);
    (words, words.div_ceil(BITS))
}

/// The memory of a set for `frames` frames.
pub(crate) fn bytes_for(frames: usize) -> usize {
    let (lower, upper) = words_for(frames);
    (lower + upper) * size_of::<AtomicU64>()
}

/// The positions of the bits that are set.
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (at < BITS).then_some(at)
    })
}

impl Unwritten {
    /// An empty set that can grow for `max` frames.
    pub(crate) fn new(max: usize) -> std::io::Result<Self> {
        let (lower, upper) = words_for(max);
        let new = || AtomicU64::new(0);
        let (frames, words) = (Growable::new(lower, new)?, Growable::new(upper, new)?);
        Ok(Self { frames, words, walking: Mutex::new(()) })
    }

    /// Makes room for `frames` frames.
    pub(crate) fn grow(&self, frames: usize) -> std::io::Result<()> {
        let (lower, upper) = words_for(frames);
        self.frames.grow(lower)?;
        self.words.grow(upper)
    }

    /// Adds a frame, whose state has changed already.
    pub(crate) fn add(&self, frame: FrameId) {
        let word = frame.at() / BITS;
        // Lower level first: a walk that found the upper bit without it would clear the upper one and miss
        // the frame.
        self.frames[word].fetch_or(1 << (frame.at() % BITS), Ordering::AcqRel);
        self.words[word / BITS].fetch_or(1 << (word % BITS), Ordering::AcqRel);
    }

    /// Whether the set has no frame: a hint, which may miss one that is being added.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Calls `see` for each frame of `all` with changes that the storage below lacks, until it returns false.
    /// Finds each that was added before the call.
    pub(crate) fn walk(&self, all: &[Frame], see: impl FnMut(FrameId, &Frame) -> bool) {
        self.walk_words(all, usize::MAX, see);
    }

    /// Forgets frames that are clean, up to the first that is not, or up to some number.
    pub(crate) fn forget(&self, all: &[Frame]) {
        self.walk_words(all, FORGOTTEN_WORDS_MAX, |_, _| false);
    }

    fn walk_words(&self, all: &[Frame], mut words: usize, mut see: impl FnMut(FrameId, &Frame) -> bool) {
        let _walking = self.walking.lock();
        for (at, upper) in self.words.iter().enumerate() {
            for bit in ones(upper.load(Ordering::Acquire)) {
                let word = at * BITS + bit;
                if words == 0 || !self.walk_word(word, all, &mut see) {
                    return;
                }
                words -= 1;
                if self.frames[word].load(Ordering::Acquire) == 0 {
                    upper.fetch_and(!(1 << bit), Ordering::AcqRel);
                    // An `add` between the look and the clearing has set the lower bit, and its upper one
                    // may be what was just cleared.
                    if self.frames[word].load(Ordering::Acquire) != 0 {
                        upper.fetch_or(1 << bit, Ordering::AcqRel);
                    }
                }
            }
        }
    }

    fn walk_word(&self, word: usize, all: &[Frame], see: &mut impl FnMut(FrameId, &Frame) -> bool) -> bool {
        let bits = &self.frames[word];
        ones(bits.load(Ordering::Acquire)).all(|bit| {
            let frame = FrameId((word * BITS + bit) as u32);
            // The pool may have grown since `all` was looked up: what was added since came after the call.
            let Some(state) = all.get(frame.at()) else { return true };
            if !state.is_unwritten() {
                bits.fetch_and(!(1 << bit), Ordering::AcqRel);
                if !state.is_unwritten() {
                    return true;
                }
                // Dirty again since the first look: its `add` may have come before the bit was cleared.
                bits.fetch_or(1 << bit, Ordering::AcqRel);
            }
            see(frame, state)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frames::frame::NO_LSN;
    use pagetier_page::Lsn;

    fn found(set: &Unwritten, all: &[Frame]) -> Vec<u32> {
        let mut found = Vec::new();
        set.walk(all, |frame, _| {
            found.push(frame.0);
            true
        });
        found
    }

    #[test]
    fn a_walk_finds_changed_frames_alone_and_forgets_those_that_are_clean() {
        let all: Vec<Frame> = (0..10_000).map(|_| Frame::new(0)).collect();
        let set = Unwritten::new(10_000).unwrap();
        set.grow(10_000).unwrap();
        assert!(found(&set, &all).is_empty());
        let changed = [0, 63, 64, 4_095, 4_096, 9_999];
        for frame in changed {
            all[frame as usize].note_lsn(Lsn(1));
            set.add(FrameId(frame));
        }
        assert_eq!(found(&set, &all), changed);
        for frame in &changed[1..] {
            all[*frame as usize].recovery_lsn.store(NO_LSN, Ordering::Relaxed);
        }
        assert_eq!(found(&set, &all), [0]);
        // What a walk found clean costs the next one nothing.
        assert_eq!(set.frames.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum::<u32>(), 1);
        assert_eq!(set.words.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum::<u32>(), 1);
        // One that ends at the first frame forgets those before it.
        all[0].recovery_lsn.store(NO_LSN, Ordering::Relaxed);
        all[63].note_lsn(Lsn(1));
        set.add(FrameId(63));
        let mut seen = 0;
        set.walk(&all, |_, _| {
            seen += 1;
            false
        });
        assert!((seen, set.is_empty(), set.frames[0].load(Ordering::Relaxed)) == (1, false, 1 << 63));
        all[63].recovery_lsn.store(NO_LSN, Ordering::Relaxed);
        set.walk(&all, |_, _| false);
        assert!(set.is_empty());
    }

    #[test]
    fn a_walk_passes_over_frames_that_were_added_since_it_was_called() {
        let all: Vec<Frame> = (0..200).map(|_| Frame::new(0)).collect();
        let set = Unwritten::new(200).unwrap();
        set.grow(200).unwrap();
        for frame in [3, 70, 199] {
            all[frame as usize].note_lsn(Lsn(1));
            set.add(FrameId(frame));
        }
        // The pool had 70 frames when the walk was called.
        assert_eq!(found(&set, &all[..70]), [3]);
        assert_eq!(found(&set, &all), [3, 70, 199]);
    }
}
