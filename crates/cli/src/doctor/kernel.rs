//! What the kernel can do: userfaultfd and its features one by one, and the other calls the pager
//! makes.
use pagetide_kernel::mask;
use pagetide_kernel::probe::{self, Openings, PagingTrial};
use pagetide_kernel::uffd::{Stop, events, feature};
use rustix::io::Errno;

use super::finding::{Finding, Need, Status};
use crate::fix::Situation;

const UFFD: &str = "userfaultfd";
const CALLS: &str = "other system calls";

/// A `UFFDIO_API` feature.
struct Feature {
    bit: u64,
    name: &'static str,
    since: &'static str,
    need: Need,
    used_for: &'static str,
}

const FEATURES: [Feature; 13] = [
    Feature {
        bit: feature::PAGEFAULT_FLAG_WP,
        name: "PAGEFAULT_FLAG_WP",
        since: "5.7",
        need: Need::Required,
        used_for: "knows which pages are clean, and holds writers while a page is stored",
    },
    Feature {
        bit: feature::EVENT_REMAP,
        name: "EVENT_REMAP",
        since: "4.11",
        need: Need::Required,
        used_for: "follows mremap",
    },
    Feature {
        bit: feature::EVENT_REMOVE,
        name: "EVENT_REMOVE",
        since: "4.11",
        need: Need::Required,
        used_for: "follows madvise(MADV_DONTNEED and MADV_FREE)",
    },
    Feature {
        bit: feature::EVENT_UNMAP,
        name: "EVENT_UNMAP",
        since: "4.11",
        need: Need::Required,
        used_for: "follows munmap",
    },
    Feature {
        bit: feature::MOVE,
        name: "MOVE",
        since: "6.8",
        need: Need::Improves,
        used_for: "takes written pages atomically; without it evicting them costs more, and pages \
            that a device or another process writes to are at risk",
    },
    Feature {
        bit: feature::POISON,
        name: "POISON",
        since: "6.6",
        need: Need::Improves,
        used_for: "SIGBUS on exactly the page that was lost; without it the program is ended",
    },
    Feature {
        bit: feature::WP_HUGETLBFS_SHMEM,
        name: "WP_HUGETLBFS_SHMEM",
        since: "5.19",
        need: Need::Improves,
        used_for: "from there on a page is protected also in read-only memory; before, pages that \
            were only read are stored again",
    },
    Feature {
        bit: feature::WP_UNPOPULATED,
        name: "WP_UNPOPULATED",
        since: "6.4",
        need: Need::Elsewhere,
        used_for: "snapshots: protects untouched memory too",
    },
    Feature {
        bit: feature::WP_ASYNC,
        name: "WP_ASYNC",
        since: "6.7",
        need: Need::Elsewhere,
        used_for: "dirty tracking without a message per write",
    },
    Feature {
        bit: feature::SIGBUS,
        name: "SIGBUS",
        since: "4.14",
        need: Need::Elsewhere,
        used_for: "regions with fault delivery by signal",
    },
    Feature {
        bit: feature::THREAD_ID,
        name: "THREAD_ID",
        since: "4.14",
        need: Need::Elsewhere,
        used_for: "prefetch by thread",
    },
    Feature {
        bit: feature::EXACT_ADDRESS,
        name: "EXACT_ADDRESS",
        since: "5.18",
        need: Need::Elsewhere,
        used_for: "the faulting address, not only its page",
    },
    Feature {
        bit: feature::EVENT_FORK,
        name: "EVENT_FORK",
        since: "4.11",
        need: Need::Elsewhere,
        used_for: "following fork from outside; run does it from inside, with no privilege",
    },
];

