//! Performs a request on a store: the calls of its public interface, described in words and as data.

use crate::request::{Answer, Progress, Refused, Request};
use pagetier::backup::{BackupOptions, BackupReport};
use pagetier::errors::Causes;
use pagetier::scrub::{ScrubOptions, ScrubReport};
use pagetier::{
    DrainOptions, DrainReport, PageStore, PoolPolicy, SpaceInfo, SsdMode, SsdPolicy, ssd_bytes_for,
};
use pagetier_wal::LoggedStore;
use rustix::fs::OFlags;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Is told how far a request is.
pub type Report = Arc<dyn Fn(Progress) + Send + Sync>;

/// The size of a new SSD if nothing says another one.
const NEW_BYTES: u64 = 256 << 20;
/// The interval at which a scrub's progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What takes requests: a store, or a store with its log.
pub trait Served: Send + Sync + 'static {
    /// Whether [`backup`](Served::backup) takes a log along.
    const HAS_LOG: bool;
    /// Whether an engine changes the store meanwhile.
    const IS_RUNNING: bool = true;

    /// The store.
    fn store(&self) -> &PageStore;

    /// Adds a backup to the chain in `to`. A dropped call leaves the chain as it was, or completes the backup
    /// in the background.
    ///
    /// # Errors
    /// The backup failed: the chain is unchanged.
    fn backup(
        &self,
        to: &Path,
        options: BackupOptions,
    ) -> impl Future<Output = Result<BackupReport, Refused>> + Send;
}

impl Served for PageStore {
    const HAS_LOG: bool = false;

    fn store(&self) -> &PageStore {
        self
    }

    async fn backup(&self, to: &Path, options: BackupOptions) -> Result<BackupReport, Refused> {
        Ok(self.backup(to, options).await?)
    }
}

/// A store that no engine has open: nothing changes while a request is performed.
pub struct AtRest(pub PageStore);

impl Served for AtRest {
    const HAS_LOG: bool = false;
    const IS_RUNNING: bool = false;

    fn store(&self) -> &PageStore {
        &self.0
    }

    async fn backup(&self, to: &Path, options: BackupOptions) -> Result<BackupReport, Refused> {
        Ok(self.0.backup(to, options).await?)
    }
}

impl Served for LoggedStore {
    const HAS_LOG: bool = true;

    fn store(&self) -> &PageStore {
        self
    }

    async fn backup(&self, to: &Path, options: BackupOptions) -> Result<BackupReport, Refused> {
        Ok(self.backup(to, options).await?)
    }
}

/// Performs `request` on what is `served`, and tells `report` how far it is. Cancel-safe, as the store's
/// calls are: what is done stays done, and a crash at any moment loses nothing.
///
/// # Errors
/// The request cannot be fulfilled, or the store's call failed.
pub async fn perform<S: Served>(served: &S, request: Request, report: Report) -> Result<Answer, Refused> {
    let store = served.store();
    match request {
        Request::Stat {} => Ok(stat(store)),
        Request::Drain { off } => drain(store, off, report).await,
        Request::Attach { ssd, bytes } => attach(store, ssd, bytes, report).await,
        Request::Readmit {} => readmit(store, report).await,
        Request::ReplaceSsd { with, bytes } => replace(store, &with, bytes, report).await,
        Request::SetMode { mode } => set_mode(store, mode, report).await,
        Request::Shrink { space, all } => shrink(store, space.as_deref(), all, report).await,
        Request::Scrub { pages_per_second, heal } => scrub(store, pages_per_second, heal, report).await,
        Request::Backup { to, full, bytes_per_second } => {
            let options = BackupOptions::new().full(full).bytes_per_second(bytes_per_second);
            backup(served, &to, options, report).await
        }
        Request::SetPolicy { pool, ssd } => set_policy(store, pool.as_deref(), ssd.as_deref()).await,
        Request::SetBudget { bytes_per_day } => Ok(set_budget(store, bytes_per_day)),
        Request::ResizePool { bytes } => resize(store, bytes).await,
    }
}

