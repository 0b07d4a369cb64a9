//! Merges writes: sorts them by position, joins adjacent ones, and keeps a bounded number in flight.

use futures_util::stream::{Stream, StreamExt, poll_fn};
use pagetier_devio::{DeviceError, IoBuf, IoBufs, IoClass, SharedDevice, together};
use std::sync::Arc;

/// The number of a batch's writes in flight: enough for the disk to sort, few enough that reads get through.
const WRITES_MAX: usize = 8;

/// The number of an urgent batch's writes in flight: requests wait for it. Its share of the disk is its share
/// of the queued writes.
const URGENT_WRITES_MAX: usize = 32;

/// A page image and its destination; `tag` is the caller's.
#[derive(Debug)]
pub(crate) struct Piece<T> {
    pub(crate) offset: u64,
    pub(crate) buf: IoBuf,
    pub(crate) tag: T,
}

/// Adjacent pieces, written by one vectored operation.
#[derive(Debug)]
struct Run<T> {
    offset: u64,
    bufs: IoBufs,
    tags: Vec<T>,
}

/// The largest merged write, in bytes.
const RUN_BYTES_MAX: usize = 1 << 20;

/// Sorts `pieces` by offset and merges adjacent ones.
fn coalesce<T>(mut pieces: Vec<Piece<T>>) -> Vec<Run<T>> {
    pieces.sort_by_key(|p| p.offset);
    let mut runs: Vec<Run<T>> = Vec::new();
    let mut end = None;
    let mut bytes = 0;
    for Piece { offset, buf, tag } in pieces {
        let len = buf.len();
        match runs.last_mut().filter(|_| end == Some(offset) && bytes + len <= RUN_BYTES_MAX) {
            Some(run) => {
                run.bufs.push(buf);
                run.tags.push(tag);
                bytes += len;
            }
            None => {
                runs.push(Run { offset, bufs: IoBufs::from_iter([buf]), tags: vec![tag] });
                bytes = len;
            }
        }
        end = Some(offset + len as u64);
    }
    runs
}

/// Writes `pieces` in runs of adjacent ones, a bounded number at a time. Yields the runs as they complete.
pub(crate) fn write_runs<T: Send>(
    device: &SharedDevice,
    pieces: Vec<Piece<T>>,
    class: IoClass,
) -> impl Stream<Item = (impl Iterator<Item = (T, IoBuf)> + use<T>, Result<(), DeviceError>)> + Send + Unpin + use<T>
{
    let device = Arc::clone(device);
    let writes = coalesce(pieces).into_iter().map(move |run| {
        let device = Arc::clone(&device);
        async move {
            let done = device.write(run.offset, run.bufs, class).await;
            (run.tags.into_iter().zip(done.bufs), done.result)
        }
    });
    let urgent = matches!(class, IoClass::UrgentClean | IoClass::UrgentWriteBack);
    let at_once = if urgent { URGENT_WRITES_MAX } else { WRITES_MAX };
    let mut runs = futures_util::stream::iter(writes).buffer_unordered(at_once);
    // One poll starts as many as may be in flight.
    Box::pin(poll_fn(move |context| together(|| runs.poll_next_unpin(context))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge_gaps_do_not_and_order_is_by_offset() {
        let piece = |page: u64| Piece { offset: page * 4096, buf: IoBuf::zeroed(4096), tag: page };
        let runs = coalesce([7, 2, 3, 9, 1, 8].map(piece).into_iter().collect());
        let tags: Vec<_> = runs.iter().map(|r| r.tags.clone()).collect();
        assert_eq!(tags, [vec![1, 2, 3], vec![7, 8, 9]]);
        assert_eq!(runs[1].offset, 7 * 4096);
    }

    #[test]
    fn a_run_stays_below_its_limit() {
        let piece = |page: u64| Piece { offset: page << 16, buf: IoBuf::zeroed(1 << 16), tag: () };
        let runs = coalesce((0..40).map(piece).collect());
        assert_eq!(runs.iter().map(|r| r.bufs.len()).collect::<Vec<_>>(), [16, 16, 8]);
    }
}
