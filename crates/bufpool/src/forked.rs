//! A process that is forked while a pool works drops its copy of it. A thread of the parent may have held any
//! lock at the fork; in the copy it is held for ever.

use crate::state::handle::Pool;
use crate::state::params::PoolParams;
use crate::tier::{DirtyPage, Displaced, Fetched, Tier, TierError, WrittenPage};
use pagetier_devio::task::Boxed;
use pagetier_devio::{IoBuf, IoClass};
use pagetier_page::{PageId, PageSize, SpaceId};
use pagetier_policy::{Access, Costs, FramePolicyParams, PoolPolicy};
use std::future::pending;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Storage in which reads and writes go on for ever.
struct Stuck;

impl Tier for Stuck {
    fn fetch(&self, _: PageId, _: Access, buf: IoBuf) -> Boxed<'_, Fetched> {
        Box::pin(async move {
            let _buf = buf;
            pending().await
        })
    }

    fn fetch_run(&self, _: PageId, bufs: Vec<IoBuf>) -> Boxed<'_, Vec<Fetched>> {
        Box::pin(async move {
            let _bufs = bufs;
            pending().await
        })
    }

    fn write<'a>(
        &'a self,
        batch: Vec<DirtyPage>,
        _: IoClass,
        _: &'a (dyn Fn(WrittenPage) + Send + Sync),
    ) -> Boxed<'a, ()> {
        Box::pin(async move {
            let _batch = batch;
            pending().await
        })
    }

    fn flush(&self) -> Boxed<'_, Result<(), TierError>> {
        Box::pin(async { Ok(()) })
    }

    fn evicted(&self, _: PageId, _: u32, _: &[u8]) -> Displaced {
        Displaced(None)
    }

    fn dirtied(&self, _: PageId, _: u32) -> bool {
        false
    }

    fn allocated(&self, _: PageId) {}

    fn discarded(&self, _: PageId) -> bool {
        true
    }
}

fn page(no: u32) -> PageId {
    PageId::new(SpaceId(1), no)
}

/// Forks; `act` runs in the forked process, which must return from it within 10 s. Returns the exit status.
fn forked(act: impl FnOnce()) -> libc::c_int {
    // SAFETY: the forked process calls only what this test is about, and ends without returning from here.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: an alarm has no preconditions; it ends a process that waits for a lock.
            unsafe { libc::alarm(10) };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the process is a child of this one, and the status is valid for the call.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            status
        }
    }
}

#[test]
fn a_forked_process_drops_loads_and_writes_in_flight_without_a_lock() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let runtime = ManuallyDrop::new(runtime);
    let pool = runtime.block_on(async {
        let policy = PoolPolicy::Lru.build(&FramePolicyParams::new(16, Costs::PAPER));
        let params = PoolParams::new(16, PageSize::MIN);
        let pool = Pool::start(params, policy, Arc::new(Stuck), None).unwrap();
        drop(pool.create(page(0)).await.unwrap());
        let (reader, writer) = (pool.clone(), pool.clone());
        drop(tokio::spawn(async move { reader.get(page(1)).await.map(drop) }));
        drop(tokio::spawn(async move { writer.flush_all().await }));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        pool
    });
    let inner = &pool.inner;
    let (written, loading) = (inner.frames.table.find(&inner.frames.all, page(0)), page(1));
    assert!(inner.frames.at(written.unwrap()).word.is_cleaning(), "a write is in flight");
    assert!(inner.frames.table.find(&inner.frames.all, loading).is_some(), "and a load");
    for of_table in [true, false] {
        let table = of_table.then(|| inner.frames.table.lock(loading));
        let policy = (!of_table).then(|| inner.policy.lock());
        // SAFETY: the forked process ends before it uses or drops its `runtime` itself.
        let status = forked(|| drop(unsafe { std::ptr::read(&*runtime) }));
        drop((table, policy));
        assert_eq!(
            status,
            0,
            "a forked process waits for the lock of the {}",
            ["policy", "table"][usize::from(of_table)]
        );
    }
    // The parent's frame is free again.
    drop(ManuallyDrop::into_inner(runtime));
    assert!(inner.frames.table.find(&inner.frames.all, loading).is_none());
}