fn done(value: Value, text: impl Into<String>) -> Answer {
    Answer { complete: true, text: text.into(), value }
}

fn stat(store: &PageStore) -> Answer {
    let (summary, spaces) = (store.stats().summary(), store.spaces().list());
    let (mut text, mut list) = (String::new(), Vec::new());
    for space in &spaces {
        let SpaceInfo { id, name, pages, free, .. } = space;
        let _ = writeln!(text, "space   {} \"{name}\": {pages} pages, {free} of them free", id.0);
        list.push(json!({"id": id.0, "name": name, "pages": pages, "free": free}));
    }
    let lost_pages = store.ssd().loss().map_or(0, |loss| loss.pages());
    if lost_pages > 0 {
        let _ = writeln!(text, "        LISTS {lost_pages} PAGES AS LOST with an SSD that was given up");
    }
    let _ = write!(text, "{summary}");
    let value = json!({
        "page_bytes": store.page_size().bytes(), "spaces": list, "lost_pages": lost_pages, "stats": summary,
        "pid": std::process::id(),
    });
    done(value, text)
}

// ---- the SSD ----

/// What a drain led to.
struct Drained {
    report: DrainReport,
    /// Pages that the drain left on the SSD alone.
    left: u64,
}

/// Writes home what is on the SSD alone.
async fn drained(store: &PageStore, report: Report) -> Drained {
    report(Progress::new("draining", 0, store.stats().ssd.dirty_pages));
    let last = Arc::new(AtomicU64::new(u64::MAX));
    let left = Arc::clone(&last);
    let options = DrainOptions::new().on_progress(move |now| {
        left.store(now.left, Ordering::Relaxed);
        report(Progress::new("draining", now.written, now.written + now.left));
    });
    let report = store.ssd().drain(options).await;
    // The report counts when the drain has ended, and with it the rule that changed pages go to the HDD: a
    // store that is in use has new ones on its SSD by then, which are not the drain's.
    let left = last.load(Ordering::Relaxed).min(report.left);
    Drained { report, left }
}

impl Drained {
    fn is_complete(&self) -> bool {
        self.left == 0 && self.report.failed.is_empty() && self.report.stopped_by.is_none()
    }

    fn answer(&self, store: &PageStore) -> Answer {
        let Self { report, left } = self;
        let mut text = format!("{} pages written home, {left} left\n", report.written);
        let since = report.left - left;
        if since > 0 {
            let _ = writeln!(text, "{since} were written to the SSD since; mode write-through prevents that");
        }
        let spaces = store.spaces().list();
        for (page, error) in &report.failed {
            let named = named(&spaces, page.space.0);
            let _ = writeln!(text, "page {} of space {}{named}: {}", page.no, page.space.0, Causes(error));
        }
        if let Some(error) = &report.stopped_by {
            let _ = writeln!(text, "stopped by {error}");
        }
        let value = json!({
            "written": report.written, "left": left, "since": since, "failed": report.failed.len(),
            "stopped_by": report.stopped_by.as_ref().map(|error| error.to_string()), "off": false,
        });
        Answer { complete: self.is_complete(), text, value }
    }
}

async fn drain(store: &PageStore, off: bool, report: Report) -> Result<Answer, Refused> {
    if store.stats().ssd.mode == SsdMode::Off {
        let value = json!({
            "written": 0, "left": 0, "since": 0, "failed": 0, "stopped_by": null, "off": true,
        });
        return Ok(done(value, "the store has no SSD\n"));
    }
    let drained = drained(store, report).await;
    let mut answer = drained.answer(store);
    if off && answer.complete {
        // Drains again what was written since, then goes on without the SSD.
        store.ssd().set_mode(SsdMode::Off).await?;
        answer.text = format!("{} pages written home, 0 left\n", drained.report.written);
        answer.text.push_str("the SSD is out of use; the store opens without it\n");
        answer.value["off"] = true.into();
        answer.value["since"] = 0.into();
    }
    Ok(answer)
}

