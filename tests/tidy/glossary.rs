//! The glossary in `src/lib.rs`: every word once, in order, and the types that it names exist.

use super::{files, none, read};

/// The entries: each word with its explanation.
fn entries() -> Vec<(String, String)> {
    let text = read("src/lib.rs");
    let section = text.split_once("//! # Glossary\n").map_or("", |(_, rest)| rest);
    let lines = section.lines().map_while(|line| line.strip_prefix("//!"));
    let joined: Vec<&str> = lines.map(str::trim).collect();
    let entry = |entry: &str| {
        let (word, text) = entry.split_once("**: ")?;
        Some((word.to_owned(), text.to_owned()))
    };
    joined.join(" ").split("- **").filter_map(entry).collect()
}

#[test]
fn the_glossary_has_every_word_once_and_in_order() {
    let words: Vec<String> = entries().into_iter().map(|(word, _)| word.to_lowercase()).collect();
    assert!(words.len() > 10, "{words:?}");
    assert!(words.is_sorted_by(|a, b| a < b), "not in order, or twice: {words:?}");
}

/// The types that have a word of the glossary for a name, and mean what it says or, in io_uring's and
/// `bufpool`'s memory, a thing of their own file alone.
const NAMED: [(&str, &str); 13] = [
    ("crates/bufpool/src/frames/frame.rs", "Frame"),
    ("crates/bufpool/src/frames/memory.rs", "Space"),
    ("crates/bufpool/src/tier.rs", "Tier"),
    ("crates/devio/src/kernel/uring/ring.rs", "Ring"),
    ("crates/ghost/src/tiers.rs", "Frame"),
    ("crates/ghost/src/tiers.rs", "Slot"),
    ("crates/testing/src/placement.rs", "Tier"),
    ("crates/policy/src/ssd/zone.rs", "Zone"),
    ("crates/page/src/stamp.rs", "Stamp"),
    ("crates/ssdcache/src/protocol/checkpoint.rs", "Checkpoint"),
    ("crates/ssdcache/src/protocol/slots/slot.rs", "Slot"),
    ("src/manifest/contents.rs", "Manifest"),
    ("src/ownership/gate.rs", "Gate"),
];

/// The types that the glossary names exist, and no other type takes one of its words, which would mean two
/// things.
#[test]
fn types_mean_what_the_glossary_says() {
    let sources = files("rs");
    let declares = |text: &str, name: &str| {
        ["struct", "enum", "trait"].iter().any(|kind| {
            let starts = |line: &str| {
                let line =
                    line.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
                let rest = line.trim_start_matches("pub ").strip_prefix(kind)?.strip_prefix(' ')?;
                rest.strip_prefix(name)?.chars().next().filter(|c| !c.is_alphanumeric() && *c != '_')
            };
            text.lines().any(|line| starts(line).is_some())
        })
    };
    let in_production = |file: &str| {
        let library = [
            "crates/bufpool/",
            "crates/devio/",
            "crates/ghost/",
            "crates/page/",
            "crates/policy/",
            "crates/ssdcache/",
        ];
        file.starts_with("src/")
            || (file.contains("/src/") && library.iter().any(|folder| file.starts_with(folder)))
    };
    let mut wrong = Vec::new();
    for (word, text) in entries() {
        for named in text.split("[`").skip(1).filter_map(|rest| rest.split("`]").next()) {
            // Rustdoc checks that a method exists.
            let named = named.split("::").next().unwrap_or(named);
            if !sources.iter().any(|(file, text)| in_production(file) && declares(text, named)) {
                wrong.push(format!("{word}: there is no type {named}"));
            }
        }
        for (file, _) in sources.iter().filter(|(file, text)| in_production(file) && declares(text, &word)) {
            if !NAMED.contains(&(file, &word)) {
                wrong.push(format!("{file}: a type {word}"));
            }
        }
    }
    none("types that contradict the glossary", &wrong);
}
