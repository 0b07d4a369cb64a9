//! Progress, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar of `total` steps; a spinner when the total is not known.
pub(crate) fn bar(what: &'static str, total: Option<u64>) -> ProgressBar {
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let template = match total {
        Some(_) => "{msg} {wide_bar} {pos}/{len} {per_sec} {eta}",
        None => "{msg} {spinner} {pos} {per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}
