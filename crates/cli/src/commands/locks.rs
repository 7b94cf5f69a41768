//! `pagetide locks`: what a process has locked, by mapping.
use pagetide_kernel::limits;
use pagetide_kernel::smaps::{self, Area};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::fix::Situation;
use crate::size::Bytes;
use crate::table::Table;
use crate::text::printable;

/// Shows the locked mappings of a process, as a table or as JSON.
pub fn locks(pid: u32, json: bool) -> Result<u8, Failure> {
    let report = Report::read(pid).map_err(|error| {
        let (exit, next) = match error.kind() {
            std::io::ErrorKind::NotFound => (Exit::Failed, "there is no such process".to_owned()),
            std::io::ErrorKind::PermissionDenied => {
                (Exit::CannotPage, may_see(Situation::detect(), pid))
            }
            _ => (Exit::Failed, "it may have ended".to_owned()),
        };
        Failure::new(exit, format!("process {pid}: {error}; {next}"))
    })?;
    if json {
        super::print_json(&report)?;
        return Ok(Exit::Ok.code());
    }
    super::print(&report.text())?;
    Ok(Exit::Ok.code())
}

/// How to be allowed to look at the memory of process `pid`.
fn may_see(situation: Situation, pid: u32) -> String {
    if situation.root {
        "this root may not see its memory: that takes the capability CAP_SYS_PTRACE over it; in a \
         container, start that with \
         --cap-add SYS_PTRACE, or look from the host"
            .to_owned()
    } else {
        format!("only its user and root may see its memory; try: sudo pagetide locks {pid}")
    }
}

#[derive(Serialize)]
struct Report {
    pid: u32,
    /// The kernel's charge (`VmLck`): whole mappings, resident or not.
    vmlck_bytes: u64,
    length_bytes: u64,
    resident_bytes: u64,
    locked_bytes: u64,
    mappings: Vec<MappingReport>,
}

#[derive(Serialize)]
struct MappingReport {
    start: u64,
    end: u64,
    length_bytes: u64,
    /// `null` where the kernel does not tell.
    mode: Option<&'static str>,
    resident_bytes: u64,
    /// Resident pages of a locked mapping: the kernel keeps them.
    locked_bytes: u64,
    /// The process's proportional share of them, for pages that others map, too (the kernel's own
    /// `Locked`).
    locked_share_bytes: u64,
    permissions: String,
    name: String,
}

impl Report {
    fn read(pid: u32) -> std::io::Result<Report> {
        let vmlck_bytes = limits::locked_bytes(Some(pid))?;
        let areas = smaps::locked(Some(pid))?;
        // Found out by locking a page, which this process may not be allowed to.
        let tells = areas.iter().any(|area| area.on_fault) || smaps::tells_mode();
        let mappings: Vec<MappingReport> = areas
            .into_iter()
            .map(|area| MappingReport::new(area, tells))
            .collect();
        let sum = |of: fn(&MappingReport) -> u64| mappings.iter().map(of).sum();
        Ok(Report {
            pid,
            vmlck_bytes,
            length_bytes: sum(|m| m.length_bytes),
            resident_bytes: sum(|m| m.resident_bytes),
            locked_bytes: sum(|m| m.locked_bytes),
            mappings,
        })
    }

    fn text(&self) -> String {
        let mut table = Table::new(
            &["ADDRESS", "LENGTH", "MODE", "RESIDENT", "LOCKED", "MAPPING"],
            &[2, 5],
        );
        for mapping in &self.mappings {
            table.push(vec![
                format!("{:x}", mapping.start),
                Bytes(mapping.length_bytes).to_string(),
                mapping.mode.unwrap_or("?").to_owned(),
                Bytes(mapping.resident_bytes).to_string(),
                Bytes(mapping.locked_bytes).to_string(),
                match mapping.name.as_str() {
                    "" => format!("[anonymous] {}", mapping.permissions),
                    name => format!("{} {}", printable(name), mapping.permissions),
                },
            ]);
        }
        let many = if self.mappings.len() == 1 {
            "mapping"
        } else {
            "mappings"
        };
        format!(
            "{table}{} {many}, {} of address space; resident {}, locked {}; VmLck {}\n",
            self.mappings.len(),
            Bytes(self.length_bytes),
            Bytes(self.resident_bytes),
            Bytes(self.locked_bytes),
            Bytes(self.vmlck_bytes)
        )
    }
}

impl MappingReport {
    fn new(area: Area, tells_mode: bool) -> MappingReport {
        let mode = match (tells_mode, area.on_fault) {
            (false, _) => None,
            (true, true) => Some("on-fault"),
            (true, false) => Some("full"),
        };
        MappingReport {
            start: area.start as u64,
            end: area.end as u64,
            length_bytes: (area.end - area.start) as u64,
            mode,
            resident_bytes: area.resident,
            locked_bytes: if area.hugetlb { 0 } else { area.resident },
            locked_share_bytes: area.locked_share,
            permissions: area.permissions,
            name: area.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_told_to_become_root() {
        let of = |root| {
            let situation = Situation {
                root,
                container: None,
            };
            may_see(situation, 42)
        };
        assert!(of(false).ends_with("sudo pagetide locks 42"));
        assert!(!of(true).contains("sudo") && of(true).contains("SYS_PTRACE"));
    }
}
