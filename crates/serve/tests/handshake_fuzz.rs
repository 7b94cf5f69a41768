//! A short run of what the fuzz target does, with near misses of what Firecracker says.
#[path = "../../../fuzz/src/handshake.rs"]
mod handshake;

use proptest::prelude::*;
use proptest::sample::select;

const PIECES: &[&str] = &[
    "{\"base_host_virt_addr\":4096,\"size\":4096,\"offset\":0}",
    "{\"base_host_virt_addr\":139637976727552,\"size\":8192,\"offset\":4096,\"page_size\":4096}",
    "{\"base_host_virt_addr\":2097152,\"size\":2097152,\"offset\":0,\"page_size_kib\":2048}",
    "\"size\":",
    "\"offset\":-1",
    "18446744073709551615",
    "1e300",
    "\"",
    "\\\"",
    "\\",
    "{",
    "}",
    ":",
    "null",
    "\0",
    " ",
];

/// Pieces with commas between them, in brackets or not.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::collection::vec(select(PIECES), 0..4);
    let separators = select(&[",", "", ",[", "]"][..]);
    let ends = select(
        &[
            ("[", "]"),
            ("[", "]\0"),
            ("[ ", "] \n"),
            ("", "]"),
            ("[[", "]"),
        ][..],
    );
    (pieces, separators, ends).prop_map(|(pieces, separator, (begin, end))| {
        format!("{begin}{}{end}", pieces.join(separator)).into_bytes()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_handshake_does_no_harm(
        head in any::<[u8; 7]>(),
        near in texts(),
        random in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        handshake::exercise(&[&head[..], &near[..]].concat());
        handshake::exercise(&[&head[..], &random[..]].concat());
    }
}

#[test]
fn a_right_handshake_is_whole_in_any_parts() {
    let text = format!("[{},{}] \n\0", PIECES[0], PIECES[1]);
    for length in 0..=text.len() as u8 {
        let head = [length, 1, 3, 0, 2, 0b10, 20];
        handshake::exercise(&[&head[..], text.as_bytes()].concat());
    }
}
