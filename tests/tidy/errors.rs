//! What errors say: each only its own part, in the words of an operator.

use super::{files, none};

/// An `#[error(..)]` attribute, and what follows up to the next one.
fn errors(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("#[error(").skip(1).filter_map(|rest| rest.split_once(")]\n"))
}

/// The names by which the message of a variant, or a type, could show its source; `after` is its text.
fn sources(after: &str) -> Vec<String> {
    let own = after.split("#[error(").next().unwrap_or_default();
    let own = own.split("\n    },").next().unwrap_or_default();
    let mut names = vec!["source".to_owned()];
    for mark in ["#[source]", "#[from]"] {
        let field = own.split(mark).nth(1).unwrap_or_default().trim_start().trim_start_matches("pub ");
        let name: String = field.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if field[name.len()..].starts_with(": ") {
            names.push(name);
        } else if !field.is_empty() {
            names.push("0".to_owned());
        }
    }
    names
}

fn shows(message: &str, name: &str) -> bool {
    [format!("{{{name}}}"), format!("{{{name}:"), format!(".{name}")].iter().any(|way| message.contains(way))
}

/// The source is told by `Error::source`, and [`pagetier::errors::Causes`] joins what both say.
#[test]
fn no_error_repeats_its_source() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (path, text) in files("rs") {
        for (message, after) in errors(&text) {
            seen += 1;
            if sources(after).iter().any(|name| shows(message, name)) {
                wrong.push(format!("{path}: {message}"));
            }
        }
    }
    assert!(seen > 100, "{seen}");
    none("errors that repeat their source", &wrong);
}

/// The tool and other programs print them: a method's name helps only those who call it. The documentation of
/// a variant has it.
#[test]
fn no_error_names_a_call() {
    let mut wrong = Vec::new();
    for (path, text) in files("rs").into_iter().filter(|(path, _)| !path.contains("/tests/")) {
        let named = errors(&text).filter(|(message, _)| message.contains('`') || message.contains("(true)"));
        wrong.extend(named.map(|(message, _)| format!("{path}: {message}")));
    }
    none("errors that name calls", &wrong);
}

#[test]
fn the_check_of_sources_finds_them() {
    let text = "#[error(\"{path}: {source}\")]\nIo { source: E }\n#[error(\"x: {0}\")]\nA(#[from] B)\n\
        #[error(\"{0}\")]\nC(String)\n#[error(\"{cause}\")]\nD { #[source] cause: E }\n";
    let found: Vec<bool> =
        errors(text).map(|(message, after)| sources(after).iter().any(|name| shows(message, name))).collect();
    assert_eq!(found, [true, true, false, true]);
}
