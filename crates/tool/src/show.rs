//! Shows progress on a terminal, and results as text or JSON.

use crate::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt::Display;
use std::io::{IsTerminal, Write};

/// A progress bar of `total` steps, shown only on a terminal.
pub(crate) fn bar(what: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {per_sec} {eta}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// Prints `value` as JSON, or `text`.
pub(crate) fn result<T: Serialize>(json: bool, value: &T, text: impl Display) -> Result<(), Failure> {
    view(json, value, text).map(drop)
}

/// Prints `value` as JSON, or `text`. Returns false if the reader has closed the pipe, as `head` does, which
/// is not a failure.
pub(crate) fn view<T: Serialize>(json: bool, value: &T, text: impl Display) -> Result<bool, Failure> {
    let out = if json { format!("{}\n", serde_json::to_string_pretty(value)?) } else { text.to_string() };
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(out.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}
