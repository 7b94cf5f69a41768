//! Under memory pressure with a real swap device: pages that were touched under a lock never leave,
//! others do. For root, with PAGETIDE_TESTS_FULL=1.
mod lock;

use std::io::Write;
use std::path::{Path, PathBuf};

use ::pagetide::lock::{LockFlags, SecretBuf, mlock2};
use lock::skip::{skipped, target_directory};
use lock::{PAGE, in_child, map, touch};
use pagetide_kernel::PageRange;

/// A swap file, taken out of use and deleted at the end.
struct Swap(PathBuf);

impl Swap {
    fn new() -> Result<Swap, String> {
        let path = target_directory().join(format!("lock-swap-{}", std::process::id()));
        let mut file = std::fs::File::create(&path).map_err(|error| error.to_string())?;
        let swap = Swap(path);
        // No holes: the kernel wants every block.
        let block = vec![0u8; 1 << 20];
        for _ in 0..128 {
            file.write_all(&block).map_err(|error| error.to_string())?;
        }
        file.sync_all().map_err(|error| error.to_string())?;
        let run = |program: &str| match std::process::Command::new(program).arg(&swap.0).output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!(
                "{program}: {}",
                String::from_utf8_lossy(&output.stderr)
            )),
            Err(error) => Err(format!("{program}: {error}")),
        };
        run("mkswap")?;
        run("swapon")?;
        Ok(swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = std::process::Command::new("swapoff").arg(&self.0).output();
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A memory cgroup, removed at the end.
struct Group(PathBuf);

impl Group {
    fn new(max_bytes: u64) -> Result<Group, String> {
        let root = Path::new("/sys/fs/cgroup");
        let (root, bound) = if root.join("cgroup.controllers").exists() {
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
            (root.to_owned(), "memory.max")
        } else {
            (root.join("memory"), "memory.limit_in_bytes")
        };
        let group = Group(root.join(format!("pagetide-lock-{}", std::process::id())));
        std::fs::create_dir(&group.0).map_err(|error| format!("{}: {error}", group.0.display()))?;
        // Made by the kernel, not by us: else this is no cgroup.
        let bound = group.0.join(bound);
        if !bound.exists() {
            return Err(format!("{} is not there", bound.display()));
        }
        std::fs::write(&bound, max_bytes.to_string())
            .map_err(|error| format!("{}: {error}", bound.display()))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Busy for a moment after its last process has been waited for.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!("{}: could not be removed", self.0.display());
    }
}

/// Pages in swap, by the kernel's own entries.
fn swapped(start: *mut u8, pages: usize) -> usize {
    let file = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entries = vec![0u8; pages * 8];
    let at = (start as usize / PAGE * 8) as u64;
    assert_eq!(
        rustix::io::pread(&file, &mut entries, at),
        Ok(entries.len())
    );
    let entries = entries.as_chunks::<8>().0;
    let in_swap = |entry: &&[u8; 8]| u64::from_ne_bytes(**entry) >> 62 & 1 == 1;
    entries.iter().filter(in_swap).count()
}

#[test]
fn touched_pages_never_leave_and_others_do() {
    const NAME: &str = "touched_pages_never_leave_and_others_do";
    if std::env::var_os("PAGETIDE_TESTS_FULL").is_none() {
        return skipped(NAME, "makes a swap file; PAGETIDE_TESTS_FULL=1 asks for it");
    }
    if !lock::is_root() {
        return skipped(NAME, "needs root, for a swap file and a memory cgroup");
    }
    let swap = match Swap::new() {
        Ok(swap) => swap,
        Err(reason) => return skipped(NAME, &reason),
    };
    let group = match Group::new(48 << 20) {
        Ok(group) => group,
        Err(reason) => return skipped(NAME, &format!("no memory cgroup: {reason}")),
    };
    in_child(|| {
        std::fs::write(group.0.join("cgroup.procs"), "0").unwrap();
        const LOCKED: usize = (16 << 20) / PAGE;
        const FREE: usize = (64 << 20) / PAGE;
        let (locked, free) = (map(LOCKED), map(FREE));
        // Where the system gives huge pages unasked, a touch would bring in its neighbours too.
        let advice = rustix::mm::Advice::LinuxNoHugepage;
        // SAFETY: advice that changes no byte, on memory that was just made.
        unsafe { rustix::mm::madvise(locked.cast(), LOCKED * PAGE, advice) }.unwrap();
        mlock2(locked, LOCKED * PAGE, LockFlags::ONFAULT).unwrap();
        let mut secret = SecretBuf::new(1 << 20).unwrap();
        secret.resize(1 << 20).unwrap();
        secret.as_mut_slice().fill(7);
        for page in (0..LOCKED).step_by(2) {
            touch(locked, page);
        }
        for _ in 0..3 {
            (0..FREE).for_each(|page| touch(free, page));
        }
        let gone = swapped(free, FREE);
        assert!(gone > FREE / 4, "{gone} of {FREE} unlocked pages in swap");
        assert_eq!(swapped(locked, LOCKED), 0);
        let present = lock::present(locked, LOCKED);
        assert!(
            present
                .iter()
                .enumerate()
                .all(|(page, there)| *there == (page % 2 == 0))
        );
        let address = secret.as_slice().as_ptr() as usize;
        let pages = PageRange::covering(address, secret.len());
        assert_eq!(
            swapped(pages.address() as *mut u8, pages.pages() as usize),
            0
        );
    });
    drop((group, swap));
}
