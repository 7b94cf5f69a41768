//! Dumps whose pages are in a store: `pagetide pack`, then `pagetide serve criu` without them.
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::criu::{FINISHED, Restore, able_to_follow, is_fine, memory};
use super::dump::{self, LAZY, PRESENT};
use super::guest::{Guest, within_time};
use super::server::{PAGETIDE, Server};
use super::servers::Valkey;

const PAGES: u64 = 700;

/// The images of a task with `guest`'s memory, in `place`.
fn images(place: &Path, guest: &Guest) -> PathBuf {
    let images = place.join("images");
    std::fs::create_dir_all(&images).unwrap();
    dump::tasks(&images, &[101]);
    dump::task(&images, 101, guest, PAGES, LAZY | PRESENT);
    images
}

pub fn pack(images: &Path, store: &str, options: &[&str]) -> Output {
    Command::new(PAGETIDE)
        .arg("pack")
        .arg(images)
        .arg(store)
        .args(options)
        .output()
        .unwrap()
}

/// What `pack` with `--json` says.
pub fn packed(images: &Path, store: &str, options: &[&str]) -> serde_json::Value {
    let output = pack(images, store, &[&["--json"], options].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*said), (Some(0), ""));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Counts of it, by their names.
pub fn counts<const N: usize>(summary: &serde_json::Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| {
        summary[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {summary}"))
    })
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Restores the task from the dump in `images`, and verifies it.
fn restored(images: &Path, mut task: Guest, options: &[&str]) {
    let place = tempfile::tempdir().unwrap();
    let images = images.to_str().unwrap();
    let arguments = ["criu", "--images-dir", images, "-W", "."];
    let arguments = [&arguments[..], options].concat();
    let server = Server::start(place, &arguments, "can be restored");
    let restore = Restore::connect(&server);
    restore.task(101, &mut task);
    let task = within_time(move || {
        task.verify(300, 50, 300);
        task
    });
    restore.say(FINISHED);
    let log = is_fine(server);
    assert!(log.contains("all its pages are there"), "{log}");
    within_time(move || task.verify(0, PAGES, 0));
}

/// What `serve criu` says that cannot begin.
fn refused(images: &Path, options: &[&str]) -> String {
    let mut command = Command::new(PAGETIDE);
    command.args(["serve", "criu", "-D"]).arg(images);
    let output = command.args(options).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    said(&output)
}

fn clear_up(store: &str) {
    let mut command = Command::new(PAGETIDE);
    let output = command.args(["store", "gc", store]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Packs, copies the images without pages, and restores from the copy.
fn packs_and_restores(store: &str) {
    let place = tempfile::tempdir().unwrap();
    let task = memory(PAGES);
    let images = images(place.path(), &task);
    let first = packed(&images, store, &["--remove-pages"]);
    let names = ["pages", "zero_pages", "distinct_pages", "new_pages"];
    assert_eq!(counts(&first, names), [700, 140, 560, 560]);
    let copy = place.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in images.read_dir().unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert!(!name.starts_with("pages-"), "{name}");
        std::fs::copy(entry.path(), copy.join(name)).unwrap();
    }
    restored(&copy, task, &[]);
    // What CRIU reads itself is gone again.
    assert!(!copy.join("pages-101.img").exists());
    // The same pages at other places of another task.
    let other = memory(PAGES);
    let again = self::images(&place.path().join("other"), &other);
    let second = packed(&again, store, &[]);
    let names = ["known_pages", "new_pages", "added_bytes"];
    assert_eq!(counts(&second, names), [560, 0, 0]);
    restored(&again, other, &["--store", store]);
}

#[test]
fn a_dump_is_restored_from_a_directory() {
    if !able_to_follow() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let store = place.path().join("made/here");
    packs_and_restores(&format!("file:{}", store.display()));
    // It was moved to another machine.
    let task = memory(PAGES);
    let images = images(place.path(), &task);
    packed(
        &images,
        &format!("file:{}", store.display()),
        &["--remove-pages"],
    );
    let moved = place.path().join("moved");
    std::fs::rename(&store, &moved).unwrap();
    let why = refused(&images, &[]);
    assert!(why.contains("--store names another place"), "{why}");
    restored(
        &images,
        task,
        &["--store", &format!("file:{}", moved.display())],
    );
}

#[test]
fn a_dump_is_restored_from_a_server() {
    if !able_to_follow() {
        return;
    }
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    packs_and_restores(&server.uri("prefix=dumps"));
    assert_eq!(server.cli(&["HLEN", "dumps:archive"]), "1");
    // A run that clears up after the dead leaves it alone.
    let keys = server.keys();
    clear_up(&server.uri("prefix=dumps"));
    assert_eq!(server.keys(), keys);
}

#[test]
fn a_page_that_the_server_lost_is_lost() {
    if !able_to_follow() {
        return;
    }
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let task = memory(PAGES);
    let images = images(place.path(), &task);
    packed(&images, &server.uri(""), &[]);
    let key = server.cli(&["--scan", "--pattern", "pagetide:*:0"]);
    assert_eq!(server.cli(&["DEL", &key]), "1");
    // The beginning is missed before anything is restored.
    let why = refused(&images, &[]);
    assert!(why.contains("no longer has it"), "{why}");
    // It is put again.
    let output = pack(&images, &server.uri(""), &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(said(&output).contains("put again"), "{output:?}");
    restored(&images, task, &[]);
}

#[test]
fn a_full_store_is_said_and_leaves_nothing_half() {
    let place = tempfile::tempdir().unwrap();
    let images = images(place.path(), &Guest::new(PAGES, 0));
    let store = place.path().join("store");
    let output = Command::new("/bin/sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 100; exec \"$@\"",
            "sh",
            PAGETIDE,
            "pack",
        ])
        .arg(&images)
        .arg(format!("file:{}", store.display()))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("the store is full"), "{output:?}");
    assert_eq!(store.read_dir().unwrap().count(), 0);
    assert!(!images.join("pagetide.pages").exists());
    let Some(server) = Valkey::start(&["--maxmemory", "2mb", "--maxmemory-policy", "noeviction"])
    else {
        return;
    };
    let output = pack(&images, &server.uri(""), &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("the store is full"), "{output:?}");
    assert_eq!(server.keys(), 0);
}

#[test]
fn one_that_is_killed_adds_what_is_missing_the_next_time() {
    let place = tempfile::tempdir().unwrap();
    let images = images(place.path(), &Guest::new(PAGES, 0));
    let store = place.path().join("store");
    std::fs::create_dir(&store).unwrap();
    // As SIGKILL leaves it, by a process that is gone, some time ago.
    let name = format!(".{}.snapshot.{}-0.partial", "0".repeat(32), i32::MAX);
    let partial = std::fs::File::create(store.join(&name)).unwrap();
    let fresh = store.join(name.replace("-0.", "-1."));
    std::fs::write(&fresh, "of another machine perhaps").unwrap();
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    partial.set_modified(then).unwrap();
    let uri = format!("file:{}", store.display());
    assert_eq!(packed(&images, &uri, &[])["new_pages"], 560);
    assert!(!store.join(&name).exists() && fresh.exists());
    // Killed before the index was written.
    std::fs::remove_file(images.join("pagetide.pages")).unwrap();
    let again = packed(&images, &uri, &[]);
    assert_eq!(counts(&again, ["new_pages", "added_bytes"]), [0, 0]);
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    kill_at_the_server(&server, &images);
}

/// A `pack` that is killed once the server has something of it: `store gc` takes that away.
fn kill_at_the_server(server: &Valkey, images: &Path) {
    let big = images.join("pages-101.img");
    // As large as takes a while.
    let pages = (0..64 * 256u64).flat_map(|page| super::expected(page + 100_000));
    std::fs::write(&big, pages.collect::<Vec<u8>>()).unwrap();
    let mut child = Command::new(PAGETIDE)
        .arg("pack")
        .arg(images)
        .arg(server.uri("timeout=60s"))
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&child);
    let signal = |signal| kill_process(pid, signal).unwrap();
    // It stands still while it is looked at: it would be done by then on a busy machine.
    loop {
        signal(Signal::STOP);
        if server.keys() >= 100 {
            break;
        }
        signal(Signal::CONT);
        assert!(child.try_wait().unwrap().is_none(), "it was too quick");
        std::thread::sleep(Duration::from_millis(2));
    }
    server.signal("STOP");
    child.kill().unwrap();
    child.wait().unwrap();
    server.signal("CONT");
    assert_eq!(server.cli(&["HLEN", "pagetide:archive"]), "0");
    clear_up(&server.uri(""));
    assert_eq!(server.keys(), 0);
}

