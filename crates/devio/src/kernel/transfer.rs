//! One operation on a file, as a state machine: what remains to be transferred, and what each answer of the
//! kernel means.
//!
//! Both real backends drive it: they issue the rest, pass it the answer, and follow its next step.

use crate::device::IoBufs;
use crate::duties::check::Spot;
use crate::duties::recorder::RetryReason;
use crate::users::occupancy::InFlight;
use crate::{DeviceErrorKind, IoBuf, IoClass, IoOp};
use std::io;
use std::sync::Arc;

/// The number of consecutive retries without progress after which an error is final.
const RETRIES_MAX: u32 = 64;

/// The maximum number of segments in one system call (IOV_MAX).
pub(crate) const SEGMENTS_MAX: usize = 1024;

/// The maximum number of bytes issued in one call, below the kernel's own limit of 2 GiB less a page.
pub(crate) const BYTES_MAX: usize = 1 << 30;

/// The meaning of an error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meaning {
    Retry(RetryReason),
    NoSpace,
    TooLarge,
    Gone,
    Unsupported,
    Io,
}

const MEANINGS: [(i32, Meaning); 11] = [
    (libc::EAGAIN, Meaning::Retry(RetryReason::Again)),
    (libc::EBUSY, Meaning::Retry(RetryReason::Again)),
    (libc::EINTR, Meaning::Retry(RetryReason::Interrupted)),
    (libc::ECANCELED, Meaning::Retry(RetryReason::Cancelled)),
    (libc::ENOSPC, Meaning::NoSpace),
    (libc::EDQUOT, Meaning::NoSpace),
    (libc::EFBIG, Meaning::TooLarge),
    (libc::ENODEV, Meaning::Gone),
    (libc::ENXIO, Meaning::Gone),
    (libc::ENOMEDIUM, Meaning::Gone),
    (libc::EOPNOTSUPP, Meaning::Unsupported),
];

fn meaning(errno: i32) -> Meaning {
    MEANINGS.iter().find(|(number, _)| *number == errno).map_or(Meaning::Io, |(_, meaning)| *meaning)
}

/// Classifies an error number outside an operation (growing, opening) by the possible reaction.
pub(crate) fn kind_of(errno: i32) -> DeviceErrorKind {
    match meaning(errno) {
        Meaning::NoSpace => DeviceErrorKind::NoSpace,
        Meaning::TooLarge => match crate::file_bytes_max() {
            Some(max_bytes) => DeviceErrorKind::FileSizeLimit { max_bytes },
            // The file system's own limit.
            None => DeviceErrorKind::NoSpace,
        },
        Meaning::Gone => DeviceErrorKind::Gone,
        _ => DeviceErrorKind::Io(Arc::new(io::Error::from_raw_os_error(errno))),
    }
}

/// The next step.
#[derive(Debug)]
pub(crate) enum Step {
    /// Issue the rest.
    Again(RetryReason),
    /// The operation has ended.
    Done(Result<(), DeviceErrorKind>),
}

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) spot: Spot,
    pub(crate) class: IoClass,
    pub(crate) bufs: IoBufs,
    pub(crate) began_ns: u64,
    /// It is a write that must be whole or fail.
    pub(crate) whole: bool,
    done: u64,
    retries: u32,
    _in_flight: InFlight,
}

impl Transfer {
    pub(crate) fn new(spot: Spot, class: IoClass, bufs: IoBufs, began_ns: u64, in_flight: InFlight) -> Self {
        Self { spot, class, bufs, began_ns, whole: false, done: 0, retries: 0, _in_flight: in_flight }
    }

    /// Allows as many retries as at the beginning, for another way to carry out the rest.
    pub(crate) fn begin_anew(&mut self) {
        self.retries = 0;
    }

    /// The offset at which the rest starts.
    pub(crate) fn position(&self) -> u64 {
        self.spot.offset + self.done
    }

    /// Calls `f(buffer, from, to)` for each part of the next call.
    pub(crate) fn rest<'a>(&'a mut self, mut f: impl FnMut(&'a mut IoBuf, usize, usize)) {
        let mut skip = self.done;
        let (mut segments, mut budget) = (0, BYTES_MAX);
        for buf in &mut self.bufs {
            // What was transferred already may end inside a buffer.
            let from = skip.min(buf.len() as u64) as usize;
            skip -= from as u64;
            let to = buf.len().min(from + budget);
            if from < to {
                budget -= to - from;
                segments += 1;
                f(buf, from, to);
            }
            // The rest follows in another call, as after a short transfer.
            if segments == SEGMENTS_MAX || budget == 0 {
                return;
            }
        }
    }

    /// Interprets the kernel's answer to the last call: a number of bytes, or an error number. `alignment`
    /// and `size` are the device's.
    pub(crate) fn advance(&mut self, answer: Result<u64, i32>, alignment: usize, size: u64) -> Step {
        match answer {
            Ok(bytes) => self.progress(bytes, alignment, size),
            Err(errno) => self.failed(errno),
        }
    }

    fn progress(&mut self, bytes: u64, alignment: usize, size: u64) -> Step {
        if matches!(self.spot.op, IoOp::Flush | IoOp::Discard) {
            return Step::Done(Ok(()));
        }
        let left = self.spot.len - self.done;
        if bytes >= left {
            return Step::Done(Ok(()));
        }
        if self.whole {
            return Step::Done(Err(DeviceErrorKind::NotWhole(Arc::new(io::ErrorKind::WriteZero.into()))));
        }
        // Within the size that was checked: another process has shortened the file.
        if bytes == 0 && self.spot.op == IoOp::Read {
            return Step::Done(Err(DeviceErrorKind::UnexpectedEof { size }));
        }
        // Direct I/O continues at an aligned offset: the partial sector is transferred again.
        let whole = bytes - bytes % alignment as u64;
        self.done += whole;
        // A device that never moves a whole sector would be asked for ever.
        if whole == 0 && self.exhausted() {
            return Step::Done(Err(DeviceErrorKind::Io(Arc::new(io::ErrorKind::WriteZero.into()))));
        }
        Step::Again(RetryReason::Short)
    }

