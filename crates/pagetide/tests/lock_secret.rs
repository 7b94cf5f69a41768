//! Secrets: what the kernel says of their memory, and what becomes of it.
mod lock;

use ::pagetide::lock::{Errno, InChild, SecretBuf, SecretError, ranges};
use lock::skip::skipped;
use lock::{PAGE, area_of, become_user, child_status, in_child, present, vmlck};

/// The flags of the mapping that holds `address`, as smaps has them.
fn flags(address: *const u8) -> Vec<String> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let area = area_of(address);
    let head = format!("{:x}-{:x} ", area.start, area.end);
    let (_, rest) = smaps.split_once(&head).unwrap();
    let line = rest
        .lines()
        .find(|line| line.starts_with("VmFlags"))
        .unwrap();
    line.split_whitespace().skip(1).map(str::to_owned).collect()
}

fn has(flags: &[String], wanted: &str) -> bool {
    flags.iter().any(|flag| flag == wanted)
}

fn fill(secret: &mut SecretBuf, len: usize) {
    secret.resize(len).unwrap();
    for (index, byte) in secret.as_mut_slice().iter_mut().enumerate() {
        *byte = index as u8 | 1;
    }
}

#[test]
fn it_grows_locked_on_fault_and_left_out_of_dumps_and_forks() {
    in_child(|| {
        let mut secret = SecretBuf::new(1 << 20).unwrap();
        let charge = vmlck();
        assert!(charge >= 1 << 20, "all of it is charged at once");
        secret.extend_from_slice(b"swordfish").unwrap();
        let address = secret.as_slice().as_ptr();
        let vm_flags = flags(address);
        for wanted in ["lo", "dd", "wf", "nh"] {
            assert!(has(&vm_flags, wanted), "{wanted} in {vm_flags:?}");
        }
        assert_eq!(area_of(address).resident, 4096, "and little of it is used");
        fill(&mut secret, 300_000);
        let area = area_of(address);
        assert!((300_000..312_000).contains(&area.resident));
        assert_eq!(area.resident, area.locked_share);
        assert_eq!(vmlck(), charge);
        let error = secret.resize((1 << 20) + 1).unwrap_err();
        assert!(matches!(error, SecretError::TooLarge { max: 1048576, .. }));
        assert_eq!(secret.len(), 300_000);
        drop(secret);
        assert_eq!(vmlck(), 0);
        assert!(ranges().unwrap().is_empty());
    });
}

#[test]
fn shrinking_wipes_and_gives_memory_back() {
    in_child(|| {
        let mut secret = SecretBuf::new(256 * PAGE).unwrap();
        fill(&mut secret, 200 * PAGE);
        let address = secret.as_slice().as_ptr();
        secret.resize(100).unwrap();
        let area = area_of(address);
        assert!(area.locked);
        assert_eq!(area.resident, 4096);
        let page = (address as usize & !(PAGE - 1)) as *const u8;
        assert_eq!(present(page, 201).iter().filter(|p| **p).count(), 1);
        // SAFETY: in the buffer's mapping, behind its bytes and the canary; only looked at.
        let tail = unsafe { std::slice::from_raw_parts(address.add(100 + 32), PAGE - 200) };
        assert!(tail.iter().all(|byte| *byte == 0));
        secret.resize(200 * PAGE).unwrap();
        assert!(secret.as_slice()[100..].iter().all(|byte| *byte == 0));
        assert_eq!(secret.as_slice()[7], 7);
        secret.clear().unwrap();
        assert!(secret.is_empty());
    });
}

#[test]
fn guards_and_canaries() {
    in_child(|| {
        let overrun = |offset: isize| {
            child_status(move || {
                let mut secret = SecretBuf::new(PAGE - 64).unwrap();
                fill(&mut secret, 100);
                // SAFETY: none; that is the test. The child is ended for it.
                unsafe {
                    let byte = secret.as_mut_slice().as_mut_ptr().offset(offset);
                    byte.write_volatile(!byte.read_volatile());
                }
                assert!(!secret.is_intact());
            })
        };
        for offset in [-1, -32, 100, 131] {
            let status = overrun(offset);
            assert!(
                libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT,
                "{offset}: {status:#x}"
            );
        }
        for offset in [-33, PAGE as isize - 32] {
            let status = overrun(offset);
            assert!(
                libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV,
                "{offset}: {status:#x}"
            );
        }
    });
}

#[test]
fn a_forked_child_finds_it_wiped_and_can_use_it() {
    in_child(|| {
        let mut secret = SecretBuf::new(PAGE).unwrap();
        fill(&mut secret, 200);
        let address = secret.as_slice().as_ptr();
        in_child(|| {
            // SAFETY: the child's own mapping; looked at only.
            let bytes = unsafe { std::slice::from_raw_parts(address, 200) };
            assert!(bytes.iter().all(|byte| *byte == 0), "wiped by the kernel");
            assert!(secret.is_empty() && secret.is_intact());
            assert!(secret.as_mut_slice().is_empty());
            secret.extend_from_slice(b"new").unwrap();
            assert_eq!(secret.as_slice(), b"new");
            assert!(has(&flags(address), "lo"), "locked again");
        });
        assert_eq!(secret.len(), 200);
        assert!(secret.is_intact());
    });
}

