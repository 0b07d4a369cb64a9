//! Every error tells its own part, and its source the rest: no level of a chain repeats the next one.

use crate::fixture::Fixture;
use pagetier::{
    Error, OpenError, PageId, SpaceId,
    backup::BackupError,
    device::{DeviceError, DeviceErrorKind, IoOp},
    errors::{Causes, HotSetError, PoolError, ReadmitError, SsdOpenError, TierError},
};
use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

fn device() -> DeviceError {
    let kind = DeviceErrorKind::Io(Arc::new(io::Error::from_raw_os_error(5)));
    DeviceError { device: "hdd".into(), op: IoOp::Read, offset: 4096, len: 512, kind }
}

fn page() -> PageId {
    PageId::new(SpaceId(7), 9)
}

fn tier() -> TierError {
    TierError::Device { page: page(), source: device() }
}

fn system() -> io::Error {
    io::Error::from_raw_os_error(28)
}

fn path() -> PathBuf {
    "/a/place".into()
}

/// Every error that has a source, around every other one that may be it.
fn wrapped() -> Vec<Box<dyn std::error::Error>> {
    let log = || PoolError::Log { page: page(), source: Arc::new(system()) };
    let unreadable = || SsdOpenError::Unreadable { part: "map", source: device() };
    let stores = || {
        vec![
            Error::Manifest { source: Arc::new(system()) },
            Error::Device(device()),
            Error::Readmit(ReadmitError::Device(device())),
            Error::Attach(Arc::new(OpenError::Ssd(unreadable()))),
            Error::Pool(PoolError::Tier(tier())),
            Error::Pool(PoolError::Tier(TierError::Flush { source: device() })),
            Error::Pool(log()),
        ]
    };
    let openings = || {
        let (inner, outer) = (system(), Arc::new(system()));
        let twice = io::Error::new(inner.kind(), outer);
        vec![
            OpenError::Runtime { source: inner },
            OpenError::Directory { path: path(), what: "does not accept a new manifest", source: twice },
            OpenError::Ssd(unreadable()),
            OpenError::Ssd(SsdOpenError::Device(device())),
            OpenError::Device(device()),
            OpenError::Pool(log()),
        ]
    };
    let mut all: Vec<Box<dyn std::error::Error>> = vec![
        Box::new(device()),
        Box::new(device().kind),
        Box::new(BackupError::Io { path: path(), source: system() }),
        Box::new(HotSetError::Io { path: path(), source: system() }),
    ];
    for error in stores() {
        all.push(Box::new(BackupError::Page { page: page(), source: error.clone() }));
        all.push(Box::new(BackupError::Store(error.clone())));
        all.push(Box::new(error));
    }
    for error in openings() {
        all.push(Box::new(BackupError::Open(error)));
    }
    for error in openings() {
        all.push(Box::new(error));
    }
    all
}

#[test]
fn no_level_of_a_chain_contains_the_next_one() {
    for error in wrapped() {
        let whole = Causes(&*error).to_string();
        let mut level: &dyn std::error::Error = &*error;
        while let Some(source) = level.source() {
            let (own, next) = (level.to_string(), source.to_string());
            assert!(!own.contains(&next), "\"{own}\" repeats \"{next}\"");
            level = source;
        }
        // Whatever is at the bottom is told exactly once.
        let told = ["Input/output error", "No space left"].map(|text| whole.matches(text).count());
        assert_eq!(told.iter().sum::<usize>(), 1, "{whole}");
    }
}

#[test]
fn a_chain_names_page_device_and_cause_in_one_line() {
    let error = BackupError::Page { page: page(), source: Error::Pool(PoolError::Tier(tier())) };
    assert_eq!(
        Causes(&error).to_string(),
        "page 7:9 cannot be copied: page 7:9 cannot be read or written: hdd: Read of 512 bytes at 4096: I/O \
         error: Input/output error (os error 5)"
    );
}

/// Errors as they occur.
#[tokio::test(start_paused = true)]
async fn a_failing_device_is_named_once() {
    use pagetier_testing::{Fault, FaultEffect};
    let fixture = Fixture::new();
    let store = fixture.open().await;
    let space = crate::fixture::grown(&store).await;
    store.sync().await.unwrap();
    [&fixture.hdd, &fixture.ssd].iter().for_each(|device| {
        device.inject(Fault::new(FaultEffect::Eio).on(pagetier_devio::IoOp::Read));
    });
    let error = store.get(PageId::new(space, 0)).await.map(drop).unwrap_err();
    let text = Causes(&error).to_string();
    assert_eq!(text.matches("I/O error").count(), 1, "{text}");
    assert!(error.source().is_some(), "{text}");
}
