//! TPC-C on Pagetier, and what its storage costs per New-Order: `cargo run --release --example tpcc_lite`,
//! and `-- --help` for everything else.
//!
//! The database engine is `crates/tpcc`.

use std::process::ExitCode;

fn main() -> ExitCode {
    pagetier_tpcc::main()
}
