//! System calls that fail.

/// Lets the system call of this number fail with `errno` for the calling thread, and for those that it starts
/// from now on; with 0, it returns 0 and does nothing. Nothing takes that back.
///
/// # Panics
/// The system does not filter calls.
pub fn fail_call(number: libc::c_long, errno: i32) {
    fail_call_from(number, errno, 0, 0);
}

/// As [`fail_call`], where the lower 32 bits of argument `nth` are at least `least`.
///
/// # Panics
/// As there.
pub fn fail_call_from(number: libc::c_long, errno: i32, nth: u32, least: u32) {
    let filter = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filters = [
        // The system call's number; a test of one machine need not check the architecture.
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, number as u32),
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 16 + 8 * nth),
        filter(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, least),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filters.len() as u16, filter: filters.as_mut_ptr() };
    // SAFETY: sets a plain flag of the calling thread.
    let privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(privileges, 0);
    // SAFETY: the program is valid during the call, which copies it.
    let installed =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(installed, 0);
}
