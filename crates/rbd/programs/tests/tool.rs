//! The tool on stores whose homes are on a cluster: each command as an operator gives it.
//! `crates/rbd/run-tests` starts a cluster.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A program of this package, which Cargo has built beside the tests.
fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().and_then(Path::parent).unwrap().join("examples").join(name)
}

fn run(name: &str, args: &[&str]) -> Output {
    Command::new(program(name)).args(args).output().unwrap()
}

/// Runs a command that must succeed.
fn done(name: &str, args: &[&str]) -> String {
    let ran = run(name, args);
    assert!(ran.status.success(), "{name} {args:?}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

fn refused(args: &[&str]) -> String {
    let ran = run("pagetier", args);
    assert_eq!(ran.status.code(), Some(1), "{args:?}: {ran:?}");
    String::from_utf8(ran.stderr).unwrap()
}

fn rbd(args: &[&str]) {
    let ran = Command::new("rbd").args(args).output().unwrap();
    assert!(ran.status.success(), "rbd {args:?}: {ran:?}");
}

/// A process that ends with the test.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_store_on_a_cluster_is_inspected_verified_backed_up_and_restored() {
    if std::env::var_os("CEPH_CONF").is_none() {
        let _ = std::io::stderr().write_all(b"\nSKIPPED: no Ceph cluster: run crates/rbd/run-tests\n");
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let id = std::process::id();
    let image = |name: &str| format!("rbd:rbd/tool-{name}-{id}");
    let (homes, log, other) = (image("homes"), image("log"), image("other"));
    let (here, chain, there) = (path("here"), path("chain"), path("there"));
    let pages = path("here/pages");
    let kv = |verb: &[&str]| {
        let at =
            ["--dir", &here, "--home", &homes, "--log-device", &log, "--ssd-mib", "32", "--pool-mib", "8"];
        [&at[..], verb].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let load = kv(&["--create-devices", "load", "--count", "20000"]);
    done("kv", &load.iter().map(String::as_str).collect::<Vec<_>>());
    let at = |verb: &'static str| vec![verb, &pages, "--hdd", &homes];
    for verb in ["inspect", "verify", "stat", "repair"] {
        done("pagetier", &at(verb));
    }
    done("pagetier", &[at("why"), vec!["--space", "kv", "--page", "1"]].concat());
    done("pagetier", &[at("backup"), vec!["--to", &chain]].concat());
    done("pagetier", &[at("repair"), vec!["--write"]].concat());
    done("pagetier", &at("drain"));
    // While the store is in use, its homes are read from a snapshot.
    let bench = kv(&["bench", "--workload", "a", "--seconds", "60"]);
    let running = Running(Command::new(program("kv")).args(bench).spawn().unwrap());
    let said = loop {
        let ran = run("pagetier", &at("verify"));
        if !ran.status.success() {
            break String::from_utf8(ran.stderr).unwrap();
        }
    };
    assert!(said.contains("snapshot") || said.contains("another process"), "{said}");
    let elsewhere = path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let said = refused(&["verify", &elsewhere, "--hdd", &homes]);
    assert!(said.contains("a snapshot of it can be read"), "{said}");
    let said = refused(&["backup", &elsewhere, "--hdd", &homes, "--accept-ssd-loss", "--to", &chain]);
    assert!(said.contains("open already"), "{said}");
    let snapshot = format!("{homes}@now");
    rbd(&["snap", "create", "--no-progress", &snapshot["rbd:".len()..]]);
    let said = done("pagetier", &["inspect", &elsewhere, "--hdd", &snapshot, "--accept-ssd-loss", "--json"]);
    assert!(said.contains("\"manifest\""), "{said}");
    // What only the running store's SSD has is listed as lost: exit code 3.
    let read = run("pagetier", &["verify", &elsewhere, "--hdd", &snapshot, "--accept-ssd-loss", "--json"]);
    assert!(matches!(read.status.code(), Some(0 | 3)), "{read:?}");
    let read = String::from_utf8(read.stdout).unwrap();
    assert!(read.contains("\"damaged\": 0") || read.contains("\"damaged\":0"), "{read}");
    drop(running);
    // A chain becomes a store on an image of its own, which is as sound.
    rbd(&["create", "--size", "64M", &other["rbd:".len()..]]);
    done("pagetier", &["restore", &chain, "--to", &there, "--hdd", &other]);
    assert!(!dir.path().join("there/manifest.json").exists(), "its manifest is on the image");
    done("pagetier", &["verify", &there, "--hdd", &other]);
    let missing = refused(&["verify", &there, "--hdd", "rbd:rbd/missing"]);
    assert!(missing.contains("there is no image"), "{missing}");
}
