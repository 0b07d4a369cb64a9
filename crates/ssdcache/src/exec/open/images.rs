//! Reads many page images, adjacent ones in one read.

use crate::exec::io::single::{ATTEMPTS_MAX, read_one};
use crate::format::journal::Block;
use crate::protocol::recovery::Image;
use futures_util::stream::{Stream, StreamExt};
use pagetier_devio::{DeviceError, DeviceErrorKind, IoBuf, IoBufs, IoClass, SharedDevice, task};
use pagetier_page::{Flags, Header, StoreSeed};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The number of reads in flight.
const READS_MAX: usize = 64;
/// The maximum size of a read of adjacent images, in bytes.
const RUN_BYTES_MAX: usize = 512 << 10;

/// The contents of a place.
#[derive(Debug)]
pub(crate) enum Content {
    /// A sound image of this store.
    Image(Image),
    /// A list of pages in a ring at rest (I14).
    List(Block),
    /// Neither: nothing, or a torn or corrupt one.
    None,
    /// The place cannot be read, although the device works.
    Unreadable(DeviceError),
}

/// Whether the error concerns a block, not the device as a whole.
pub(crate) fn is_of_a_block(error: &DeviceError) -> bool {
    matches!(error.kind, DeviceErrorKind::Io(_))
}

/// Whether the block could be read.
pub(crate) fn readable(result: Result<(), DeviceError>) -> Result<bool, DeviceError> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if is_of_a_block(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    /// The index of the first.
    first: usize,
    count: usize,
    offset: u64,
}

/// Groups ascending `places` into runs of adjacent ones, bounded by the size of a read.
fn runs(places: &[u64], page_bytes: usize) -> Vec<Span> {
    let mut runs: Vec<Span> = Vec::new();
    for (first, &offset) in places.iter().enumerate() {
        match runs.last_mut() {
            Some(run)
                if run.offset + (run.count * page_bytes) as u64 == offset
                    && (run.count + 1) * page_bytes <= RUN_BYTES_MAX =>
            {
                run.count += 1;
            }
            _ => runs.push(Span { first, count: 1, offset }),
        }
    }
    runs
}

/// Buffers for pages, reused by later reads to save the time for zeroing memory.
#[derive(Debug)]
struct Buffers {
    seed: StoreSeed,
    page_bytes: usize,
    spare: Mutex<Vec<IoBuf>>,
}

impl Buffers {
    fn take(&self, count: usize) -> IoBufs {
        let mut spare = self.spare.lock();
        let left = spare.len().saturating_sub(count);
        let mut bufs: IoBufs = spare.drain(left..).collect();
        drop(spare);
        bufs.resize_with(count, || IoBuf::zeroed(self.page_bytes));
        bufs
    }

    fn give_back(&self, bufs: IoBufs) {
        self.spare.lock().extend(bufs);
    }
}

/// Reads the contents of `places` (ascending), each with its index. Fails if the device fails, not if a block
/// cannot be read.
pub(crate) fn read_images<'a>(
    device: &'a SharedDevice,
    seed: StoreSeed,
    places: &[u64],
    page_bytes: usize,
) -> impl Stream<Item = Result<Vec<(usize, Content)>, DeviceError>> + use<'a> {
    let buffers = Arc::new(Buffers { seed, page_bytes, spare: Mutex::default() });
    let reads = runs(places, page_bytes).into_iter().map(move |run| {
        let buffers = Arc::clone(&buffers);
        async move {
            // Runs in a task, so that checksums are computed on all of the runtime's threads.
            let read = read_run(SharedDevice::clone(device), run, Arc::clone(&buffers));
            match task::outcome(&Handle::current(), read).await {
                Some(images) => images,
                None => read_run(SharedDevice::clone(device), run, buffers).await,
            }
        }
    });
    futures_util::stream::iter(reads).buffer_unordered(READS_MAX)
}

async fn read_run(
    device: SharedDevice,
    run: Span,
    buffers: Arc<Buffers>,
) -> Result<Vec<(usize, Content)>, DeviceError> {
    let done = device.read(run.offset, buffers.take(run.count), IoClass::Recovery).await;
    let readable = readable(done.result)?;
    let mut contents = Vec::with_capacity(run.count);
    for (nth, buf) in done.bufs.iter().enumerate() {
        let mut content = content_in(buffers.seed, buf.as_slice());
        // An image that a crash tore reads the same again. One that only the transfer corrupted does not, and
        // must not count as lost.
        let again = matches!(content, Content::None) && !pagetier_page::is_blank(buf.as_slice());
        if again || !readable {
            let offset = run.offset + (nth * buffers.page_bytes) as u64;
            let seen = readable.then_some(buf.as_slice());
            content = read_alone(&device, offset, &buffers, seen).await?;
        }
        contents.push((run.first + nth, content));
    }
    buffers.give_back(done.bufs);
    Ok(contents)
}

