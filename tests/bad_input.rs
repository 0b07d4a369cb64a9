//! Bad input yields a typed error that names the cause, and changes nothing on disk.

use pagetier::errors::PoolSizeError::TooSmall;
use pagetier::{
    Builder, Costs, Error, OpenError, Options, PageId, PageSize, PageStore,
    device::{Backend, DirectIo},
    options::CostSource,
    options::Create,
};
use std::path::Path;

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

async fn small(path: &Path) -> Result<PageStore, OpenError> {
    PageStore::builder().directory(path).pool_bytes(2 << 20).ssd_bytes(8 << 20).open().await
}

#[tokio::test]
async fn invalid_page_sizes_are_refused() {
    let dir = dir();
    for bytes in [0, 512, 2048, 5000, 16383, 131_072] {
        let mut options = Options::default();
        (options.directory, options.page_bytes) = (Some(dir.path().join("s")), Some(bytes));
        let open = Builder::from_options(options).open().await;
        assert!(matches!(open, Err(OpenError::PageSize(_))), "{bytes}");
    }
    assert!(!dir.path().join("s").exists(), "nothing was created");
}

#[tokio::test]
async fn errors_for_small_tiers_say_how_much_is_needed() {
    let dir = dir();
    let open = PageStore::builder().directory(dir.path()).pool_bytes(10_000).ssd_bytes(0).open().await;
    let Err(OpenError::PoolSize(TooSmall { needed, .. })) = open else { panic!("{open:?}") };
    let open = PageStore::builder().directory(dir.path()).pool_bytes(needed + 4096).ssd_bytes(0).open().await;
    open.unwrap().close().await.unwrap();
    let other = self::dir();
    let open = PageStore::builder().directory(other.path()).ssd_bytes(100_000).open().await;
    assert!(matches!(open, Err(OpenError::SsdTooSmall(_))), "{open:?}");
}

#[tokio::test]
async fn unknown_policies_and_options_out_of_range_are_named() {
    pagetier_rivals::register();
    let dir = dir();
    let open = PageStore::builder().directory(dir.path()).pool_policy("clock").open().await;
    assert!(open.unwrap_err().to_string().contains("gd2l"));
    let open = PageStore::builder().directory(dir.path()).ssd_policy("arc").open().await;
    assert!(open.unwrap_err().to_string().contains("cac"));
    let open = PageStore::builder().directory(dir.path()).ssd_policy("cac:zone=101").open().await;
    assert!(open.unwrap_err().to_string().contains("zone=K (per cent of the slots, above 0 and at most 100"));
    let open = PageStore::builder().directory(dir.path()).pool_policy("cfdc:cluster=0").open().await;
    assert!(open.unwrap_err().to_string().contains("from 1 to 65536"));
    let open = PageStore::builder().open().await;
    assert!(matches!(open, Err(OpenError::BadOption { option: "directory", .. })), "{open:?}");
    let open = PageStore::builder().directory(dir.path()).costs(CostSource::online(usize::MAX)).open().await;
    assert!(matches!(open, Err(OpenError::BadOption { option: "costs", .. })), "{open:?}");
    let open = PageStore::builder().directory(dir.path()).ring_pages(u32::MAX).open().await;
    assert!(matches!(open, Err(OpenError::BadOption { option: "ring_pages", .. })), "{open:?}");
    let open = PageStore::builder().directory(dir.path()).ssd_policy("auto:outqueue=4294967295").open().await;
    assert!(matches!(open, Err(OpenError::PoolSize(TooSmall { .. }))), "{open:?}");
}

