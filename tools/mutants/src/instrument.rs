//! Copies the repository and builds every viable mutant into the copy.

use crate::Mutant;
use crate::mutate::mutate;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directories and files that hold the protocol, the latches and the log, relative to the repository's
/// root.
const TARGETS: [&str; 11] = [
    "crates/ssdcache/src",
    "crates/bufpool/src",
    "crates/page/src",
    "crates/devio/src/duties/check.rs",
    "crates/devio/src/wrap/fence.rs",
    "crates/devio/src/files.rs",
    "crates/devio/src/users/occupancy.rs",
    "crates/devio/src/handover/ticket.rs",
    "crates/devio/src/kernel/transfer.rs",
    "src",
    "crates/wal/src",
];

/// Files and folders among them without protocol: test-only code, statistics, samples and traces of requests,
/// read-ahead, hints to the policy, advice, handles for threads without a runtime.
const LEFT_OUT: [&str; 24] = [
    "tests.rs",
    "testing",
    "pieces.rs",
    "forked.rs",
    "power_cuts.rs",
    "moment.rs",
    "loom_models.rs",
    "stats.rs",
    "bufpool/src/feed/record.rs",
    "trace.rs",
    "sample_channel.rs",
    "sample.rs",
    "sampler.rs",
    "ahead.rs",
    "hits.rs",
    "advice.rs",
    "blocking",
    "calibrate.rs",
    "device.rs",
    "hints.rs",
    "observe",
    "set_hints.rs",
    "space_hints.rs",
    "what_if.rs",
];

/// The packages of these files, in dependency order.
pub(crate) const PACKAGES: [&str; 6] =
    ["pagetier-page", "pagetier-devio", "pagetier-bufpool", "pagetier-ssdcache", "pagetier", "pagetier-wal"];

/// Crates that get switches of their own: the first, and those that do not depend on it. All other crates use
/// those of the first.
const SWITCHES_IN: [&str; 3] = ["crates/page/", "crates/devio/", "crates/wal/"];

/// The switches, appended to `src/lib.rs` of these crates in the copy.
///
/// `PAGETIER_MUTANT` enables one mutant. The process appends the number of every mutant that it reaches to
/// the file that `PAGETIER_REACHED` names: a test that does not reach a mutant cannot catch it.
const SWITCHES: &str = r#"
#[doc(hidden)]
#[allow(missing_docs, unreachable_pub, dead_code)]
pub mod pm {
    use std::fs::File;
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    const IDS_MAX: usize = 1 << 15;
    struct Switches { active: u32, reached: Option<(File, Vec<AtomicBool>)> }
    static SWITCHES: OnceLock<Switches> = OnceLock::new();
    fn start() -> Switches {
        let active = std::env::var("PAGETIER_MUTANT").ok().and_then(|v| v.parse().ok()).unwrap_or(0);
        let file = std::env::var_os("PAGETIER_REACHED").and_then(|path| File::options().append(true).create(true).open(path).ok());
        Switches { active, reached: file.map(|f| (f, (0..IDS_MAX).map(|_| AtomicBool::new(false)).collect())) }
    }
    #[inline]
    pub fn on(id: u32) -> bool {
        let switches = SWITCHES.get_or_init(start);
        if let Some((file, seen)) = &switches.reached
            && !seen[id as usize].swap(true, Ordering::Relaxed)
        {
            let mut file = file;
            let _ = file.write_all(format!("{id}\n").as_bytes());
        }
        switches.active == id
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

/// The maximum number of rounds that drop mutants which do not compile: a crate shows its errors only once
/// its dependencies build.
const ROUNDS_MAX: usize = 40;

/// The file in a copy that lists its mutants.
const LIST: &str = "mutants.json";

/// The mutants of the copy in `dir`.
pub(crate) fn load(dir: &Path) -> Result<Vec<Mutant>> {
    let path = dir.join(LIST);
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!("{}: not an instrumented copy; run `mutants instrument` first", path.display())
    })?;
    Ok(serde_json::from_str(&text)?)
}

