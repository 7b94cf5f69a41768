//! What stays on a server when who wrote it has ended.

#[path = "behaviour/servers.rs"]
#[allow(dead_code)] // shared with the tests of remote stores
mod servers;

use pagetide_store::{Archive, Entry, ErrorKind};
use servers::{Cluster, Valkey};
use std::sync::Arc;

/// Bytes that are others at every place.
fn stream(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * at / 977 + at / 13) as u8).collect()
}

/// Everything an archive does, at the server of `uri`.
fn archives(uri: &str) {
    let archive = Arc::new(Archive::open(uri).unwrap());
    assert_eq!(archive.entries().unwrap(), []);
    let mut entries: Vec<Entry> = Vec::new();
    for len in [0, 1, 16_320, 16_321, 64 * 16_320, 2_500_000] {
        let mut writer = archive.write().unwrap();
        let bytes = stream(len);
        bytes
            .chunks(700_001)
            .for_each(|part| writer.append(part).unwrap());
        // It is not there before it is whole.
        assert_eq!(archive.entries().unwrap().len(), entries.len());
        let entry = writer.finish().unwrap();
        assert_eq!(entry.bytes, len as u64);
        // From anywhere: this one has not written it.
        let elsewhere = Archive::open(uri).unwrap();
        assert!(elsewhere.entries().unwrap().contains(&entry));
        for (offset, part) in [
            (0, len),
            (1, 20_000),
            (16_319, 2),
            (16_320, 1),
            (40_000, 2_000_000),
        ] {
            if offset + part <= len {
                let mut read = vec![0; part];
                elsewhere.read_at(&entry, &mut read, offset as u64).unwrap();
                assert!(
                    read == bytes[offset..offset + part],
                    "{len}: {offset} {part}"
                );
            }
        }
        let beyond = elsewhere.read_at(&entry, &mut [0; 2], len as u64 - len.min(1) as u64);
        assert_eq!(beyond.unwrap_err().kind, ErrorKind::Corrupt);
        entries.push(entry);
    }
    for entry in &entries {
        archive.remove(entry).unwrap();
    }
    assert_eq!(archive.entries().unwrap(), []);
}

#[test]
fn what_is_archived_stays() {
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    archives(&server.uri("prefix=kept"));
    assert_eq!(server.keys(), 0, "{}", server.cli(&["KEYS", "*"]));
    if let Some(cluster) = Cluster::start() {
        archives(&cluster.uri(""));
        assert_eq!(cluster.keys(), [0, 0, 0]);
    }
}

#[test]
fn an_entry_that_is_not_finished_is_none() {
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    let archive = Arc::new(Archive::open(&server.uri("")).unwrap());
    let bytes = stream(3 << 20);
    let mut writer = archive.write().unwrap();
    writer.append(&bytes).unwrap();
    assert!(server.keys() > 60);
    drop(writer);
    assert_eq!(server.keys(), 0, "{}", server.cli(&["KEYS", "*"]));
    // Nor one whose end the server does not hear of.
    let uri = server.uri("patience=0");
    let archive = Arc::new(Archive::open(&uri).unwrap());
    let mut writer = archive.write().unwrap();
    writer.append(&bytes).unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(writer.finish().unwrap_err().kind, ErrorKind::Full);
    assert_eq!(server.keys(), 0, "{}", server.cli(&["KEYS", "*"]));
}

#[test]
fn what_a_server_lost_of_an_entry_is_no_bytes_of_another() {
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    let archive = Arc::new(Archive::open(&server.uri("")).unwrap());
    let mut writer = archive.write().unwrap();
    writer.append(&stream(100_000)).unwrap();
    let entry = writer.finish().unwrap();
    let key = |piece: u32| format!("pagetide:{}:{piece:x}", entry.name);
    let mut read = [0; 10];
    for (piece, words) in [(1, &["DEL"][..]), (2, &["SET", "short"])] {
        let key = key(piece);
        server.cli(&[&[words[0], key.as_str()], &words[1..]].concat());
        let at = u64::from(piece) * 16_320;
        let error = archive.read_at(&entry, &mut read, at).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    }
    archive.read_at(&entry, &mut read, 3 * 16_320).unwrap();
    assert_eq!(read[..], stream(100_000)[3 * 16_320..][..10]);
}
