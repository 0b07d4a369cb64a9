//! Tests that need what a machine may not have.

use std::io::Write;

/// Says on standard error, past the harness, which hides the output of passing tests, that a test is skipped
/// for want of `what`, and `why`.
///
/// # Panics
/// Where `CI` is set, unless `PAGETIER_MAY_SKIP`, a list with commas, has `what`: a machine that lost its
/// loop devices would otherwise pass all that needs them.
pub fn skipped(what: &str, why: &str) {
    let _ = std::io::stderr().write_all(format!("\nSKIPPED: no {what}: {why}\n").as_bytes());
    let may = std::env::var("PAGETIER_MAY_SKIP").unwrap_or_default();
    let named = may.split(',').any(|name| name == what);
    assert!(
        named || std::env::var_os("CI").is_none(),
        "no {what}, and PAGETIER_MAY_SKIP does not name it: {why}"
    );
}
