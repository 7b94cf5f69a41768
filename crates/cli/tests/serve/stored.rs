//! Images of memory whose pages are in a store: `pagetide pack`, then `pagetide serve firecracker`.
use std::path::Path;

use super::guest::Guest;
use super::packed::{counts, pack, packed, said};
use super::server::{Server, write_image};
use super::servers::Valkey;
use super::{LEAVE, able, verify_all, write_snapshot};

const PAGES: u64 = 700;

/// Packs the image in `place`, which is removed, and serves it from the store.
fn is_served_from(store: &str, place: tempfile::TempDir, options: &[&str]) {
    let image = place.path().join("image");
    let summary = packed(&image, store, &["--remove-pages"]);
    let names = ["pages", "zero_pages", "distinct_pages"];
    assert_eq!(counts(&summary, names), [700, 140, 560]);
    assert!(!image.exists());
    let arguments = ["firecracker", "socket", "image.pages", "--status", "status"];
    let arguments = [&arguments[..], &LEAVE, options].concat();
    let server = Server::start(place, &arguments, "is served at");
    verify_all(&server, PAGES);
    // It is all there now, and each page was brought once.
    server.counts(&["store_pages"], 560);
    server.counts(&["zero_pages"], 140);
    server.counts(&["image_pages", "lost_pages"], 0);
}

fn raw_image() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    write_image(&place.path().join("image"), PAGES);
    place
}

fn store_in(place: &Path) -> String {
    format!("file:{}", place.join("store").display())
}

#[test]
fn an_image_is_served_from_a_directory_or_a_server() {
    if !able() {
        return;
    }
    let stores = tempfile::tempdir().unwrap();
    let store = store_in(stores.path());
    is_served_from(&store, raw_image(), &[]);
    let snapshot = tempfile::tempdir().unwrap();
    write_snapshot(&snapshot.path().join("image"), PAGES);
    is_served_from(&store, snapshot, &["--prefetch-rate", "max"]);
    // Equal pages are there once, whatever they were pages of.
    let again = raw_image();
    let summary = packed(&again.path().join("image"), &store, &[]);
    assert_eq!(counts(&summary, ["known_pages", "added_bytes"]), [560, 0]);
    if let Some(server) = Valkey::start(&[]) {
        is_served_from(&server.uri(""), raw_image(), &[]);
    }
}

#[test]
fn a_damaged_page_is_lost_and_no_other_bytes_come() {
    if !able() {
        return;
    }
    let place = raw_image();
    let store = store_in(place.path());
    packed(&place.path().join("image"), &store, &["--remove-pages"]);
    let volume = place.path().join("store").read_dir().unwrap().next();
    let volume = volume.unwrap().unwrap().path();
    let mut bytes = std::fs::read(&volume).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&volume, bytes).unwrap();
    let arguments = ["firecracker", "socket", "image.pages", "--status", "status"];
    let server = Server::start(place, &[&arguments[..], &LEAVE].concat(), "is served at");
    let guest = Guest::connected(PAGES, &server.socket());
    // It verifies what comes, until it is left waiting for what does not.
    std::thread::spawn(move || guest.verify(0, PAGES, 0));
    server.wait_for("a lost page", |server| server.total("lost_pages") > 0);
    let log = server.log();
    assert!(log.contains("checksum"), "{log}");
    assert!(server.total("store_pages") > 0);
}

#[test]
fn what_cannot_be_served_from_a_store_is_said() {
    let place = raw_image();
    let image = place.path().join("image");
    let store = store_in(place.path());
    packed(&image, &store, &[]);
    let refused = |arguments: &[&str]| {
        let output = std::process::Command::new(super::server::PAGETIDE)
            .args(["serve", "firecracker", "socket"])
            .args(arguments)
            .current_dir(place.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        said(&output)
    };
    assert!(refused(&["image", "--store", &store]).contains("it is no index"));
    // Nobody holds the other end of this: who waits for that is not ended by SIGTERM either.
    let (pipe, kind) = (place.path().join("pipe"), rustix::fs::FileType::Fifo);
    rustix::fs::mknodat(rustix::fs::CWD, pipe, kind, rustix::fs::Mode::RWXU, 0).unwrap();
    assert!(refused(&["pipe"]).contains("expected a regular file"));
    assert!(refused(&["image", "--replay", "pipe"]).contains("not a regular file"));
    std::fs::rename(place.path().join("store"), place.path().join("moved")).unwrap();
    assert!(refused(&["image.pages"]).contains("--store names another place"));
    std::fs::create_dir(place.path().join("store")).unwrap();
    assert!(refused(&["image.pages"]).contains("is not at"));
    std::fs::write(place.path().join("empty"), "").unwrap();
    let output = pack(&place.path().join("empty"), &store, &[]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(said(&output).contains("empty"), "{}", said(&output));
}
