//! What an adversary does to the log and the devices of a store between a crash and the next open.

use clap::ValueEnum;

/// What the adversary does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum Twist {
    /// The SSD and the ring are lost.
    LostSsd,
    /// The log's device is blank.
    BlankLog,
    /// The log of another store.
    ForeignLog,
    /// The pages of another store.
    ForeignPages,
    /// The log as it was earlier.
    StaleLog,
    /// The pages of a store that never had a log.
    UnloggedPages,
    /// The pages as they were in an earlier open.
    StalePages,
    /// The log of a copy of the store that went on by itself.
    SiblingLog,
    /// The log's device is cut off.
    ShortLog,
    /// The newest segment is missing.
    NoNewest,
    /// A segment in the middle is missing.
    Gap,
    /// The oldest segment is missing.
    NoOldest,
    /// Bytes of acknowledged records are wrong.
    Rot,
    /// Bytes anywhere on the log's device are wrong.
    RotAnywhere,
}

impl Twist {
    /// Everything that the adversary does.
    #[must_use]
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }
}
