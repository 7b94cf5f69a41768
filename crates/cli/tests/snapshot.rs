//! `pagetide snapshot`: what it says of whole, torn and altered files, of chains and differences.
#[path = "support/patience.rs"]
mod patience;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagetide::track::snapshot::format::{RegionEntry, SnapshotId};
use pagetide::track::snapshot::sink::FileSink;
use pagetide::track::snapshot::writer::{Parent, Writer};
use patience::up_to;

const PAGE: usize = 4096;

fn pagetide(arguments: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetide"));
    command.arg("snapshot").args(arguments).args(files);
    command.output().unwrap()
}

/// Runs it in `directory`.
fn pagetide_in(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetide"));
    command.current_dir(directory).arg("snapshot");
    command.args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Writes a snapshot of a region of 100 pages in which `pages` hold their byte throughout.
fn write(path: &Path, parent: Option<(&Path, SnapshotId)>, pages: &[(u64, u8)]) -> SnapshotId {
    write_taken_at(now(), path, parent, pages)
}

fn now() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since_1970.as_nanos() as u64
}

fn write_taken_at(
    taken: u64,
    path: &Path,
    parent: Option<(&Path, SnapshotId)>,
    pages: &[(u64, u8)],
) -> SnapshotId {
    let id = SnapshotId::random();
    let parent = parent.map(|(path, id)| Parent {
        id,
        name: path.file_name().unwrap().to_string_lossy().into_owned(),
    });
    let region = RegionEntry {
        name: "heap".into(),
        address: 0x7000_0000,
        pages: 100,
    };
    let sink = Box::new(FileSink::create(path).unwrap());
    let mut writer = Writer::taken_at(taken, sink, id, parent.as_ref(), vec![region]).unwrap();
    for (page, byte) in pages {
        let mut bytes = vec![*byte; PAGE];
        if *byte != 0 {
            bytes[..8].copy_from_slice(&page.to_le_bytes());
        }
        writer.put(0, &[*page], &bytes).unwrap();
    }
    writer.finish().unwrap();
    id
}

/// A chain of three: base, then pages 1 and 2 changed, then page 2 zeroed and page 50 new.
fn chain(directory: &Path) -> [PathBuf; 3] {
    let paths = ["base", "one", "two"].map(|name| directory.join(name));
    let base = write(&paths[0], None, &[(1, 1), (2, 1), (3, 1)]);
    let one = write(&paths[1], Some((&paths[0], base)), &[(1, 9), (2, 9)]);
    write(&paths[2], Some((&paths[1], one)), &[(2, 0), (50, 7)]);
    paths
}

#[test]
fn inspect_shows_regions_pages_and_parents() {
    let directory = tempfile::tempdir().unwrap();
    let [base, _, two] = chain(directory.path());
    let output = pagetide(&["inspect"], &[&base, &two]);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    for expected in [
        "'heap' at 0x70000000",
        "3 pages stored",
        "a full snapshot",
        "('one')",
        "1 pages stored, 1 became zeros",
    ] {
        assert!(said.contains(expected), "{expected} is not in:\n{said}");
    }
    let output = pagetide(&["inspect", "--json"], &[&two]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json[0]["regions"][0]["pages_zeroed"], 1);
    assert_eq!(json[0]["parent_name"], "one");
}

#[test]
fn verify_tells_whole_torn_altered_and_foreign_files_apart() {
    let directory = tempfile::tempdir().unwrap();
    let [base, one, _] = chain(directory.path());
    let output = pagetide(&["verify"], &[&base, &one]);
    assert_eq!(
        (output.status.code(), text(&output).matches("whole").count()),
        (Some(0), 2)
    );
    let whole = std::fs::read(&base).unwrap();
    let bad = directory.path().join("bad");
    let expect = |bytes: &[u8], code: i32, what: &str| {
        std::fs::write(&bad, bytes).unwrap();
        let output = pagetide(&["verify"], &[&base, &bad]);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(
            said.contains("bad") && said.contains(what) && said.contains("base: whole"),
            "{said}"
        );
    };
    expect(&whole[..whole.len() - 1], 4, "torn");
    expect(&whole[..60], 4, "torn");
    expect(b"#!/bin/sh\n", 4, "not a snapshot file");
    let mut altered = whole.clone();
    altered[130] ^= 1;
    expect(&altered, 5, "block 0");
    let mut altered = whole.clone();
    altered[20] ^= 1;
    expect(&altered, 4, "header is damaged");
    let missing = pagetide(&["verify"], &[&directory.path().join("missing")]);
    assert_eq!(missing.status.code(), Some(4), "{}", text(&missing));
}

