//! One operation inside librbd.

use crate::error::{kind_of, read_only};
use crate::flight::Flight;
use crate::image::Image;
use libc::{c_int, c_void, iovec};
use pagetier_devio::{DeviceErrorKind, IoBufs, RawTransfer};
use rbd_sys::{
    rbd_aio_create_completion, rbd_aio_discard, rbd_aio_flush, rbd_aio_get_return_value, rbd_aio_readv,
    rbd_aio_release, rbd_aio_writev, rbd_completion_t, rbd_image_t,
};
use std::future::ready;
use std::ptr;
use std::sync::Arc;
use tokio::sync::oneshot;

type Ended = (IoBufs, Result<(), DeviceErrorKind>);

/// Owns what librbd reads and writes until it calls back, whether or not anyone still waits for the result.
struct Op {
    bufs: IoBufs,
    /// librbd keeps a pointer to it, not a copy.
    iov: Vec<iovec>,
    ended: oneshot::Sender<Ended>,
    flight: Arc<Flight>,
}

/// What librbd is asked to do.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    Read { offset: u64 },
    Write { offset: u64 },
    Flush,
    Discard { offset: u64, len: u64 },
}

impl Work {
    /// Passes the work to librbd, which takes the completion unless it returns an error.
    fn begin(self, image: rbd_image_t, iov: &[iovec], completion: rbd_completion_t) -> c_int {
        let (list, count) = (iov.as_ptr().cast(), iov.len() as c_int);
        match self {
            // SAFETY: an open image; the list and its buffers live until the callback. So below.
            Self::Read { offset } => unsafe { rbd_aio_readv(image, list, count, offset, completion) },
            // SAFETY: as above.
            Self::Write { offset } => unsafe { rbd_aio_writev(image, list, count, offset, completion) },
            // SAFETY: an open image.
            Self::Flush => unsafe { rbd_aio_flush(image, completion) },
            // SAFETY: an open image.
            Self::Discard { offset, len } => unsafe { rbd_aio_discard(image, offset, len, completion) },
        }
    }
}

/// Starts an operation on `image`. It counts in `flight` until it has ended, so that the image stays open.
///
/// Once the cluster has refused an operation of this client, later ones are refused here: librbd's flush asks
/// the cluster only if a write is in flight, and would succeed.
pub(crate) fn start(image: &Image, work: Work, bufs: IoBufs) -> RawTransfer {
    if image.flight.is_fenced() {
        return Box::pin(ready((bufs, Err(DeviceErrorKind::Fenced))));
    }
    // What librbd says to a change of an image that it opened for reading, it says to a fenced owner, too.
    if image.is_read_only() {
        match work {
            Work::Read { .. } => {}
            Work::Flush => return Box::pin(ready((bufs, Ok(())))),
            Work::Write { .. } | Work::Discard { .. } => {
                return Box::pin(ready((bufs, Err(read_only()))));
            }
        }
    }
    let (ended, result) = oneshot::channel();
    let iov =
        bufs.iter().map(|buf| iovec { iov_base: buf.ptr().as_ptr().cast(), iov_len: buf.len() }).collect();
    let op = Box::into_raw(Box::new(Op { bufs, iov, ended, flight: Arc::clone(&image.flight) }));
    let mut completion: rbd_completion_t = ptr::null_mut();
    // SAFETY: `completion` is valid for a write, and `on_end` takes what `op` is.
    let created = unsafe { rbd_aio_create_completion(op.cast(), Some(on_end), &raw mut completion) };
    if created < 0 {
        // SAFETY: nothing else has the pointer: no completion exists.
        return refused(*unsafe { Box::from_raw(op) }, created);
    }
    image.flight.begin();
    // SAFETY: until `begin` passes it on, `op` is here alone. The list does not move with the box, and is not
    // read here once the operation may have ended.
    let iov: &[iovec] = unsafe { &(*op).iov };
    let begun = work.begin(image.raw(), iov, completion);
    if begun < 0 {
        image.flight.end();
        // SAFETY: librbd did not take the completion, so it will not call back.
        unsafe { rbd_aio_release(completion) };
        // SAFETY: for the same reason nothing else uses `op`.
        return refused(*unsafe { Box::from_raw(op) }, begun);
    }
    Box::pin(async move {
        // The sender is dropped only after it has sent.
        result.await.unwrap_or_else(|_| (IoBufs::new(), Err(DeviceErrorKind::Gone)))
    })
}

/// The answer to an operation that did not start.
fn refused(op: Op, code: c_int) -> RawTransfer {
    Box::pin(ready((op.bufs, Err(kind_of(-code)))))
}

/// librbd calls it once per operation, on a thread of its own.
extern "C" fn on_end(completion: rbd_completion_t, op: *mut c_void) {
    // SAFETY: `start` made it of a box, and librbd passes it once.
    let Op { bufs, iov, ended, flight } = *unsafe { Box::from_raw(op.cast::<Op>()) };
    // SAFETY: the completion is valid during its callback.
    let code = unsafe { rbd_aio_get_return_value(completion) };
    // SAFETY: the reference of `start`, which nothing else gives back.
    unsafe { rbd_aio_release(completion) };
    drop(iov);
    // A read returns its length: librbd fills up with zeroes what was never written.
    let result = if code < 0 { Err(kind_of(-code as c_int)) } else { Ok(()) };
    if matches!(result, Err(DeviceErrorKind::Fenced)) {
        flight.fence();
    }
    // No one may be waiting any more: the buffers are dropped then.
    drop(ended.send((bufs, result)));
    // Last: the image may be closed after it.
    flight.end();
}
