//! Remote stores in trouble: servers that die, stand still, fill up or lose what they had, networks
//! that are cut, runs that leave keys.

#[path = "behaviour/common.rs"]
#[allow(dead_code)] // shared with the behaviour suite
mod common;
#[path = "behaviour/freezes.rs"]
#[allow(dead_code)]
mod freezes;
#[path = "behaviour/held.rs"]
mod held;
#[path = "behaviour/laws.rs"]
#[allow(dead_code)]
mod laws;
#[path = "behaviour/servers.rs"]
#[allow(dead_code)]
mod servers;

use common::*;
use held::{assert_all, assert_says, fixture, refusal, some};
use pagetide_store::{Clear, ErrorKind, Page, Remote, Slot, open};
use servers::{Cluster, Valkey};
use std::time::Duration;

/// SIGKILL, and a start with what the append-only file kept, while pages are put and read.
#[test]
fn a_server_killed_and_restarted_loses_no_page() {
    let Some(mut server) = Valkey::start(&["--appendonly", "yes", "--appendfsync", "always"])
    else {
        return;
    };
    let store = open(&server.uri("")).unwrap();
    let mut held = some(&*store, 0..500);
    for round in 1..4u64 {
        let first = &held[..50].to_vec();
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                let mut more = vec![];
                for step in 0..20 {
                    let seed = round * 100_000 + step * 50;
                    more.extend(some(&*store, seed..seed + 50));
                    assert_all(&*store, first);
                }
                more
            });
            std::thread::sleep(Duration::from_millis(20));
            server.kill();
            std::thread::sleep(Duration::from_millis(200));
            server.restart();
            held.extend(busy.join().unwrap());
        });
        assert_all(&*store, &held);
    }
}

