//! An operator's script: the verbs on stores in several states, in words and as JSON. What they say is so.

use crate::stores::{PAGES, contents, contents_of_pages, damage, has_all_pages, json, made, run, said};
use serde_json::Value;
use std::path::Path;

/// Runs a command in words and as JSON. Both end with the same code, and a failure is said in both. Returns
/// the code, the object, and the words.
fn both(args: &[&str]) -> (i32, Value, String) {
    let out = run(args);
    let (code, value) = json(args);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {}", said(&out));
    let words = said(&out);
    assert!(!words.contains("panicked"), "{args:?}: {words}");
    if code == 1 {
        let why = value["error"].as_str().unwrap_or_else(|| panic!("{args:?}: {value}"));
        assert!(words.contains(why.lines().next().unwrap()), "{args:?}: {value} {words}");
    }
    (code, value, words)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// What is so of a store.
struct Is {
    clean: bool,
    /// The pages that no copy of theirs has left whole.
    lost: Vec<u32>,
    /// The bad copies.
    bad_copies: u64,
    /// The pages of which only the SSD has the newest version.
    only_on_ssd: u64,
}

/// The verbs that only look, which write nothing.
fn looks(at: &str, is: &Is) {
    let before = contents(Path::new(at));
    // After a crash, the manifest's numbers are old, which is said.
    let (_, value, words) = both(&["inspect", at]);
    assert_eq!(value["manifest"]["clean"], is.clean, "{value}");
    assert_eq!(words.contains("closed cleanly") && words.contains("\"t\": 300 pages,"), is.clean, "{words}");
    assert_eq!(words.contains("pages when the manifest was saved"), !is.clean, "{words}");
    let (code, value, words) = both(&["stat", at]);
    let (dirty, on_ssd) = (number(&value["stats"]["ssd"]["dirty_pages"]), &value["stats"]["ssd"]["pages"]);
    assert_eq!((code, number(&value["spaces"][0]["pages"])), (0, u64::from(PAGES)));
    assert_eq!((dirty, number(&value["lost_pages"])), (is.only_on_ssd, 0), "{value}");
    assert!(words.contains(&format!("{on_ssd} of ")) && words.contains(&format!("{dirty} of them newer")));
    let hot = format!("{at}.hot");
    assert_eq!(&both(&["export-hot", at, "--to", &hot]).1["pages"], on_ssd);
    assert_eq!(std::fs::read_to_string(hot).unwrap().lines().count() as u64, 1 + number(on_ssd));
    for no in (0..PAGES).step_by(60) {
        let (_, value, words) = both(&["why", at, "--space", "t", "--page", &no.to_string()]);
        assert_eq!(value["ssd_alone"], is.only_on_ssd > 0, "{value}");
        assert_eq!(words.contains("the only copy of the newest version"), is.only_on_ssd > 0, "{words}");
    }
    let (code, value, words) = both(&["verify", at]);
    assert_eq!((code, number(&value["damaged"])), (if is.bad_copies > 0 { 3 } else { 0 }, is.bad_copies));
    assert_eq!(value["findings"].as_array().unwrap().len() as u64, is.bad_copies, "{value}");
    assert!(words.contains(&format!("{} damaged", is.bad_copies)), "{words}");
    assert!(contents(Path::new(at)) == before, "what only looks has written");
}

/// The verbs that write, each looked at by the others.
fn changes(dir: &Path, at: &str, is: &Is) {
    let stat = || both(&["stat", at]).1["stats"]["ssd"].clone();
    let (_, value) = json(&["drain", at]);
    assert_eq!((number(&value["written"]), &value["left"]), (is.only_on_ssd, &0.into()), "{value}");
    assert_eq!(both(&["drain", at]).2, "0 pages written home, 0 left\n");
    assert_eq!(stat()["dirty_pages"], 0);
    let (code, value) = json(&["repair", at, "--write"]);
    let left = number(&value["left"]);
    assert_eq!(code, if is.lost.is_empty() { 0 } else { 3 }, "{value}");
    assert_eq!(number(&value["damaged"]), is.bad_copies, "{value}");
    assert_eq!(number(&value["healed"]) + left, is.bad_copies, "{value}");
    let (code, again, words) = both(&["verify", at]);
    assert_eq!((code == 3, number(&again["damaged"])), (left > 0, left), "{words}");
    for (no, read) in contents_of_pages(Path::new(at)) {
        assert_eq!(read.ok(), (!is.lost.contains(&no)).then_some(2), "page {no}");
    }
    let chain = dir.join("chain");
    let to = chain.to_str().unwrap();
    let (code, value, words) = both(&["backup", at, "--to", to]);
    if !is.lost.is_empty() {
        assert!(code == 1 && words.contains(&format!(":{} is corrupt", is.lost[0])), "{words}");
        return;
    }
    // The second of both is incremental, and has nothing to add.
    assert_eq!((code, number(&value["number"]), number(&value["pages"])), (0, 2, 0), "{value}");
    assert!(words.contains("300 of 300 pages"), "{words}");
    let (_, value, words) = both(&["backups", "list", to]);
    assert!(value.to_string().matches("\"number\"").count() == 2, "{value}");
    assert!(words.contains("1  full") && words.contains("2  incremental"), "{words}");
    let restored = dir.join("restored");
    assert_eq!(json(&["restore", to, "--to", restored.to_str().unwrap()]).0, 0);
    has_all_pages(&restored, "restored");
    assert_eq!(both(&["shrink", at, "--all"]).1["spaces"][0]["bytes"], 0);
    assert_eq!(json(&["set-mode", at, "--mode", "off"]).1["off"], true);
    assert_eq!((&stat()["mode"], &stat()["slots"]), (&"off".into(), &0.into()));
    assert_eq!(json(&["set-mode", at, "--mode", "write-back"]).0, 0);
    assert!(number(&stat()["slots"]) > 0);
    has_all_pages(Path::new(at), "after all");
}

/// A store in the directory `name` of `dir`, and what is so of it.
fn state(dir: &Path, name: &str) -> Is {
    let store = dir.join("store");
    made(&store, name != "crashed");
    let is = Is { clean: name != "crashed", lost: vec![], bad_copies: 0, only_on_ssd: PAGES.into() };
    if !name.contains("bad") {
        return is;
    }
    assert_eq!(json(&["drain", store.to_str().unwrap()]).0, 0);
    let mut bad_copies = damage(&store.join("hdd.vol"), 1 << 20, 6);
    let mut lost = Vec::new();
    if name == "both copies bad" {
        // Older images of the page count for nothing.
        bad_copies += usize::from(damage(&store.join("ssd.cache"), 0, 6) > 0);
        lost.push(6);
    }
    Is { lost, bad_copies: bad_copies as u64, only_on_ssd: 0, ..is }
}

#[test]
fn what_every_verb_says_is_so() {
    for name in ["closed", "crashed", "home bad", "both copies bad"] {
        println!("{name}");
        let dir = tempfile::tempdir().unwrap();
        let is = state(dir.path(), name);
        let at = dir.path().join("store").to_str().unwrap().to_owned();
        looks(&at, &is);
        changes(dir.path(), &at, &is);
    }
}

#[test]
fn what_is_said_of_a_lost_ssd_is_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    made(&store, true);
    std::fs::remove_file(store.join("ssd.cache")).unwrap();
    let (at, accept) = (store.to_str().unwrap(), "--accept-ssd-loss");
    for verb in [&["stat", at][..], &["verify", at], &["drain", at], &["export-hot", at, "--to", "none"]] {
        let (code, _, words) = both(verb);
        assert!(code == 1 && words.contains("ssd.cache") && words.contains(accept), "{words}");
    }
    // Before and after it is accepted for good, until the loss is acknowledged.
    for write in [false, true] {
        let (code, value, words) = both(&["verify", at, accept]);
        assert_eq!((code, number(&value["damaged"])), (3, 0), "{words}");
        let (lost, checked) = (number(&value["lost_pages"]), number(&value["checked"]));
        assert!(lost > 0 && words.contains(&format!("{lost} pages listed as lost")), "{words}");
        // No SSD is there that could be checked.
        assert_eq!(checked, u64::from(PAGES), "{words}");
        if !write {
            let (code, value) = json(&["repair", at, "--write", accept]);
            assert_eq!((code, number(&value["lost_pages"]), &value["has_ssd"]), (3, lost, &false.into()));
        }
        let stat = both(&["stat", at]);
        assert_eq!((stat.0, number(&stat.1["lost_pages"])), (0, lost));
        assert!(stat.2.contains(&format!("LISTS {lost} PAGES AS LOST")), "{}", stat.2);
    }
}
