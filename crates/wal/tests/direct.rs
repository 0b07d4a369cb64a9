//! A log whose system does not write past the kernel's cache as it is asked to.

use pagetier_testing::{fail_call, skipped};
use pagetier_wal::{FileMedia, Media};
use std::{io, thread};

/// Appends where the system answers direct writes with `errno`; 0: none of the bytes was written.
fn appended(mut media: FileMedia, record: Vec<u8>, errno: i32) -> (FileMedia, io::Result<()>) {
    let appending = thread::spawn(move || {
        fail_call(libc::SYS_pwritev2, errno);
        let appended = media.append(&record);
        (media, appended)
    });
    appending.join().expect("no panic")
}

#[test]
fn a_record_that_is_not_written_directly_is_written_as_usual_or_has_failed() {
    let unsupported = [0, libc::EINTR, libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS];
    let all = unsupported.into_iter().chain([libc::EIO]);
    // One that goes in one piece, and one in several.
    for (errno, bytes) in all.flat_map(|errno| [(errno, 5_000), (errno, 600_000)]) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut media = FileMedia::open(folder.path()).unwrap();
        media.reserve(64 << 10).unwrap();
        // In the file of a spare.
        media.create(64, b"begins").unwrap();
        media.append(&[1; 5_000]).unwrap();
        let (mut media, result) = appended(media, vec![2; bytes], errno);
        let mut all = [b"begins".as_slice(), &[1; 5_000]].concat();
        match result {
            Ok(()) if errno == libc::EIO => {
                return skipped("direct I/O", "writes that the system refuses are not tried");
            }
            Ok(()) => all.extend(vec![2; bytes]),
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
