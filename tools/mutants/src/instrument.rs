//! Copies the repository and builds every viable mutant into the copy.

use crate::Mutant;
use crate::mutate::mutate;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files that hold the protocol and the latches: folders and files from the repository's root.
const TARGETS: [&str; 9] = [
    "crates/ssdcache/src",
    "crates/bufpool/src",
    "crates/page/src",
    "src/builder",
    "src/life.rs",
    "src/loss.rs",
    "src/manifest.rs",
    "src/store.rs",
    "src/volume.rs",
];

/// Files in them without protocol: test-only code, statistics, models.
const LEFT_OUT: [&str; 7] =
    ["mutation.rs", "moment.rs", "loom_models.rs", "stats.rs", "tests.rs", "record.rs", "trace.rs"];

/// The switches, appended to `crates/page/src/lib.rs` of the copy.
const SWITCHES: &str = r#"
#[doc(hidden)]
#[allow(missing_docs)]
pub mod pm {
    use std::sync::OnceLock;
    static ACTIVE: OnceLock<u32> = OnceLock::new();
    #[inline]
    pub fn on(id: u32) -> bool {
        *ACTIVE.get_or_init(|| std::env::var("PAGETIER_MUTANT").ok().and_then(|v| v.parse().ok()).unwrap_or(0)) == id
    }
    pub fn force(id: u32, value: bool, truth: bool) -> bool { if on(id) { value } else { truth } }
    pub fn not(id: u32, value: bool) -> bool { value ^ on(id) }
    pub fn lt<T: PartialOrd + ?Sized>(id: u32, a: &T, b: &T) -> bool { if on(id) { a <= b } else { a < b } }
    pub fn le<T: PartialOrd + ?Sized>(id: u32, a: &T, b: &T) -> bool { if on(id) { a < b } else { a <= b } }
    pub fn gt<T: PartialOrd + ?Sized>(id: u32, a: &T, b: &T) -> bool { if on(id) { a >= b } else { a > b } }
    pub fn ge<T: PartialOrd + ?Sized>(id: u32, a: &T, b: &T) -> bool { if on(id) { a > b } else { a >= b } }
    pub fn eq<T: PartialEq + ?Sized>(id: u32, a: &T, b: &T) -> bool { (a == b) ^ on(id) }
    pub fn ne<T: PartialEq + ?Sized>(id: u32, a: &T, b: &T) -> bool { (a != b) ^ on(id) }
    pub fn add<T: std::ops::Add<Output = T> + std::ops::Sub<Output = T>>(id: u32, a: T, b: T) -> T { if on(id) { a - b } else { a + b } }
    pub fn sub<T: std::ops::Add<Output = T> + std::ops::Sub<Output = T>>(id: u32, a: T, b: T) -> T { if on(id) { a + b } else { a - b } }
}
"#;

/// Rounds of dropping mutants that do not compile, at most: each crate shows its errors only once those before it build.
const ROUNDS_MAX: usize = 40;

/// Where the mutants of a copy are listed.
const LIST: &str = "mutants.json";

/// The mutants of the copy in `dir`.
pub(crate) fn load(dir: &Path) -> Result<Vec<Mutant>> {
    let path = dir.join(LIST);
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!("{}: not an instrumented copy; run `mutants instrument` first", path.display())
    })?;
    Ok(serde_json::from_str(&text)?)
}

pub(crate) fn instrument(repo: &Path, out: &Path) -> Result<()> {
    if out.exists() {
        bail!("{}: exists already; remove it or name another folder", out.display());
    }
    let repo = repo.canonicalize().with_context(|| format!("{}: no such repository", repo.display()))?;
    copy(&repo, out)?;
    let files = sources(&repo)?;
    let mut dropped = HashSet::new();
    for round in 1..=ROUNDS_MAX {
        let (mutants, lines) = write_all(&repo, out, &files, &dropped)?;
        eprintln!("round {round}: {} mutants, {} dropped so far; checking", mutants.len(), dropped.len());
        let errors = check(out)?;
        if errors.is_empty() {
            std::fs::write(out.join(LIST), serde_json::to_string_pretty(&mutants)?)?;
            println!(
                "{} viable mutants in {} files, {} did not compile",
                mutants.len(),
                files.len(),
                dropped.len()
            );
            return Ok(());
        }
        let before = dropped.len();
        for (file, line) in errors {
            dropped.extend(lines.get(&(file, line)).into_iter().flatten().copied());
        }
        if dropped.len() == before {
            bail!(
                "the copy does not build, and no mutant is to blame; see `cargo check --workspace --all-targets` there"
            );
        }
    }
    bail!("the copy does not build after {ROUNDS_MAX} rounds")
}

