//! Remote stores: what every store does, against real servers; then what only they can get wrong.

#[path = "behaviour/common.rs"]
#[allow(dead_code)] // shared with the behaviour suite
mod common;
#[path = "behaviour/freezes.rs"]
mod freezes;
#[path = "behaviour/held.rs"]
#[allow(dead_code)]
mod held;
#[path = "behaviour/laws.rs"]
#[allow(dead_code)]
mod laws;
#[path = "behaviour/model.rs"]
mod model;
#[path = "behaviour/servers.rs"]
#[allow(dead_code)]
mod servers;

use common::*;
use held::{assert_all, assert_says, fixture, refusal, some};
use pagetide_store::{ErrorKind, Page, Remote, Slot, open};
use proptest::prelude::ProptestConfig;
use proptest::test_runner::TestRunner;
use servers::{Memcached, Valkey};
use std::path::Path;

/// Everything that holds for every store holds for the one at `uri`.
fn behaves(uri: &str) {
    laws::round_trips(&fixture(uri));
    laws::batches_of_any_size(&fixture(uri));
    laws::slots_are_dense_and_reused(&fixture(uri));
    laws::overwriting_in_circles_keeps_the_bytes_and_the_room(&fixture(uri));
    laws::an_unused_slot_is_corrupt_never_zeros(&fixture(uri));
    laws::usage_adds_up(&fixture(uri));
    laws::threads_do_not_disturb_each_other(&fixture(uri));
    freezes::a_forked_child_reads_what_the_parent_deletes(&fixture(uri));
    freezes::frozen_slots_are_not_reused_until_thawed(&fixture(uri));
    freezes::freezes_overlap(&fixture(uri));
    let config = ProptestConfig {
        cases: 12,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
        .run(&model::steps(), |steps| {
            model::check(&*fixture(uri).store, steps);
            Ok(())
        })
        .unwrap();
}

#[test]
fn valkey_by_socket() {
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    behaves(&server.uri(""));
    assert_eq!(
        server.keys(),
        0,
        "stores that are dropped take their keys with them"
    );
}

/// Whoever runs on the server's processor sleeps for an answer at once; whoever runs elsewhere
/// looks for it.
#[test]
fn valkey_on_a_processor_of_its_own() {
    let Some(server) = Valkey::start(&["--server_cpulist", "0"]) else {
        return;
    };
    assert_eq!(
        open(&server.uri("server-cpu=0")).unwrap().server_cpu(),
        Some(0)
    );
    assert_eq!(open(&server.uri("")).unwrap().server_cpu(), None);
    behaves(&server.uri("server-cpu=0"));
    let tier = open(&format!("ram:?max=2M&then={}", server.uri("server-cpu=0")));
    assert_eq!(tier.unwrap().server_cpu(), Some(0));
}

#[test]
fn valkey_sealed() {
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    behaves(&server.uri("compress=lz4&encrypt=1&prefix=some/where"));
    assert_eq!(server.keys(), 0);
}

#[test]
fn valkey_by_port_with_password_and_limit() {
    let port = servers::free_port().to_string();
    let Some(server) = Valkey::start(&["--port", &port, "--requirepass", "p@ss"]) else {
        return;
    };
    behaves(&format!(
        "valkey://:p%40ss@127.0.0.1:{port}/limited?max=64M"
    ));
    let file = server.directory.path().join("password");
    std::fs::write(&file, "p@ss\n").unwrap();
    let uri = format!(
        "redis://localhost:{port}?max=8M&encrypt=0&password-file={}",
        file.display()
    );
    laws::full_is_clean_and_recoverable(&*open(&uri).unwrap(), 8 << 20);
}

#[test]
fn memcached() {
    let (Some(one), Some(two)) = (Memcached::start(&["-M"]), Memcached::start(&["-M"])) else {
        return;
    };
    behaves(&format!("memcached://{}", one.address()));
    behaves(&format!(
        "memcached://{},{}/pre",
        one.address(),
        two.address()
    ));
}

/// The list of owners is longer than a page then.
#[test]
fn memcached_lists_more_owners_than_a_page_holds() {
    let Some(server) = Memcached::start(&["-M"]) else {
        return;
    };
    let uri = format!("memcached://{}?encrypt=0", server.address());
    let stores: Vec<_> = (0..150)
        .map(|_| {
            let store = open(&uri).unwrap();
            some(&*store, 0..1);
            store
        })
        .collect();
    assert_eq!(
        Remote::open(&uri).unwrap().owners().unwrap().len(),
        stores.len()
    );
}

#[test]
fn reads_do_not_wait_for_more_than_their_own_answers() {
    // A batch larger than any buffer on the way, read in an order of its own.
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    let store = open(&server.uri("")).unwrap();
    let pages: Vec<Page> = (0..1000).map(random_page).collect();
    let slots = put_all(&*store, &pages);
    let order: Vec<usize> = (0..1000).map(|index| index * 37 % 1000).collect();
    let mixed: Vec<Slot> = order.iter().map(|index| slots[*index]).collect();
    let mut found = vec![Page::ZERO; 1000];
    store.get_many(&mixed, &mut found).unwrap();
    assert!(
        order
            .iter()
            .zip(&found)
            .all(|(index, page)| page.0 == pages[*index].0)
    );
}

#[test]
fn wrong_uris_are_answered_with_what_is_right() {
    for (uri, words) in [
        ("valkey:", &["//"][..]),
        ("valkey://", &["names no server", "valkey://HOST"]),
        ("valkey://,", &["names no server"]),
        ("valkey://u:p@", &["names no server"]),
        (
            "valkey-cluster://",
            &["names no server", "valkey-cluster://HOST"],
        ),
        ("memcached://,,/x", &["names no server"]),
        ("valkey+unix://host/x", &["three slashes"]),
        ("valkey+unix:///", &["names no socket"]),
        (
            "valkey+unix:///nowhere/sock",
            &["/nowhere/sock", "No such file"],
        ),
        ("valkey://h?addr=x", &["addr", "`x`"]),
        ("valkey://127.0.0.1:1?timeout=x", &["timeout", "`x`", "5s"]),
        ("valkey://127.0.0.1:1?tmeout=1", &["`tmeout`", "timeout"]),
        ("valkey://127.0.0.1:1?ca=/x", &["valkeys://"]),
        ("valkey://127.0.0.1:1?replicas=x", &["replicas", "`x`"]),
        ("valkey://127.0.0.1:1", &["127.0.0.1:1", "refused"]),
        ("valkeys://127.0.0.1:1?ca=/nowhere.pem", &["/nowhere.pem"]),
        ("valkey://nowhere.invalid", &["nowhere.invalid"]),
        ("memcached://u:p@127.0.0.1:1", &["no users and passwords"]),
        ("memcached://127.0.0.1:1", &["127.0.0.1:1", "refused"]),
        (
            "valkey+unix:///tmp/none?server-cpu=all",
            &["`server-cpu`", "`all`", "number"],
        ),
        (
            "memcached://127.0.0.1:1?server-cpu=99999",
            &["`server-cpu`", "`99999`", "no processor of this machine"],
        ),
    ] {
        assert_says(&refusal(uri), words);
    }
}

#[test]
fn a_wrong_password_is_told_apart() {
    let Some(server) = Valkey::start(&["--requirepass", "right"]) else {
        return;
    };
    assert_says(&refusal(&server.uri("")), &["NOAUTH", "password-file"]);
    let file = server.directory.path().join("password");
    std::fs::write(&file, "wrong").unwrap();
    let uri = server.uri(&format!("password-file={}", file.display()));
    assert_says(&refusal(&uri), &["WRONGPASS", "log in"]);
    let uri = uri.replace("unix:///", "unix://someone:bad@/");
    assert_says(
        &refusal(&uri.replace("password-file", "prefix")),
        &["WRONGPASS", "`someone`"],
    );
}

#[test]
fn a_server_that_drops_keys_is_refused_with_the_line_that_mends_it() {
    let Some(server) = Valkey::start(&["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"])
    else {
        return;
    };
    let text = refusal(&server.uri(""));
    assert_says(&text, &["allkeys-lru", "evicts"]);
    // The line given does mend it.
    let line = &text[text.find("redis-cli").unwrap()..];
    let line = line.split(": ").next().unwrap();
    assert!(
        std::process::Command::new("sh")
            .args(["-c", line])
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap()
            .success()
    );
    open(&server.uri("")).unwrap();
}

#[test]
fn other_kinds_of_servers_are_told_apart() {
    let port = servers::free_port().to_string();
    let Some(_server) = Valkey::start(&["--port", &port]) else {
        return;
    };
    let address = format!("127.0.0.1:{port}");
    assert_says(
        &refusal(&format!("memcached://{address}")),
        &["like no memcached", &address],
    );
    assert_says(
        &refusal(&format!("valkey-cluster://{address}")),
        &["single server", "valkey://"],
    );
    assert_says(
        &refusal(&format!("valkeys://{address}?timeout=500ms")),
        &["TLS"],
    );
    if let Some(memcached) = Memcached::start(&[]) {
        let uri = format!("valkey://{}", memcached.address());
        assert_says(&refusal(&uri), &["like no Valkey", "ERROR"]);
        let uri = format!("memcached://{}", memcached.address());
        assert_says(&refusal(&uri), &["evicts", "memcached -M"]);
    }
    // A web server, and one that says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let web = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 64]);
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        listener
    });
    assert_says(
        &refusal(&format!("valkey://{address}")),
        &["like no Valkey", "HTTP/1.1 400"],
    );
    let _listener = web.join().unwrap();
    assert_says(
        &refusal(&format!("valkey://{address}?timeout=200ms")),
        &["time limit", &address.to_string()],
    );
}

