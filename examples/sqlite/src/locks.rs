//! The locks of a database, and the memory that its connections share in WAL mode. All connections are of one
//! process: a store has one owner.

use sqlite_plugin::flags::{LockLevel, ShmLockMode};
use sqlite_plugin::vars;
use sqlite_plugin::vfs::VfsResult;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;

/// Who may read and write the database: SQLite's five levels.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// Connections with at least a shared lock.
    readers: u32,
    /// A connection has a reserved, pending or exclusive lock.
    reserved: bool,
    /// One of them waits for the readers to leave: no further ones may enter.
    pending: bool,
}

impl Locks {
    /// Raises a connection's lock from `has` to `wanted`; `has` is what it has afterwards, also on an error.
    pub(crate) fn raise(&mut self, has: &mut LockLevel, wanted: LockLevel) -> VfsResult<()> {
        if *has == LockLevel::Unlocked && wanted >= LockLevel::Shared {
            if self.pending {
                return Err(vars::SQLITE_BUSY);
            }
            self.readers += 1;
            *has = LockLevel::Shared;
        }
        if *has < LockLevel::Reserved && wanted >= LockLevel::Reserved {
            if self.reserved {
                return Err(vars::SQLITE_BUSY);
            }
            self.reserved = true;
            *has = LockLevel::Reserved;
        }
        if *has < LockLevel::Exclusive && wanted >= LockLevel::Pending {
            self.pending = true;
            *has = LockLevel::Pending;
            if wanted == LockLevel::Exclusive {
                if self.readers > 1 {
                    return Err(vars::SQLITE_BUSY);
                }
                *has = LockLevel::Exclusive;
            }
        }
        Ok(())
    }

    /// Lowers a connection's lock.
    pub(crate) fn lower(&mut self, has: &mut LockLevel, wanted: LockLevel) {
        if *has >= LockLevel::Reserved && wanted < LockLevel::Reserved {
            (self.reserved, self.pending) = (false, false);
        }
        if *has >= LockLevel::Shared && wanted == LockLevel::Unlocked {
            self.readers -= 1;
        }
        *has = wanted.min(*has);
    }

    pub(crate) fn is_reserved(&self) -> bool {
        self.reserved
    }
}

/// The number of locks on the shared memory.
const SHM_LOCKS: usize = 8;

/// The memory that connections in WAL mode share, with its locks.
#[derive(Debug, Default)]
pub(crate) struct Shm {
    regions: Vec<Box<[AtomicU8]>>,
    shared: [u32; SHM_LOCKS],
    exclusive: [bool; SHM_LOCKS],
    connections: u32,
}

/// What a connection has of the shared memory: a bit for each lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mapped {
    mapped: bool,
    shared: u8,
    exclusive: u8,
}

impl Shm {
    /// Region `index`, of `bytes` bytes. `None` if it does not exist and is not to be created.
    pub(crate) fn map(
        &mut self,
        by: &mut Mapped,
        index: usize,
        bytes: usize,
        extend: bool,
    ) -> Option<NonNull<u8>> {
        if !by.mapped {
            by.mapped = true;
            self.connections += 1;
        }
        while extend && self.regions.len() <= index {
            self.regions.push((0..bytes).map(|_| AtomicU8::new(0)).collect());
        }
        // The region stays where it is until the last connection has unmapped it.
        self.regions.get(index).and_then(|region| region.first()).map(|first| NonNull::from(first).cast())
    }

