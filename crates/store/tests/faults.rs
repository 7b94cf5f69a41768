//! Faults injected below the checksums: none may turn into wrong bytes or a lost slot.

#[path = "behaviour/common.rs"]
#[allow(dead_code)] // shared with the behaviour suite
mod common;

use common::*;
use pagetide_store::{ErrorKind, Page, Slot, open};

fn kinds_of_reads(uri: &str, reads: usize) -> Vec<Option<ErrorKind>> {
    let store = open(uri).unwrap();
    let pages: Vec<Page> = (0..6).map(page).collect();
    let slots = put_all(&*store, &pages);
    let mut found = Page::ZERO;
    (0..reads)
        .map(|read| match store.get(slots[read % 6], &mut found) {
            Ok(()) => {
                assert!(found.0 == pages[read % 6].0, "wrong bytes were handed out");
                None
            }
            Err(error) => Some(error.kind),
        })
        .collect()
}

fn backends() -> Vec<(String, tempfile::TempDir)> {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}", directory.path().display());
    vec![
        ("ram:".to_owned(), tempfile::tempdir().unwrap()),
        (file, directory),
    ]
}

#[test]
fn a_flipped_bit_is_caught_in_every_kind_of_page() {
    for (uri, _directory) in backends() {
        let kinds = kinds_of_reads(
            &format!("fault:get-corrupt-after=2,get-corrupt-count=6:{uri}"),
            12,
        );
        let corrupt = Some(ErrorKind::Corrupt);
        assert_eq!(kinds[..2], [None, None]);
        assert_eq!(kinds[2..8], [corrupt; 6]);
        assert_eq!(kinds[8..], [None; 4]);
    }
}

#[test]
fn a_corrupt_read_names_slot_expected_and_found() {
    let store = open("fault:get-corrupt-after=0:ram:").unwrap();
    let slots = put_all(&*store, &[page(0), page(1), page(2)]);
    let text = store
        .get(slots[2], &mut Page::ZERO.clone())
        .unwrap_err()
        .to_string();
    assert!(
        text.contains(&format!("slot {}", slots[2].0)) && text.matches("0x").count() == 2,
        "{text}"
    );
}

#[test]
fn a_short_read_is_caught() {
    for (uri, _directory) in backends() {
        let kinds = kinds_of_reads(&format!("fault:get-short-after=0:{uri}"), 6);
        assert_eq!(kinds, [Some(ErrorKind::Corrupt); 6]);
    }
}

#[test]
fn a_passing_failure_is_not_seen() {
    let kinds = kinds_of_reads(
        "fault:get-fail-after=3,get-fail-count=5,fail-kind=temporary:ram:",
        12,
    );
    assert_eq!(kinds, [None; 12]);
}

#[test]
fn a_failure_that_does_not_pass_ends_in_about_two_seconds() {
    let start = std::time::Instant::now();
    let kinds = kinds_of_reads("fault:get-fail-after=0,fail-kind=temporary:ram:", 1);
    assert_eq!(kinds, [Some(ErrorKind::Away)]);
    let took = start.elapsed().as_secs_f64();
    assert!((1.5..6.0).contains(&took), "{took} s");
}

#[test]
fn a_failed_put_leaves_nothing_behind() {
    for (rule, kind) in [("put-fail", ErrorKind::Io), ("put-full", ErrorKind::Full)] {
        let store = open(&format!("fault:{rule}-after=4,{rule}-count=2:ram:")).unwrap();
        let pages: Vec<Page> = (0..4).map(page).collect();
        let slots = put_all(&*store, &pages);
        for _ in 0..2 {
            let mut failed = [Slot(0); 2];
            assert_eq!(
                store
                    .put(&[&pages[0], &pages[1]], &mut failed)
                    .unwrap_err()
                    .kind,
                kind
            );
        }
        assert_eq!(store.usage().pages, 4);
        let more = put_all(&*store, &pages);
        slots
            .iter()
            .chain(&more)
            .zip(pages.iter().chain(&pages))
            .for_each(|(slot, page)| assert_holds(&*store, *slot, page));
    }
}

#[test]
fn mistakes_in_rules_are_named() {
    for (uri, word) in [
        ("fault:get-fale-after=1:ram:", "get-fail-after"),
        ("fault:get-fail-after=x:ram:", "`x`"),
        ("fault:fail-kind=odd:ram:", "temporary"),
        ("fault:get-fail-after=1", "fault:RULES:URI"),
        ("fault::tape:", "known are"),
    ] {
        let error = open(uri).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Config);
        assert!(error.to_string().contains(word), "{error}");
    }
}
