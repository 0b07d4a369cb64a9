//! Ends a store's I/O when the store is dropped.

use crate::device::IoBufs;
use crate::duties::check::{Spot, refused, total_len};
use crate::spans::Operation;
use crate::task::Boxed;
use crate::wrap::joint::Joint;
use crate::{
    Claim, DataSearch, Device, DeviceError, DeviceErrorKind, DeviceStats, DoneFuture, IoClass, IoFuture,
    IoOp, Occupancy, Owner, RecentCosts, SharedDevice,
};
use parking_lot::RwLock;
use std::future::ready;
use std::sync::Arc;

/// The right of one session, from open to close, to do I/O. Clones share it.
///
/// Once [`Fence::close`] has returned, no device behind the fence starts another operation for this session:
/// each fails with [`DeviceErrorKind::Closed`]. Operations in flight continue; [`Device::occupancy`] counts
/// them. In a process forked from the one that made it, the fence is closed.
#[derive(Clone, Debug)]
pub struct Fence {
    open: Arc<RwLock<bool>>,
    owner: Owner,
}

impl Default for Fence {
    fn default() -> Self {
        Self { open: Arc::new(RwLock::new(true)), owner: Owner::here() }
    }
}

impl Fence {
    /// Puts `device` behind the fence.
    #[must_use]
    pub fn guard(&self, device: SharedDevice) -> SharedDevice {
        let claim = device.claim().unwrap_or_default().of_user();
        Arc::new(FencedDevice { fence: self.clone(), inner: device, claim, joint: None })
    }

    /// Puts the first user's view of a device with two users behind the fence.
    #[must_use]
    pub fn guard_joint(&self, joint: &Arc<Joint>) -> SharedDevice {
        let inner = Arc::clone(joint.device());
        let claim = inner.claim().unwrap_or_default().of_user();
        Arc::new(FencedDevice { fence: self.clone(), inner, claim, joint: Some(Arc::clone(joint)) })
    }

    /// Revokes the right. Waits for other threads that are in the act of starting an operation, but not for
    /// operations in flight.
    pub fn close(&self) {
        // In a forked process a thread that does not exist there may hold the lock.
        if self.owner.is_here() {
            *self.open.write() = false;
        }
    }

    /// Runs `act` if the fence is open, and delays [`Fence::close`] until `act` returns. For work other than
    /// device operations; `act` must not close the fence.
    pub fn while_open<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        if !self.owner.is_here() {
            return None;
        }
        // A caller further up the stack may hold the lock while another thread waits to close the fence.
        let open = self.open.read_recursive();
        open.then(act)
    }
}

/// A device behind a fence. Operations wait while its claim has lapsed: nothing may be written, or read,
/// before it is certain that no other owner has.
#[derive(Clone, Debug)]
struct FencedDevice {
    fence: Fence,
    inner: SharedDevice,
    claim: Claim,
    /// Flushes of a device with two users go through this.
    joint: Option<Arc<Joint>>,
}

impl FencedDevice {
    fn closed(&self, op: IoOp, offset: u64, len: u64) -> DeviceError {
        let owner = &self.fence.owner;
        let kind = match owner.is_here() {
            true if !self.claim.holds() => DeviceErrorKind::Fenced,
            true => DeviceErrorKind::Closed,
            false => owner.refusal(),
        };
        Spot { op, offset, len }.error(&Arc::from(self.inner.name()), kind)
    }