    /// Changes the connection's locks `from` to `from + count`.
    pub(crate) fn lock(
        &mut self,
        by: &mut Mapped,
        from: usize,
        count: usize,
        mode: ShmLockMode,
    ) -> VfsResult<()> {
        let wanted = from..from + count;
        if wanted.end > SHM_LOCKS {
            return Err(vars::SQLITE_IOERR);
        }
        let bits = wanted.clone().fold(0_u8, |bits, no| bits | 1 << no);
        let others = |no: usize| self.shared[no] - u32::from(by.shared >> no & 1);
        match mode {
            ShmLockMode::LockShared => {
                if wanted.clone().any(|no| self.exclusive[no]) {
                    return Err(vars::SQLITE_BUSY);
                }
                wanted.filter(|no| by.shared >> no & 1 == 0).for_each(|no| self.shared[no] += 1);
                by.shared |= bits;
            }
            ShmLockMode::LockExclusive => {
                if wanted.clone().any(|no| self.exclusive[no] || others(no) > 0) {
                    return Err(vars::SQLITE_BUSY);
                }
                wanted.for_each(|no| self.exclusive[no] = true);
                by.exclusive |= bits;
            }
            ShmLockMode::UnlockShared => {
                wanted.filter(|no| by.shared >> no & 1 == 1).for_each(|no| self.shared[no] -= 1);
                by.shared &= !bits;
            }
            ShmLockMode::UnlockExclusive => {
                wanted.filter(|no| by.exclusive >> no & 1 == 1).for_each(|no| self.exclusive[no] = false);
                by.exclusive &= !bits;
            }
        }
        Ok(())
    }

    /// Gives back what the connection has. The last one takes the memory away: the next connection recovers
    /// it from the WAL.
    pub(crate) fn unmap(&mut self, by: &mut Mapped) {
        if !by.mapped {
            return;
        }
        let has = std::mem::take(by);
        for no in 0..SHM_LOCKS {
            self.shared[no] -= u32::from(has.shared >> no & 1);
            self.exclusive[no] &= has.exclusive >> no & 1 == 0;
        }
        self.connections -= 1;
        if self.connections == 0 {
            self.regions.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_waits_for_the_readers_and_keeps_new_ones_out() {
        let mut locks = Locks::default();
        let mut has = [LockLevel::Unlocked; 3];
        for one in &mut has[..2] {
            locks.raise(one, LockLevel::Shared).unwrap();
        }
        locks.raise(&mut has[0], LockLevel::Reserved).unwrap();
        assert!(locks.is_reserved() && locks.raise(&mut has[1], LockLevel::Reserved).is_err());
        assert!(locks.raise(&mut has[0], LockLevel::Exclusive).is_err(), "a reader is there");
        assert_eq!(has[0], LockLevel::Pending);
        assert!(locks.raise(&mut has[2], LockLevel::Shared).is_err(), "the writer is next");
        locks.lower(&mut has[1], LockLevel::Unlocked);
        locks.raise(&mut has[0], LockLevel::Exclusive).unwrap();
        assert!(locks.raise(&mut has[1], LockLevel::Shared).is_err());
        locks.lower(&mut has[0], LockLevel::Shared);
        locks.raise(&mut has[1], LockLevel::Exclusive).unwrap_err();
        assert_eq!(has[1], LockLevel::Pending, "a hot journal is rolled back without a reserved lock before");
        locks.lower(&mut has[0], LockLevel::Unlocked);
        locks.raise(&mut has[1], LockLevel::Exclusive).unwrap();
    }

    #[test]
    fn shared_memory_is_zero_for_the_first_connection_and_its_locks_exclude() {
        let (mut shm, mut one, mut other) = (Shm::default(), Mapped::default(), Mapped::default());
        assert!(shm.map(&mut one, 0, 64, false).is_none());
        let at = shm.map(&mut one, 1, 64, true).unwrap();
        assert_eq!(shm.map(&mut other, 1, 64, false), Some(at));
        shm.lock(&mut one, 3, 1, ShmLockMode::LockShared).unwrap();
        shm.lock(&mut other, 3, 1, ShmLockMode::LockShared).unwrap();
        assert!(shm.lock(&mut one, 0, 8, ShmLockMode::LockExclusive).is_err());
        shm.lock(&mut other, 3, 1, ShmLockMode::UnlockShared).unwrap();
        shm.lock(&mut one, 3, 1, ShmLockMode::UnlockShared).unwrap();
        shm.lock(&mut one, 0, 8, ShmLockMode::LockExclusive).unwrap();
        assert!(shm.lock(&mut other, 7, 1, ShmLockMode::LockShared).is_err());
        shm.unmap(&mut one);
        shm.lock(&mut other, 7, 1, ShmLockMode::LockShared).unwrap();
        shm.unmap(&mut other);
        assert!(shm.regions.is_empty() && shm.shared == [0; SHM_LOCKS]);
        assert!(shm.lock(&mut one, 7, 2, ShmLockMode::LockShared).is_err());
    }
}