#[test]
fn diff_lists_what_differs_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let [base, one, two] = chain(directory.path());
    let same = pagetide(&["diff"], &[&base, &base]);
    assert_eq!(
        (same.status.code(), text(&same).as_str()),
        (Some(0), "0 pages differ\n")
    );
    let output = pagetide(&["diff"], &[&base, &two]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output),
        "heap: 2 pages from page 1\nheap: 1 pages from page 50\n3 pages differ\n"
    );
    let output = pagetide(&["diff", "--json"], &[&one, &two]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 2);
    std::fs::remove_file(&one).unwrap();
    let orphan = pagetide(&["diff"], &[&base, &two]);
    assert_eq!(orphan.status.code(), Some(4), "{}", text(&orphan));
    assert!(text(&orphan).contains("parent"), "{}", text(&orphan));
}

#[test]
fn merge_of_a_chain_is_the_same_as_the_chain() {
    let directory = tempfile::tempdir().unwrap();
    let [base, one, two] = chain(directory.path());
    let merged = directory.path().join("merged");
    let output = pagetide(
        &["merge", "--output", merged.to_str().unwrap()],
        &[&two, &base, &one],
    );
    assert!(output.status.success(), "{}", text(&output));
    let same = pagetide(&["diff"], &[&two, &merged]);
    assert_eq!(text(&same), "0 pages differ\n");
    // Without the base the result still builds on it.
    let upper = directory.path().join("upper");
    let output = pagetide(&["merge", "-o", upper.to_str().unwrap()], &[&one, &two]);
    assert!(output.status.success(), "{}", text(&output));
    let same = pagetide(&["diff"], &[&two, &upper]);
    assert_eq!(text(&same), "0 pages differ\n");
    let strangers = directory.path().join("stranger");
    write(&strangers, None, &[(1, 1)]);
    let output = pagetide(
        &["merge", "-o", upper.to_str().unwrap()],
        &[&one, &strangers],
    );
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    let gap = pagetide(&["merge", "-o", upper.to_str().unwrap()], &[&base, &two]);
    assert_eq!(gap.status.code(), Some(2), "{}", text(&gap));
}

/// Expects a code, and `parts` in what was said.
fn expect(output: &Output, code: i32, parts: &[&str]) {
    let said = text(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Flips a bit of the first block.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[130] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn merge_replaces_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    chain(place);
    std::fs::create_dir(place.join("directory")).unwrap();
    std::os::unix::fs::symlink("nowhere", place.join("dangling")).unwrap();
    std::os::unix::fs::symlink("base", place.join("link")).unwrap();
    std::fs::write(place.join("letter"), "dear").unwrap();
    fifo(&place.join("fifo"));
    let keeps = |output: &str, files: &[&str]| {
        let before = contents(place);
        let mut arguments = vec!["merge", "-o", output];
        arguments.extend(files);
        let parts = [output, "give another name or remove it first"];
        expect(&pagetide_in(place, &arguments), 2, &parts);
        assert!(contents(place) == before, "{output}");
    };
    // The parent of what is merged, which the result builds on.
    keeps("base", &["one", "two"]);
    for output in [
        "two",
        "one",
        "./one",
        "directory",
        "dangling",
        "link",
        "letter",
        "fifo",
        "/dev/null",
    ] {
        keeps(output, &["base", "one", "two"]);
    }
    // A parent that is not there is not replaced by what builds on it.
    std::fs::remove_file(place.join("base")).unwrap();
    let output = pagetide_in(place, &["merge", "-o", "base", "one", "two"]);
    expect(&output, 2, &["'base' has the name of the parent"]);
    assert!(!place.join("base").exists());
}

/// Every name in a directory, and what is in the files.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut all: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let bytes = if meta.is_file() {
                std::fs::read(&path).unwrap()
            } else {
                format!("{:?}", meta.file_type()).into_bytes()
            };
            (path, bytes)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_merge_that_builds_on_a_parent_is_written_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    chain(place);
    let other = place.join("other");
    std::fs::create_dir(&other).unwrap();
    let output = pagetide_in(place, &["merge", "-o", "other/upper", "two", "one"]);
    expect(
        &output,
        2,
        &["'base'", "'other'", "beside its parent, in '.'"],
    );
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
    // The same directory by another name.
    let output = pagetide_in(place, &["merge", "-o", "other/../upper", "two", "one"]);
    expect(&output, 0, &[]);
    // A full result may go anywhere.
    let output = pagetide_in(place, &["merge", "-o", "other/full", "two", "one", "base"]);
    expect(&output, 0, &[]);
    let same = pagetide_in(place, &["diff", "two", "other/full"]);
    expect(&same, 0, &["0 pages differ"]);
    // So may one whose parent is there, too.
    std::fs::copy(place.join("base"), other.join("base")).unwrap();
    let output = pagetide_in(place, &["merge", "-o", "other/upper", "two", "one"]);
    expect(&output, 0, &[]);
    let same = pagetide_in(place, &["diff", "two", "other/upper"]);
    expect(&same, 0, &["0 pages differ"]);
}

