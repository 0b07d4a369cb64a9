//! `kv` with homes and log on Ceph: `--home rbd:POOL/IMAGE --log-device rbd:POOL/IMAGE`, which
//! `--create-devices` creates. `-- --help` lists all options.

mod devices;

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = pagetier_kv::cli::main(|asked| devices::open(&asked.name, asked.take_over, asked.new_bytes));
    devices::close();
    code
}