#[test]
fn volumes_that_no_dump_needs_are_removed() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("store");
    let mut uris = vec![format!("file:{}", directory.display())];
    let server = Valkey::start(&[]);
    uris.extend(server.as_ref().map(|server| server.uri("")));
    for (number, uri) in uris.iter().enumerate() {
        let volumes = |options: &[&str]| -> serde_json::Value {
            let mut command = Command::new(PAGETIDE);
            command.args(["store", "volumes", uri, "--json"]);
            let output = command.args(options).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            serde_json::from_slice(&output.stdout).unwrap()
        };
        let guest = Guest::new(PAGES, 0);
        let one = images(&place.path().join(format!("{number}-one")), &guest);
        let other = images(&place.path().join(format!("{number}-other")), &guest);
        let bytes = (0..PAGES).flat_map(|page| super::expected(page + 350));
        std::fs::write(other.join("pages-101.img"), bytes.collect::<Vec<u8>>()).unwrap();
        packed(&one, uri, &[]);
        packed(&other, uri, &[]);
        let rows = volumes(&[]);
        assert_eq!(rows.as_array().unwrap().len(), 2);
        assert!(rows[0]["needed"].is_null(), "{rows}");
        // The other one has pages in both.
        let kept = ["--keep", other.to_str().unwrap(), "--remove"];
        let rows = volumes(&kept);
        let needed =
            |rows: &serde_json::Value| rows[0]["needed"] == true && rows[1]["needed"] == true;
        assert!(needed(&rows), "{rows}");
        let kept = ["--keep", one.to_str().unwrap(), "--remove"];
        let rows = volumes(&kept);
        assert!(!needed(&rows), "{rows}");
        assert_eq!(volumes(&[]).as_array().unwrap().len(), 1);
        assert_eq!(packed(&one, uri, &[])["new_pages"], 0);
        assert_eq!(packed(&other, uri, &[])["new_pages"], 280);
    }
}

#[test]
fn what_cannot_be_packed_is_said_with_its_own_code() {
    let place = tempfile::tempdir().unwrap();
    let images = images(place.path(), &Guest::new(PAGES, 0));
    let empty = place.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let store = format!("file:{}", place.path().join("store").display());
    let nowhere = place.path().join("nowhere");
    for (images, store, code, expected) in [
        (&nowhere, store.as_str(), 4, "nowhere: "),
        (&empty, &store, 4, "no pages-NUMBER.img"),
        (&images, "ram:", 4, "expected file:DIR"),
        (&images, "file:/dev/null", 4, "/dev/null"),
        (&images, "valkey+unix:///nowhere.sock", 4, "nowhere.sock"),
    ] {
        let output = pack(images, store, &[]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(said(&output).contains(expected), "{output:?}");
    }
    // A store is named where nothing was packed.
    let why = refused(&images, &["--store", &store]);
    assert!(why.contains("has no pagetide.pages"), "{why}");
}
