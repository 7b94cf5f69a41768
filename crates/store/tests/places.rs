//! Where stores are: URIs, files and their names, disks that get full, and what of the process's
//! memory they take.

#[path = "behaviour/common.rs"]
#[allow(dead_code)] // shared with the behaviour suite
mod common;
#[path = "behaviour/laws.rs"]
#[allow(dead_code)]
mod laws;

use common::*;
use pagetide_store::{ErrorKind, PAGE_SIZE, Page, Slot, open};
use std::fs;
use std::path::Path;
use std::process::Command;

fn refusal(uri: &str) -> String {
    let error = open(uri)
        .err()
        .unwrap_or_else(|| panic!("{uri} was opened"));
    assert_eq!(error.kind, ErrorKind::Config, "{error}");
    error.to_string()
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn wrong_uris_are_answered_with_what_is_right() {
    for (uri, words) in [
        ("tape:/dev/st0", &["tape:/dev/st0", "ram:", "file:PATH"][..]),
        ("ram", &[]),
        ("", &["known"]),
        ("ram:?mx=1G", &["`mx`", "max"]),
        ("ram:?max=many", &["max", "`many`"]),
        ("ram:?max=1K", &["2M"]),
        ("ram:/tmp", &["ram:?max=2G"]),
        ("file:", &["file:/var/tmp/"]),
        ("file:/nowhere/at/all", &["/nowhere/at/all", "No such file"]),
        ("file:/nowhere/", &["/nowhere/", "No such file"]),
        ("file:/tmp?compress=1", &["`compress`", "keep, max"]),
        ("file:/tmp?keep=maybe", &["`maybe`"]),
        ("file:/dev/null", &["/dev/null", "regular file"]),
    ] {
        if uri == "ram" {
            assert!(open(uri).is_ok());
            continue;
        }
        let text = refusal(uri);
        words
            .iter()
            .for_each(|word| assert!(text.contains(word), "{uri}: {text}"));
    }
}

#[test]
fn a_file_of_the_users_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("letter");
    fs::write(&path, "Dear reader").unwrap();
    for options in ["", "?keep=1"] {
        let text = refusal(&format!("file:{}{options}", path.display()));
        assert!(text.contains("not a store"), "{text}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "Dear reader");
    }
    // Locked or not: a lock outlives its owner in a child that has not reached its exec.
    let locked = fs::File::open(&path).unwrap();
    locked.lock().unwrap();
    let text = refusal(&format!("file:{}", path.display()));
    assert!(text.contains("not a store"), "{text}");
    assert_eq!(names(directory.path()), ["letter"]);
}

#[test]
fn a_link_is_refused_and_left_as_it_is_with_what_it_leads_to() {
    let directory = tempfile::tempdir().unwrap();
    let (file, link) = (directory.path().join("file"), directory.path().join("link"));
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for options in ["", "?keep=1"] {
        let text = refusal(&format!("file:{}{options}", link.display()));
        let target = format!("symbolic link to `{}`", file.display());
        assert!(text.contains(&target), "{text}");
        assert_eq!(names(directory.path()), ["link"]);
    }
    // Links on the way are the user's own choice.
    let folder = directory.path().join("folder");
    std::os::unix::fs::symlink(directory.path(), &folder).unwrap();
    drop(open(&format!("file:{}", folder.display())).unwrap());
    drop(open(&format!("file:{}/pages", folder.display())).unwrap());
    assert_eq!(names(directory.path()), ["folder", "link"]);
}

/// A file of the user's may be empty, such as one made by `mktemp`.
#[test]
fn an_empty_file_that_was_there_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("empty");
    fs::write(&path, b"").unwrap();
    for more in ["", "?keep=1"] {
        let text = refusal(&format!("file:{}{more}", path.display()));
        assert!(
            text.contains("is empty") && text.contains("empty`"),
            "{text}"
        );
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }
}

