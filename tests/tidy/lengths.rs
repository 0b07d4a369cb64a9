//! No function is too long to be read at once; a test may list many cases.

use super::{comment, files, name, none, root};
use std::fs;

/// The maximum number of a function's lines, without comments: they shorten the reading.
const LINES_MAX: usize = 70;

/// The functions of formatted code, each with its first line and its number of lines.
fn lengths(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let item = line.trim_start();
        let indent = &line[..line.len() - item.len()];
        let words: Vec<&str> = item.split(' ').take_while(|word| *word != "fn").collect();
        let is_word = |word: &&str| word.starts_with("pub") || ["async", "const", "unsafe"].contains(word);
        let Some(named) = item.split("fn ").nth(1).and_then(name) else { continue };
        if !words.iter().all(is_word) || line.ends_with(['}', ';']) {
            continue;
        }
        let ends = |line: &&str| {
            line.strip_prefix(indent)
                .is_some_and(|rest| rest == "}" || (rest.starts_with(')') && rest.ends_with(';')))
        };
        let Some(more) = lines[at..].iter().position(ends) else { continue };
        let code = lines[at..=at + more].iter().filter(|line| comment(line).is_none()).count();
        found.push((named.to_owned(), at + 1, code));
    }
    found
}

#[test]
fn functions_are_not_too_long() {
    let (mut seen, mut long) = (0, Vec::new());
    let is_test = |file: &str| file.starts_with("tests/") || file.contains("/tests/");
    for (file, text) in files("rs").into_iter().filter(|(file, _)| !is_test(file)) {
        for (function, line, count) in lengths(&text) {
            seen += 1;
            if count > LINES_MAX {
                long.push(format!("{file}:{line}: {function} has {count} lines"));
            }
        }
    }
    assert!(seen > 3_000, "{seen} functions were found");
    none("functions over the length", &long);
}

#[test]
fn a_long_function_is_found() {
    let body = "        step();\n".repeat(70);
    let text = format!(
        "impl A {{\n    pub(crate) async fn long(\n        self,\n    ) {{\n{body}    }}\n\n    fn short() {{\n        // Why.\n        x\n    }}\n}}\n"
    );
    assert_eq!(lengths(&text), [("long".to_owned(), 2, 74), ("short".to_owned(), 77, 3)]);
}

/// How much less than the table says a part may have: a line of the table that is far off is not true.
const SLACK: usize = 300;

/// The part of the repository whose size counts `file`; `None` for tests.
fn part_of(file: &str) -> Option<&str> {
    let (part, within) =
        file.split_once("/src/").or_else(|| file.strip_prefix("src/").map(|within| ("src", within)))?;
    let is_test = ["tests/", "testing/"].iter().any(|folder| within.contains(folder))
        || file.ends_with("tests.rs")
        || file.ends_with("_models.rs");
    Some(part).filter(|_| !is_test)
}

/// The lines of `text` before its tests, comments and blank ones among them.
fn lines_of(text: &str) -> usize {
    text.lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(test"))
        .count()
}

/// The table of sizes in `ARCHITECTURE.md` is true, and no part grows unnoticed. Prints the sizes.
#[test]
fn each_part_has_its_size() {
    let document = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the document");
    let table = document.split("## Size").nth(1).expect("its table");
    let all = files("rs");
    let size = |part: &str| -> usize {
        all.iter().filter(|(file, _)| part_of(file) == Some(part)).map(|(_, text)| lines_of(text)).sum()
    };
    let (mut wrong, mut sum) = (Vec::new(), 0);
    for row in
        table.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with("| "))
    {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (part, most) = (cells[1].trim_matches('`'), cells[2].replace(',', ""));
        let (is, most) = (size(part), most.parse::<usize>().expect("a number of lines"));
        println!("{part}: {is} of at most {most}");
        sum += is;
        if is > most || is + SLACK < most {
            wrong.push(format!("{part} has {is}, the table says at most {most}"));
        }
    }
    println!("all: {sum}");
    assert!(sum > 50_000, "the table has hardly any part");
    none("sizes", &wrong);
}
