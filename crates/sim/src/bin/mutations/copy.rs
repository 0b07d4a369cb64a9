//! The mutated copy.

use crate::patch::{self, Hunk, Mutation};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the mutations are.
const PATCHES: &str = "crates/sim/mutations";

/// The crate below all others, and what is added to it.
const SWITCH: (&str, &str) = (
    "crates/page/src/lib.rs",
    r#"
/// Whether this process leaves out the rule that `name` names.
#[must_use]
pub fn mutant(name: &str) -> bool {
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    NAME.get_or_init(|| std::env::var("PAGETIER_MUTATION").ok()).as_deref() == Some(name)
}
"#,
);

/// The mutations of the repository at `root`.
pub(crate) fn mutations(root: &Path) -> Result<Vec<Mutation>, String> {
    let failed = |error: std::io::Error| format!("{PATCHES}: {error}");
    let entries = fs::read_dir(root.join(PATCHES)).map_err(failed)?;
    let files: BTreeSet<PathBuf> =
        entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect::<Result<_, String>>()?;
    let mut all = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(failed)?;
        all.extend(patch::parse(&text).map_err(|why| format!("{}: {why}", file.display()))?);
    }
    Ok(all)
}

/// Copies the repository's files into `dir`, with every mutation applied. Returns the copy's root.
pub(crate) fn write(root: &Path, dir: &Path, all: &[Mutation]) -> Result<PathBuf, String> {
    let mut changed: BTreeMap<&str, Vec<(&str, &Hunk)>> = BTreeMap::new();
    for (one, hunk) in all.iter().flat_map(|one| one.hunks.iter().map(move |hunk| (one, hunk))) {
        changed.entry(&hunk.path).or_default().push((&one.name, hunk));
    }
    let tree = dir.join("tree");
    let files = files(root)?;
    if let Some(unknown) = changed.keys().find(|path| !files.contains(**path)) {
        return Err(format!("{unknown}: no such file, but {} changes it", changed[unknown][0].0));
    }
    for file in &files {
        let failed = |error: std::io::Error| format!("{file}: {error}");
        let mut bytes = fs::read(root.join(file)).map_err(failed)?;
        if let Some(hunks) = changed.get(file.as_str()) {
            let source = String::from_utf8(bytes).map_err(|_| format!("{file}: no text"))?;
            for (name, hunk) in hunks {
                // Each hunk is tried alone first: `apply` sees several mutations at once, and could not
                // name the one at fault.
                patch::edit(&source, hunk).map_err(|why| format!("{name} does not apply: {why}"))?;
            }
            bytes = patch::apply(&source, hunks.iter().map(|(_, hunk)| *hunk))?.into_bytes();
        }
        if file == SWITCH.0 {
            bytes.extend_from_slice(SWITCH.1.as_bytes());
        }
        let to = tree.join(file);
        // Only what differs, so that Cargo builds nothing else again.
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        fs::create_dir_all(to.parent().unwrap_or(&tree)).map_err(failed)?;
        fs::write(&to, bytes).map_err(failed)?;
        if let Ok(meta) = fs::metadata(root.join(file)) {
            fs::set_permissions(&to, meta.permissions()).map_err(failed)?;
        }
    }
    remove_others(&tree, &tree, &files)?;
    Ok(tree)
}

/// The files that Git tracks or would, relative to `root`.
fn files(root: &Path) -> Result<BTreeSet<String>, String> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(list).current_dir(root).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // One that was deleted may still be tracked.
    let there = |file: &&str| root.join(file).is_file();
    Ok(text.split('\0').filter(|file| !file.is_empty()).filter(there).map(str::to_owned).collect())
}

/// Removes files of an earlier copy that the repository has no more: Cargo finds some targets by their files.
fn remove_others(tree: &Path, dir: &Path, files: &BTreeSet<String>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.strip_prefix(tree).unwrap_or(&path).to_string_lossy().into_owned();
        if path.is_dir() {
            remove_others(tree, &path, files)?;
        } else if name != "Cargo.lock" && !files.contains(&name) {
            fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}
