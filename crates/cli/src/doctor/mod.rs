//! `pagetide doctor`: what works here, what does not, what that means, and the exact line that
//! mends it.
mod environment;
mod finding;
mod kernel;
mod tracking;

use std::fmt::Write as _;

use serde::Serialize;

use crate::commands;
use crate::exit::{Exit, Failure};
use crate::fix::Situation;
use finding::{Finding, Need, Status};

/// Everything examined, and what it comes to.
#[derive(Debug, Serialize)]
struct Report {
    kernel: String,
    verdict: &'static str,
    exit_code: u8,
    findings: Vec<Finding>,
}

/// What the findings come to for `run`.
fn verdict(findings: &[Finding]) -> (Exit, &'static str) {
    let any = |need: Need, bad: fn(Status) -> bool| {
        findings.iter().any(|f| f.need == need && bad(f.status))
    };
    if any(Need::Required, |status| status == Status::Missing) {
        (
            Exit::CannotPage,
            "`pagetide run` does not work here; mend what is marked missing",
        )
    } else if any(Need::Required, |status| status == Status::Degraded)
        || any(Need::Improves, |s| s != Status::Ok)
    {
        (Exit::Failed, "`pagetide run` works here, degraded")
    } else {
        (Exit::Ok, "`pagetide run` works fully here")
    }
}

/// Examines the system and prints the report.
pub fn doctor(json: bool) -> Result<u8, Failure> {
    let situation = Situation::detect();
    let mut findings = kernel::examine(situation);
    findings.extend(tracking::examine(situation));
    findings.extend(environment::examine(situation));
    let (exit, verdict) = verdict(&findings);
    let system = rustix::system::uname();
    let kernel = format!(
        "{} {}",
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy()
    );
    let report = Report {
        kernel,
        verdict,
        exit_code: exit.code(),
        findings,
    };
    let printed = match json {
        true => commands::print_json(&report),
        false => commands::print(&render(&report)),
    };
    // 1 would be a verdict.
    printed.map_err(commands::as_of_a_file)?;
    Ok(exit.code())
}

fn render(report: &Report) -> String {
    let mut text = format!("{}\n", report.kernel);
    let width = report
        .findings
        .iter()
        .map(|f| f.name.chars().count())
        .max()
        .unwrap_or(0);
    let mut topic = "";
    for finding in &report.findings {
        if finding.topic != topic {
            topic = finding.topic;
            let _ = write!(text, "\n{topic}\n");
        }
        let status = match finding.status {
            Status::Ok => "ok",
            Status::Degraded => "degraded",
            Status::Missing => "missing",
        };
        let _ = writeln!(
            text,
            "  {status:<8}  {:<width$}  {}",
            finding.name, finding.detail
        );
        let indent = width + 14;
        if !finding.used_for.is_empty() {
            let _ = writeln!(text, "{:indent$}{}", "", finding.used_for);
        }
        if let Some(fix) = &finding.fix {
            let note = if finding.need == Need::Elsewhere {
                " (run does without)"
            } else {
                ""
            };
            let _ = writeln!(text, "{:indent$}fix{note}: {fix}", "");
        }
    }
    let _ = write!(text, "\n{}\n", report.verdict);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(need: Need, status: Status) -> Finding {
        Finding::ok("kernel", "thing", need, "seen", "for something").but(status, "do this")
    }

    #[test]
    fn the_exit_code_says_how_well_run_works() {
        let exit = |list: &[Finding]| verdict(list).0;
        assert_eq!(
            exit(&[
                finding(Need::Required, Status::Ok),
                finding(Need::Elsewhere, Status::Missing)
            ]),
            Exit::Ok
        );
        assert_eq!(
            exit(&[finding(Need::Improves, Status::Missing)]),
            Exit::Failed
        );
        assert_eq!(
            exit(&[finding(Need::Required, Status::Degraded)]),
            Exit::Failed
        );
        assert_eq!(
            exit(&[
                finding(Need::Improves, Status::Missing),
                finding(Need::Required, Status::Missing)
            ]),
            Exit::CannotPage
        );
    }

    #[test]
    fn a_problem_is_shown_with_its_fix() {
        let findings = vec![
            finding(Need::Elsewhere, Status::Missing),
            finding(Need::Improves, Status::Ok),
        ];
        let text = render(&Report {
            kernel: "Linux 6".into(),
            verdict: "fine",
            exit_code: 0,
            findings,
        });
        assert!(text.contains("  missing   thing  seen\n"), "{text}");
        assert!(text.contains("fix (run does without): do this"), "{text}");
    }

    #[test]
    fn the_tracking_method_is_the_best_that_works_and_is_named() {
        let findings = tracking::examine(Situation::detect());
        let dirty = findings.iter().find(|f| f.name == "dirty tracking");
        let best = pagetide::track::Method::best().expect("mprotect works everywhere");
        let detail = &dirty.unwrap().detail;
        assert!(detail.starts_with(&format!("by {best}")), "{detail}");
    }

    #[test]
    fn this_system_can_be_examined_and_every_problem_has_a_fix() {
        let situation = Situation::detect();
        for finding in kernel::examine(situation)
            .iter()
            .chain(&tracking::examine(situation))
            .chain(&environment::examine(situation))
        {
            assert!(
                finding.status == Status::Ok || finding.fix.is_some(),
                "{finding:?}"
            );
            assert!(!finding.detail.is_empty(), "{finding:?}");
        }
    }
}
