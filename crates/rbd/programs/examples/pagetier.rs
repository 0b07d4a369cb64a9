//! `pagetier`, the command-line tool, for stores whose homes are on Ceph: `pagetier verify DIR --hdd
//! rbd:POOL/IMAGE`, with `@SNAPSHOT` behind it for what only reads. `-- --help` lists all commands.

mod devices;

use pagetier_rbd::ImageOptions;
use std::process::ExitCode;

fn main() -> ExitCode {
    let code = pagetier_tool::main(|asked| {
        devices::open(&asked.name, ImageOptions::default().read_only(asked.read_only), None)
    });
    devices::close();
    code
}
