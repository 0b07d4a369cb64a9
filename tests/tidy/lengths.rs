//! No function is too long to be read at once; a test may list many cases.

use super::methods::name;
use super::{comment, files, none};

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
