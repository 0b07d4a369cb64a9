//! The manifest's file on a file system that loses what was not synced, that is full, or on which another
//! file takes its place.

use super::areas::Areas;
use super::changes::Slack;
use super::contents::decode;
use super::file::{FILE, NotOurs, SPARE, preamble};
use super::tail;
use crate::ownership::held_dir::HeldDir;
use futures_util::FutureExt;
use pagetier_devio::files::{Access, create_durably};
use pagetier_testing::{FileFault, SimFiles, SimPower};
use std::io::ErrorKind;
use std::path::Path;

/// The outcomes of each power cut that are looked at.
const OUTCOMES: u64 = 6;

/// What was saved: the number of the contents, and how many records follow them.
type Version = (u64, usize);

/// What was saved and acknowledged, and what was tried since.
#[derive(Clone, Debug, Default)]
struct Model {
    acknowledged: Option<Version>,
    tried: Vec<Version>,
}

impl Model {
    /// Notes a save, which a caller goes on from whether or not it succeeded.
    fn note(&mut self, version: Version, saved: bool) {
        self.tried.push(version);
        if saved {
            self.acknowledged = Some(version);
            self.tried.clear();
        }
    }

    fn check(&self, found: Option<Version>) {
        let is_tried = found.is_some_and(|found| self.tried.contains(&found));
        assert!(found == self.acknowledged || is_tried, "{found:?} instead of {self:?}");
    }
}

fn blank(seed: u64, power: &SimPower) -> SimFiles {
    let files = SimFiles::new(seed, &SimPower::new());
    create_durably(&*files.root(), Path::new("/store")).unwrap();
    files.after_kill(seed, power)
}

fn manifest(files: &SimFiles) -> Areas {
    let directory = files.root().directory(Path::new("/store")).unwrap();
    Areas::in_directory(HeldDir::on(directory))
}

/// The result of what never waits: it is on a file.
fn now<T>(done: impl Future<Output = T>) -> T {
    done.now_or_never().unwrap()
}

fn found(file: &Areas) -> Option<Version> {
    let bytes = now(file.load()).unwrap()?;
    let parsed = tail::parse(&bytes).expect("a whole manifest");
    let number = parsed.contents.split("\"k\":").nth(1).unwrap().split([',', '}']).next().unwrap();
    Some((number.parse().unwrap(), parsed.records.len()))
}

fn json(number: u64, len: usize) -> Vec<u8> {
    format!("{{\"k\":{number},\"x\":\"{}\"}}", "x".repeat(len)).into_bytes()
}

fn replace(file: &Areas, number: u64, slack: Slack) -> bool {
    // The manifest outgrows its areas, which have room for it even so.
    let len = if number % 100 > 3 { 40_000 } else { 0 };
    now(file.replace(&json(number, len), slack)).is_ok()
}

fn append(file: &Areas) -> std::io::Result<bool> {
    now(file.append(|n| Ok(format!("{{\"n\":{n}}}").into_bytes()), Slack::Keep))
}

/// Saves and appends, for a while on a full disk, from contents of this number on.
fn work(files: &SimFiles, file: &Areas, first: u64, model: &mut Model) {
    for number in first..first + 7 {
        files.set_free((number % 7 > 3).then_some(0));
        let slack = if number % 2 == 0 { Slack::Keep } else { Slack::Use };
        model.note((number, 0), replace(file, number, slack));
        for records in 1..3 {
            match append(file) {
                Ok(true) => model.note((number, records), true),
                // The next save replaces the manifest.
                Ok(false) => break,
                Err(_) => model.note((number, records), false),
            }
        }
    }
    files.set_free(None);
}

/// A directory with the files of an earlier version, which saved 50.
fn of_an_earlier_version(seed: u64, power: &SimPower) -> SimFiles {
    let files = blank(seed, &SimPower::new());
    let directory = files.root().directory(Path::new("/store")).unwrap();
    for name in [FILE, SPARE] {
        let mut bytes = tail::sealed(b"{\"k\":50}", 0);
        bytes.resize(64 << 10, b'\n');
        let file = directory.open(Path::new(name), Access::Create).unwrap();
        file.write_at(0, &bytes).unwrap();
        file.sync().unwrap();
    }
    directory.sync().unwrap();
    files.after_kill(seed, power)
}