    fn failed(&mut self, errno: i32) -> Step {
        match meaning(errno) {
            Meaning::Retry(reason) if !self.exhausted() => Step::Again(reason),
            // The alignment was checked, so it is the flag that is refused. Space is short only for a file
            // system that writes the page elsewhere: an ordinary write of it needs none.
            _ if self.whole
                && [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSPC, libc::EDQUOT].contains(&errno) =>
            {
                let refused = io::Error::from_raw_os_error(errno);
                Step::Done(Err(DeviceErrorKind::NotWhole(Arc::new(refused))))
            }
            // A discard is a hint: nothing is lost where it is not supported.
            Meaning::Unsupported if self.spot.op == IoOp::Discard => Step::Done(Ok(())),
            _ => Step::Done(Err(kind_of(errno))),
        }
    }

    fn exhausted(&mut self) -> bool {
        self.retries += 1;
        self.retries > RETRIES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Occupancy;
    use smallvec::smallvec;

    fn read_of(lens: &[usize]) -> Transfer {
        let bufs: IoBufs = lens.iter().map(|len| IoBuf::zeroed(*len)).collect();
        let len = lens.iter().sum::<usize>() as u64;
        Transfer::new(
            Spot { op: IoOp::Read, offset: 8192, len },
            IoClass::Demand,
            bufs,
            0,
            Occupancy::default().enter(),
        )
    }

    fn parts(transfer: &mut Transfer) -> Vec<(usize, usize)> {
        let mut out = Vec::new();
        transfer.rest(|_, from, to| out.push((from, to)));
        out
    }

    #[test]
    fn short_transfers_continue_at_an_aligned_offset() {
        let mut transfer = read_of(&[4096, 4096, 4096]);
        assert_eq!(parts(&mut transfer), [(0, 4096), (0, 4096), (0, 4096)]);
        assert!(matches!(transfer.advance(Ok(4096 + 700), 512, 1 << 20), Step::Again(RetryReason::Short)));
        assert_eq!((transfer.position(), parts(&mut transfer)), (8192 + 4608, vec![(512, 4096), (0, 4096)]));
        assert!(matches!(transfer.advance(Ok(7680), 512, 1 << 20), Step::Done(Ok(()))));
    }

    #[test]
    fn an_end_of_file_is_an_error() {
        let mut transfer = read_of(&[4096]);
        let step = transfer.advance(Ok(0), 512, 9000);
        assert!(matches!(step, Step::Done(Err(DeviceErrorKind::UnexpectedEof { size: 9000 }))));
    }

    #[test]
    fn retries_are_bounded() {
        for (errno, reason) in [
            (libc::EAGAIN, RetryReason::Again),
            (libc::EINTR, RetryReason::Interrupted),
            (libc::ECANCELED, RetryReason::Cancelled),
        ] {
            let mut transfer = read_of(&[4096]);
            for _ in 0..RETRIES_MAX {
                match transfer.advance(Err(errno), 512, 1 << 20) {
                    Step::Again(seen) => assert_eq!(seen, reason),
                    Step::Done(result) => panic!("gave up early: {result:?}"),
                }
            }
            let step = transfer.advance(Err(errno), 512, 1 << 20);
            assert!(matches!(step, Step::Done(Err(DeviceErrorKind::Io(_)))));
        }
        let mut transfer = read_of(&[4096]);
        for _ in 0..RETRIES_MAX {
            assert!(matches!(transfer.advance(Ok(100), 512, 1 << 20), Step::Again(RetryReason::Short)));
        }
        assert!(matches!(transfer.advance(Ok(100), 512, 1 << 20), Step::Done(Err(_))));
    }

    #[test]
    fn errors_are_classified_by_the_possible_reaction() {
        let mut transfer = read_of(&[4096]);
        assert!(matches!(
            transfer.advance(Err(libc::ENOSPC), 512, 0),
            Step::Done(Err(DeviceErrorKind::NoSpace))
        ));
        assert!(matches!(
            transfer.advance(Err(libc::ENODEV), 512, 0),
            Step::Done(Err(DeviceErrorKind::Gone))
        ));
        assert!(matches!(transfer.advance(Err(libc::EIO), 512, 0), Step::Done(Err(DeviceErrorKind::Io(_)))));
        // An ordinary write of the page may succeed.
        transfer.whole = true;
        for errno in [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSPC, libc::EDQUOT] {
            let step = transfer.advance(Err(errno), 512, 0);
            assert!(matches!(step, Step::Done(Err(DeviceErrorKind::NotWhole(_)))));
        }
        let spot = Spot { op: IoOp::Discard, offset: 0, len: 4096 };
        let mut discard = Transfer::new(spot, IoClass::Meta, smallvec![], 0, Occupancy::default().enter());
        assert!(matches!(discard.advance(Err(libc::EOPNOTSUPP), 512, 0), Step::Done(Ok(()))));
    }

    #[test]
    fn a_call_has_a_bounded_number_of_segments() {
        let mut transfer = read_of(&vec![512; SEGMENTS_MAX + 3]);
        assert_eq!(parts(&mut transfer).len(), SEGMENTS_MAX);
        let step = transfer.advance(Ok(512 * SEGMENTS_MAX as u64), 512, 1 << 30);
        assert!(matches!(step, Step::Again(RetryReason::Short)));
        assert_eq!(parts(&mut transfer).len(), 3);
    }
}