/// Everything about the kernel.
pub fn examine(situation: Situation) -> Vec<Finding> {
    let openings = Openings::probe();
    let mut findings: Vec<Finding> = mask_in_force().into_iter().collect();
    findings.extend(opened(&openings, situation));
    match probe::userfaultfd_features() {
        Ok(features) => {
            findings.extend(FEATURES.iter().map(|feature| judge(feature, features)));
            findings.push(counted_events());
            findings.push(trial(features));
        }
        Err(errno) => {
            let finding = Finding::ok(
                UFFD,
                "features",
                Need::Required,
                format!("unknown: {errno}"),
                "",
            );
            findings.push(finding.but(Status::Missing, situation.userfaultfd(&openings)));
        }
    }
    findings.extend(calls(situation));
    findings
}

/// A setting for tests that makes what follows look like an older kernel.
fn mask_in_force() -> Option<Finding> {
    let masked = mask::in_force().describe();
    let finding = Finding::ok(
        UFFD,
        mask::VARIABLE,
        Need::Improves,
        format!("treated as absent: {masked}"),
        "a setting for tests: takes the ways that older kernels take",
    );
    let fix = format!("unset {}", mask::VARIABLE);
    (!masked.is_empty()).then(|| finding.but(Status::Degraded, fix))
}

/// The ways in: one that serves kernel-mode faults is enough.
fn opened(openings: &Openings, situation: Situation) -> Vec<Finding> {
    let said = |result: Result<(), Errno>| {
        result
            .err()
            .map_or("opens".to_owned(), |errno| errno.to_string())
    };
    let detail = format!(
        "/dev/userfaultfd: {}; system call: {}",
        said(openings.device),
        said(openings.syscall)
    );
    let used_for = "page faults, those in system calls too (read(2) into a missing page)";
    let full = Finding::ok(UFFD, "open", Need::Required, detail, used_for);
    let user = Finding::ok(
        UFFD,
        "open, user mode only",
        Need::Elsewhere,
        said(openings.user_mode_only),
        "needs no privilege; enough for regions that are never passed to system calls",
    );
    let by_privilege = openings.device.is_err() && !super::environment::everybody_may_page();
    vec![
        match openings.serve_kernel_mode() {
            true if by_privilege => {
                let lost = "by privilege alone: a program that gives up its privileges can no \
                    longer fork (EPERM)";
                let full = Finding {
                    detail: format!("{}; {lost}", full.detail),
                    ..full
                };
                full.but(Status::Degraded, situation.userfaultfd(openings))
            }
            true => full,
            false => full.but(Status::Missing, situation.userfaultfd(openings)),
        },
        match openings.user_mode_only {
            Ok(()) => user,
            // The flag is not known.
            Err(Errno::INVAL) => user.but(Status::Missing, needs_kernel("5.11")),
            Err(_) => user.but(Status::Missing, situation.userfaultfd(openings)),
        },
    ]
}

fn judge(feature: &Feature, features: u64) -> Finding {
    let since = format!("since Linux {}", feature.since);
    let finding = Finding::ok(UFFD, feature.name, feature.need, since, feature.used_for);
    if features & feature.bit != 0 {
        finding
    } else {
        finding.but(Status::Missing, needs_kernel(feature.since))
    }
}

/// No feature bit tells of it.
fn counted_events() -> Finding {
    let finding = Finding::ok(
        UFFD,
        "events counted",
        Need::Improves,
        "since Linux 5.15",
        "threads give memory up at the same time; before, one madvise at a time, and see \
         docs/limits-and-contract.md on free and realloc",
    );
    if events::are_counted() {
        finding
    } else {
        finding.but(Status::Missing, needs_kernel("5.15"))
    }
}

pub(super) fn needs_kernel(since: &str) -> String {
    let here = rustix::system::uname();
    format!(
        "run Linux {since} or later (here: {})",
        here.release().to_string_lossy()
    )
}

