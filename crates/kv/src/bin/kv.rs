//! `kv`: an ordered key-value store in a directory.

use std::process::ExitCode;

fn main() -> ExitCode {
    pagetier_kv::cli::main(|asked| {
        Err(format!("{}: this program knows files and block devices only", asked.name).into())
    })
}
