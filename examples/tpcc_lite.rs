//! Runs TPC-C on Pagetier and reports its storage cost per New-Order: `cargo run --release --example
//! tpcc_lite`; `-- --help` lists all options.
//!
//! The database engine is `crates/tpcc`.

use std::process::ExitCode;

fn main() -> ExitCode {
    pagetier_tpcc::main(|name, _| {
        Err(format!("{name}: this program knows files and block devices only").into())
    })
}
