//! Everything programs do to their memory: one C program a hazard, run natively (which proves the
//! program) and then under a budget so small that nearly everything is evicted all the time.
mod support;

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use pagetide_kernel::uffd::{self, Uffd, feature};
use support::compile::{c_programs, compile_c, scratch};
use support::pagetide::{NO_FORK, able, can_fork, could_not_fork, governed};
use support::process::{Outcome, run};
use support::skip::{is_full, skipped};

const NATIVE_LIMIT: Duration = Duration::from_secs(60);
const GOVERNED_LIMIT: Duration = Duration::from_secs(180);
/// What a C program exits with when it cannot try its hazard here.
const CANNOT_TRY: i32 = 77;

/// Descriptors below 1024 that programs started from here inherit beside the standard three.
fn inherited_descriptors() -> usize {
    let is_inherited = |fd: &i32| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags
            .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok())
            .is_some_and(|flags| flags & 0o2000000 == 0)
    };
    let entries = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter(|fd| (3..1024).contains(fd))
        .filter(is_inherited)
        .count()
}

/// Enough to have nearly everything evicted at the budget used here; the programs take 64 MiB by
/// themselves.
const MIB_SHORT: &str = "16";

fn prepare(command: &mut Command) -> &mut Command {
    match std::env::var("HAZARD_MIB") {
        Ok(mib) => _ = command.arg(mib),
        Err(_) if !is_full() => _ = command.arg(MIB_SHORT),
        Err(_) => {}
    }
    command
        .env("HAZARD_FDS", inherited_descriptors().to_string())
        .env("HAZARD_DISK_DIR", scratch())
        .env("HAZARD_RESIDENT_MAX", (40u64 << 20).to_string())
        .env("HAZARD_FORKS", if can_fork() { "1" } else { "0" })
}

/// Whether the hazard could be tried; panics unless it came out well.
fn came_out_well(name: &str, outcome: &Outcome) -> bool {
    if outcome.code() == Some(CANNOT_TRY) {
        skipped(name, &outcome.stderr_text());
        return false;
    }
    if could_not_fork(outcome) {
        skipped(name, NO_FORK);
        return false;
    }
    let said = outcome
        .stdout_text()
        .lines()
        .any(|line| line == format!("ok {name}"));
    assert!(
        outcome.code() == Some(0) && said,
        "{name}: {}",
        outcome.describe()
    );
    true
}

/// What is not promised where pages are evicted in place; docs/limits-and-contract.md says so.
const AT_RISK_IN_PLACE: [(&[&str], &str); 2] = [
    (
        &[
            "io_uring_read",
            "odirect_read",
            "process_vm",
            "proc_self_mem",
        ],
        "memory that is written to by a device, by process_vm_writev or /proc/PID/mem is at risk \
         before Linux 6.8",
    ),
    (
        &["remap_races"],
        "memory that is moved by bare calls to where other memory was is at risk before Linux 6.8",
    ),
];

/// Why the hazard is not tried on this kernel, or without what `mask` names.
fn at_risk(name: &str, mask: &str) -> Option<&'static str> {
    static KERNEL_MOVES: OnceLock<bool> = OnceLock::new();
    let kernel_moves = || {
        let features = uffd::open(None).map(Uffd::kernel_features);
        matches!(features, Ok(Ok(features)) if features & feature::MOVE != 0)
    };
    let set = std::env::var("PAGETIDE_MASK").unwrap_or_default();
    let mut hidden = mask.split(',').chain(set.split(','));
    if !hidden.any(|feature| feature == "move") && *KERNEL_MOVES.get_or_init(kernel_moves) {
        return None;
    }
    let mut risks = AT_RISK_IN_PLACE.iter();
    risks
        .find(|(names, _)| names.contains(&name))
        .map(|(_, why)| *why)
}

