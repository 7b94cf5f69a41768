//! `pagetide-bench programs` as a user calls it, with little work: what it counts and leaves
//! behind, not how fast anything is.
#[path = "../../cli/tests/support/mod.rs"]
mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use serde_json::Value;
use support::pagetide::able;
use support::skip::skipped;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetide-bench"));
    command.arg("programs").args(arguments);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The runs of one side, which are those of the plan, none left out.
fn runs(side: &Value) -> &Vec<Value> {
    let runs = side["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "{side}");
    runs
}

fn check(program: &Value, swap: bool) {
    let count = |run: &Value, field: &str| run[field].as_u64().unwrap_or_else(|| panic!("{run}"));
    let alone = runs(&program["alone"]);
    assert!(program["peak_bytes"].as_u64().unwrap() > 1 << 20);
    let [bounded, fits] = &program["rows"].as_array().unwrap()[..] else {
        panic!("{program}");
    };
    for row in [bounded, fits] {
        for run in runs(&row["pagetide"]) {
            assert!(run["failure"].is_null(), "{run}");
            assert_eq!(run["output"], alone[0]["output"]);
            assert!(run["cpu_seconds"].as_f64().unwrap() > 0.0, "{run}");
        }
    }
    for run in runs(&bounded["pagetide"]) {
        assert!(count(run, "demand_pages") > 0 && count(run, "written_pages") > 0);
        assert!(count(run, "evicted_pages") >= count(run, "written_pages"));
        assert!(count(run, "memory_bytes") > bounded["resident_bytes"].as_u64().unwrap() / 2);
    }
    for run in runs(&fits["pagetide"]) {
        assert_eq!(count(run, "evicted_pages"), 0, "{run}");
    }
    for run in runs(&program["measuring"]) {
        assert_eq!(run["output"], alone[0]["output"], "{run}");
        assert!(run["resident_bytes_mean"].is_null(), "{run}");
    }
    for run in runs(&program["following"]) {
        assert_eq!(run["output"], alone[0]["output"], "{run}");
        assert!(count(run, "resident_bytes_mean") > 0, "{run}");
    }
    let mean = count(program, "mean_bytes");
    assert!(mean > 0 && mean <= count(program, "peak_bytes"));
    assert!(fits["ratio"]["wall"].as_f64().unwrap() > 0.0);
    assert!(fits["swap"].is_null());
    if !swap {
        return assert!(bounded["swap"].is_null() && bounded["ratio"]["wall"].is_null());
    }
    // The kernel may end a program that finds all its pages in use; that it did must be told.
    for run in runs(&bounded["swap"]) {
        assert!(count(run, "memory_bytes") > 0, "{run}");
        match run["failure"].is_null() {
            true => assert_eq!(run["output"], alone[0]["output"]),
            false => assert_eq!(run["failure"], "out-of-memory", "{run}"),
        }
    }
    let failures = bounded["swap"]["failures"].as_array().unwrap();
    assert_eq!(failures.is_empty(), bounded["ratio"]["wall"].is_number());
}

#[test]
fn programs_print_the_same_in_every_environment_and_nothing_stays() {
    let pagetide = match able() {
        Ok(pagetide) => pagetide,
        Err(reason) => return skipped("programs under run", &reason),
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let plot = directory.path().join("programs.svg");
    let inputs = directory.path().join("inputs");
    std::fs::create_dir(&inputs).unwrap();
    let output = bench(&[
        "--only=gnu-sort,c-threads",
        "--share=60%,fits",
        "--scale=0.1",
        "--runs=2",
        "--measure",
        "--auto=10",
        "--no-install",
        "--json=-",
        &format!("--plot={}", plot.display()),
        &format!("--directory={}", inputs.display()),
        &format!("--pagetide={}", pagetide.display()),
    ]);
    let errors = text(&output.stderr);
    // It fails, too, if anything of the machine could not be put back.
    assert!(output.status.success(), "{errors}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let missing: Vec<_> = results["not_measured"].as_array().unwrap().iter().collect();
    for what in &missing {
        assert!(errors.contains("NOT MEASURED"), "{errors}");
        skipped(what[0].as_str().unwrap(), what[1].as_str().unwrap());
    }
    let swap = missing.iter().all(|what| what[0] != "swap");
    let programs = results["programs"].as_array().unwrap();
    let missing = missing.iter().filter(|what| what[0] != "swap").count();
    assert_eq!(programs.len() + missing, 2, "{results}");
    for program in programs {
        check(program, swap);
    }
    assert!(std::fs::read_to_string(plot).unwrap().contains("<svg"));
    assert_eq!(std::fs::read_dir(inputs).unwrap().count(), 0);
}

#[test]
fn wrong_arguments_are_named_and_programs_are_listed() {
    for (arguments, named) in [
        (&["--only=gnu-sort,abc"] as &[&str], "'abc'"),
        (&["--share=0%"], "'0%'"),
        (&["--scale=0"], "'0'"),
        (&["--directory=/nonexistent", "--no-swap"], "/nonexistent"),
    ] {
        let mut arguments = arguments.to_vec();
        // Any file will do: nothing is run.
        arguments.push("--pagetide=/proc/version");
        let output = bench(&arguments);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(named), "{errors}");
    }
    let listed = text(&bench(&["--list"]).stdout);
    assert!(listed.lines().count() > 12 && listed.contains("\ngnu-sort "));
}

#[test]
fn a_run_that_takes_too_long_is_ended_and_told() {
    let output = bench(&[
        "--only=python-dict",
        "--scale=20",
        "--timeout=1",
        "--no-install",
        "--no-swap",
        "--pagetide=/proc/version",
    ]);
    let errors = text(&output.stderr);
    if errors.contains("there is no `python3`") {
        return skipped("a run that takes too long", &errors);
    }
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("NOT MEASURED: python-dict"), "{errors}");
    assert!(errors.contains("--timeout"), "{errors}");
}

#[test]
fn who_may_not_page_is_told_what_run_said() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let refusing = directory.path().join("pagetide");
    std::fs::write(&refusing, "#!/bin/sh\necho no right to page >&2\nexit 3\n").unwrap();
    std::fs::set_permissions(&refusing, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = bench(&[
        "--only=c-threads",
        "--scale=0.05",
        "--runs=1",
        "--share=60%",
        "--no-install",
        "--no-swap",
        &format!("--pagetide={}", refusing.display()),
    ]);
    let said = text(&output.stdout) + &text(&output.stderr);
    if said.contains("there is no `") {
        return skipped("who may not page", &said);
    }
    assert!(said.contains("no right to page"), "{said}");
}