    /// Starts an operation, unless the fence is closed or the volume has another owner.
    fn while_owned<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        // One that lapses at this moment is as one that lapses right after the start.
        if self.claim.has_ended() { None } else { self.fence.while_open(act) }
    }

    /// The same for what does not wait for a claim that has lapsed.
    fn while_confirmed<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        if self.claim.holds() { self.while_owned(act) } else { None }
    }

    fn operation(&self, op: IoOp, class: IoClass, offset: u64, bytes: u64) -> Operation<'_> {
        Operation { device: &*self.inner, op, class, offset, bytes }
    }

    fn transfer(
        &self,
        op: IoOp,
        class: IoClass,
        offset: u64,
        bufs: IoBufs,
        start: impl FnOnce(&dyn Device, IoBufs) -> IoFuture + Send + 'static,
    ) -> IoFuture {
        // The span begins here, at the outermost device of a store, so that it includes a refusal.
        let operation = self.operation(op, class, offset, total_len(&bufs));
        let begin = move |this: &Self| {
            let mut bufs = Some(bufs);
            // The fence is held only for the start. Once started, an operation is counted as in flight,
            // and a leaving store waits for that count.
            let started = this.while_owned(|| start(&*this.inner, bufs.take().unwrap_or_default()));
            started.unwrap_or_else(|| {
                let bufs = bufs.unwrap_or_default();
                let error = this.closed(op, offset, total_len(&bufs));
                refused(bufs, error)
            })
        };
        operation.run(|| self.once_confirmed(begin), |done| &done.result)
    }

    /// Starts an operation without buffers.
    fn start(
        &self,
        operation: Operation<'_>,
        start: impl FnOnce(&dyn Device) -> DoneFuture + Send + 'static,
    ) -> DoneFuture {
        let (op, offset, len) = (operation.op, operation.offset, operation.bytes);
        let begin = move |this: &Self| {
            let started = this.while_owned(|| start(&*this.inner));
            started.unwrap_or_else(|| Box::pin(ready(Err(this.closed(op, offset, len)))))
        };
        operation.run(|| self.once_confirmed(begin), |result| result)
    }

    /// Starts an operation at once, or once a claim that has lapsed is renewed or ends.
    fn once_confirmed<T: Send + 'static>(
        &self,
        begin: impl FnOnce(&Self) -> Boxed<'static, T> + Send + 'static,
    ) -> Boxed<'static, T> {
        if !self.claim.has_lapsed() {
            return begin(self);
        }
        let this = self.clone();
        Box::pin(async move {
            this.claim.confirmed().await;
            begin(&this).await
        })
    }
}

impl Device for FencedDevice {
    fn read(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        self.transfer(IoOp::Read, class, offset, bufs, move |inner, bufs| inner.read(offset, bufs, class))
    }

    fn write(&self, offset: u64, bufs: IoBufs, class: IoClass) -> IoFuture {
        let change = self.inner.occupancy().change();
        let written = self
            .transfer(IoOp::Write, class, offset, bufs, move |inner, bufs| inner.write(offset, bufs, class));
        Box::pin(async move {
            let done = written.await;
            change.end();
            done
        })
    }

    fn flush(&self, class: IoClass) -> DoneFuture {
        let joint = self.joint.clone();
        self.start(self.operation(IoOp::Flush, class, 0, 0), move |inner| match joint {
            Some(joint) => joint.flush_first(class),
            None => inner.flush(class),
        })
    }

    fn settled(&self) -> Option<u64> {
        // Behind a closed fence no flush succeeds, not even one that has nothing to do.
        self.while_confirmed(|| self.inner.occupancy().settled()).flatten()
    }

    fn grow(&self, bytes: u64) -> Result<(), DeviceError> {
        let change = self.inner.occupancy().change();
        let grown = self.while_confirmed(|| self.inner.grow(bytes));
        change.end();
        grown.unwrap_or_else(|| Err(self.closed(IoOp::Grow, self.inner.size(), bytes)))
    }

    fn cut(&self, bytes: u64) -> Result<(), DeviceError> {
        let change = self.inner.occupancy().change();
        let cut = self.while_confirmed(|| self.inner.cut(bytes));
        change.end();
        cut.unwrap_or_else(|| Err(self.closed(IoOp::Grow, self.inner.size(), 0)))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture {
        let operation = self.operation(IoOp::Discard, IoClass::Meta, offset, len);
        let change = self.inner.occupancy().change();
        let discarded = self.start(operation, move |inner| inner.discard(offset, len));
        Box::pin(async move {
            let done = discarded.await;
            change.end();
            done
        })
    }

    fn claim(&self) -> Option<Claim> {
        Some(self.claim.clone())
    }

    delegate! { self => self.inner;
        fn size() -> u64;
        fn data_search() -> Option<DataSearch>;
        fn occupancy() -> &Occupancy;
        fn alignment() -> usize;
        fn writes_whole(bytes: usize) -> bool;
        fn keep_whole(bytes: usize);
        fn stats() -> DeviceStats;
        fn track_costs(points: usize);
        fn recent_costs() -> Option<RecentCosts>;
        fn backend() -> &'static str;
        fn name() -> &str;
    }
}