fn hazard(name: &str, options: &[&str]) {
    let program = compile_c("hazards", name, &[]).unwrap_or_else(|error| panic!("{error}"));
    if !came_out_well(
        name,
        &run(prepare(&mut Command::new(&program)), NATIVE_LIMIT),
    ) {
        return;
    }
    if let Some(reason) = at_risk(name, "") {
        return skipped(name, reason);
    }
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    came_out_well(
        name,
        &run(prepare(&mut governed(options, &program)), GOVERNED_LIMIT),
    );
}

/// The same with the pages in a file.
fn hazard_with_file(name: &str) {
    let directory = scratch().join(format!("store-{name}"));
    std::fs::create_dir_all(&directory).expect("a directory for the store");
    let uri = format!("file:{}", directory.display());
    hazard(name, &["--resident", "4M", "--store", &uri]);
    let left: Vec<_> = std::fs::read_dir(&directory)
        .expect("the directory is there")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert!(
        left.is_empty(),
        "{name}: the store left files behind: {left:?}"
    );
}

macro_rules! hazards {
    ($($name:ident)*) => {
        $(#[test] fn $name() { hazard(stringify!($name), &["--resident", "4M"]) })*
    };
}

/// Gives the names of all hazards to a macro, after what it takes before.
macro_rules! all_hazards {
    ($then:ident $($before:tt)*) => {
        $then! {
            $($before)*
            addresses_many bare_exit brk_grow_shrink brk_returns chdir_chroot clone_without_vm
            close_all_fds daemon_double_fork dup2_random exec_clear_env exec_self
            give_up_without_pause fd_count_visible fork_after_growing fork_blocked_signals fork_deep
            fork_discard fork_exec fork_fifty
            fork_from_thread fork_from_thread_heap_out fork_malloc_threads fork_other_tables
            fork_parent_first fork_slow_child
            fork_verify fork_while_unmapping fork_while_writing handler_touches_paged
            heap_in_small_steps io_uring_read
            madvise_dontneed madvise_fork_flags madvise_free madvise_free_rewritten madvise_hints
            main_thread_exits malloc_patterns many_mappings map_fixed_over_part map_populate
            memory_calls_at_random mlock_part mprotect_none mprotect_readonly mprotect_rwx
            mremap_beside_mmap mremap_dontunmap mremap_grow mremap_move mremap_pieces mremap_shrink
            mremap_shrink_grow mremap_unmap_grow munmap_part munmap_whole odirect_read
            private_becomes_shared private_file_mapping privileges_follow process_vm
            processors_unseen proc_self_mem raw_fork raw_syscall_memory read_write_buffers
            remap_races reservation rlimit_as
            rlimit_data rlimit_nofile robust_mutex seccomp_filter setuid_drop sigaltstack_malloc
            sigalrm_storm sigkill_child signals_in_system_calls sigprof_itimer sigsegv_genuine
            sigwait_signalfd spawn_family
            split_while_emptied static_arrays stop_continue sync_in_paged_memory threads_come_and_go
            thread_stacks two_threads_one_page ucontext_stacks undumpable vfork_exec vmsplice_pipe
        }
    };
}

all_hazards!(hazards);

/// One instruction may need several pages: the smallest budget must not make it spin.
#[test]
fn one_page_budget() {
    hazard("one_page_budget", &["--resident", "4096"]);
}

/// With a budget of one page, all of a program's life: start, threads, fork, exit.
#[test]
fn smallest_budget_through_fork() {
    let name = "fork_exec";
    let program = compile_c("hazards", name, &[]).unwrap_or_else(|error| panic!("{error}"));
    match able() {
        Err(reason) => skipped("smallest_budget_through_fork", &reason),
        Ok(_) => {
            let mut command = governed(&["--resident", "4096"], &program);
            came_out_well(name, &run(command.arg("8"), GOVERNED_LIMIT));
        }
    }
}

/// The store is slow, and the budget small: some page is being emptied in place nearly all the
/// time.
#[test]
fn given_up_while_emptied() {
    let slow = |us: u32| format!("fault:put-delay-us={us}:ram:");
    for (budget, store) in [("64K", slow(100)), ("512K", slow(1000))] {
        let options = ["--resident", budget, "--store", &store];
        hazard("given_up_while_emptied", &options);
    }
}

/// The agent's threads take none of the loader's locks, which the C library handles as in a process
/// of a single thread.
#[test]
fn lookups_watched() {
    let compiled = |name, extra: &[&str]| {
        compile_c("hazards", name, extra).unwrap_or_else(|error| panic!("{error}"))
    };
    let watch = compiled("lookups_watched", &["-shared", "-fPIC"]);
    let (name, program) = ("fork_verify", compiled("fork_verify", &[]));
    if let Err(reason) = able() {
        return skipped("lookups_watched", &reason);
    }
    let script = r#"LD_PRELOAD="$LD_PRELOAD:$0" exec "$@""#;
    let mut command = governed(&["--resident", "4M"], "sh");
    command.args(["-c", script]).args([watch, program]);
    came_out_well(name, &run(&mut command, GOVERNED_LIMIT));
}

/// So little that every page of every thread is on its way in or out while its mapping changes.
#[test]
fn memory_calls_at_random_in_one_mib() {
    let name = "memory_calls_at_random";
    let program = compile_c("hazards", name, &[]).unwrap_or_else(|error| panic!("{error}"));
    match able() {
        Err(reason) => skipped("memory_calls_at_random_in_one_mib", &reason),
        Ok(_) => {
            let mut command = governed(&["--resident", "1M"], &program);
            command.env("HAZARD_FORKS", if can_fork() { "1" } else { "0" });
            came_out_well(name, &run(command.args(["16", "3"]), GOVERNED_LIMIT));
        }
    }
}

/// Pages that the kernel tells the use of are protected now and then, whatever the program does
/// meanwhile.
#[test]
fn by_accessed_bits() {
    if pagetide_kernel::probe::read_write_protection().is_err() {
        return skipped("by_accessed_bits", "this kernel has none (Linux 7.3)");
    }
    for name in [
        "brk_grow_shrink",
        "fork_discard",
        "fork_verify",
        "fork_while_writing",
        "io_uring_read",
        "madvise_dontneed",
        "memory_calls_at_random",
        "mprotect_none",
        "mremap_move",
        "process_vm",
        "remap_races",
        "threads_come_and_go",
        "two_threads_one_page",
    ] {
        hazard(name, &["--resident", "4M", "--policy", "accessed"]);
    }
}

/// The hazard on a kernel that lacks what `mask` names.
fn hazard_under(mask: &str, name: &str) {
    if let Some(reason) = at_risk(name, mask) {
        return skipped(name, reason);
    }
    if let Err(reason) = able() {
        return skipped(name, &reason);
    }
    let program = compile_c("hazards", name, &[]).unwrap_or_else(|error| panic!("{error}"));
    let mut command = governed(&["--resident", "4M"], &program);
    command.env("PAGETIDE_MASK", mask);
    came_out_well(name, &run(prepare(&mut command), GOVERNED_LIMIT));
}

macro_rules! under_mask {
    ($(#[$doc:meta])* $module:ident $mask:literal: $($name:ident)*) => {
        $(#[$doc])*
        mod $module {
            $(#[test] fn $name() { super::hazard_under($mask, stringify!($name)) })*
        }
    };
}

all_hazards! { under_mask
    /// Debian 12, and nearly Ubuntu 22.04 and RHEL 9.
    as_linux_6_1 "move,poison,pagemap-scan,process-madvise,wp-async,wp-unpopulated,pidfd-thread":
}

under_mask! {
    /// Linux 6.7 evicts pages where they are, and has the rest.
    without_move "move":
    brk_grow_shrink fork_deep fork_discard fork_malloc_threads fork_verify fork_while_unmapping
    fork_while_writing give_up_without_pause madvise_dontneed madvise_free_rewritten malloc_patterns
    many_mappings map_fixed_over_part memory_calls_at_random mlock_part mprotect_readonly
    mremap_beside_mmap mremap_move mremap_pieces mremap_unmap_grow setuid_drop
    signals_in_system_calls split_while_emptied threads_come_and_go two_threads_one_page
}

under_mask! {
    /// The userfaultfd comes from the system call.
    without_device "device":
    exec_self fork_deep fork_verify madvise_dontneed setuid_drop spawn_family two_threads_one_page
}

under_mask! {
    /// What is present is asked of the page map, page by page.
    without_pagemap_scan "pagemap-scan":
    brk_grow_shrink fork_verify fork_while_writing madvise_dontneed madvise_free_rewritten
    malloc_patterns many_mappings map_fixed_over_part map_populate memory_calls_at_random
    mremap_grow mremap_move mremap_pieces mremap_unmap_grow remap_races reservation
}

under_mask! {
    /// Kernels before 6.9: descriptors go to a forked child in another way.
    without_pidfd_thread "pidfd-thread":
    daemon_double_fork fork_deep fork_discard fork_exec fork_fifty fork_from_thread
    fork_malloc_threads fork_parent_first fork_slow_child fork_verify fork_while_writing
    rlimit_nofile seccomp_filter setuid_drop
}

under_mask! {
    /// Kernels before 5.15: of several events under way, the first that is over seems to be the
    /// last.
    without_event_count "event-count,move":
    fork_verify give_up_without_pause given_up_while_emptied madvise_dontneed madvise_free_rewritten
    malloc_patterns memory_calls_at_random remap_races split_while_emptied threads_come_and_go
}

under_mask! {
    /// Before 5.19 COPY does not protect pages of read-only memory, which may be made writable.
    without_wp_shmem "wp-shmem,move":
    fork_verify given_up_while_emptied madvise_dontneed memory_calls_at_random mprotect_none
    mprotect_readonly split_while_emptied
}

macro_rules! with_file {
    ($($name:ident)*) => {
        /// Hazards whose timing changes when fetching sleeps and write-back is batched.
        mod with_file_store {
            $(#[test] fn $name() { super::hazard_with_file(stringify!($name)) })*
        }
    };
}

with_file! {
    brk_grow_shrink chdir_chroot close_all_fds daemon_double_fork dup2_random exec_self fork_deep
    fork_fifty fork_parent_first fork_slow_child fork_verify fork_while_writing madvise_dontneed
    mremap_move munmap_whole odirect_read rlimit_nofile setuid_drop sigkill_child stop_continue
    two_threads_one_page
}

/// Every C program of these tests in every way it is compiled: who runs them on a system without a
/// compiler has them made by this.
#[test]
fn every_program_compiles() {
    let plain = ["hazards", "programs"].map(|folder| (folder, c_programs(folder)));
    let plain = plain.iter().flat_map(|(folder, names)| {
        let is_program =
            |name: &&String| !["lookups_watched", "slow_constructor"].contains(&name.as_str());
        let names = names.iter().filter(is_program);
        names.map(move |name| (*folder, name.as_str(), &[][..]))
    });
    const SHARED: &[&str] = &["-shared", "-fPIC"];
    let special: [(&str, &str, &[&str]); 4] = [
        ("hazards", "lookups_watched", SHARED),
        ("programs", "slow_constructor", SHARED),
        ("programs", "four_threads", &["-static"]),
        ("programs", "exits", &["-static"]),
    ];
    for (folder, name, extra) in plain.chain(special) {
        compile_c(folder, name, extra).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Every C program in the folder is run by a test here.
#[test]
fn no_hazard_is_forgotten() {
    let listed = include_str!("hazards.rs");
    for name in c_programs("hazards") {
        let mut words = listed.split(|c: char| !c.is_alphanumeric() && c != '_');
        assert!(
            words.any(|word| word == name),
            "hazards/{name}.c is run by no test"
        );
    }
}
