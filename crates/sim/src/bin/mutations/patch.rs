//! Patches that leave rules of the protocol out, one mutation each.
//!
//! A file of `crates/sim/mutations` has any number of them. Each begins with a line `mutation: NAME`; what it
//! leaves out follows, and the schedule that shows it; then a line `caught by: campaign PART=VALUE…` or
//! `caught by: test TARGET NAME`; then its hunks: a line `--- FILE`, and the lines of a unified diff, which
//! start with a blank, `-` or `+`.
//!
//! A hunk has no line numbers: the lines that it keeps or removes stand in its file exactly once. All patches
//! are applied to one copy, so the new text asks whether its mutation is the one that this process runs.

use std::ops::Range;

pub(crate) struct Mutation {
    pub(crate) name: String,
    /// What is left out, and the schedule that shows it.
    pub(crate) about: String,
    pub(crate) caught_by: Catcher,
    pub(crate) hunks: Vec<Hunk>,
}

/// What must fail under a mutation.
pub(crate) enum Catcher {
    /// Random lives, with these overrides of their plans.
    Campaign(Vec<String>),
    /// A test, by its target and name.
    Test { target: String, name: String },
}

/// A change of one file.
pub(crate) struct Hunk {
    pub(crate) path: String,
    pub(crate) old: String,
    pub(crate) new: String,
}

/// The mutations that `text` describes.
pub(crate) fn parse(text: &str) -> Result<Vec<Mutation>, String> {
    let mut all = Vec::new();
    for part in format!("\n{text}").split("\nmutation: ").skip(1) {
        let (name, rest) = part.split_once('\n').ok_or("a mutation without a text")?;
        all.push(mutation(name.trim(), rest).map_err(|why| format!("{name}: {why}"))?);
    }
    Ok(all)
}

fn mutation(name: &str, text: &str) -> Result<Mutation, String> {
    let (about, rest) = text.split_once("caught by: ").ok_or("it says not what catches it")?;
    let (by, rest) = rest.split_once('\n').ok_or("no hunk")?;
    let caught_by = match by.split_whitespace().collect::<Vec<_>>()[..] {
        ["campaign", ref with @ ..] => {
            Catcher::Campaign(with.iter().map(|part| (*part).to_owned()).collect())
        }
        ["test", target, name] => Catcher::Test { target: target.to_owned(), name: name.to_owned() },
        _ => return Err(format!("{by}: neither `campaign PART=VALUE…` nor `test TARGET NAME`")),
    };
    let hunks: Vec<Hunk> =
        format!("\n{rest}").split("\n--- ").skip(1).map(hunk).collect::<Result<_, String>>()?;
    let asked: Vec<&str> = hunks.iter().flat_map(|hunk| asked(&hunk.new)).collect();
    // A hunk that asks for no mutation would change every process, and one that asks for another would
    // never be checked by its own catcher.
    if asked.is_empty() || asked.iter().any(|other| *other != name) {
        return Err(format!("its hunks ask for {asked:?}"));
    }
    let (name, about) = (name.to_owned(), about.trim().to_owned());
    Ok(Mutation { name, about, caught_by, hunks })
}

/// The mutations for which a text asks.
fn asked(text: &str) -> impl Iterator<Item = &str> {
    text.split("mutant(\"").skip(1).filter_map(|rest| rest.split('"').next())
}

fn hunk(text: &str) -> Result<Hunk, String> {
    let (path, lines) = text.split_once('\n').ok_or("an empty hunk")?;
    let (mut old, mut new) = (String::new(), String::new());
    for line in lines.trim_end_matches('\n').split('\n') {
        // An empty line is a kept one: editors strip the blank that would mark it.
        let (kind, line) = line.split_at_checked(1).unwrap_or((" ", ""));
        let into: &mut [&mut String] = match kind {
            " " => &mut [&mut old, &mut new],
            "-" => &mut [&mut old],
            "+" => &mut [&mut new],
            _ => return Err(format!("{path}: a line that starts with `{kind}`")),
        };
        into.iter_mut().for_each(|text| **text += &format!("{line}\n"));
    }
    Ok(Hunk { path: path.trim().to_owned(), old, new })
}

/// What a hunk changes in `source`: the part that it replaces, without what old and new text share at their
/// ends, and the new text.
pub(crate) fn edit<'a>(source: &str, hunk: &'a Hunk) -> Result<(Range<usize>, &'a str), String> {
    let found: Vec<usize> = source.match_indices(&hunk.old).map(|(at, _)| at).collect();
    let [at] = found[..] else {
        return Err(format!("{} has its text {} times, not once:\n{}", hunk.path, found.len(), hunk.old));
    };
    let shared = |pairs: &mut dyn Iterator<Item = (char, char)>| -> usize {
        pairs.take_while(|(old, new)| old == new).map(|(old, _)| old.len_utf8()).sum()
    };
    let (old, new) = (&hunk.old, &hunk.new);
    // Only what differs counts, so that two patches may name the same lines around it.
    let before = shared(&mut old.chars().zip(new.chars()));
    let after = shared(&mut old[before..].chars().rev().zip(new[before..].chars().rev()));
    Ok((at + before..at + old.len() - after, &new[before..new.len() - after]))
}

/// Applies the hunks to the file that they change. Several may insert at one place, but none may change what
/// another does.
pub(crate) fn apply<'a>(source: &str, hunks: impl Iterator<Item = &'a Hunk>) -> Result<String, String> {
    let mut edits = hunks.map(|hunk| edit(source, hunk)).collect::<Result<Vec<_>, String>>()?;
    // Insertions come before a change of the text that begins at the same place.
    edits.sort_by_key(|(range, _)| (range.start, range.end));
    let (mut text, mut done) = (String::new(), 0);
    for (range, new) in edits {
        let kept = source.get(done..range.start);
        text += kept.ok_or_else(|| format!("two patches change the same text; one has\n{new}"))?;
        text += new;
        done = range.end;
    }
    Ok(text + &source[done..])
}