#[test]
fn a_forked_child_does_not_have_it() {
    in_child(|| {
        let builder = SecretBuf::builder(PAGE).in_child(InChild::Absent);
        let mut secret = builder.build().unwrap();
        fill(&mut secret, 200);
        let address = secret.as_slice().as_ptr();
        in_child(|| {
            assert!(secret.is_empty());
            let error = secret.extend_from_slice(b"x").unwrap_err();
            assert_eq!(error, SecretError::NotInherited);
        });
        let status = child_status(|| {
            // SAFETY: not mapped in the child; the read ends it.
            let _ = unsafe { address.read_volatile() };
        });
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
        let secret = std::mem::ManuallyDrop::new(secret);
        in_child(|| {
            // SAFETY: the child's own copy, dropped once.
            drop(unsafe { std::ptr::read(&*secret) });
        });
        assert_eq!(secret.len(), 200);
    });
}

#[test]
fn it_fails_closed_with_the_limits_report() {
    in_child(|| {
        become_user(8 * PAGE as u64);
        // Address space in pages. The number of mappings would not do: the allocator opens more of
        // its own now and then.
        let size = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').next().unwrap().parse::<usize>().unwrap()
        };
        let small = SecretBuf::new(2 * PAGE).unwrap();
        let before = (size(), vmlck());
        let error = SecretBuf::new(8 * PAGE).unwrap_err();
        let SecretError::Lock(inner) = &error else {
            panic!("{error}");
        };
        assert_eq!(inner.errno(), Errno::NOMEM);
        assert!(error.to_string().contains("LimitMEMLOCK="), "{error}");
        assert_eq!((size(), vmlck()), before, "nothing is left behind");
        drop(small);
        SecretBuf::new(6 * PAGE).unwrap();
    });
    in_child(|| {
        become_user(0);
        let error = SecretBuf::new(1).unwrap_err();
        assert!(matches!(&error, SecretError::Lock(inner) if inner.errno() == Errno::PERM));
    });
}

#[test]
fn memory_that_the_kernel_does_not_map() {
    in_child(|| {
        let mut secret = match SecretBuf::builder(4 * PAGE).memfd_secret(true).build() {
            Ok(secret) => secret,
            Err(error) => return skipped("memfd_secret", &error.to_string()),
        };
        fill(&mut secret, 2 * PAGE);
        let address = secret.as_slice().as_ptr();
        let vm_flags = flags(address);
        // The kernel never takes it out; 6.18 marks it as locked ("lo"), 7.3 does not.
        for wanted in ["dd", "dc"] {
            assert!(has(&vm_flags, wanted), "{wanted} in {vm_flags:?}");
        }
        // Not even the process's own memory file reads it.
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let mut byte = [0u8; 1];
        assert!(rustix::io::pread(&memory, &mut byte, address as u64).is_err());
        secret.resize(10).unwrap();
        assert_eq!(secret.as_slice()[9], 9);
        in_child(|| assert!(secret.is_empty()));
    });
}

#[test]
fn it_is_compared_and_shown_without_its_bytes() {
    in_child(|| {
        let mut one = SecretBuf::new(64).unwrap();
        let mut two = SecretBuf::new(128).unwrap();
        one.extend_from_slice(b"swordfish").unwrap();
        two.extend_from_slice(b"swordfish").unwrap();
        assert_eq!(one, two);
        assert!(one == *b"swordfish".as_slice());
        two.as_mut_slice()[8] ^= 1;
        assert_ne!(one, two);
        two.resize(3).unwrap();
        assert_ne!(one, two);
        let shown = format!("{one:?}");
        assert!(shown.contains('9') && !shown.contains("sword") && !shown.contains("115"));
    });
}

#[test]
fn a_child_in_which_a_part_of_it_is_not_locked_keeps_no_secret_there() {
    in_child(|| {
        become_user(1 << 20);
        let mut secret = SecretBuf::new(64 * PAGE).unwrap();
        secret.extend_from_slice(b"x").unwrap();
        let first = secret.as_slice().as_ptr() as usize & !(PAGE - 1);
        // SAFETY: in the secret's first page, which lives as long as the process; never read.
        let first = unsafe { std::slice::from_raw_parts(first as *const u8, 10) };
        let held = pagetide::lock::hold(first, pagetide::lock::Mode::OnFault).unwrap();
        let lowered = rustix::process::Rlimit {
            current: Some(8 * PAGE as u64),
            maximum: Some(1 << 20),
        };
        rustix::process::setrlimit(rustix::process::Resource::Memlock, lowered).unwrap();
        in_child(|| {
            assert!(matches!(secret.resize(5 * PAGE), Err(SecretError::Lock(_))));
            assert!(secret.is_empty());
        });
        drop(held);
    });
}