/// The bytes of the file or block device at `path`; `None` if there is no file, or an empty one. Blocks as
/// long as its file system does.
///
/// # Errors
/// It cannot be opened, or is neither of both.
pub fn ssd_bytes_at(path: &Path) -> io::Result<Option<u64>> {
    // A FIFO would wait for another process.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut file = match File::options().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::other("is neither a regular file nor a block device; name one"));
    }
    // The metadata of a block device have no size.
    let bytes = file.seek(SeekFrom::End(0))?;
    Ok((bytes > 0).then_some(bytes))
}

/// Refuses a relative path: the store's process has another working directory than its operator.
fn check_absolute(path: &Path) -> Result<(), Refused> {
    let refused = || Refused::because(format!("{}: the path is not absolute", path.display()));
    path.is_absolute().then_some(()).ok_or_else(refused)
}

/// The bytes to use of an SSD at `path`: as asked for, or else all of it.
async fn size(asked: Option<u64>, path: &Path) -> Result<Option<u64>, Refused> {
    check_absolute(path)?;
    match asked {
        Some(0) => Err(Refused::because("0 bytes are no SSD; drain --off takes it out of use")),
        Some(bytes) => Ok(Some(bytes)),
        None => {
            let at = path.to_owned();
            let found = tokio::task::spawn_blocking(move || ssd_bytes_at(&at)).await;
            let found = found.unwrap_or_else(|error| Err(io::Error::other(error)));
            found.map_err(|error| Refused::because(format!("{}: {error}", path.display())))
        }
    }
}

/// Describes which SSD the store has from here on.
fn in_use(path: &Path, bytes: u64) -> Answer {
    let text = format!("{}: in use as the store's SSD, {bytes} bytes of it\n", path.display());
    done(json!({"ssd": path.to_string_lossy(), "bytes": bytes}), text)
}

async fn attach(
    store: &PageStore,
    ssd: Option<PathBuf>,
    bytes: Option<u64>,
    report: Report,
) -> Result<Answer, Refused> {
    if store.stats().ssd.mode != SsdMode::Off {
        let why = "the store has an SSD: replace-ssd exchanges it, drain --off takes it out of use";
        return Err(Refused::because(why));
    }
    report(Progress::new("attaching", 0, 0));
    let Some(path) = ssd else {
        if bytes.is_some() {
            let why =
                "the SSD of the store's options has the size that they say; name another one for a size";
            return Err(Refused::because(why));
        }
        store.ssd().readmit().await?;
        let slots = store.stats().ssd.slots;
        let text = format!("the SSD of the store's options is in use, with {slots} slots\n");
        return Ok(done(json!({"ssd": null, "slots": slots}), text));
    };
    let bytes = size(bytes, &path).await?.unwrap_or(NEW_BYTES);
    store.ssd().replace(&path, bytes).await?;
    Ok(in_use(&path, bytes))
}

async fn readmit(store: &PageStore, report: Report) -> Result<Answer, Refused> {
    let formatted = store.stats().ssd.mode == SsdMode::Off;
    report(Progress::new("readmitting", 0, 0));
    let readmitted = store.ssd().readmit().await?;
    let (reverted, lost) = (readmitted.reverted.len(), readmitted.lost.len());
    let text = format!(
        "the SSD is in use; {} copies verified, {} damaged ones dropped, {} rewritten; {reverted} pages \
         read as an older version, {lost} cannot be read\n",
        readmitted.verified, readmitted.dropped, readmitted.rewritten
    );
    let value = json!({
        "formatted": formatted, "verified": readmitted.verified, "dropped": readmitted.dropped,
        "rewritten": readmitted.rewritten, "reverted": reverted, "lost": lost,
    });
    Ok(Answer { complete: reverted == 0 && lost == 0, text, value })
}