#[test]
fn merge_names_what_is_given_twice() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    chain(place);
    let output = pagetide_in(place, &["merge", "-o", "merged", "two", "two", "one"]);
    expect(&output, 2, &["'two' is given twice"]);
    std::fs::copy(place.join("two"), place.join("copy")).unwrap();
    let output = pagetide_in(place, &["merge", "-o", "merged", "two", "one", "copy"]);
    expect(&output, 2, &["'two' and 'copy' are one snapshot"]);
}

#[test]
fn a_merged_file_was_taken_when_its_newest_was() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (base, one) = (place.join("base"), place.join("one"));
    let id = write_taken_at(1_000_000_007, &base, None, &[(1, 1)]);
    write_taken_at(2_000_000_011, &one, Some((&base, id)), &[(1, 2)]);
    let output = pagetide_in(place, &["merge", "-o", "merged", "base", "one"]);
    expect(&output, 0, &[]);
    let output = pagetide_in(place, &["inspect", "--json", "merged"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json[0]["created_unix_ns"], 2_000_000_011);
}

#[test]
fn diff_reads_a_copy_and_finds_it_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    chain(place);
    std::fs::copy(place.join("base"), place.join("copy")).unwrap();
    let output = pagetide_in(place, &["diff", "base", "copy"]);
    expect(&output, 0, &["0 pages differ"]);
    damage(&place.join("copy"));
    for files in [["base", "copy"], ["copy", "base"]] {
        let output = pagetide_in(place, &["diff", files[0], files[1]]);
        expect(&output, 5, &["copy: block 0"]);
    }
    // So is a copy that only a parent is.
    let other = place.join("other");
    std::fs::create_dir(&other).unwrap();
    for name in ["base", "one", "two"] {
        std::fs::copy(place.join(name), other.join(name)).unwrap();
    }
    damage(&other.join("one"));
    let output = pagetide_in(place, &["diff", "two", "other/two"]);
    expect(&output, 5, &["other/one: block 0"]);
    // By another name it is the same file, and not read.
    damage(&place.join("base"));
    std::fs::hard_link(place.join("base"), place.join("linked")).unwrap();
    let output = pagetide_in(place, &["diff", "base", "linked"]);
    expect(&output, 0, &["0 pages differ"]);
}

#[test]
fn verify_says_it_in_json_too() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let [_, _, damaged] = chain(place);
    damage(&damaged);
    let output = pagetide_in(place, &["verify", "--json", "base", "two", "missing"]);
    assert_eq!(output.status.code(), Some(5));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let whole: Vec<_> = (0..3)
        .map(|index| found[index]["whole"].as_bool())
        .collect();
    assert_eq!(whole, [Some(true), Some(false), Some(false)], "{found}");
    let length = std::fs::metadata(place.join("base")).unwrap().len();
    assert_eq!(found[0]["bytes"].as_u64(), Some(length));
    assert!(
        found[1]["error"].as_str().unwrap().contains("damaged"),
        "{found}"
    );
    assert!(
        found[2]["error"].as_str().unwrap().contains("missing"),
        "{found}"
    );
}

#[test]
fn verify_exits_with_the_highest_code_in_any_order() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    chain(place);
    std::fs::copy(place.join("base"), place.join("damaged")).unwrap();
    damage(&place.join("damaged"));
    for files in [
        ["damaged", "missing", "base"],
        ["missing", "damaged", "base"],
        ["base", "missing", "damaged"],
    ] {
        let output = pagetide_in(place, &["verify", files[0], files[1], files[2]]);
        expect(
            &output,
            5,
            &["damaged: block 0", "missing: ", "base: whole"],
        );
    }
}

