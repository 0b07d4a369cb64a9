//! `pagetier`: the command-line tool for Pagetier stores.

use std::process::ExitCode;

fn main() -> ExitCode {
    pagetier_tool::main(|asked| {
        let why =
            "this program knows files and block devices alone; the one of crates/rbd knows images on Ceph";
        Err(format!("{}: {why}", asked.name).into())
    })
}