/// Every save of a process, and of the next one, is there after every power cut, or the one before it.
/// Returns how many calls were cut.
fn survives(before: fn(u64, &SimPower) -> SimFiles, acknowledged: Option<Version>) -> u64 {
    for n in 1.. {
        let power = SimPower::new();
        let files = before(n, &power);
        power.cut_at(n);
        let mut model = Model { acknowledged, tried: Vec::new() };
        let first = manifest(&files);
        assert_eq!(found(&first), acknowledged);
        work(&files, &first, 1, &mut model);
        for seed in 0..OUTCOMES {
            let after = if seed == 0 {
                files.after_kill(n, &SimPower::new())
            } else {
                files.after_power_cut(seed, &SimPower::new())
            };
            model.check(found(&manifest(&after)));
            // The next process, and a power cut at one of its calls.
            let power = SimPower::new();
            let next = after.after_kill(seed, &power);
            power.cut_at(1 + (n + 5 * seed) % 60);
            let (file, mut model) = (manifest(&next), model.clone());
            found(&file);
            work(&next, &file, 100, &mut model);
            for seed in 0..OUTCOMES {
                let after = next.after_power_cut(seed, &SimPower::new());
                model.check(found(&manifest(&after)));
            }
        }
        if !power.is_cut() {
            assert_eq!((model.acknowledged, model.tried), (Some((7, 2)), vec![]));
            return n - 1;
        }
    }
    unreachable!("each work ends")
}

#[test]
fn a_manifest_is_the_last_one_saved_whichever_call_the_power_is_cut_at() {
    let cuts = survives(blank, None);
    assert!(cuts > 40, "{cuts}");
}

#[test]
fn a_manifest_of_an_earlier_version_is_converted_whichever_call_the_power_is_cut_at() {
    let cuts = survives(of_an_earlier_version, Some((50, 0)));
    assert!(cuts > 40, "{cuts}");
}

