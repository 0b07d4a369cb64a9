//! `kv` with homes and log on Ceph: `--home rbd:POOL/IMAGE --log-device rbd:POOL/IMAGE`, which
//! `--create-devices` creates. `-- --help` lists all options.

mod devices;

use pagetier_rbd::ImageOptions;
use std::process::ExitCode;

fn main() -> ExitCode {
    let code = pagetier_kv::cli::main(|asked| {
        let options = ImageOptions::default().take_over(asked.take_over);
        devices::open(&asked.name, options, asked.new_bytes)
    });
    devices::close();
    code
}
