//! Merges writes: sorts them by position and joins adjacent ones.

use pagetier_devio::{IoBuf, IoBufs};

/// A page image and its destination; `tag` is the caller's.
#[derive(Debug)]
pub(crate) struct Piece<T> {
    pub(crate) offset: u64,
    pub(crate) buf: IoBuf,
    pub(crate) tag: T,
}

/// One vectored write.
#[derive(Debug)]
pub(crate) struct Run<T> {
    pub(crate) offset: u64,
    pub(crate) bufs: IoBufs,
    pub(crate) tags: Vec<T>,
}

/// The largest merged write, in bytes.
const RUN_BYTES_MAX: usize = 1 << 20;

/// Sorts `pieces` by offset and merges adjacent ones.
pub(crate) fn coalesce<T>(mut pieces: Vec<Piece<T>>) -> Vec<Run<T>> {
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