/// The features do what they say, on scratch pages.
fn trial(features: u64) -> Finding {
    let finding = |detail: String| {
        Finding::ok(
            UFFD,
            "trial",
            Need::Required,
            detail,
            "what these features do was done on scratch pages just now",
        )
    };
    let trial = match PagingTrial::run(features) {
        Ok(trial) => trial,
        Err(errno) => {
            return finding(format!("not possible: {errno}")).but(Status::Missing, report_it());
        }
    };
    let steps: [(&str, Option<Result<(), Stop>>); 4] = [
        ("COPY", Some(trial.copy)),
        ("WRITEPROTECT", trial.write_protect),
        ("MOVE", trial.move_pages),
        ("POISON", trial.poison),
    ];
    let failed: Vec<String> = steps
        .iter()
        .filter_map(|(name, result)| {
            result
                .and_then(Result::err)
                .map(|stop| format!("{name}: {stop:?}"))
        })
        .collect();
    if failed.is_empty() {
        let done: Vec<&str> = steps
            .iter()
            .filter(|(_, result)| result.is_some())
            .map(|(name, _)| *name)
            .collect();
        finding(format!("{} work", done.join(", ")))
    } else {
        finding(failed.join("; ")).but(Status::Missing, report_it())
    }
}

fn report_it() -> String {
    "a kernel that claims a feature and refuses it is a fault to report, with this text, to its \
     maker and to Pagetide"
        .into()
}

fn calls(situation: Situation) -> Vec<Finding> {
    let newer = |since: &'static str| move |_: Errno| needs_kernel(since);
    vec![
        call(
            "/proc/self/pagemap",
            Need::Required,
            probe::pagemap_entries(),
            "which pages are present",
            &|_| "mount /proc: mount -t proc proc /proc".into(),
        ),
        call(
            "PAGEMAP_SCAN",
            Need::Improves,
            probe::pagemap_scan(),
            "the same many pages at a time; without it taking memory under the pager is slower",
            &newer("6.7"),
        ),
        call(
            "/proc/self/mem",
            Need::Improves,
            probe::own_memory(),
            "evicts pages that the program may not access; without it they stay resident",
            &|errno| match errno {
                Errno::NOENT => "mount /proc: mount -t proc proc /proc".into(),
                _ => "boot with proc_mem.force_override=always".into(),
            },
        ),
        call(
            "MADV_POPULATE_WRITE",
            Need::Improves,
            probe::populate_write(),
            "pages shared by fork can be evicted again, and incremental snapshots hold what \
             changed alone",
            &newer("5.14"),
        ),
        call(
            "process_madvise on self",
            Need::Elsewhere,
            probe::batch_drop(),
            "drops clean pages of a region in batches; one by one costs about three times as much",
            &newer("6.13"),
        ),
        call(
            "read-write protection",
            Need::Elsewhere,
            probe::read_write_protection(),
            "`--policy accessed`: which pages a program no longer uses (RWP, RWP_ASYNC and \
             PAGE_IS_ACCESSED)",
            &newer("7.3"),
        ),
        call(
            "syscall user dispatch",
            Need::Improves,
            probe::syscall_user_dispatch(),
            "programs that fork: the child's memory is governed before any of its code runs",
            &newer("5.11, built with CONFIG_GENERIC_ENTRY,"),
        ),
        call(
            "mlock2(MLOCK_ONFAULT)",
            Need::Elsewhere,
            probe::lock_on_fault(),
            "memory that stays once it is touched",
            &|errno| match errno {
                Errno::NOSYS => needs_kernel("4.4"),
                _ => situation.memory_lock_limit(),
            },
        ),
    ]
}

/// What came of trying a system call, and how to mend it where it is not blocked.
fn call(
    name: &str,
    need: Need,
    result: Result<(), Errno>,
    used_for: &str,
    fix: &dyn Fn(Errno) -> String,
) -> Finding {
    let finding = Finding::ok(CALLS, name, need, "works", used_for);
    let Err(errno) = result else {
        return finding;
    };
    let fix = match errno {
        Errno::PERM if !name.starts_with("mlock2") => {
            "allow it in the seccomp profile of this process".to_owned()
        }
        errno => fix(errno),
    };
    let detail = errno.to_string();
    Finding { detail, ..finding }.but(Status::Missing, fix)
}
