//! HTML that is also well-formed XML: every tag is closed, every text escaped.

use std::fmt::{Display, Write};

/// Escapes a text for use between tags and in attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A fragment of a page.
#[derive(Debug, Default)]
pub(crate) struct Html(String);

impl Html {
    /// Appends an element with a text.
    pub(crate) fn text(&mut self, tag: &str, text: impl Display) -> &mut Self {
        let text = escape(&text.to_string());
        self.raw(format_args!("<{tag}>{text}</{tag}>\n"))
    }

    /// Appends markup verbatim.
    pub(crate) fn raw(&mut self, markup: impl Display) -> &mut Self {
        let written = write!(self.0, "{markup}");
        debug_assert!(written.is_ok(), "a string takes everything");
        self
    }

    /// Appends an element of a class with markup.
    pub(crate) fn class(&mut self, tag: &str, class: &str, markup: impl Display) -> &mut Self {
        self.raw(format_args!("<{tag} class=\"{class}\">{markup}</{tag}>\n"))
    }

    /// The markup.
    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

/// A table that scrolls sideways if it is too wide. Cells are markup.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: String,
}

impl Table {
    /// Creates a table with this head, whose cells are text.
    pub(crate) fn new(head: &[&str]) -> Self {
        let cells: String = head.iter().map(|cell| format!("<th>{}</th>", escape(cell))).collect();
        Self { rows: format!("<thead><tr>{cells}</tr></thead>\n<tbody>\n") }
    }

    /// Appends a row.
    pub(crate) fn row(&mut self, cells: &[String]) {
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        self.rows += &format!("<tr>{cells}</tr>\n");
    }

    /// Appends a row of a first cell, markup, and one wide cell, text.
    pub(crate) fn note(&mut self, first: &str, note: &str, columns: usize) {
        let span = columns.saturating_sub(1);
        self.rows += &format!(
            "<tr><td>{first}</td><td class=\"note\" colspan=\"{span}\">{}</td></tr>\n",
            escape(note)
        );
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "<div class=\"scroll\"><table>{}</tbody></table></div>", self.rows)
    }
}

/// What is wrong with `page`: unmatched tags, an unescaped attribute or text, or a reference to something
/// outside.
#[cfg(test)]
pub(crate) fn unsound(page: &str) -> Option<String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>")?;
    while let Some(at) = rest.find(['<', '>', '&']) {
        let (found, after) = rest[at..].split_at(1);
        rest = after;
        if found == "&" {
            let known = ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|name| rest.starts_with(name));
            if !known {
                return Some(format!("a bare & before {:?}", rest.get(..20)));
            }
            continue;
        }
        let end = rest.find('>').filter(|_| found == "<");
        let Some(end) = end else { return Some(format!("a bare {found} before {:?}", rest.get(..20))) };
        let (tag, after) = rest.split_at(end);
        rest = &after[1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Some(format!("</{name}> closes nothing"));
            }
        } else if !tag.ends_with('/') {
            open.push(tag.split_ascii_whitespace().next().unwrap_or(""));
        }
        if tag.matches('"').count() % 2 == 1 || ["src=", "href=", "url("].iter().any(|out| tag.contains(out))
        {
            return Some(format!("<{tag}>"));
        }
        if open.last() == Some(&"style") {
            let end = rest.find("</style>").unwrap_or(0);
            if rest[..end].contains("url(") || rest[..end].contains("@import") {
                return Some("the style refers to something outside".into());
            }
            rest = &rest[end..];
        }
    }
    (!open.is_empty()).then(|| format!("not closed: {open:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_elements_closed() {
        let mut html = Html::default();
        html.text("p", "a < b & \"c\"").class("div", "x", "<b>y</b>");
        let mut table = Table::new(&["a & b", "c"]);
        table.row(&["1".into(), "<b>2</b>".into()]);
        table.note("3", "no <such> policy", 2);
        html.raw(table);
        let page = format!("<!DOCTYPE html>{}", html.into_string());
        assert!(page.contains("<p>a &lt; b &amp; &quot;c&quot;</p>"));
        assert_eq!(unsound(&page), None);
    }

    #[test]
    fn unsound_pages_are_found_out() {
        for bad in [
            "<p>",
            "</p>",
            "<p><b></p></b>",
            "a & b",
            "a > b",
            "<img src=\"x\"/>",
            "<a href=\"http://x\"></a>",
            "<p class=\"x></p>",
            "<style>@import 'x';</style>",
        ] {
            assert!(unsound(&format!("<!DOCTYPE html>{bad}")).is_some(), "{bad}");
        }
    }
}
