//! What surrounds the program: privileges, limits, memory, and the parts of Pagetide itself.
use std::fs;

use pagetide_kernel::procfs::{memory, status};
use rustix::io::Errno;
use rustix::process::{Resource, geteuid, getrlimit};

use super::finding::{Finding, Need, Status};
use crate::agent;
use crate::bases::Bases;
use crate::container::Container;
use crate::fix::Situation;
use crate::size::Bytes;

const PRIVILEGES: &str = "privileges";
const MEMORY: &str = "memory";
const PAGETIDE: &str = "Pagetide";
/// Memory locks below this are too few for anything but secrets.
const MEMLOCK_BYTES_LOW: u64 = 8 << 20;

/// Everything about the surroundings.
pub fn examine(situation: Situation) -> Vec<Finding> {
    let mut findings = vec![user()];
    findings.extend(container(situation));
    findings.extend([device(), sysctl(), capabilities(), memory_lock(situation)]);
    findings.extend([huge_pages(), available(), cgroups(), swap()]);
    findings.extend([installed_agent(), run_directory()]);
    findings
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

fn info(topic: &'static str, name: &str, detail: impl Into<String>, used_for: &str) -> Finding {
    Finding::ok(topic, name, Need::Elsewhere, detail, used_for)
}

fn user() -> Finding {
    info(PRIVILEGES, "user", geteuid().as_raw().to_string(), "")
}

/// How this one gets the device, said where it has it as well: who moves the program elsewhere
/// needs the line again.
fn container(situation: Situation) -> Option<Finding> {
    let (kind, how) = match (situation.container, Container::marked()) {
        (Some(container), _) => (container, ""),
        (None, marked) => (marked?, ", which keeps nothing closed to this process"),
    };
    let used_for = format!("for paging: {}", kind.userfaultfd(Errno::PERM));
    let detail = format!("{kind}{how}");
    Some(info(PRIVILEGES, "container", detail, &used_for))
}

fn device() -> Finding {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let detail = match fs::metadata("/dev/userfaultfd") {
        Ok(meta) => {
            format!(
                "mode {:04o}, owner {}:{}",
                meta.permissions().mode() & 0o7777,
                meta.uid(),
                meta.gid()
            )
        }
        Err(error) => error.to_string(),
    };
    info(
        PRIVILEGES,
        "/dev/userfaultfd",
        detail,
        "whoever may open it may page; since Linux 6.1",
    )
}

const SYSCTL: &str = "/proc/sys/vm/unprivileged_userfaultfd";

/// Whether userfaultfd's system call asks for no privilege.
pub fn everybody_may_page() -> bool {
    read(SYSCTL).is_some_and(|value| value == "1")
}

fn sysctl() -> Finding {
    let value = read(SYSCTL).unwrap_or_else(|| "not there".into());
    info(
        PRIVILEGES,
        "vm.unprivileged_userfaultfd",
        value,
        "1: everybody may page through the system call",
    )
}

fn capabilities() -> Finding {
    const CAPABILITIES: [(u32, &str); 2] = [(14, "CAP_IPC_LOCK"), (19, "CAP_SYS_PTRACE")];
    let text = status::Status::read(None).unwrap_or_default();
    let said: Vec<String> = CAPABILITIES
        .iter()
        .map(|(bit, name)| {
            let has = status::Status(&text).is_capable(*bit);
            format!("{name} {}", if has { "yes" } else { "no" })
        })
        .collect();
    info(
        PRIVILEGES,
        "capabilities",
        said.join(", "),
        "CAP_SYS_PTRACE: userfaultfd by system call; CAP_IPC_LOCK: locks without limit; run needs \
         neither",
    )
}

fn memory_lock(situation: Situation) -> Finding {
    let limit = getrlimit(Resource::Memlock);
    let shown =
        |bytes: Option<u64>| bytes.map_or("unlimited".to_owned(), |bytes| Bytes(bytes).to_string());
    let detail = format!(
        "{} (hard limit {})",
        shown(limit.current),
        shown(limit.maximum)
    );
    let finding = info(
        PRIVILEGES,
        "RLIMIT_MEMLOCK",
        detail,
        "the most a process may lock",
    );
    let text = status::Status::read(None).unwrap_or_default();
    let enough = limit.current.is_none_or(|bytes| bytes >= MEMLOCK_BYTES_LOW)
        || status::Status(&text).is_capable(14);
    if enough {
        finding
    } else {
        finding.but(Status::Degraded, situation.memory_lock_limit())
    }
}

fn huge_pages() -> Finding {
    let modes = read("/sys/kernel/mm/transparent_hugepage/enabled")
        .unwrap_or_else(|| "not built in".into());
    let mode = modes
        .split('[')
        .nth(1)
        .and_then(|rest| rest.split(']').next())
        .unwrap_or(&modes)
        .to_owned();
    info(
        MEMORY,
        "transparent huge pages",
        mode,
        "governed memory has 4 KiB pages whatever the mode",
    )
}

fn available() -> Finding {
    let bytes = memory::available_to("self");
    info(
        MEMORY,
        "available",
        Bytes(bytes).to_string(),
        "what run takes shares of: the least of MemAvailable and what the cgroups leave",
    )
}

fn cgroups() -> Finding {
    let groups = memory::limited_groups("self");
    let said: Vec<String> = groups
        .iter()
        .map(|group| {
            let allowance = group.allowance;
            format!(
                "{}: {} of {} used",
                group.directory.display(),
                Bytes(allowance.used_bytes),
                Bytes(allowance.limit_bytes)
            )
        })
        .collect();
    let detail = if said.is_empty() {
        "none".to_owned()
    } else {
        said.join("; ")
    };
    info(
        MEMORY,
        "cgroup limits",
        detail,
        "the store ram: counts against them too",
    )
}

fn swap() -> Finding {
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let kib = |key| memory::field(&meminfo, key).unwrap_or(0);
    let (total, free) = (kib("SwapTotal:") * 1024, kib("SwapFree:") * 1024);
    let detail = if total == 0 {
        "none".to_owned()
    } else {
        format!(
            "{} of {} used",
            Bytes(total - free.min(total)),
            Bytes(total)
        )
    };
    info(
        MEMORY,
        "kernel swap",
        detail,
        "not needed; where there is some the kernel may swap Pagetide's store",
    )
}

fn installed_agent() -> Finding {
    let used_for = "puts a program's memory under the pager";
    match agent::find() {
        Ok(path) => Finding::ok(
            PAGETIDE,
            "agent",
            Need::Required,
            path.display().to_string(),
            used_for,
        ),
        Err(failure) => Finding::ok(PAGETIDE, "agent", Need::Required, failure.message, used_for)
            .but(Status::Missing, "make install"),
    }
}

fn run_directory() -> Finding {
    let used_for = "control sockets and statistics";
    match Bases::default().own() {
        Ok(path) => Finding::ok(
            PAGETIDE,
            "run directory",
            Need::Required,
            path.display().to_string(),
            used_for,
        ),
        Err(failure) => Finding::ok(
            PAGETIDE,
            "run directory",
            Need::Required,
            failure.message,
            used_for,
        )
        .but(
            Status::Missing,
            "remove it, or set PAGETIDE_BASE_DIR to a directory of yours",
        ),
    }
}