#[test]
fn verify_says_which_parent_is_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    chain(place);
    let output = pagetide_in(place, &["verify", "two", "one", "base"]);
    expect(&output, 0, &[]);
    assert!(!text(&output).contains("restored"), "{}", text(&output));
    std::fs::rename(place.join("base"), place.join("kept")).unwrap();
    let lacking = "cannot be restored as it is: one: its parent, snapshot ";
    let output = pagetide_in(place, &["verify", "one"]);
    expect(&output, 0, &["one: whole", lacking, "readable as 'base'"]);
    // A parent's parent, and of each file.
    let output = pagetide_in(place, &["verify", "two", "one", "kept"]);
    expect(&output, 0, &["two: whole", lacking, "kept: whole"]);
    assert_eq!(text(&output).matches(lacking).count(), 2);
    std::fs::copy(place.join("two"), place.join("base")).unwrap();
    let output = pagetide_in(place, &["verify", "one"]);
    expect(&output, 0, &[lacking, "what is in 'base' now"]);
}

#[test]
fn advice_on_a_missing_parent_is_true() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    chain(place);
    std::fs::rename(place.join("one"), place.join("kept")).unwrap();
    let output = pagetide_in(place, &["diff", "base", "two"]);
    let advice = "under the name that `pagetide snapshot inspect` shows: put it there";
    expect(&output, 4, &["readable as 'one'", advice]);
    assert!(
        !text(&output).contains("parents first"),
        "{}",
        text(&output)
    );
    let output = pagetide_in(place, &["inspect", "two"]);
    expect(&output, 0, &["('one')"]);
    std::fs::rename(place.join("kept"), place.join("one")).unwrap();
    let output = pagetide_in(place, &["diff", "base", "two"]);
    expect(&output, 1, &["3 pages differ"]);
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    chain(place);
    fifo(&place.join("fifo"));
    let refused = |arguments: &[&str], kind: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagetide"));
        command.current_dir(place).arg("snapshot").args(arguments);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() && begun.elapsed() < up_to(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Does nothing to one that has ended.
        child.kill().unwrap();
        expect(&child.wait_with_output().unwrap(), 4, &[kind]);
    };
    let kind = "fifo: it is a FIFO, not a regular file";
    refused(&["inspect", "fifo"], kind);
    refused(&["verify", "fifo"], kind);
    refused(&["diff", "fifo", "base"], kind);
    refused(&["diff", "base", "fifo"], kind);
    refused(&["merge", "-o", "merged", "one", "fifo"], kind);
    refused(&["inspect", "/dev/zero"], "it is a device");
    refused(&["inspect", "."], "it is a directory");
    // As a parent, too.
    std::fs::remove_file(place.join("one")).unwrap();
    fifo(&place.join("one"));
    refused(&["diff", "base", "two"], "it is a FIFO");
}

#[test]
fn inspect_shows_the_good_files_among_bad_ones() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    chain(place);
    let output = pagetide_in(place, &["inspect", "base", "missing", "one"]);
    expect(&output, 4, &[]);
    let (shown, told) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(shown.matches("  snapshot  ").count(), 2, "{shown}");
    assert!(told.contains("pagetide: missing: "), "{told}");
    let output = pagetide_in(place, &["inspect", "--json", "base", "missing", "one"]);
    expect(&output, 4, &[]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json[1]["file"], "one");
}

#[test]
fn a_full_stdout_is_not_taken_for_a_difference() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    chain(place);
    let cases: [&[&str]; 6] = [
        &["diff", "base", "base"],
        &["diff", "--json", "base", "two"],
        &["inspect", "base"],
        &["inspect", "--json", "base"],
        &["verify", "base"],
        &["merge", "-o", "merged", "base", "one"],
    ];
    for arguments in cases {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagetide"));
        command.current_dir(place).arg("snapshot").args(arguments);
        let output = command.stdout(full.unwrap()).stderr(Stdio::piped());
        let output = output.spawn().unwrap().wait_with_output().unwrap();
        expect(&output, 4, &["stdout cannot be written"]);
    }
    for words in ["inspect", "verify", "diff", "merge"] {
        let help = pagetide_in(place, &[words, "--help"]);
        // Without the lines' breaks.
        let help = text(&help).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            help.contains("or stdout or the result of merge cannot be written"),
            "{help}"
        );
        assert!(!help.contains("JSON object"), "{help}");
    }
}