#[test]
fn a_server_restarted_without_its_data_is_a_loss_never_zeros() {
    let Some(mut server) = Valkey::start(&[]) else {
        return;
    };
    let store = open(&server.uri("")).unwrap();
    let held = some(&*store, 0..10);
    server.kill();
    server.restart();
    let error = store.get(held[0].0, &mut Page::ZERO.clone()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert_says(&error.to_string(), &["no longer has it", "sock"]);
    assert_all(&*store, &some(&*store, 20..30));
}

/// A server that stands still takes up what it was sent when it goes on: requests that were given
/// up meanwhile must do no harm.
#[test]
fn requests_that_were_given_up_do_no_harm_later() {
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    let store = open(&server.uri("timeout=50ms")).unwrap();
    let mut held = some(&*store, 0..200);
    for round in 1..6u64 {
        // Some slots are free and stale, so that removals are under way as well.
        let freed: Vec<Slot> = held.drain(..100).map(|(slot, _)| slot).collect();
        server.signal("STOP");
        std::thread::scope(|scope| {
            let store = &*store;
            let busy = scope.spawn(move || {
                store.delete(&freed);
                some(store, round * 1000..round * 1000 + 100)
            });
            std::thread::sleep(Duration::from_millis(300));
            server.signal("CONT");
            held.extend(busy.join().unwrap());
        });
        assert_all(&*store, &held);
    }
}

#[test]
fn a_server_that_stays_away_is_an_error_within_patience() {
    let Some(mut server) = Valkey::start(&[]) else {
        return;
    };
    let store = open(&server.uri("patience=300ms")).unwrap();
    let held = some(&*store, 0..10);
    server.kill();
    let error = store.get(held[0].0, &mut Page::ZERO.clone()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Away);
    assert_says(&error.to_string(), &["attempts in 0."]);
    let error = store.put(&[&random_page(1)], &mut [Slot(0)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Away);
}

#[test]
fn a_full_server_refuses_and_recovers() {
    let Some(server) = Valkey::start(&["--maxmemory", "12mb"]) else {
        return;
    };
    let store = open(&server.uri("")).unwrap();
    let (mut held, error) = laws::fill(&*store);
    assert_eq!(error.kind, ErrorKind::Full);
    assert_says(&error.to_string(), &["OOM"]);
    assert_all(&*store, &held);
    let freed: Vec<Slot> = held.drain(..600).map(|(slot, _)| slot).collect();
    store.delete(&freed);
    held.extend(some(&*store, 900_000..900_300));
    assert_all(&*store, &held);
}

#[test]
fn keys_of_the_dead_are_removed_and_those_of_the_living_are_not() {
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    let living = open(&server.uri("")).unwrap();
    let held = some(&*living, 0..100);
    let before = server.keys();
    let names = || -> Vec<String> {
        let listed = server.cli(&["HKEYS", "pagetide:owners"]);
        listed.lines().map(str::to_owned).collect()
    };
    let of_living = names();
    // A store whose process was killed: forgotten without being dropped, its descriptors closed.
    let dead = open(&server.uri("")).unwrap();
    some(&*dead, 0..100);
    let remote = Remote::open(&server.uri("")).unwrap();
    assert!(
        remote
            .owners()
            .unwrap()
            .iter()
            .all(|owned| owned.known && owned.lives)
    );
    assert_eq!(remote.clear(Clear::Expired).unwrap().owners, 0);
    // The record of a process that is gone; its lock is let go with its descriptor.
    let name = names()
        .into_iter()
        .find(|name| !of_living.contains(name))
        .unwrap();
    let field = server.cli(&["HGET", "pagetide:owners", &name]);
    let word = |start: &str| {
        field
            .split(' ')
            .find(|word| word.starts_with(start))
            .unwrap()
    };
    let path = word("lock=").strip_prefix("lock=").unwrap();
    assert!(std::path::Path::new(path).exists());
    let started = word("started=");
    server.cli(&[
        "HSET",
        "pagetide:owners",
        &name,
        &field.replace(started, "started=1"),
    ]);
    assert_eq!(
        remote.clear(Clear::Expired).unwrap().owners,
        0,
        "its lock is held"
    );
    dead.inherit(&[]);
    drop(dead);
    assert_eq!(remote.clear(Clear::Known).unwrap().owners, 1);
    assert_eq!(server.keys(), before);
    assert!(!std::path::Path::new(path).exists());
    assert_all(&*living, &held);
    // Another machine's: only by its lease.
    let field = field
        .replace("host=", "host=elsewhere-")
        .replace(&name, &"a".repeat(32));
    server.cli(&["HSET", "pagetide:owners", &"a".repeat(32), &field]);
    let lease = format!("pagetide:lease:{}", "a".repeat(32));
    server.cli(&["SET", &lease, "1", "EX", "100"]);
    assert_eq!(remote.clear(Clear::Expired).unwrap().owners, 0);
    server.cli(&["DEL", &lease]);
    assert_eq!(remote.clear(Clear::Known).unwrap().owners, 0);
    assert_eq!(remote.clear(Clear::Expired).unwrap().owners, 1);
    drop(living);
    assert_eq!(server.keys(), 0);
}

#[test]
fn threads_read_a_tier_while_its_pages_move() {
    let Some(server) = Valkey::start(&[]) else {
        return;
    };
    let store = open(&format!("ram:?max=2M&then={}", server.uri(""))).unwrap();
    let held = some(&*store, 0..300);
    std::thread::scope(|scope| {
        let store = &*store;
        let held = &held;
        for _ in 0..2 {
            scope.spawn(move || (0..20).for_each(|_| assert_all(store, held)));
        }
        for round in 1..30 {
            let more = some(store, round * 1000..round * 1000 + 200);
            store.delete(&more.iter().map(|(slot, _)| *slot).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_cluster_keeps_pages_through_a_failover() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    laws::round_trips(&fixture(&cluster.uri("")));
    laws::slots_are_dense_and_reused(&fixture(&cluster.uri("encrypt=1")));
    laws::threads_do_not_disturb_each_other(&fixture(&cluster.uri("")));
    freezes::a_forked_child_reads_what_the_parent_deletes(&fixture(&cluster.uri("")));
    assert_eq!(cluster.keys(), [0, 0, 0]);
    assert_says(
        &refusal(&format!("valkey://127.0.0.1:{}", cluster.ports[0])),
        &["node of a cluster", "valkey-cluster://"],
    );
    // Every page is on a replica when its put returns, so the death of a master loses none.
    let store = open(&cluster.uri("replicas=1")).unwrap();
    let mut held = some(&*store, 0..1000);
    assert!(
        cluster.keys().iter().all(|keys| *keys > 200),
        "{:?}",
        cluster.keys()
    );
    cluster.nodes[0].kill();
    let waits = open(&cluster.uri("")); // may be refused while no one serves a third of the slots
    drop(waits);
    assert_all(&*store, &held);
    // The promoted replica has no replica of its own: with `replicas=1` nothing could be put there.
    // The old master comes back as one.
    cluster.nodes[0].restart();
    held.extend(some(&*store, 2000..2300));
    assert_all(&*store, &held);
    // Hash slots that move to another node while they are used.
    let from = cluster.nodes[1].cli(&["CLUSTER", "MYID"]);
    let to = cluster.nodes[2].cli(&["CLUSTER", "MYID"]);
    let address = format!("127.0.0.1:{}", cluster.ports[1]);
    let mut reshard = std::process::Command::new("redis-cli")
        .args([
            "--cluster",
            "reshard",
            &address,
            "--cluster-from",
            &from,
            "--cluster-to",
            &to,
        ])
        .args(["--cluster-slots", "300", "--cluster-yes"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while reshard.try_wait().unwrap().is_none() {
        assert_all(&*store, &held[..200]);
        held.extend(some(
            &*store,
            3000 + held.len() as u64..3010 + held.len() as u64,
        ));
    }
    assert_all(&*store, &held);
}

/// Passes bytes between clients and a server, until it is told not to.
struct Proxy {
    address: std::net::SocketAddr,
    cut: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Proxy {
    fn new(target: String) -> Proxy {
        use std::io::{Read, Write};
        use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cut = std::sync::Arc::new(AtomicBool::new(false));
        let is_cut = std::sync::Arc::clone(&cut);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (
                    client.unwrap(),
                    std::net::TcpStream::connect(&target).unwrap(),
                );
                for (mut from, mut to) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (server, client),
                ] {
                    let is_cut = std::sync::Arc::clone(&is_cut);
                    std::thread::spawn(move || {
                        let mut block = [0; 65536];
                        while let Ok(count @ 1..) = from.read(&mut block) {
                            // As a network does: what was sent waits, and arrives late or, if the
                            // client has gone, at all the same.
                            while is_cut.load(SeqCst) {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                            if to.write_all(&block[..count]).is_err() {
                                return;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        Proxy { address, cut }
    }

    fn cut(&self, cut: bool) {
        self.cut.store(cut, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Ten seconds with `PAGETIDE_TESTS_FULL`, else two.
#[test]
fn a_network_that_was_cut_and_healed_loses_no_page() {
    let port = servers::free_port().to_string();
    let Some(_server) = Valkey::start(&["--port", &port]) else {
        return;
    };
    let proxy = Proxy::new(format!("127.0.0.1:{port}"));
    let store = open(&format!("valkey://{}?timeout=300ms", proxy.address)).unwrap();
    let mut held = some(&*store, 0..300);
    let seconds = if std::env::var_os("PAGETIDE_TESTS_FULL").is_some() {
        10
    } else {
        2
    };
    for round in 1..3 {
        let freed: Vec<Slot> = held.drain(..50).map(|(slot, _)| slot).collect();
        std::thread::scope(|scope| {
            let (store, held) = (&*store, &held);
            proxy.cut(true);
            let read = scope.spawn(move || assert_all(store, held));
            let put = scope.spawn(move || {
                store.delete(&freed);
                some(store, round * 1000..round * 1000 + 100)
            });
            std::thread::sleep(Duration::from_secs(seconds));
            proxy.cut(false);
            read.join().unwrap();
            put.join().unwrap()
        })
        .into_iter()
        .for_each(|page| held.push(page));
        assert_all(&*store, &held);
    }
}
