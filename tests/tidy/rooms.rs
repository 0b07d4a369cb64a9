//! The rooms of every crate: the modules directly in a folder of its sources. ARCHITECTURE.md draws those of
//! the larger ones.

use super::cycles::{Imports, Module, crates, imports, neighbours};
use super::{files, none, read};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// More modules than that in a folder, and a newcomer does not find the right one by reading their names.
const ROOMS_MAX: usize = 16;

/// More arrows than that, imports of one of them by another, and their order does not help.
const ARROWS_MAX: usize = 60;

/// Crates in which folders need no header yet.
const UNHEADED: [&str; 1] = ["crates/policy/"];

/// The folders that ARCHITECTURE.md draws, each with the heading above its table. The first table has a
/// column of imports, too.
const DRAWN: [(&str, &str); 5] = [
    ("src", "\n## The rooms of `src/`\n"),
    ("crates/ssdcache/src/exec", "\n### The rooms of `exec/`\n"),
    ("crates/devio/src", "\n## The rooms of `devio`\n"),
    ("crates/bufpool/src", "\n## The rooms of `bufpool`\n"),
    ("crates/sim/src/campaign", "\n## The rooms of the campaign\n"),
];

/// Each room with those that it imports.
type Rooms = BTreeMap<String, BTreeSet<String>>;

/// The modules directly in `folder` of a crate.
fn rooms(imports: &Imports<'_>, folder: &[String]) -> Rooms {
    let name = |room: Module| room.last().cloned().unwrap_or_default();
    let found = neighbours(imports, folder);
    found.into_iter().map(|(room, to)| (name(room), to.into_iter().map(name).collect())).collect()
}

/// All folders with modules, each by its path from the root.
static FOLDERS: LazyLock<BTreeMap<String, Rooms>> = LazyLock::new(|| {
    let mut found = BTreeMap::new();
    for (package, modules) in crates() {
        let sources = match package.as_str() {
            "" => "src".to_owned(),
            program if program.contains("/src/bin/") => program.to_owned(),
            package => format!("{package}/src"),
        };
        let imports = imports(&modules);
        let parents = modules.keys().flat_map(|module| (0..module.len()).map(|depth| &module[..depth]));
        for folder in parents.collect::<BTreeSet<_>>() {
            let path = [std::slice::from_ref(&sources), folder].concat().join("/");
            found.insert(path, rooms(&imports, folder));
        }
    }
    found
});

fn arrows(rooms: &Rooms) -> usize {
    rooms.values().map(BTreeSet::len).sum()
}

/// The names in backticks of a table's cell.
fn names(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(|name| name.trim_end_matches('/').to_owned()).collect()
}

/// The cells of the rows in ARCHITECTURE.md's table below `heading`, in its order.
fn table(heading: &str) -> Vec<Vec<String>> {
    let document = read("ARCHITECTURE.md");
    let section = document.split_once(heading).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let section = section.split("\n### ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| row.trim().trim_matches('|').split('|').map(str::to_owned).collect()).collect()
}

#[test]
fn every_folder_has_few_rooms_with_few_arrows() {
    assert!(FOLDERS.len() > 30 && FOLDERS["src"].len() > 10, "sources found");
    let mut crowded = Vec::new();
    for (folder, rooms) in &*FOLDERS {
        let counted = format!("{folder}: {} rooms, {} arrows", rooms.len(), arrows(rooms));
        println!("{counted}");
        if rooms.len() > ROOMS_MAX || arrows(rooms) > ARROWS_MAX {
            crowded.push(counted);
        }
    }
    none(&format!("folders with more than {ROOMS_MAX} rooms, or {ARROWS_MAX} arrows between them"), &crowded);
}

/// ARCHITECTURE.md names every room of these folders once, each below those that it imports.
#[test]
fn the_rooms_are_drawn_as_they_are() {
    for (folder, heading) in DRAWN {
        let (rooms, mut above) = (&FOLDERS[folder], BTreeSet::new());
        for row in table(heading) {
            for room in names(&row[0]) {
                let imports = rooms.get(&room).unwrap_or_else(|| panic!("{folder} has no room {room}"));
                assert!(
                    imports.is_subset(&above),
                    "{folder}: {room} stands above what it imports, {imports:?}"
                );
                assert!(above.insert(room), "{folder}: {row:?} names a room twice");
            }
        }
        let all: BTreeSet<String> = rooms.keys().cloned().collect();
        assert!(above == all, "ARCHITECTURE.md draws of {folder}\n{above:?}\ninstead of\n{all:?}");
    }
}

#[test]
fn the_imports_of_the_stores_rooms_are_drawn_as_they_are() {
    let rows = table(DRAWN[0].1);
    let imports = |row: &Vec<String>| (names(&row[0]).concat(), names(&row[2]).into_iter().collect());
    let drawn: Rooms = rows.iter().map(imports).collect();
    let rooms = &FOLDERS["src"];
    assert!(drawn == *rooms, "ARCHITECTURE.md draws\n{drawn:?}\ninstead of\n{rooms:?}");
}

/// Whether a module only names its files, and what they offer.
fn is_list(text: &str) -> bool {
    let mut code = text.split(';').map(|statement| {
        let lines = statement.lines().map(str::trim);
        let lines = lines.filter(|line| !line.starts_with("//") && !line.starts_with("#["));
        lines.collect::<String>()
    });
    code.all(|statement| {
        let visible = statement.split_once(") ").map_or(statement.as_str(), |(_, rest)| rest);
        let visible = visible.trim_start_matches("pub ");
        visible.is_empty() || visible.starts_with("mod ") || visible.starts_with("use ")
    })
}

/// The header of a folder says what is in there, what is not, and where to begin; of every room of the
/// store, and wherever else a `mod.rs` has nothing but it to say. That of a public module is its
/// documentation.
#[test]
fn every_room_has_a_header() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (file, text) in files("rs") {
        let Some((folder, name)) = file.strip_suffix("/mod.rs").and_then(|room| room.rsplit_once('/')) else {
            continue;
        };
        let root = file.split_once("src/").map_or("", |(root, _)| root);
        let is_source = file.starts_with("src/") || file.starts_with("crates/") && file.contains("/src/");
        if !is_source || UNHEADED.contains(&root) || !(folder == "src" || is_list(&text)) {
            continue;
        }
        if folder == format!("{root}src")
            && read(&format!("{root}src/lib.rs")).contains(&format!("\npub mod {name};"))
        {
            continue;
        }
        seen += 1;
        let header = text.lines().take_while(|line| line.starts_with("//!"));
        let sentences = header.filter(|line| line.len() > 3 && !line.starts_with("//! |")).count();
        if !(2..=5).contains(&sentences) || !text.contains("//! Begin with ") {
            wrong.push(file);
        }
    }
    assert!(seen > 20, "{seen} headers found");
    none("rooms without a header of two to five lines that says where to begin", &wrong);
}
