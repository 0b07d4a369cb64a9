//! A log whose system does not write past the kernel's cache as it is asked to.

use pagetier_testing::{fail_call_from, skipped};
use pagetier_wal::{FileMedia, Media};
use std::{io, thread};

/// Appends where the system answers direct writes from `from` on with `errno`; 0: no byte was written.
fn appended(mut media: FileMedia, record: Vec<u8>, errno: i32, from: u32) -> (FileMedia, io::Result<()>) {
    let appending = thread::spawn(move || {
        fail_call_from(libc::SYS_pwritev2, errno, 3, from);
        let appended = media.append(&record);
        (media, appended)
    });
    appending.join().expect("no panic")
}

#[test]
fn a_record_that_is_not_written_directly_is_written_as_usual_or_has_failed() {
    let unsupported = [0, libc::EINTR, libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS];
    let all = unsupported.into_iter().chain([libc::EIO]);
    // In one piece, and in several, of which the first is written if the later ones are not.
    let cases = [(5_000, 0), (600_000, 0), (600_000, 100_000)];
    for (errno, (bytes, from)) in all.flat_map(|errno| cases.map(|case| (errno, case))) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut media = FileMedia::open(folder.path()).unwrap();
        media.reserve(1 << 20).unwrap();
        // In the file of a spare.
        media.create(64, b"begins").unwrap();
        media.append(&[1; 5_000]).unwrap();
        let (mut media, result) = appended(media, vec![2; bytes], errno, from);
        let mut all = [b"begins".as_slice(), &[1; 5_000]].concat();
        match result {
            Ok(()) if errno == libc::EIO && bytes == 5_000 => {
                return skipped("direct I/O", "writes that the system refuses are not tried");
            }
            Ok(()) => {
                assert_ne!(errno, libc::EIO, "from {from}");
                all.extend(vec![2; bytes]);
            }
            Err(error) => assert_eq!((error.raw_os_error(), errno), (Some(errno), libc::EIO)),
        }
        for _ in 0..2 {
            media.append(&[3; 100]).unwrap();
            all.extend([3; 100]);
        }
        let (read, block_end) = (media.read(64).unwrap(), (32 + all.len()).next_multiple_of(4096) - 32);
        assert!(read.starts_with(&all), "error {errno}");
        assert!(read[all.len()..block_end].iter().all(|byte| *byte == 0), "error {errno}");
    }
}
