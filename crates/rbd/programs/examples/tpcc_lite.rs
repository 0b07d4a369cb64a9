//! `tpcc_lite` with its homes on Ceph: `--hdd rbd:POOL/IMAGE`, and perhaps `--log-device rbd:POOL/IMAGE`.
//! Images that are missing are created. `-- --help` lists all options.

mod devices;

use pagetier_rbd::ImageOptions;
use std::process::ExitCode;

fn main() -> ExitCode {
    let code =
        pagetier_tpcc::main(|name, new_bytes| devices::open(name, ImageOptions::default(), Some(new_bytes)));
    devices::close();
    code
}