async fn replace(
    store: &PageStore,
    with: &Path,
    bytes: Option<u64>,
    report: Report,
) -> Result<Answer, Refused> {
    let size = size(bytes, with).await?;
    if store.stats().ssd.mode == SsdMode::Off {
        return Err(Refused::because("the store has no SSD to replace; attach puts one into use"));
    }
    let bytes = size.unwrap_or_else(|| ssd_bytes_for(store.stats().ssd.slots, store.page_size()));
    // The exchange drains, too, but does not say how far it is.
    let drained = drained(store, Arc::clone(&report)).await;
    if !drained.is_complete() {
        // Its SSD stays in use: the exchange would give up what is left there.
        return Ok(drained.answer(store));
    }
    report(Progress::new("exchanging", 0, 0));
    store.ssd().replace(with, bytes).await?;
    Ok(in_use(with, bytes))
}

async fn set_mode(store: &PageStore, mode: SsdMode, report: Report) -> Result<Answer, Refused> {
    if mode == SsdMode::Off {
        return drain(store, true, report).await;
    }
    store.ssd().set_mode(mode).await?;
    Ok(done(json!({"mode": mode}), format!("the SSD's mode is {mode}\n")))
}

// ---- the store ----

async fn shrink(
    store: &PageStore,
    space: Option<&str>,
    every: bool,
    report: Report,
) -> Result<Answer, Refused> {
    let mut all = store.spaces().list();
    match (space, every) {
        (Some(name), false) => {
            all.retain(|info| info.name == name);
            if all.is_empty() {
                return Err(Refused::because(format!("there is no space called \"{name}\"")));
            }
        }
        (None, true) => {}
        // Its engine may count on the disk space of some.
        _ => return Err(Refused::because("name one space, or ask for all of them")),
    }
    let (mut text, mut list, mut total) = (String::new(), Vec::new(), 0);
    for (number, info) in all.iter().enumerate() {
        report(Progress::new("shrinking", number as u64, all.len() as u64));
        let bytes = store.spaces().shrink(info.id).await?;
        total += bytes;
        let _ = writeln!(text, "space {} \"{}\": {bytes} bytes given back", info.id.0, info.name);
        list.push(json!({"id": info.id.0, "name": info.name, "bytes": bytes}));
    }
    Ok(done(json!({"bytes": total, "spaces": list}), text))
}

/// The name of a space in quotes, with a blank before it; empty if it has none.
fn named(spaces: &[SpaceInfo], id: u32) -> String {
    let space = spaces.iter().find(|space| space.id.0 == id);
    space.map(|space| format!(" \"{}\"", space.name)).unwrap_or_default()
}

/// Describes the findings of a scrub, as JSON and as lines of text.
#[must_use]
pub fn findings(report: &ScrubReport, spaces: &[SpaceInfo]) -> (Vec<Value>, String) {
    let (mut text, mut all) = (String::new(), Vec::new());
    for found in &report.findings {
        let healed = if found.healed { " (repaired)" } else { "" };
        let (page, error) = (found.page, Causes(&found.error));
        let name = spaces.iter().find(|space| space.id == page.space).map(|space| space.name.as_str());
        let named = named(spaces, page.space.0);
        let _ = writeln!(text, "page {} of space {}{named}: {error}{healed}", page.no, page.space.0);
        all.push(json!({
            "space": page.space.0, "space_name": name, "page": page.no,
            "error": error.to_string(), "healed": found.healed,
        }));
    }
    let more = report.progress.found.saturating_sub(report.findings.len() as u64);
    if more > 0 {
        let _ = writeln!(text, "and {more} more");
    }
    (all, text)
}

