//! The manifest's files on a file system that loses what was not synced.

use super::file::{FILE, ManifestFile};
use super::slack::Slack;
use super::tail;
use crate::tenure::held_dir::HeldDir;
use pagetier_devio::files::create_durably;
use pagetier_testing::{FileFault, SimFiles, SimPower};
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

fn manifest(files: &SimFiles) -> ManifestFile {
    let directory = files.root().directory(Path::new("/store")).unwrap();
    ManifestFile::new(HeldDir::on(directory))
}

fn found(file: &ManifestFile) -> Option<Version> {
    let bytes = file.adopt().unwrap()?;
    let parsed = tail::parse(&bytes).expect("a whole manifest");
    Some((parsed.contents[5..parsed.contents.len() - 1].parse().unwrap(), parsed.records.len()))
}

fn replace(file: &ManifestFile, number: u64, slack: Slack) -> bool {
    let contents = tail::sealed(format!("{{\"k\":{number}}}").as_bytes(), 0);
    file.replace(&|_| contents.clone(), slack).is_ok()
}

fn append(file: &ManifestFile) -> std::io::Result<bool> {
    file.append(|n| Ok(format!("{{\"n\":{n}}}").into_bytes()), Slack::Keep)
}

/// Saves and appends, for a while on a full disk, from contents of this number on.
fn work(files: &SimFiles, file: &ManifestFile, first: u64, model: &mut Model) {
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

/// Every save of a process, and of the next one, is there after every power cut, or the one before it.
#[test]
fn a_manifest_is_the_last_one_saved_whichever_call_the_power_is_cut_at() {
    let mut cuts = 0;
    for n in 1.. {
        let power = SimPower::new();
        let files = blank(n, &power);
        power.cut_at(n);
        let mut model = Model::default();
        work(&files, &manifest(&files), 1, &mut model);
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
            power.cut_at(1 + (n + 5 * seed) % 30);
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
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 40, "{cuts}");
}

#[test]
fn a_manifest_is_the_last_one_saved_whichever_call_fails() {
    for fault in [FileFault::Refused, FileFault::Torn] {
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
            // Nothing but a finished exchange may leave the spare as the manifest.
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
        // On a full disk the doubtful names are written again before the spare is.
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
