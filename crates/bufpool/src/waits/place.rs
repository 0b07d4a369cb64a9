//! Where a task waits: the calls that led to a wait, for the warning of one that takes long.
//!
//! A guard does not know where it was requested: noting that would make every hit slower. But a task that
//! waits for a latch it holds itself has requested the guard in one of the calls that led to the wait, and
//! those are on the stack whenever the wait is polled. So the task that checks the waits has an old one
//! polled again, and the wait looks at the stack.

use pagetier_page::PageId;
use std::backtrace::Backtrace;

/// The number of calls that a warning names.
const CALLS_MAX: usize = 6;

/// The beginnings of the names of functions that say nothing about the caller.
const OTHERS: [&str; 9] = [
    "std::",
    "core::",
    "alloc::",
    "tokio::",
    "futures_util::",
    "pagetier::",
    "pagetier_bufpool::",
    "__",
    "clone",
];

/// Warns of a wait for the latch of `page` that is old; called by the wait itself. Takes milliseconds.
#[cold]
pub(crate) fn warn(page: PageId) {
    let calls = calls(&Backtrace::force_capture().to_string());
    let at =
        if calls.is_empty() { "unknown: the program has no symbols".to_owned() } else { calls.join(" < ") };
    tracing::warn!(
        page = %page,
        at = %at,
        "page {page} is requested, and latched already, at: {at}. If one of these calls holds a guard of it, its task \
         waits for itself for ever; a debug build returns an error instead"
    );
}

/// The functions in the text of a backtrace, innermost first, with their places if the program has them.
fn calls(backtrace: &str) -> Vec<String> {
    let mut calls: Vec<String> = Vec::new();
    let mut is_known = false;
    for line in backtrace.lines().map(str::trim) {
        if let Some(place) = line.strip_prefix("at ") {
            if let Some(call) = calls.last_mut().filter(|_| is_known) {
                *call += &format!(" ({place})");
            }
            is_known = false;
        } else if let Some((_, name)) = line.split_once(": ") {
            if calls.len() == CALLS_MAX {
                break;
            }
            let name = name.replace("::{{closure}}", "");
            // Of a method of a type, as `<tokio::task::Unconstrained<F> as Future>::poll` is.
            let own = name.trim_start_matches(['<', '&']);
            is_known = name.contains("::")
                && !OTHERS.iter().any(|begin| own.starts_with(begin))
                // The same function, called by its own closure.
                && calls.last().is_none_or(|last| *last != name);
            if is_known {
                calls.push(name);
            }
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_of_the_engine_are_named_with_their_places() {
        let text = "   0: std::backtrace::Backtrace::create
             at /rustc/library/std/src/backtrace.rs:331:13
   1: pagetier_bufpool::waits::place::warn
   2: <pagetier_bufpool::latch::Wait as core::future::future::Future>::poll
   3: engine::split::{{closure}}
             at ./src/engine.rs:42:13
   4: <core::pin::Pin<P> as core::future::future::Future>::poll
   5: engine::Tree::insert::{{closure}}::{{closure}}
   6: engine::Tree::insert::{{closure}}
   7: tokio::runtime::task::core::Core<T,S>::poll
   8: main
";
        assert_eq!(calls(text), ["engine::split (./src/engine.rs:42:13)", "engine::Tree::insert"]);
        assert!(calls("disabled backtrace").is_empty());
    }
}
