//! `pagetide snapshot`: what it says of whole, torn and altered files, of chains and differences.
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pagetide::track::snapshot::format::{RegionEntry, SnapshotId};
use pagetide::track::snapshot::sink::FileSink;
use pagetide::track::snapshot::writer::{Parent, Writer};

const PAGE: usize = 4096;

fn pagetide(arguments: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetide"));
    command.arg("snapshot").args(arguments).args(files);
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Writes a snapshot of a region of 100 pages in which `pages` hold their byte throughout.
fn write(path: &Path, parent: Option<(&Path, SnapshotId)>, pages: &[(u64, u8)]) -> SnapshotId {
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
    let mut writer = Writer::new(sink, id, parent.as_ref(), vec![region]).unwrap();
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