/// Reads one place until it is sound or two reads agree; `seen` is an earlier read.
async fn read_alone(
    device: &SharedDevice,
    offset: u64,
    buffers: &Buffers,
    seen: Option<&[u8]>,
) -> Result<Content, DeviceError> {
    let mut last = seen.map(IoBuf::copy_of);
    for _ in 1..ATTEMPTS_MAX {
        let buf = IoBuf::zeroed(buffers.page_bytes);
        let (buf, result) = read_one(device, offset, buf, IoClass::Recovery).await;
        match result {
            Ok(()) => {}
            // The device works. What the loss of this block means depends on what it may have held, which the
            // caller knows (I23).
            Err(error) if is_of_a_block(&error) => return Ok(Content::Unreadable(error)),
            Err(error) => return Err(error),
        }
        let content = content_in(buffers.seed, buf.as_slice());
        if !matches!(content, Content::None) {
            return Ok(content);
        }
        // Two reads agree, so this is what the medium holds (I32).
        if last.is_some_and(|last| last.as_slice() == buf.as_slice()) {
            break;
        }
        last = Some(buf);
    }
    Ok(Content::None)
}

fn content_in(seed: StoreSeed, bytes: &[u8]) -> Content {
    let list = || Block::decode(seed, bytes).map_or(Content::None, Content::List);
    image_in(seed, bytes).map_or_else(list, Content::Image)
}

/// The page image in `bytes`, if it is sound and of the store of `seed`.
pub(crate) fn image_in(seed: StoreSeed, bytes: &[u8]) -> Option<Image> {
    let claimed = Header::peek(bytes).page;
    let header = pagetier_page::verify(seed, bytes, claimed).ok()?;
    Some(Image { page: header.page, stamp: header.stamp, clean: header.flags.contains(Flags::CLEAN_COPY) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetier_devio::{Device, IoOp};
    use pagetier_page::{Lsn, PageId, SpaceId, Stamp};
    use pagetier_testing::{Fault, FaultEffect, SimDevice, SimPower};

    const SEED: StoreSeed = StoreSeed::NONE;

    #[tokio::test(start_paused = true)]
    async fn what_only_a_transfer_spoiled_is_read_once_more_and_nothing_else_is() {
        let sim = Arc::new(SimDevice::new("ssd", 1 << 16, 1, &SimPower::new()));
        let page = PageId::new(SpaceId(1), 7);
        let mut image = IoBuf::zeroed(4096);
        Header { page, lsn: Lsn(0), stamp: Stamp::ZERO, flags: Flags::NONE }.put(image.as_mut_slice());
        pagetier_page::seal(SEED, image.as_mut_slice(), Stamp::from_bits(9), Flags::NONE);
        sim.write(0, IoBufs::from_iter([image]), IoClass::Recovery).await.result.expect("written");
        let device: SharedDevice = Arc::clone(&sim) as SharedDevice;
        let found = |place: u64| {
            let (device, sim) = (SharedDevice::clone(&device), Arc::clone(&sim));
            async move {
                let before = sim.ops();
                let runs: Vec<_> = read_images(&device, SEED, &[place], 4096).collect().await;
                let sound = match &runs[0].as_ref().expect("read")[0].1 {
                    Content::Image(image) => Some(image.page),
                    _ => None,
                };
                (sound, sim.ops() - before)
            }
        };
        assert_eq!(found(0).await, (Some(page), 1));
        sim.inject(Fault::new(FaultEffect::BitFlip).on(IoOp::Read).times(1));
        assert_eq!(found(0).await, (Some(page), 2));
        assert_eq!(found(8192).await, (None, 1), "nothing was written there");
        sim.flip_bit(900, 0);
        assert_eq!(found(0).await, (None, 2), "it is bad on the medium");
    }

    #[test]
    fn places_side_by_side_are_read_together_up_to_the_largest_read() {
        let run = |first, count, offset| Span { first, count, offset };
        assert_eq!(runs(&[], 4096), []);
        assert_eq!(
            runs(&[8192, 12_288, 20_480, 24_576, 40_960], 4096),
            [run(0, 2, 8192), run(2, 2, 20_480), run(4, 1, 40_960)]
        );
        let many: Vec<u64> = (0..300).map(|i| i * 4096).collect();
        assert_eq!(runs(&many, 4096), [run(0, 128, 0), run(128, 128, 128 * 4096), run(256, 44, 256 * 4096)]);
    }
}