#[test]
fn kept_files_have_names_and_others_have_none() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().display().to_string();
    let pid = std::process::id();
    let stores = [
        (format!("file:{root}"), vec![]),
        (format!("file:{root}/pages"), vec![]),
        (
            format!("file:{root}?keep=1"),
            vec![format!("pagetide-{pid}.store")],
        ),
        (
            format!("file:{root}/kept?keep=1"),
            vec!["kept".to_owned(), format!("pagetide-{pid}.store")],
        ),
    ];
    for (uri, expected) in stores {
        let store = open(&uri).unwrap();
        let slots = put_all(&*store, &[random_page(1)]);
        assert_holds(&*store, slots[0], &random_page(1));
        drop(store);
        assert_eq!(names(directory.path()), expected, "{uri}");
    }
    // What was kept can be used again, and a run that does not keep takes it away.
    drop(open(&format!("file:{root}/kept")).unwrap());
    assert_eq!(names(directory.path()), [format!("pagetide-{pid}.store")]);
}

#[test]
fn a_path_in_use_is_left_to_its_user() {
    let directory = tempfile::tempdir().unwrap();
    let uri = format!("file:{}/pages?keep=1", directory.path().display());
    let stores: Vec<_> = (0..3).map(|_| open(&uri).unwrap()).collect();
    let pid = std::process::id();
    assert_eq!(
        names(directory.path()),
        [
            "pages".to_owned(),
            format!("pages.{pid}"),
            format!("pages.{pid}-2")
        ]
    );
    let slots: Vec<Slot> = stores
        .iter()
        .zip(0..)
        .map(|(store, seed)| put_all(&**store, &[random_page(seed)])[0])
        .collect();
    stores
        .iter()
        .zip(slots)
        .zip(0..)
        .for_each(|((store, slot), seed)| assert_holds(&**store, slot, &random_page(seed)));
}

#[test]
fn a_full_disk_is_clean_and_recoverable() {
    let directory = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=12M", "tmpfs"])
        .arg(directory.path())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!(
            "SKIPPED: a_full_disk_is_clean_and_recoverable needs the right to mount a tmpfs (run as root)"
        );
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let store = open(&format!("file:{}/", directory.path().display())).unwrap();
        laws::full_is_clean_and_recoverable(&*store, 13 << 20);
    });
    let unmounted = Command::new("umount").arg(directory.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    outcome.unwrap();
}

#[test]
fn bookkeeping_is_at_most_24_bytes_a_page() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}", directory.path().display());
    for uri in ["ram:", &file] {
        let store = open(uri).unwrap();
        let before = store.usage().bytes;
        let pages: Vec<Page> = (0..64)
            .map(|word| {
                let mut page = Page::ZERO;
                page.fill(word);
                page
            })
            .collect();
        let refs: Vec<&Page> = pages.iter().collect();
        for _ in 0..2048 {
            store.put(&refs, &mut [Slot(0); 64]).unwrap();
        }
        let usage = store.usage();
        assert_eq!(usage.pages, 2048 * 64);
        let each = (usage.bytes - before) as f64 / usage.pages as f64;
        assert!(each <= 24.0, "{uri}: {each} bytes a page");
    }
}

#[test]
fn pages_in_ram_are_shared_memory_not_private() {
    let anonymous = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("RssAnon:"))
            .unwrap()
            .to_owned();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            << 10
    };
    let store = open("ram:").unwrap();
    let before = anonymous();
    let pages = 32_768;
    let page = random_page(5);
    for _ in 0..pages {
        store.put(&[&page], &mut [Slot(0)]).unwrap();
    }
    let grown = anonymous().saturating_sub(before);
    assert!(store.usage().bytes > pages * PAGE_SIZE as u64);
    // Other tests of this binary run beside this one, so this is a coarse bound: a tenth of what is
    // stored.
    assert!(
        grown < pages * PAGE_SIZE as u64 / 10,
        "{grown} bytes of private memory"
    );
}