async fn scrub(store: &PageStore, rate: f64, heal: bool, report: Report) -> Result<Answer, Refused> {
    if !(rate >= 0.0 && rate.is_finite()) {
        return Err(Refused::because("pages per second: a number of at least 0; 0 is unlimited"));
    }
    let options = ScrubOptions::default().pages_per_second((rate > 0.0).then_some(rate)).heal(heal);
    let scrub = store.scrub(options);
    loop {
        let now = scrub.progress();
        report(Progress::new("scrubbing", now.done, now.total));
        // A store that is closed ends it early.
        if scrub.is_finished() {
            break;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let report = scrub.finished().await;
    let (list, mut text) = findings(&report, &store.spaces().list());
    let left = report.progress.found - report.progress.healed;
    let _ = writeln!(
        text,
        "{} checked, {} damaged, {} repaired, {left} not",
        report.progress.done, report.progress.found, report.progress.healed
    );
    if !report.complete {
        text.push_str("the store was closed before everything was checked\n");
    }
    let value = json!({
        "complete": report.complete, "checked": report.progress.done, "damaged": report.progress.found,
        "healed": report.progress.healed, "findings": list,
    });
    Ok(Answer { complete: report.complete && left == 0, text, value })
}

async fn backup<S: Served>(
    served: &S,
    to: &Path,
    options: BackupOptions,
    report: Report,
) -> Result<Answer, Refused> {
    check_absolute(to)?;
    report(Progress::new("reading the chain, or waiting for another backup into it", 0, 0));
    let options = options.on_progress(move |now| report(Progress::new("backing up", now.done, now.total)));
    let made = served.backup(to, options).await?;
    let kind = made.full_because.map_or_else(|| "incremental".to_owned(), |why| format!("full: {why}"));
    let (path, pages, of, bytes) = (made.path.display(), made.pages, made.looked_at, made.bytes);
    let mut text = format!("{path} ({kind}): {pages} of {of} pages, {bytes} bytes\n");
    if S::HAS_LOG {
        text += "the engine's log is in it: restore it with --log-to\n";
    } else if made.lacks_log && S::IS_RUNNING {
        // The engine may have removed what the pages need of its log, and nothing holds the rest.
        text += "the engine's log is not in it, and the pages need it: it can only be restored with a copy of the \
                 log that begins before this backup; let the engine listen with its log, or make its backups\n";
    } else if made.lacks_log {
        text += "the engine's log is not in it, and a restored store needs it: keep a copy of the log, or let the \
                 engine make its backups\n";
    } else if S::IS_RUNNING {
        text += "pages that the engine changed meanwhile are from different moments\n";
    }
    let complete = !(made.lacks_log && S::IS_RUNNING);
    let mut value = json!(made);
    value["log"] = S::HAS_LOG.into();
    Ok(Answer { complete, text, value })
}

async fn set_policy(store: &PageStore, pool: Option<&str>, ssd: Option<&str>) -> Result<Answer, Refused> {
    let unknown = |error: pagetier::policy::UnknownPolicy| Refused::because(Causes(&error).to_string());
    // Both names before either change.
    let pool: Option<PoolPolicy> = pool.map(str::parse).transpose().map_err(unknown)?;
    let ssd: Option<SsdPolicy> = ssd.map(str::parse).transpose().map_err(unknown)?;
    if pool.is_none() && ssd.is_none() {
        return Err(Refused::because("name a policy, for the pool or the SSD"));
    }
    if let Some(pool) = pool {
        store.policies().set_pool(pool)?;
    }
    if let Some(ssd) = ssd {
        store.policies().set_ssd(ssd).await?;
    }
    let (pool, ssd) = (store.policies().pool().to_string(), store.policies().ssd().to_string());
    let text = format!("the pool's policy is {pool}, the SSD's is {ssd}, until the store is closed\n");
    Ok(done(json!({"pool": pool, "ssd": ssd}), text))
}

fn set_budget(store: &PageStore, bytes_per_day: Option<u64>) -> Answer {
    store.ssd().set_write_budget(bytes_per_day);
    let text = match bytes_per_day {
        Some(bytes) => {
            format!("{bytes} bytes may be written to the SSD per day, until the store is closed\n")
        }
        None => "writes to the SSD are not limited\n".to_owned(),
    };
    done(json!({"bytes_per_day": bytes_per_day}), text)
}

async fn resize(store: &PageStore, bytes: u64) -> Result<Answer, Refused> {
    let frames = store.resize_pool(bytes).await?;
    let text = format!("the pool has {frames} frames, until the store is closed\n");
    Ok(done(json!({"bytes": bytes, "frames": frames}), text))
}
