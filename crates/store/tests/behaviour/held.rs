//! Pages put, and what is expected of them.

use crate::common::*;
use pagetide_store::{ErrorKind, Page, Slot, Store, open};

/// Random pages of these seeds, put.
pub fn some(store: &dyn Store, seeds: std::ops::Range<u64>) -> Vec<(Slot, u64)> {
    let pages: Vec<Page> = seeds.clone().map(random_page).collect();
    put_all(store, &pages).into_iter().zip(seeds).collect()
}

/// Every page put is what it was.
pub fn assert_all(store: &dyn Store, held: &[(Slot, u64)]) {
    held.iter()
        .for_each(|(slot, seed)| assert_holds(store, *slot, &random_page(*seed)));
}

/// A message has all `words` in it.
#[track_caller]
pub fn assert_says(text: &str, words: &[&str]) {
    words
        .iter()
        .for_each(|word| assert!(text.contains(word), "no `{word}` in: {text}"));
}

/// Stores at `uri`.
pub fn fixture(uri: &str) -> Fixture {
    Fixture::new(|_| uri.to_owned())
}

/// What is said about `uri`, which cannot be used.
pub fn refusal(uri: &str) -> String {
    let error = open(uri)
        .err()
        .unwrap_or_else(|| panic!("{uri} was opened"));
    assert_eq!(error.kind, ErrorKind::Config, "{error}");
    error.to_string()
}
