//! Restoring where userfaultfd may not be used: an ordinary user, in a sandbox that refuses the
//! system call.
mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use pagetide::track::snapshot::Plan;
use pagetide::track::snapshot::image::Image;
use pagetide::track::{
    DirtyRange, DirtyTracker, LazyPlan, Method, RestoreError, Snapshotter, restore,
};
use support::snapshots::{memory, no_hold, restored, snapshotter};
use support::{PAGE, Plain, skipped};

const CHILD: &str = "PAGETIDE_TEST_RESTORE_FROM";
const PAGES: usize = 500;

fn expected(page: usize) -> u64 {
    if page.is_multiple_of(3) {
        0
    } else {
        page as u64
    }
}

/// From here on this process is nobody, and userfaultfd(2) fails with EPERM, as in many containers.
fn give_up_rights() {
    const LOAD_NUMBER: libc::sock_filter = libc::sock_filter {
        code: 0x20,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let refuse = [
        LOAD_NUMBER,
        libc::sock_filter {
            code: 0x15,
            jt: 0,
            jf: 1,
            k: libc::SYS_userfaultfd as u32,
        },
        libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        },
        libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        },
    ];
    let program = libc::sock_fprog {
        len: refuse.len() as u16,
        filter: refuse.as_ptr().cast_mut(),
    };
    const TSYNC: libc::c_ulong = 1;
    // SAFETY: plain system calls; the program and its instructions are live.
    unsafe {
        assert_eq!(libc::setresgid(65534, 65534, 65534), 0);
        assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(
            libc::syscall(libc::SYS_seccomp, mode, TSYNC, &raw const program),
            0
        );
    }
}

fn child(path: &Path) {
    give_up_rights();
    let lazily = restore(Image::open(path).unwrap(), LazyPlan::default());
    let refused = lazily.expect_err("userfaultfd is refused");
    assert!(matches!(refused, RestoreError::System(_)), "{refused}");
    assert!(refused.to_string().contains("eagerly"), "{refused}");
    let plain = restored(path, PAGES);
    (0..PAGES).for_each(|page| assert_eq!(plain.word(page, 5).load(SeqCst), expected(page)));
    // What needs it says so; what does not works.
    let made = Snapshotter::builder()
        .memory(memory(&plain, "memory"))
        .build();
    let error = made.expect_err("userfaultfd is refused").to_string();
    assert!(error.contains("unprivileged_userfaultfd"), "{error}");
    let mut tracker = DirtyTracker::new(vec![memory(&plain, "memory")]).unwrap();
    assert_eq!(tracker.method(), Method::Mprotect);
    plain.word(7, 0).store(1, SeqCst);
    let first = plain.address as usize + 7 * PAGE;
    let taken = DirtyRange {
        span: 0,
        offsets: 7 * PAGE..8 * PAGE,
        addresses: first..first + PAGE,
    };
    assert_eq!(tracker.take().unwrap(), [taken]);
}

#[test]
fn without_userfaultfd_eager_restore_works_and_the_rest_says_what_to_do() {
    if let Some(path) = std::env::var_os(CHILD) {
        return child(Path::new(&path));
    }
    // SAFETY: geteuid(2).
    if unsafe { libc::geteuid() } != 0 {
        return skipped("becoming another user needs root");
    }
    let plain = Plain::new(PAGES);
    let Some(snapshotter) = snapshotter(&plain, pagetide::Delivery::Thread, false) else {
        return;
    };
    (0..PAGES).for_each(|page| plain.word(page, 5).store(expected(page), SeqCst));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let snapshot = snapshotter.snapshot(&path, Plan::full(), no_hold).unwrap();
    snapshot.wait().unwrap();
    let allow = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap()
    };
    allow(directory.path());
    allow(&path);
    let test = "without_userfaultfd_eager_restore_works_and_the_rest_says_what_to_do";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, &path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}
