//! The purpose of an operation, and its counter.

/// The purpose of an operation. Statistics are kept per class, and background work yields to demand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IoClass {
    /// A read that a request waits for.
    Demand,
    /// Read-ahead: no request waits for it yet.
    Prefetch,
    /// A page written by a cleaner, or admitted to the SSD.
    Clean,
    /// A page written by a cleaner while replacement waits for the disk: alternates with reads.
    UrgentClean,
    /// The SSD's own write-back: reads of victims and their writes to the HDD.
    WriteBack,
    /// The SSD's own write-back once its lag keeps pages from being written to the SSD, or has sent some to
    /// the disk: alternates with reads.
    UrgentWriteBack,
    /// The doublewrite ring.
    Ring,
    /// Superblock, map checkpoints, journal.
    Meta,
    /// Reads and repairs by recovery, verification and scrubbing.
    Recovery,
}

impl IoClass {
    /// Every class, in the order of [`DeviceStats`](crate::DeviceStats).
    pub const ALL: [Self; 9] = [
        Self::Demand,
        Self::Prefetch,
        Self::Clean,
        Self::UrgentClean,
        Self::WriteBack,
        Self::UrgentWriteBack,
        Self::Ring,
        Self::Meta,
        Self::Recovery,
    ];
}

/// The counter of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counter {
    /// Reads of a class.
    Read(IoClass),
    /// Writes of a class.
    Write(IoClass),
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
}