#[test]
fn a_replica_is_refused_and_its_master_found_in_a_list() {
    let ports = [
        servers::free_port().to_string(),
        servers::free_port().to_string(),
    ];
    let Some(master) = Valkey::start(&["--port", &ports[0]]) else {
        return;
    };
    let of = format!("127.0.0.1 {}", ports[0]);
    let Some(_replica) = Valkey::start(&["--port", &ports[1], "--replicaof", &of]) else {
        return;
    };
    assert_says(
        &refusal(&format!("valkey://127.0.0.1:{}", ports[1])),
        &["is a replica", "master"],
    );
    let store = open(&format!(
        "valkey://127.0.0.1:{},127.0.0.1:{}",
        ports[1], ports[0]
    ))
    .unwrap();
    let slots = put_all(&*store, &[random_page(1)]);
    assert_holds(&*store, slots[0], &random_page(1));
    assert!(master.keys() >= 1);
}

/// What the server has is neither readable nor exchangeable.
#[test]
fn what_the_server_does_to_sealed_pages_is_noticed() {
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    let store = open(&server.uri("encrypt=1&compress=1&patience=0")).unwrap();
    let text = Page([b'x'; 4096]);
    let mut texts = vec![text; 4];
    texts
        .iter_mut()
        .zip(0..)
        .for_each(|(page, mark)| page.0[0] = mark);
    let slots = put_all(&*store, &texts);
    let key = |slot: Slot| {
        let all = server.cli(&["--scan"]);
        all.lines()
            .find(|key| key.ends_with(&format!(":{:x}", slot.0)) && !key.contains("lease"))
            .unwrap()
            .to_owned()
    };
    let corrupt = |slot: Slot| {
        let error = store.get(slot, &mut Page::ZERO.clone()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
        error.to_string()
    };
    assert!(!server.cli(&["GET", &key(slots[0])]).contains("xxxxxxxx"));
    // Another page's bytes.
    server.cli(&["COPY", &key(slots[1]), &key(slots[0]), "REPLACE"]);
    assert_says(&corrupt(slots[0]), &["does not authenticate"]);
    // An older page of the same slot.
    server.cli(&["COPY", &key(slots[2]), "older"]);
    let place = key(slots[2]);
    store.delete(&slots[2..3]);
    let again = put_all(&*store, &texts[2..3]);
    assert_eq!(again[0], slots[2]);
    assert_holds(&*store, again[0], &texts[2]);
    server.cli(&["COPY", "older", &place, "REPLACE"]);
    assert_says(&corrupt(slots[2]), &["does not authenticate"]);
    // One bit, a cut, and none at all.
    let flipped = match server.cli(&["GETBIT", &key(slots[3]), "77"]).as_str() {
        "0" => "1",
        _ => "0",
    };
    server.cli(&["SETBIT", &key(slots[3]), "77", flipped]);
    let text = corrupt(slots[3]);
    assert_says(&text, &["does not authenticate"]);
    server.cli(&["APPEND", &key(slots[3]), "x"]);
    assert_says(&corrupt(slots[3]), &["another length"]);
    server.cli(&["FLUSHALL"]);
    assert_says(&corrupt(slots[3]), &["no longer has it"]);
}

#[test]
fn plain_pages_are_checked_as_well() {
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    let store = open(&server.uri("patience=0")).unwrap();
    let slots = put_all(&*store, &[random_page(1), random_page(2)]);
    let keys = server.cli(&["--scan", "--pattern", "*:0"]);
    let key = keys.lines().next().unwrap();
    let other = format!("{}1", key.strip_suffix('0').unwrap());
    server.cli(&["COPY", &other, key, "REPLACE"]);
    let error = store.get(slots[0], &mut Page::ZERO.clone()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert_says(&error.to_string(), &["checksum"]);
}

/// Makes `ca.pem`, and `server.pem` with its key for this machine, in `directory`.
fn certificates(directory: &Path) -> bool {
    let openssl = |words: &str| {
        std::process::Command::new("openssl")
            .args(words.split(' ').filter(|word| !word.is_empty()))
            .current_dir(directory)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1\n";
    openssl(&format!(
        "req -x509 {key} -days 2 -subj /CN=test-CA -keyout ca.key -out ca.pem"
    )) && openssl(&format!(
        "req {key} -subj /CN=localhost -keyout server.key -out server.csr"
    )) && std::fs::write(directory.join("names"), names).is_ok()
        && openssl(
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
             -extfile names -out server.pem",
        )
}

#[test]
fn valkey_under_tls() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    if !certificates(directory.path()) {
        return servers::skipped("openssl is not here, or makes no certificates");
    }
    let port = servers::free_port().to_string();
    let arguments = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &file("server.pem"),
        "--tls-key-file",
        &file("server.key"),
        "--tls-ca-cert-file",
        &file("ca.pem"),
        "--tls-auth-clients",
        "no",
    ];
    let Some(server) = Valkey::start(&arguments) else {
        return;
    };
    let ca = file("ca.pem");
    behaves(&format!(
        "valkeys://localhost:{port}?ca={ca}&addr=127.0.0.1"
    ));
    assert_eq!(server.keys(), 0);
    let store = open(&format!("rediss://127.0.0.1:{port}?ca={ca}")).unwrap();
    assert!(store.capabilities().get_allocates);
    // Another authority, another name.
    assert_says(
        &refusal(&format!("valkeys://localhost:{port}?addr=127.0.0.1")),
        &["TLS", "ertificate"],
    );
    assert_says(
        &refusal(&format!(
            "valkeys://elsewhere:{port}?ca={ca}&addr=127.0.0.1"
        )),
        &["TLS", "elsewhere"],
    );
}

#[test]
fn a_tier_in_front_of_a_server() {
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    behaves(&format!("ram:?max=2M&then={}", server.uri("encrypt=1")));
    assert_eq!(server.keys(), 0);
    // What is in front alone survives the server; what is behind comes back from it.
    let store = open(&format!("ram:?max=2M&then={}", server.uri("patience=0"))).unwrap();
    let held = some(&*store, 0..1000);
    assert!(
        (500..1000).contains(&server.keys()),
        "{} keys",
        server.keys()
    );
    assert_all(&*store, &held);
    // A server that refuses: the put fails, and nothing is dropped.
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = store
        .put(&[&random_page(1); 64], &mut [Slot(0); 64])
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Full);
    assert_all(&*store, &held);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let more = some(&*store, 5000..5100);
    assert_all(&*store, &held);
    assert_all(&*store, &more);
}