/// `since` restricts the mutants to lines that were added or changed after that revision.
pub(crate) fn instrument(repo: &Path, out: &Path, since: Option<&str>) -> Result<()> {
    if out.exists() {
        bail!("{}: already exists; remove it or name another directory", out.display());
    }
    let repo = repo.canonicalize().with_context(|| format!("{}: no such repository", repo.display()))?;
    copy(&repo, out)?;
    allow_lints(out)?;
    let files = sources(&repo)?;
    let mut dropped = HashSet::new();
    if let Some(revision) = since {
        let new = changed_lines(&repo, revision)?;
        let (all, _) = write_all(&repo, out, &files, &dropped)?;
        let is_new = |m: &Mutant| new.get(&m.file).is_some_and(|lines| lines.contains(&m.line));
        dropped.extend(all.iter().filter(|m| !is_new(m)).map(|m| m.id));
    }
    let older = dropped.len();
    for round in 1..=ROUNDS_MAX {
        let (mutants, lines) = write_all(&repo, out, &files, &dropped)?;
        eprintln!("round {round}: {} mutants, {} dropped so far; checking", mutants.len(), dropped.len());
        let errors = check(out)?;
        if errors.named.is_empty() {
            std::fs::write(out.join(LIST), serde_json::to_string_pretty(&mutants)?)?;
            let (viable, files, others) = (mutants.len(), files.len(), dropped.len() - older);
            println!("{viable} viable mutants in {files} files, {others} did not compile");
            return Ok(());
        }
        let before = dropped.len();
        let on = |place: &(String, usize)| lines.get(place).cloned().unwrap_or_default();
        dropped.extend(errors.named.iter().flat_map(on));
        if dropped.len() == before {
            // For example, a value borrowed on one line and moved on another: the mutant that kept the borrow
            // alive stands between them.
            dropped.extend(errors.between.iter().flat_map(on));
        }
        if dropped.len() == before {
            bail!("the copy does not build, and no mutant is to blame; see `cargo check` there");
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

/// Allows all lints: mutants violate them, and every error must come from a mutant that does not compile.
fn allow_lints(out: &Path) -> Result<()> {
    let path = out.join("Cargo.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(std::fs::write(&path, text.replace("= \"deny\"", "= \"allow\""))?)
}

fn sources(repo: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for target in TARGETS {
        let entries = walkdir::WalkDir::new(repo.join(target)).sort_by_file_name().into_iter();
        let wanted = |path: &Path| !LEFT_OUT.iter().any(|end| path.ends_with(end));
        for entry in entries.filter_entry(|entry| wanted(entry.path())) {
            let entry = entry.with_context(|| format!("{target}: not in this repository"))?;
            if entry.file_type().is_file() && entry.path().extension().is_some_and(|e| e == "rs") {
                files.push(entry.path().strip_prefix(repo)?.to_owned());
            }
        }
    }
    Ok(files)
}

/// The lines of each file that were added or changed since `revision`. Lines that only moved, also to another
/// file, are not among them.
fn changed_lines(repo: &Path, revision: &str) -> Result<HashMap<String, HashSet<usize>>> {
    let git = |args: &[&str]| -> Result<String> {
        let output =
            Command::new("git").args(args).current_dir(repo).output().context("git cannot be started")?;
        if !output.status.success() {
            bail!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // Everything up to the revision counts as one commit, the boundary, which blame marks with `^`.
    let range = format!("{revision}..HEAD");
    let mut changed = HashMap::new();
    let files = git(&[&["ls-files", "--"], &TARGETS[..]].concat())?;
    for file in files.lines().filter(|file| file.ends_with(".rs")) {
        let blame = git(&["blame", "-s", "-w", "-M", "-C", &range, "--", file])?;
        let new = blame.lines().enumerate().filter(|(_, line)| !line.starts_with('^'));
        changed.insert(file.to_owned(), new.map(|(at, _)| at + 1).collect());
    }
    Ok(changed)
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
        let own = SWITCHES_IN.iter().any(|of| name.starts_with(of));
        let (text, mutants) = mutate(&name, &source, own, &mut next, dropped)
            .with_context(|| format!("{name}: cannot be parsed"))?;
        for mutant in &mutants {
            // Insertions add no lines, so line numbers are those of the original; an error may name the
            // statement's first or last line.
            lines.entry((name.clone(), mutant.line)).or_default().push(mutant.id);
        }
        write_if_changed(&out.join(file), &text)?;
        all.extend(mutants);
    }
    for of in SWITCHES_IN {
        let path = Path::new(of).join("src/lib.rs");
        // A mutated file was written to `out` above.
        let from = if files.contains(&path) { out } else { repo };
        let text = std::fs::read_to_string(from.join(&path))?;
        let own = text.find(SWITCHES).map_or(text.as_str(), |at| &text[..at]);
        write_if_changed(&out.join(&path), &format!("{own}{SWITCHES}"))?;
    }
    Ok((all, lines))
}

fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if std::fs::read_to_string(path).ok().as_deref() != Some(text) {
        std::fs::write(path, text)?;
    }
    Ok(())
}

/// The lines, with their files, of the errors in a check of the copy.
#[derive(Debug, Default)]
struct Errors {
    named: HashSet<(String, usize)>,
    /// Between the first and the last line that an error names in one file.
    between: HashSet<(String, usize)>,
}

fn check(out: &Path) -> Result<Errors> {
    let output = Command::new("cargo")
        .args(["check", "--lib", "--keep-going", "--message-format=json", "--quiet"])
        .args(PACKAGES.iter().flat_map(|name| ["-p", name]))
        .current_dir(out)
        .output()
        .context("cargo cannot be started")?;
    let mut errors = Errors::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(value) = serde_json::from_str::<Value>(line) else { continue };
        let message = &value["message"];
        if message["level"] != "error" {
            continue;
        }
        let mut of_message = BTreeMap::new();
        for span in message["spans"].as_array().into_iter().flatten() {
            let (Some(file), Some(first), Some(last)) =
                (span["file_name"].as_str(), span["line_start"].as_u64(), span["line_end"].as_u64())
            else {
                continue;
            };
            let file = Path::new(file).strip_prefix(out).unwrap_or(Path::new(file));
            let file = file.to_string_lossy().into_owned();
            let (from, to) = of_message.entry(file.clone()).or_insert((first, last));
            (*from, *to) = ((*from).min(first), (*to).max(last));
            errors.named.extend((first..=last.min(first + 6)).map(|line| (file.clone(), line as usize)));
        }
        let all =
            of_message.into_iter().flat_map(|(file, (from, to))| (from..=to).map(move |l| (file.clone(), l)));
        errors.between.extend(all.map(|(file, line)| (file, line as usize)));
    }
    if errors.named.is_empty() && !output.status.success() {
        bail!("the copy does not build:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(errors)
}
