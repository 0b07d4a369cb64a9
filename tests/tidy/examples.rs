//! Every entry point of the store has an example.

use super::methods::{implemented, name};
use super::{files, none};

/// The types whose methods are entry points, each with the calls by which examples reach it.
const ENTRY_TYPES: [(&str, &[&str]); 7] = [
    ("PageStore", &["store.", "reopened.", "PageStore::"]),
    ("Builder", &["builder.", "builder().", "Builder::"]),
    ("Spaces", &["spaces()."]),
    ("Ssd", &["ssd()."]),
    ("Estimates", &["what_if()."]),
    ("Policies", &["policies()."]),
    ("Trace", &["trace()."]),
];

/// A public function in `src/` with its documentation.
#[derive(Default)]
struct Documented {
    /// Its type; empty for a function without one.
    of: String,
    name: String,
    docs: String,
    sets_an_option: bool,
}

/// The examples in documentation.
fn examples(docs: &str) -> String {
    let mut fenced = false;
    let code = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        fenced && !fence
    };
    docs.lines().filter(code).collect::<Vec<_>>().join("\n")
}

/// The public functions of `text`, and the documentation of its public types.
fn documented(text: &str) -> (Vec<Documented>, Vec<(String, String)>) {
    let (mut functions, mut types) = (Vec::new(), Vec::new());
    let (mut of, mut docs, mut hidden) = (String::new(), String::new(), false);
    for line in text.lines() {
        let item = line.trim();
        if let Some(text) = item.strip_prefix("///") {
            docs.push_str(text);
            docs.push('\n');
            continue;
        }
        hidden |= item == "#[doc(hidden)]";
        if item.starts_with("#[") {
            continue;
        }
        if let Some(subject) = implemented(line) {
            of = subject.to_owned();
        } else if line == "}" {
            of.clear();
        }
        // Not those that a macro declares.
        let indent = if of.is_empty() { "" } else { "    " };
        let declared = ["pub fn ", "pub async fn "]
            .iter()
            .find_map(|start| line.strip_prefix(indent).and_then(|line| line.strip_prefix(start)));
        if let Some(name) = declared.and_then(name).filter(|_| !hidden) {
            let (of, docs) = (of.clone(), std::mem::take(&mut docs));
            let sets_an_option = item.contains("(mut self");
            functions.push(Documented { of, name: name.to_owned(), docs, sets_an_option });
        } else if let Some(name) = item.strip_prefix("pub struct ").and_then(name) {
            types.push((name.to_owned(), std::mem::take(&mut docs)));
        }
        (docs, hidden) = (String::new(), false);
    }
    (functions, types)
}

/// An entry point of the store has an example: its own, its type's, or that of a method to which its
/// documentation links. A setter of the builder needs none.
#[test]
fn every_entry_point_has_an_example() {
    let (mut functions, mut types) = (Vec::new(), Vec::new());
    for (file, text) in files("rs") {
        if file.starts_with("src/") && !file.starts_with("src/blocking/") {
            let (some, more) = documented(&text);
            functions.extend(some);
            types.extend(more);
        }
    }
    let shown = |function: &Documented, examples: &str| {
        let calls = ENTRY_TYPES.iter().find(|(of, _)| *of == function.of).map_or(&[""][..], |(_, c)| c);
        calls.iter().any(|call| examples.contains(&format!("{call}{}(", function.name)))
    };
    let (mut seen, mut missing) = (0, Vec::new());
    for function in &functions {
        let Documented { of, name, docs, sets_an_option } = function;
        if *sets_an_option || !(of.is_empty() || ENTRY_TYPES.iter().any(|(known, _)| known == of)) {
            continue;
        }
        seen += 1;
        let of_types = types.iter().any(|(known, docs)| {
            let group = known == of || ENTRY_TYPES.iter().any(|(group, _)| group == known);
            group && shown(function, &examples(docs))
        });
        let linked = functions.iter().any(|other| {
            docs.contains(&format!("`{}::{}`", other.of, other.name))
                && shown(function, &examples(&other.docs))
        });
        if examples(docs).is_empty() && !of_types && !linked {
            missing.push(format!("{of}::{name}"));
        }
    }
    assert!(seen > 80, "only {seen} entry points were found");
    none("entry points without an example", &missing);
}