fn copy(repo: &Path, out: &Path) -> Result<()> {
    let skip = ["target", ".git"];
    let entries = walkdir::WalkDir::new(repo)
        .into_iter()
        .filter_entry(|e| e.depth() == 0 || !e.file_name().to_str().is_some_and(|name| skip.contains(&name)));
    for entry in entries {
        let entry = entry?;
        let to = out.join(entry.path().strip_prefix(repo)?);
        if entry.file_type().is_dir() {
            std::fs::create_dir_all(&to)?;
        } else if entry.file_type().is_file() {
            std::fs::copy(entry.path(), &to)?;
        }
    }
    Ok(())
}

fn sources(repo: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for target in TARGETS {
        for entry in walkdir::WalkDir::new(repo.join(target)).sort_by_file_name() {
            let entry = entry.with_context(|| format!("{target}: not in this repository"))?;
            let name = entry.file_name().to_string_lossy();
            if entry.file_type().is_file() && name.ends_with(".rs") && !LEFT_OUT.contains(&&*name) {
                files.push(entry.path().strip_prefix(repo)?.to_owned());
            }
        }
    }
    Ok(files)
}

/// Mutants by file and line of the instrumented text.
type Lines = BTreeMap<(String, usize), Vec<u32>>;

fn write_all(
    repo: &Path,
    out: &Path,
    files: &[PathBuf],
    dropped: &HashSet<u32>,
) -> Result<(Vec<Mutant>, Lines)> {
    let (mut all, mut lines, mut next) = (Vec::new(), Lines::new(), 1);
    for file in files {
        let source = std::fs::read_to_string(repo.join(file))?;
        let name = file.to_string_lossy().into_owned();
        let own = name.starts_with("crates/page/");
        let (mut text, mutants) = mutate(&name, &source, own, &mut next, dropped)
            .with_context(|| format!("{name}: cannot be parsed"))?;
        if name == "crates/page/src/lib.rs" {
            text.push_str(SWITCHES);
        }
        for mutant in &mutants {
            // No insertion adds a line, so the original's line is the instrumented one's; errors may name the statement's first or last line.
            lines.entry((name.clone(), mutant.line)).or_default().push(mutant.id);
        }
        write_if_changed(&out.join(file), &text)?;
        all.extend(mutants);
    }
    Ok((all, lines))
}

fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if std::fs::read_to_string(path).ok().as_deref() != Some(text) {
        std::fs::write(path, text)?;
    }
    Ok(())
}

/// The places of the errors that a check of the copy gives.
fn check(out: &Path) -> Result<HashSet<(String, usize)>> {
    let output = Command::new("cargo")
        .args(["check", "--workspace", "--all-targets", "--keep-going", "--message-format=json", "--quiet"])
        .args(["--features", "pagetier/mutations"])
        .env("RUSTFLAGS", "--cap-lints=allow")
        .current_dir(out)
        .output()
        .context("cargo cannot be started")?;
    let mut places = HashSet::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(value) = serde_json::from_str::<Value>(line) else { continue };
        let message = &value["message"];
        if message["level"] != "error" {
            continue;
        }
        for span in message["spans"].as_array().into_iter().flatten() {
            let (Some(file), Some(first), Some(last)) =
                (span["file_name"].as_str(), span["line_start"].as_u64(), span["line_end"].as_u64())
            else {
                continue;
            };
            let file = Path::new(file).strip_prefix(out).unwrap_or(Path::new(file));
            for line in first..=last.min(first + 6) {
                places.insert((file.to_string_lossy().into_owned(), line as usize));
            }
        }
    }
    if places.is_empty() && !output.status.success() {
        bail!("the copy does not build:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(places)
}
