//! A short run of what the fuzz targets do (`fuzz/`): any bytes, and near misses of what servers
//! answer and people write.

use pagetide_store::exercise;
use proptest::prelude::*;
use proptest::sample::select;

/// Lines of `parts` in any order, with numbers and bytes between them.
fn near_misses(parts: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => select(parts).prop_map(|part| part.as_bytes().to_vec()),
        2 => (-2i64..5000).prop_map(|number| number.to_string().into_bytes()),
        1 => any::<i64>().prop_map(|number| number.to_string().into_bytes()),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

const URI: &[&str] = &[
    "ram:",
    "file:",
    "fault:",
    "valkey:",
    "valkeys:",
    "valkey+unix:",
    "memcached:",
    "//",
    "/",
    "?",
    "max=",
    "&then=",
    "?then=",
    "&",
    "=",
    "@",
    ":",
    ",",
    "%40",
    "%",
    "[::1]",
    "user",
    "127.0.0.1",
    "2M",
    "prefix=",
];
const RECORD: &[&str] = &[
    "v=1",
    " ",
    "owner=0123456789abcdef0123456789abcdef",
    "pid=",
    "started=",
    "host=",
    "-",
    "lock=",
    "slots=",
    "lease=",
    "=",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_uri_does_no_harm(text in near_misses(URI), record in near_misses(RECORD)) {
        exercise::uri(&String::from_utf8_lossy(&text));
        exercise::uri(&String::from_utf8_lossy(&record));
    }

    #[test]
    fn any_packed_page_does_no_harm(packed in proptest::collection::vec(any::<u8>(), 0..6000)) {
        exercise::unpack(&packed);
    }
}

#[cfg(feature = "remote")]
const RESP: &[&str] = &[
    "+OK\r\n",
    "-ERR no\r\n",
    "-MOVED 1 h:1\r\n",
    ":1\r\n",
    ":0\r\n:16383\r\n",
    "$-1\r\n",
    "$4\r\nabcd\r\n",
    "$9\r\n127.0.0.1\r\n",
    "*1\r\n",
    "*2\r\n",
    "*3\r\n",
    "*",
    "$",
    ":",
    "\r\n",
    "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:7000\r\n",
];
#[cfg(feature = "remote")]
const TEXT: &[&str] = &[
    "END\r\n",
    "STORED\r\n",
    "STAT ",
    "VALUE k 0 4\r\nabcd\r\n",
    "VALUE k 0 4 17\r\nabcd\r\n",
    "VALUE ",
    " ",
    "\r\n",
    "4096",
    "STAT evictions on\r\n",
];

#[cfg(feature = "remote")]
proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_answers_of_valkey_do_no_harm(
        near in near_misses(RESP),
        random in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        exercise::valkey(&near);
        exercise::valkey(&random);
    }

    #[test]
    fn any_answers_of_memcached_do_no_harm(
        near in near_misses(TEXT),
        random in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        exercise::memcached(&near);
        exercise::memcached(&random);
    }
}
