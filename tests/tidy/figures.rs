//! Figures that stand in two places are one figure.

use super::{mutations, none, read};

/// Where a figure stands: a document or source, and the text directly before and after it.
type Place = (&'static str, &'static str, &'static str);

/// The same figure in two places.
const TWICE: [(Place, Place); 9] = [
    (("docs/BENCHMARKS.md", "a change of `kv` | ", ", "), ("docs/BENCHMARKS.md", "| hit, `get` | ", " |")),
    (
        ("docs/RELIABILITY.md", "`, four runs of one state | ", " ("),
        ("docs/trust.md", "every public operation | ", " on one state"),
    ),
    (
        ("docs/RELIABILITY.md", "the code with the ring on the HDD | ", " ("),
        ("docs/trust.md", "on one state, half with a log; ", " on a later one"),
    ),
    (
        ("docs/scale.md", "30 s each. None of ", " acknowledged"),
        ("docs/trust.md", "none of ", " acknowledged writes lost"),
    ),
    (
        ("docs/scale.md", "an outqueue of as many entries (", " B each"),
        ("docs/BENCHMARKS.md", "the default 58 and ", ", CAC"),
    ),
    (
        ("docs/scale.md", "memory for slots (66 B each; the budget sets ", " B aside"),
        ("docs/embedding.md", "which the budget covers too: ", " bytes per page"),
    ),
    (
        ("docs/embedding.md", "`cac` and `cc`, ", " per entry of the outqueue"),
        ("src/config/sizes.rs", "more entries than the SSD has pages takes ", " bytes more"),
    ),
    (
        ("docs/embedding.md", "has taken away stays, ", " bytes each"),
        ("docs/operating.md", "returns to the system; about ", " bytes of metadata"),
    ),
    (
        ("docs/RELIABILITY.md", "and takes ", " of the time of a full scan"),
        ("docs/BENCHMARKS.md", "| opening after a crash | ", " of the time of a full scan"),
    ),
];

fn figure((file, before, after): Place) -> String {
    // Where a line ends may change.
    let text = read(file).split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{file}: no {before:?}"));
    let figure = rest.split_once(after).map(|(figure, _)| figure.to_owned());
    let figure =
        figure.filter(|figure| figure.len() < 20 && figure.starts_with(|c: char| c.is_ascii_digit()));
    figure.unwrap_or_else(|| panic!("{file}: no figure between {before:?} and {after:?}"))
}

#[test]
fn figures_in_two_places_are_equal() {
    let differ = TWICE.iter().filter(|(one, other)| figure(*one) != figure(*other));
    none("figures", &differ.map(|pair| format!("{pair:?}")).collect::<Vec<_>>());
}

#[test]
fn counts_in_documents_are_those_of_the_code() {
    let tests = |file: &str| read(file).matches("#[test]").count();
    let models =
        tests("crates/bufpool/src/loom_models.rs") + tests("crates/devio/src/handover/ticket_models.rs");
    let document = "docs/RELIABILITY.md";
    assert_eq!(
        figure((document, "hit buffers, cleaning, cancels, resizing | ", " models")),
        models.to_string()
    );
    assert_eq!(figure((document, "`mutations` applies ", " patches")), mutations().len().to_string());
}