/// An earlier version must neither take the file for damaged nor the directory for a new store's.
#[test]
fn a_converted_manifest_is_refused_by_earlier_versions_in_words() {
    let files = of_an_earlier_version(1, &SimPower::new());
    let directory = files.root().directory(Path::new("/store")).unwrap();
    let file = manifest(&files);
    // Without room for the new file it is as it was.
    files.set_free(Some(0));
    assert_eq!(found(&file), Some((50, 0)));
    assert_eq!(now(file.replace(&json(51, 0), Slack::Use)).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(found(&manifest(&files)), Some((50, 0)));
    files.set_free(None);
    assert!(replace(&file, 51, Slack::Use) && directory.stat(Path::new(SPARE)).unwrap().is_none());
    let bytes = directory.open(Path::new(FILE), Access::Read).unwrap().read_from(0).unwrap();
    // The text that those versions read has not changed since.
    let refused = decode(&bytes).unwrap_err().to_string();
    assert!(refused.contains("it has format 7, this version reads 2 to 6"), "{refused}");
    assert_eq!(bytes[..tail::BLOCK], preamble());
}

#[test]
fn a_manifest_is_the_last_one_saved_whichever_call_fails() {
    for fault in [FileFault::Refused, FileFault::NoRoom, FileFault::Torn] {
        for n in 0.. {
            let files = blank(n, &SimPower::new());
            files.fail(n, fault);
            let file = manifest(&files);
            let mut model = Model::default();
            work(&files, &file, 1, &mut model);
            if files.calls() <= n {
                break;
            }
            model.note((9, 0), replace(&file, 9, Slack::Use));
            assert_eq!(model.acknowledged, Some((9, 0)), "it never recovered");
            model.note((10, 0), replace(&file, 10, Slack::Use));
            for seed in 0..OUTCOMES {
                let after = files.after_power_cut(seed, &SimPower::new());
                model.check(found(&manifest(&after)));
                assert!(after.root().stat(&Path::new("/store").join(FILE)).unwrap().is_some());
            }
        }
    }
}

/// A failed save may have taken effect or not, and only it: the one before it is not older than what was
/// acknowledged.
#[test]
fn a_power_cut_right_after_a_failed_save_leaves_it_or_the_one_before() {
    for n in 0.. {
        let files = blank(n, &SimPower::new());
        let file = manifest(&files);
        let mut model = Model::default();
        model.note((1, 0), replace(&file, 1, Slack::Keep));
        model.note((2, 0), replace(&file, 2, Slack::Keep));
        files.fail(n, FileFault::Torn);
        let calls = files.calls();
        model.note((3, 0), replace(&file, 3, Slack::Use));
        let happened = files.calls() - calls > n;
        for seed in 0..OUTCOMES {
            model.check(found(&manifest(&files.after_power_cut(seed, &SimPower::new()))));
        }
        // On a full disk, too, an unverified name is written again before a save counts.
        files.set_free(Some(0));
        model.note((4, 0), replace(&file, 4, Slack::Use));
        for seed in 0..OUTCOMES {
            model.check(found(&manifest(&files.after_power_cut(seed, &SimPower::new()))));
        }
        if !happened {
            break;
        }
    }
}

/// A save that asks for larger areas does without a new file if there is no room for one. Once the new file
/// has the name, nothing may be written as if the old one were there.
#[test]
fn a_larger_file_that_has_the_name_is_the_manifest_whatever_lacks_room_then() {
    let faults = [FileFault::NoRoom, FileFault::Torn].into_iter();
    for (fault, case) in faults.flat_map(|fault| (0..160).map(move |case| (fault, case))) {
        let (saves, next, n) = (1 + case % 2, case / 2 % 4, case / 8);
        let files = blank(n, &SimPower::new());
        let file = manifest(&files);
        let mut model = Model::default();
        for number in 1..=saves {
            model.note((number, 0), replace(&file, number, Slack::Keep));
        }
        files.fail(n, fault);
        for number in [10, 11] {
            model.note((number, 0), replace(&file, number, Slack::Keep));
            // Names that a failed sync has lost do not count after a sync that does nothing.
            files.fail(next, FileFault::NoRoom);
            for records in 1..3 {
                match append(&file) {
                    Ok(false) => break,
                    appended => model.note((number, records), appended.is_ok()),
                }
            }
            for seed in 0..OUTCOMES {
                model.check(found(&manifest(&files.after_power_cut(seed, &SimPower::new()))));
            }
        }
        files.clear_faults();
        assert!(replace(&file, 12, Slack::Keep), "it never recovered");
    }
}

fn is_refused(saved: std::io::Result<()>) -> bool {
    saved.unwrap_err().get_ref().is_some_and(|inner| inner.is::<NotOurs>())
}

/// A directory of the system, with a manifest in it.
fn on_disk() -> (tempfile::TempDir, Areas) {
    let directory = tempfile::tempdir().unwrap();
    let file = Areas::in_directory(HeldDir::open(directory.path()).unwrap());
    assert!(found(&file).is_none() && !append(&file).unwrap() && replace(&file, 1, Slack::Keep));
    (directory, file)
}

/// Another store's manifest is moved into the directory; it is moved away again; the file is removed.
#[test]
fn a_manifest_that_is_not_ours_is_not_written_over_and_a_missing_one_is_made_again() {
    let (directory, file) = on_disk();
    let [at, aside] = [FILE, "aside"].map(|name| directory.path().join(name));
    std::fs::rename(&at, &aside).unwrap();
    std::fs::write(&at, b"theirs").unwrap();
    assert!(append(&file).is_err());
    for slack in [Slack::Keep, Slack::Use] {
        assert!(is_refused(now(file.replace(&json(2, 0), slack))));
        assert!(is_refused(now(file.replace(&json(2, 100_000), slack))), "a new file would take its place");
    }
    assert_eq!(std::fs::read(&at).unwrap(), b"theirs");
    std::fs::rename(&aside, &at).unwrap();
    assert!(replace(&file, 3, Slack::Keep) && append(&file).unwrap());
    std::fs::remove_file(&at).unwrap();
    assert!(!append(&file).unwrap() && replace(&file, 4, Slack::Use) && append(&file).unwrap());
    let next = Areas::in_directory(HeldDir::open(directory.path()).unwrap());
    assert_eq!(found(&next), Some((4, 1)));
}

#[test]
fn the_directory_stays_the_same_one_when_it_is_renamed_and_replaced() {
    let outer = tempfile::tempdir().unwrap();
    let [here, moved] = ["here", "moved"].map(|name| outer.path().join(name));
    std::fs::create_dir(&here).unwrap();
    let file = Areas::in_directory(HeldDir::open(&here).unwrap());
    assert!(replace(&file, 1, Slack::Keep));
    std::fs::rename(&here, &moved).unwrap();
    std::fs::create_dir(&here).unwrap();
    std::fs::write(here.join(FILE), b"theirs").unwrap();
    // In place, and in a new file.
    for number in [2, 4] {
        assert!(replace(&file, number, Slack::Keep));
        let next = Areas::in_directory(HeldDir::open(&moved).unwrap());
        assert_eq!(found(&next), Some((number, 0)));
    }
    assert_eq!(std::fs::read(here.join(FILE)).unwrap(), b"theirs");
    assert_eq!(std::fs::read_dir(&here).unwrap().count(), 1);
}

/// What names more needs space for the save after it, in areas that a full disk cannot make larger (I36).
/// What names nothing new is saved until the areas are full, and what is refused has changed nothing.
#[test]
fn on_a_full_disk_a_manifest_is_saved_while_its_areas_have_room() {
    let files = blank(1, &SimPower::new());
    let file = manifest(&files);
    assert!(replace(&file, 1, Slack::Keep));
    files.set_free(Some(0));
    // The areas have 64 KiB; some bytes are checksum and size.
    let most = 64 << 10;
    let save = |number: u64, len: usize, slack| now(file.replace(&json(number, len - 100), slack));
    for (number, len, slack, fits) in [
        (2, most - (16 << 10), Slack::Keep, true),
        (3, most - (16 << 10) + 200, Slack::Keep, false),
        (4, most - (8 << 10), Slack::Half, true),
        (5, most - (8 << 10) + 200, Slack::Half, false),
        (6, most, Slack::Use, true),
        (7, most + 200, Slack::Use, false),
    ] {
        let before = found(&manifest(&files));
        match save(number, len, slack) {
            Ok(()) => assert!(fits, "{number}"),
            Err(error) => assert!(!fits && error.kind() == ErrorKind::StorageFull, "{number}: {error}"),
        }
        let left = found(&manifest(&files.after_power_cut(number, &SimPower::new())));
        assert_eq!(left, if fits { Some((number, 0)) } else { before });
    }
    files.set_free(None);
    assert!(save(8, most + 200, Slack::Use).is_ok());
    assert_eq!(found(&manifest(&files)), Some((8, 0)));
}

/// Records leave the contents, when they are rewritten with all of them, room in the areas.
#[test]
fn records_are_appended_until_the_room_is_used_up() {
    let files = blank(1, &SimPower::new());
    let file = manifest(&files);
    let long = |n: u64| Ok(format!("{{\"n\":{n},\"x\":\"{}\"}}", "x".repeat(3000)).into_bytes());
    for number in 1..4 {
        assert!(replace(&file, number, Slack::Use));
        let records = (0..).take_while(|_| append(&file).unwrap()).count();
        assert!(records >= 32, "{records}");
        assert_eq!(found(&manifest(&files)), Some((number, records)));
    }
    // In areas that cannot become larger.
    files.set_free(Some(0));
    now(file.replace(&json(9, 40_500), Slack::Keep)).unwrap();
    let kept = (0..).take_while(|_| now(file.append(long, Slack::Keep)).unwrap()).count();
    now(file.replace(&json(10, 40_500), Slack::Keep)).unwrap();
    let all = (0..).take_while(|_| now(file.append(long, Slack::Use)).unwrap()).count();
    assert_eq!((kept, all), (2, 3), "the slack has room for one");
}
