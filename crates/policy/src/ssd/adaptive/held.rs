//! The bits of a record that say which ghosts hold its page.

/// Which ghosts hold a page, and which of them a version newer than the HDD's: one bit each. The highest bits
/// say whether the page was read since it got its slot: on the SSD, and in the ghost of the setting that
/// ranks by that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Held {
    held: u8,
    newer: u8,
}

const AGAIN: u8 = 1 << 7;

/// The maximum number of ghosts.
pub(crate) const GHOSTS_MAX: usize = AGAIN.trailing_zeros() as usize;

impl Held {
    pub(crate) const fn by_any(self) -> bool {
        self.held & !AGAIN != 0
    }

    pub(crate) const fn by(self, ghost: usize) -> bool {
        self.held >> ghost & 1 != 0
    }

    pub(crate) const fn newer_in(self, ghost: usize) -> bool {
        self.newer >> ghost & 1 != 0
    }

    pub(crate) const fn again_on_ssd(self) -> bool {
        self.held & AGAIN != 0
    }

    pub(crate) const fn again_in_ghost(self) -> bool {
        self.newer & AGAIN != 0
    }

    pub(crate) fn set_again_on_ssd(&mut self, again: bool) {
        self.held = if again { self.held | AGAIN } else { self.held & !AGAIN };
    }

    pub(crate) fn set_again_in_ghost(&mut self, again: bool) {
        self.newer = if again { self.newer | AGAIN } else { self.newer & !AGAIN };
    }

    pub(crate) fn set(&mut self, ghost: usize, held: bool, newer: bool) {
        let bit = 1 << ghost;
        self.held = if held { self.held | bit } else { self.held & !bit };
        self.newer = if newer { self.newer | bit } else { self.newer & !bit };
    }
}
