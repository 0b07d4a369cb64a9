//! Reading many page images: adjacent ones in one read.

use crate::read::read_one;
use crate::recovery::Image;
use futures_util::stream::{Stream, StreamExt};
use pagetier_devio::{DeviceError, IoBuf, IoClass, SharedDevice};
use pagetier_page::{Flags, Header};

/// Reads in flight at once.
const READS_MAX: usize = 32;
/// Bytes of one read, if the images that are wanted lie side by side.
const RUN_BYTES_MAX: usize = 512 << 10;

/// Places side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    /// The index of the first.
    first: usize,
    count: usize,
    offset: u64,
}

/// Puts ascending `places` of pages together, as many as one read takes.
fn runs(places: &[u64], page_bytes: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (first, &offset) in places.iter().enumerate() {
        match runs.last_mut() {
            Some(run)
                if run.offset + (run.count * page_bytes) as u64 == offset
                    && (run.count + 1) * page_bytes <= RUN_BYTES_MAX =>
            {
                run.count += 1;
            }
            _ => runs.push(Run { first, count: 1, offset }),
        }
    }
    runs
}

/// The sound images at `places` (ascending), each with its index; a read that fails is an error, a bad content is not.
pub(crate) fn read_images<'a>(
    device: &'a SharedDevice,
    places: &[u64],
    page_bytes: usize,
) -> impl Stream<Item = Result<Vec<(usize, Option<Image>)>, DeviceError>> + use<'a> {
    let reads = runs(places, page_bytes).into_iter().map(move |run| async move {
        // In tasks of their own, so that checksums are computed on all of the runtime's threads.
        let task = tokio::spawn(read_run(SharedDevice::clone(device), run, page_bytes));
        match task.await {
            Ok(images) => images,
            Err(_) => read_run(SharedDevice::clone(device), run, page_bytes).await,
        }
    });
    futures_util::stream::iter(reads).buffer_unordered(READS_MAX)
}

async fn read_run(
    device: SharedDevice,
    run: Run,
    page_bytes: usize,
) -> Result<Vec<(usize, Option<Image>)>, DeviceError> {
    let buf = IoBuf::zeroed(run.count * page_bytes);
    let (buf, result) = read_one(&device, run.offset, buf, IoClass::Recovery).await;
    result?;
    let mut images = Vec::with_capacity(run.count);
    for (nth, bytes) in buf.as_slice().chunks_exact(page_bytes).enumerate() {
        let mut image = image_in(bytes);
        // What a crash tore reads the same again; what only the transfer spoiled does not, and must not be taken for gone.
        if image.is_none() && !pagetier_page::is_blank(bytes) {
            let offset = run.offset + (nth * page_bytes) as u64;
            let (again, result) =
                read_one(&device, offset, IoBuf::zeroed(page_bytes), IoClass::Recovery).await;
            result?;
            image = image_in(again.as_slice());
        }
        images.push((run.first + nth, image));
    }
    Ok(images)
}

/// The page image in `bytes`, if it is a sound one of any page.
pub(crate) fn image_in(bytes: &[u8]) -> Option<Image> {
    let claimed = Header::peek(bytes).page;
    let header = pagetier_page::verify(bytes, claimed).ok()?;
    Some(Image { page: header.page, stamp: header.stamp, clean: header.flags.contains(Flags::CLEAN_COPY) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_side_by_side_are_read_together_up_to_the_largest_read() {
        let run = |first, count, offset| Run { first, count, offset };
        assert_eq!(runs(&[], 4096), []);
        assert_eq!(
            runs(&[8192, 12_288, 20_480, 24_576, 40_960], 4096),
            [run(0, 2, 8192), run(2, 2, 20_480), run(4, 1, 40_960)]
        );
        let many: Vec<u64> = (0..300).map(|i| i * 4096).collect();
        assert_eq!(runs(&many, 4096), [run(0, 128, 0), run(128, 128, 128 * 4096), run(256, 44, 256 * 4096)]);
    }
}