#[tokio::test]
async fn policies_are_named_in_any_case() {
    pagetier_rivals::register();
    let dir = dir();
    let builder = PageStore::builder().directory(dir.path()).pool_policy("CFDC-75").ssd_policy("CAC");
    builder.pool_bytes(2 << 20).ssd_bytes(8 << 20).open().await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn impossible_costs_are_refused_and_change_nothing() {
    let dir = dir();
    let store = small(dir.path()).await.unwrap();
    let before = store.policies().costs();
    for bad in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let costs = Costs { ssd_write_ms: bad, ..Costs::PAPER };
        assert!(matches!(store.policies().set_costs(costs), Err(Error::BadCosts { .. })), "{bad}");
        assert_eq!(store.policies().costs(), before, "{bad}");
        let open = PageStore::builder().directory(dir.path().join("s")).costs(costs).open().await;
        assert!(matches!(open, Err(OpenError::BadOption { option: "costs", .. })), "{bad}");
    }
    let other = Costs { hdd_read_ms: 12.0, ..Costs::PAPER };
    store.policies().set_costs(other).unwrap();
    assert_eq!(store.policies().costs(), other);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_second_opener_gets_a_clear_error() {
    let dir = dir();
    let store = small(dir.path()).await.unwrap();
    let again = small(dir.path()).await;
    let me = std::process::id();
    let Err(OpenError::AlreadyOpen { path, owner }) = &again else { panic!("{again:?}") };
    assert_eq!((path.as_path(), *owner), (dir.path(), Some(me)));
    let read_only = PageStore::builder().directory(dir.path()).open_read_only().await;
    assert!(matches!(&read_only, Err(OpenError::AlreadyOpen { owner: Some(pid), .. }) if *pid == me));
    assert!(again.unwrap_err().to_string().contains("is open already, in this process"));
    store.close().await.unwrap();
    small(dir.path()).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn another_page_size_than_the_stores_is_refused() {
    let dir = dir();
    small(dir.path()).await.unwrap().close().await.unwrap();
    let open = PageStore::builder().directory(dir.path()).page_size(PageSize::MIN).open().await;
    assert!(matches!(open, Err(OpenError::OtherPageSize { store: 16384, asked: 4096 })), "{open:?}");
}

#[tokio::test]
async fn a_store_with_a_missing_or_foreign_ssd_does_not_open() {
    let (a, b) = (dir(), dir());
    let store = small(a.path()).await.unwrap();
    let space = store.spaces().create("t").await.unwrap();
    store.allocate(space).await.unwrap()[..3].copy_from_slice(b"abc");
    store.close().await.unwrap();
    small(b.path()).await.unwrap().close().await.unwrap();
    let ssd = a.path().join("ssd.cache");
    let kept = a.path().join("kept");
    std::fs::rename(&ssd, &kept).unwrap();
    let open = small(a.path()).await;
    assert!(matches!(open, Err(OpenError::SsdMissing { .. })), "{open:?}");
    std::fs::copy(b.path().join("ssd.cache"), &ssd).unwrap();
    let open = small(a.path()).await;
    assert!(matches!(open, Err(OpenError::OtherStore { .. })), "{open:?}");
    let open = PageStore::builder().directory(a.path()).ssd_bytes(0).open().await;
    assert!(matches!(open, Err(OpenError::SsdMissing { .. })), "{open:?}");
    std::fs::rename(&kept, &ssd).unwrap();
    let store = small(a.path()).await.unwrap();
    assert_eq!(&store.get(PageId::new(space, 0)).await.unwrap()[..3], b"abc");
    let beyond = PageId::new(space, 1);
    assert!(matches!(store.get(beyond).await, Err(Error::NoSuchPage { page }) if page == beyond));
}

#[tokio::test]
async fn foreign_data_is_not_overwritten_without_force() {
    let dir = dir();
    let hdd = dir.path().join("disk");
    let bytes = vec![0xab; 4 << 20];
    std::fs::write(&hdd, &bytes).unwrap();
    let open = |create| {
        PageStore::builder().directory(dir.path().join("s")).hdd(&hdd).ssd_bytes(0).create(create).open()
    };
    let refused = open(Create::OnBlank).await;
    assert!(matches!(refused, Err(OpenError::Foreign { .. })), "{refused:?}");
    assert!(std::fs::read(&hdd).unwrap() == bytes, "nothing was changed");
    open(Create::Overwriting).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn paths_that_cannot_be_used_are_named() {
    let dir = dir();
    let missing = PageStore::builder().directory(dir.path().join("none")).create(Create::Never).open().await;
    assert!(matches!(missing, Err(OpenError::NotFound { .. })), "{missing:?}");
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let on_file = PageStore::builder().directory(&file).open().await;
    assert!(matches!(on_file, Err(OpenError::NotADirectory { .. })), "{on_file:?}");
    let a_directory = PageStore::builder().directory(dir.path().join("s")).hdd(dir.path()).open().await;
    let message = a_directory.unwrap_err().to_string();
    assert!(message.contains(&*dir.path().to_string_lossy()), "{message}");
}

#[tokio::test]
async fn memory_file_systems_without_direct_io_are_refused_only_when_it_is_required() {
    let shm = Path::new("/dev/shm");
    let Ok(dir) = tempfile::tempdir_in(shm) else {
        pagetier_testing::skipped("tmpfs", "a file system without O_DIRECT is not tried");
        return;
    };
    let open = |direct, name: &str| {
        PageStore::builder()
            .directory(dir.path().join(name))
            .ssd_bytes(8 << 20)
            .pool_bytes(2 << 20)
            .direct_io(direct)
            .open()
    };
    let required = open(DirectIo::Required, "a").await;
    assert!(matches!(required, Err(OpenError::Device(_))), "{required:?}");
    open(DirectIo::Preferred, "b").await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn both_backends_serve_the_same_store() {
    let dir = dir();
    let open = |backend| {
        PageStore::builder().directory(dir.path()).pool_bytes(2 << 20).ssd_bytes(8 << 20).io(backend).open()
    };
    let store = open(Backend::Threads).await.unwrap();
    assert_eq!(store.stats().io_backend, "threads");
    let space = store.spaces().create("t").await.unwrap();
    for no in 0..600u32 {
        store.allocate(space).await.unwrap()[..4].copy_from_slice(&no.to_le_bytes());
    }
    store.close().await.unwrap();
    let store = open(Backend::Auto).await.unwrap();
    let mut scan = store.scan(space, 0..u32::MAX);
    let mut next = 0u32;
    while let Some(page) = scan.next().await {
        assert_eq!(page.unwrap()[..4], next.to_le_bytes());
        next += 1;
    }
    assert_eq!(next, 600);
}
