//! The room that the manifest's files keep, and which saves may use it (I26).

/// The minimum room that a file has beyond its contents, in bytes, so that the store can still record changes
/// when its disk is full.
pub(crate) const SLACK_BYTES: usize = 16 << 10;

/// What a save may do with the slack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slack {
    /// Preserve it: the contents name more than before.
    Keep,
    /// Use at most half of it: freeing pages must work on a full disk, but must not consume all of the slack.
    Half,
    /// Use it: the contents name nothing new, or must be recorded in any case.
    Use,
}

impl Slack {
    /// The room that the save must leave, in bytes.
    pub(crate) fn left(self) -> usize {
        match self {
            Self::Keep => SLACK_BYTES,
            Self::Half => SLACK_BYTES / 2,
            Self::Use => 0,
        }
    }
}
