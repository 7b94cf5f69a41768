//! `pagetide-bench record-accesses` as a user calls it: what it writes down of a program whose
//! accesses are known, and what it refuses.
#[path = "../../cli/tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Output};

use pagetide_bench::policy::accesses::{self, Access};
use support::skip::skipped;

/// Touches page after page of PAGES, forth and back ROUNDS times, and stores to each third.
const PROGRAM: &str = r#"
#include <stdlib.h>
#include <sys/mman.h>
int main(void) {
    volatile char *pages = mmap(0, 4096L * PAGES, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < ROUNDS; round++)
        for (int at = 0; at < PAGES; at++) {
            int page = round % 2 ? PAGES - 1 - at : at;
            if (page % 3 == 0) pages[4096L * page] = 1; else (void)pages[4096L * page];
        }
    return 7;
}
"#;
const PAGES: u64 = 300;
const ROUNDS: usize = 6;

fn record(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetide-bench"));
    command.arg("record-accesses").args(arguments);
    command.output().unwrap()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The recording of the program, unless what it takes is missing here.
fn recording(test: &str, directory: &Path, options: &[&str]) -> Option<Vec<Access>> {
    let (source, program) = (directory.join("touch.c"), directory.join("touch"));
    std::fs::write(&source, PROGRAM).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-o"]).arg(&program).arg(&source);
    gcc.args([format!("-DPAGES={PAGES}"), format!("-DROUNDS={ROUNDS}")]);
    if !gcc.status().is_ok_and(|status| status.success()) {
        skipped(test, "no gcc that compiles a program");
        return None;
    }
    let file = directory.join("touch.accesses");
    let (name, program) = (file.to_str().unwrap(), program.to_str().unwrap());
    let options = [options, &["--output", name, "--", program]].concat();
    let output = record(&options);
    if !output.status.success() {
        let error = error(&output);
        assert!(error.contains("install valgrind"), "{error}");
        skipped(test, "no valgrind, or not its headers and libraries");
        return None;
    }
    if options[0] == "--output" {
        // The program's own exit code is told, and the recording whole.
        assert!(error(&output).contains("exit status: 7"), "{output:?}");
    }
    let bytes = std::fs::read(&file).unwrap();
    Some(accesses::parse(&bytes).unwrap().collect())
}

#[test]
fn every_page_is_written_down_in_each_round_and_stores_as_stores() {
    let test = "every_page_is_written_down_in_each_round_and_stores_as_stores";
    let directory = tempfile::tempdir().unwrap();
    let Some(accesses) = recording(test, directory.path(), &[]) else {
        return;
    };
    let mut touched: HashMap<u64, Vec<bool>> = HashMap::new();
    for access in &accesses {
        touched.entry(access.page).or_default().push(access.store);
    }
    // The mapping is the one stretch of so many pages that were touched so often. Where it turns
    // round, the last 64 pages are not written down again.
    let often = |page: &u64| touched.get(page).is_some_and(|t| t.len() >= ROUNDS / 2);
    let first = touched
        .keys()
        .copied()
        .find(|page| !often(&(page - 1)) && (*page..page + PAGES).all(|page| often(&page)));
    let first = first.expect("the program's pages are in the recording");
    for page in 0..PAGES {
        let stores = &touched[&(first + page)];
        assert!(stores.len() <= ROUNDS, "page {page}: {stores:?}");
        let is_stored = page.is_multiple_of(3);
        assert!(
            stores.iter().all(|store| *store == is_stored),
            "page {page}: {stores:?}"
        );
    }
}

#[test]
fn a_limit_ends_the_recording_and_wrong_uses_are_refused() {
    let test = "a_limit_ends_the_recording_and_wrong_uses_are_refused";
    let output = record(&["--output", "/nowhere/at/all", "--", "true"]);
    assert!(!output.status.success() && error(&output).contains("/nowhere/at/all"));
    let directory = tempfile::tempdir().unwrap();
    if let Some(accesses) = recording(test, directory.path(), &["--accesses", "100"]) {
        assert_eq!(accesses.len(), 100);
    }
}
