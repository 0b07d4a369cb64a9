//! The rooms of the store's own crate: the modules directly in `src/`. ARCHITECTURE.md draws them.

use super::cycles::{crates, neighbours};
use super::{none, read, root};
use std::collections::{BTreeMap, BTreeSet};

/// More rooms than that, and a newcomer does not find the right one by reading their names.
const ROOMS_MAX: usize = 16;

/// More arrows than that, and the order of the rooms does not help.
const ARROWS_MAX: usize = 60;

/// Each room with those that it imports.
type Rooms = BTreeMap<String, BTreeSet<String>>;

fn rooms() -> Rooms {
    let found = neighbours(&crates()[""], &[]);
    let name = |room: Vec<String>| room.concat();
    found.into_iter().map(|(room, to)| (name(room), to.into_iter().map(name).collect())).collect()
}

/// The names in backticks of a table's cell.
fn names(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(|name| name.trim_end_matches('/').to_owned()).collect()
}

/// The table in ARCHITECTURE.md, in its order.
fn drawn(document: &str) -> Vec<(String, BTreeSet<String>)> {
    let section = document.split_once("\n## The rooms").map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.filter_map(|row| {
        let cells: Vec<&str> = row.trim().trim_matches('|').split('|').collect();
        Some((names(cells.first()?).pop()?, names(cells.last()?).into_iter().collect()))
    })
    .collect()
}

#[test]
fn the_store_has_few_rooms_with_few_arrows() {
    let rooms = rooms();
    let arrows: usize = rooms.values().map(BTreeSet::len).sum();
    println!("{} rooms, {arrows} arrows", rooms.len());
    assert!((2..=ROOMS_MAX).contains(&rooms.len()), "{} rooms: {:?}", rooms.len(), rooms.keys());
    assert!(arrows <= ARROWS_MAX, "{arrows} arrows between the rooms: {rooms:?}");
}

#[test]
fn the_rooms_are_drawn_as_they_are() {
    let (rooms, drawn) = (rooms(), drawn(&read("ARCHITECTURE.md")));
    let table: Rooms = drawn.iter().cloned().collect();
    assert!(table == rooms, "ARCHITECTURE.md draws\n{table:?}\ninstead of\n{rooms:?}");
    let mut above = BTreeSet::new();
    for (room, imports) in &drawn {
        assert!(imports.is_subset(&above), "in ARCHITECTURE.md, {room} stands above what it imports");
        above.insert(room.clone());
    }
}

/// The header says what is in the room, what is not, and where to begin. That of a public module is its
/// documentation.
#[test]
fn every_room_has_a_header() {
    let mut wrong = Vec::new();
    for room in rooms().keys().filter(|room| root().join("src").join(room).is_dir()) {
        let text = read(&format!("src/{room}/mod.rs"));
        let header = text.lines().take_while(|line| line.starts_with("//!")).filter(|line| line.len() > 3);
        let public = read("src/lib.rs").contains(&format!("\npub mod {room};"));
        if !public && (!(2..=5).contains(&header.count()) || !text.contains("//! Begin with ")) {
            wrong.push(format!("src/{room}/mod.rs"));
        }
    }
    none("rooms without a header of two to five lines that says where to begin", &wrong);
}
