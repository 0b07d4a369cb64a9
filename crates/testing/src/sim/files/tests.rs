//! What the simulated file system loses, and what it keeps.

use super::*;
use pagetier_devio::files::create_durably;

fn files(seed: u64) -> (SimFiles, Arc<dyn Directory>) {
    let files = SimFiles::new(seed, &SimPower::new());
    let root = files.root();
    (files, root)
}

fn put(dir: &dyn Directory, name: &str, bytes: &[u8], syncs: bool) {
    let file = dir.open(Path::new(name), Access::Create).unwrap();
    file.write_at(0, bytes).unwrap();
    if syncs {
        file.sync().unwrap();
    }
}

fn contents(files: &SimFiles, name: &str) -> Option<Vec<u8>> {
    let file = files.root().open(Path::new(name), Access::Read).ok()?;
    Some(file.read_from(0).unwrap())
}

/// What can be found after power cuts with many seeds.
fn outcomes<T: Ord>(files: &SimFiles, look: impl Fn(&SimFiles) -> T) -> BTreeSet<T> {
    (0..200).map(|seed| look(&files.after_power_cut(seed, &SimPower::new()))).collect()
}

#[test]
fn a_power_cut_leaves_what_was_synced_and_any_part_of_the_rest() {
    let (files, root) = files(1);
    put(&*root, "a", &[1; 1024], true);
    assert_eq!(outcomes(&files, |files| contents(files, "a").is_some()).len(), 2, "its name is volatile");
    root.sync().unwrap();
    assert_eq!(outcomes(&files, |files| contents(files, "a")), BTreeSet::from([Some(vec![1; 1024])]));
    put(&*root, "a", &[2; 1024], false);
    let torn = [[1; 512], [2; 512]].concat();
    let found = outcomes(&files, |files| contents(files, "a").unwrap());
    assert_eq!(found.len(), 4, "each sector is old or new");
    assert!(found.contains(&torn) && found.contains(&vec![2; 1024]));
    let file = root.open(Path::new("a"), Access::Write).unwrap();
    file.set_len(10).unwrap();
    assert!(outcomes(&files, |files| contents(files, "a").unwrap().len()).contains(&1024));
    file.sync().unwrap();
    assert_eq!(outcomes(&files, |files| contents(files, "a")), BTreeSet::from([Some(vec![2; 10])]));
}

#[test]
fn names_become_durable_in_any_order_but_each_rename_as_a_whole() {
    let (files, root) = files(2);
    for name in ["a", "b", "c"] {
        put(&*root, name, name.as_bytes(), true);
    }
    root.sync().unwrap();
    root.remove(Path::new("a")).unwrap();
    root.remove(Path::new("b")).unwrap();
    root.rename(Path::new("c"), Path::new("d")).unwrap();
    let found = outcomes(&files, |files| ["a", "b", "c", "d"].map(|name| contents(files, name).is_some()));
    assert_eq!(found.len(), 8, "{found:?}");
    assert!(found.iter().all(|[.., c, d]| c != d));
    root.sync().unwrap();
    assert_eq!(outcomes(&files, |files| files.root().names().unwrap()).len(), 1);
}

#[test]
fn a_lost_directory_takes_its_files_along() {
    let (files, root) = files(3);
    root.create_directory(Path::new("dir")).unwrap();
    let dir = root.directory(Path::new("dir")).unwrap();
    put(&*dir, "a", b"a", true);
    dir.sync().unwrap();
    let found = outcomes(&files, |files| contents(files, "dir/a"));
    assert_eq!(found, BTreeSet::from([None, Some(b"a".to_vec())]));
    root.sync().unwrap();
    assert_eq!(outcomes(&files, |files| contents(files, "dir/a")), BTreeSet::from([Some(b"a".to_vec())]));
}

#[test]
fn what_a_failed_sync_lost_is_read_and_never_becomes_durable() {
    let mut found = BTreeSet::new();
    for seed in 0..40 {
        let (files, root) = files(seed);
        put(&*root, "a", b"a", true);
        root.sync().unwrap();
        put(&*root, "a", b"b", false);
        root.rename(Path::new("a"), Path::new("b")).unwrap();
        let file = root.open(Path::new("b"), Access::Write).unwrap();
        files.fail(0, FileFault::Torn);
        file.sync().unwrap_err();
        files.fail(0, FileFault::Torn);
        root.sync().unwrap_err();
        // The next ones succeed and change nothing.
        file.sync().unwrap();
        root.sync().unwrap();
        assert_eq!(contents(&files, "b"), Some(b"b".to_vec()));
        let left = outcomes(&files, |files| (contents(files, "a"), contents(files, "b")));
        assert_eq!(left.len(), 1);
        found.extend(left);
        // Another name is written with the rest of its directory.
        root.open(Path::new("c"), Access::Create).unwrap();
        root.sync().unwrap();
        assert!(outcomes(&files, |files| contents(files, "b").is_some()).iter().all(|is_there| *is_there));
    }
    assert_eq!(found.len(), 4);
}

#[test]
fn a_full_disk_takes_what_has_room_and_a_file_is_locked_once() {
    let (files, root) = files(4);
    let file = root.open(Path::new("a"), Access::Create).unwrap();
    files.set_free(Some(8192));
    file.allocate(8192).unwrap();
    put(&*root, "a", &[1; 8192], true);
    assert_eq!(file.write_at(8192, b"x").unwrap_err().kind(), ErrorKind::StorageFull);
    let other = root.open(Path::new("b"), Access::Create).unwrap();
    assert_eq!(other.allocate(1).unwrap_err().kind(), ErrorKind::StorageFull);
    root.remove(Path::new("a")).unwrap();
    other.write_at(0, &[1; 4097]).unwrap();
    let mut locks = [0; 2].map(|_| root.open(Path::new("b"), Access::Read).unwrap());
    assert!(locks[0].try_lock().unwrap() && !locks[1].try_lock().unwrap());
    drop(other);
    let [first, mut second] = locks;
    drop(first);
    assert!(second.try_lock().unwrap());
}

/// The schedule: a process is killed, or a sync fails, at any call of creating a directory. What it
/// created is visible. The next attempt completes, and the power fails.
#[test]
fn a_directory_that_an_earlier_attempt_made_is_durable_too() {
    let path = Path::new("/backup/db/chain");
    for n in 0.. {
        let (files, root) = files(n);
        files.fail(n, FileFault::Torn);
        if create_durably(&*root, path).is_ok() {
            assert_eq!(n, 6, "three times two calls");
            break;
        }
        let killed = files.after_kill(n, &SimPower::new());
        for files in [&files, &killed] {
            create_durably(&*files.root(), path).unwrap();
            let found = outcomes(files, |files| files.root().directory(path).is_ok());
            assert_eq!(found, BTreeSet::from([true]), "call {n}");
        }
    }
}

#[test]
fn nothing_works_without_power() {
    let power = SimPower::new();
    let files = SimFiles::new(5, &power);
    let root = files.root();
    power.cut_at(2);
    let file = root.open(Path::new("a"), Access::Create).unwrap();
    file.write_at(0, b"a").unwrap();
    assert!(file.sync().is_err() && root.sync().is_err() && file.read_from(0).is_err());
    assert!(root.names().is_err() && root.stat(Path::new("a")).is_err());
    assert!(files.after_kill(1, &SimPower::new()).root().stat(Path::new("a")).unwrap().is_some());
}
