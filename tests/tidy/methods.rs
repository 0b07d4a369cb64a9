//! The public methods and options that sources declare, read line by line, as rustfmt has put them. The tests
//! that compare a table with the interface share this.

#![allow(dead_code, reason = "each test uses a part")]

/// A method that is as public as its type, or one of a public trait.
pub(crate) struct Method<'t> {
    pub(crate) of: &'t str,
    pub(crate) name: &'t str,
    /// Documentation does not show it: it is for tests, or for other crates of this repository.
    pub(crate) hidden: bool,
    pub(crate) is_const: bool,
}

/// The methods in the source `text`.
pub(crate) fn methods(text: &str) -> Vec<Method<'_>> {
    let (mut of, mut in_trait, mut hidden, mut found) = (None, false, false, Vec::new());
    for line in text.lines() {
        if line.starts_with("impl") {
            (of, in_trait) = (implemented(line), false);
        } else if let Some(rest) = line.strip_prefix("pub trait ") {
            (of, in_trait) = (name(rest), true);
        } else if line == "}" {
            of = None;
        }
        let code = line.trim();
        hidden |= code == "#[doc(hidden)]";
        let public = if in_trait { Some(code) } else { code.strip_prefix("pub ") };
        let is_const = public.is_some_and(|code| code.starts_with("const "));
        let function = public.map(|code| code.trim_start_matches("const ").trim_start_matches("async "));
        let function = function.and_then(|code| name(code.strip_prefix("fn ")?));
        found.extend(of.zip(function).map(|(of, name)| Method { of, name, hidden, is_const }));
        hidden &= code.starts_with(['#', '/']);
    }
    found
}

/// The options in `src/config/options.rs`: each with its name, and whether the table declares a setter (a
/// type in parentheses).
pub(crate) fn options(source: &str) -> Vec<(&str, bool)> {
    let table = source.split_once("$then! {").and_then(|(_, rest)| rest.split_once("\n        }"));
    let lines = table.map_or("", |(table, _)| table).lines().map(str::trim);
    let declared = lines.filter(|line| !line.starts_with("//") && line.ends_with(';'));
    declared.filter_map(|line| Some((name(line)?, line[name(line)?.len()..].starts_with('(')))).collect()
}

/// The type that an `impl` line is about.
pub(crate) fn implemented(line: &str) -> Option<&str> {
    let mut rest = line.strip_prefix("impl")?;
    if rest.starts_with('<') {
        rest = rest.split_once("> ")?.1;
    }
    rest = rest.split_once(" for ").map_or(rest, |(_, subject)| subject);
    rest.trim().split(|c: char| !c.is_alphanumeric()).next()
}

/// The identifier that `rest` begins with.
pub(crate) fn name(rest: &str) -> Option<&str> {
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}
