//! The table of `docs/RELIABILITY.md`.

use crate::drive::{Case, Met};
use crate::operations;
use crate::world::Side;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The lines around it in the document.
const MARKS: [&str; 2] = ["<!-- pairs: begin -->", "<!-- pairs: end -->"];

/// More partners than these are counted, not named.
const NAMED_MAX: usize = 5;

/// What happened to an operation beside all others.
#[derive(Default)]
struct Row {
    partners: BTreeSet<&'static str>,
    /// By kind of error, the partners beside which it is refused.
    refused: BTreeMap<String, BTreeSet<&'static str>>,
    drops: u64,
}

#[derive(Default)]
pub(crate) struct Table(BTreeMap<&'static str, Row>);

impl Table {
    pub(crate) fn note(&mut self, case: Case, met: &Met) {
        for side in Side::BOTH {
            let (own, other) = (side as usize, 1 - side as usize);
            let row = self.0.entry(case.operations[own].name).or_default();
            let partner = case.operations[other].name;
            row.partners.insert(partner);
            if let Some(Err(refused)) = &met.ends[own] {
                row.refused.entry(refused.kind.clone()).or_default().insert(partner);
            }
            row.drops += u64::from(met.ends[own].is_none());
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", MARKS[0])?;
        writeln!(f, "| operation | beside | refused | drops |")?;
        writeln!(f, "| --- | ---: | --- | ---: |")?;
        for operation in operations::all() {
            let Some(row) = self.0.get(operation.name) else { continue };
            let refused: Vec<String> = row
                .refused
                .iter()
                .map(|(kind, partners)| {
                    let named: Vec<&str> = partners.iter().copied().collect();
                    let many = named.len() > NAMED_MAX;
                    let beside = if many { format!("{} of them", named.len()) } else { named.join(", ") };
                    format!("{kind}: {beside}")
                })
                .collect();
            let refused = if refused.is_empty() { "never".to_owned() } else { refused.join("; ") };
            writeln!(f, "| {} | {} | {refused} | {} |", operation.name, row.partners.len(), row.drops)?;
        }
        writeln!(f, "{}", MARKS[1])
    }
}

#[test]
fn the_document_has_every_operation() {
    let document = include_str!("../../docs/RELIABILITY.md");
    let between = document.split_once(MARKS[0]).and_then(|(_, rest)| rest.split_once(MARKS[1]));
    let (table, _) = between.expect("docs/RELIABILITY.md has the table of pairs between its marks");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let rows: Vec<&str> = rows.skip(2).collect();
    let named: Vec<&str> = operations::all().map(|operation| operation.name).collect();
    assert_eq!(rows, named, "generate the table anew: see tests/pairs/main.rs");
}
