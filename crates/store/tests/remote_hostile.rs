//! What comes back from a server is bytes from outside: whatever they are, a page is right or its
//! read is an error, and nothing hangs or panics.

#[path = "behaviour/common.rs"]
#[allow(dead_code)] // shared with the behaviour suite
mod common;
#[path = "behaviour/held.rs"]
#[allow(dead_code)]
mod held;

use common::*;
use held::{assert_all, assert_says, some};
use pagetide_store::{ErrorKind, Page, open};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What is said instead of a value; the connection is closed after it.
type Instead = Arc<Mutex<Option<Vec<u8>>>>;
/// What was put, by key.
type Kept = Mutex<HashMap<Vec<u8>, Vec<u8>>>;
/// Serves one client.
type Talk = fn(TcpStream, &Kept, &Instead);

/// A server of the smallest possible kind that keeps what it is given, and answers a read with what
/// the test wants.
struct Fake {
    address: SocketAddr,
    instead: Instead,
}

impl Fake {
    fn start(talk: Talk) -> Fake {
        Fake::on(TcpListener::bind("127.0.0.1:0").unwrap(), talk)
    }

    fn on(listener: TcpListener, talk: Talk) -> Fake {
        let address = listener.local_addr().unwrap();
        let instead = Instead::default();
        let said = Arc::clone(&instead);
        std::thread::spawn(move || {
            let kept = Arc::new(Mutex::new(HashMap::new()));
            for client in listener.incoming().flatten() {
                let (kept, said) = (Arc::clone(&kept), Arc::clone(&said));
                std::thread::spawn(move || talk(client, &kept, &said));
            }
        });
        Fake { address, instead }
    }

    fn say_instead(&self, bytes: Vec<u8>) {
        *self.instead.lock().unwrap() = Some(bytes);
    }
}

fn line(from: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    match from.read_line(&mut line) {
        Ok(1..) => Some(line.trim_end().to_owned()),
        _ => None,
    }
}

fn block(from: &mut impl Read, len: usize) -> Option<Vec<u8>> {
    let mut block = vec![0; len + 2];
    from.read_exact(&mut block).ok()?;
    block.truncate(len);
    Some(block)
}

const INFO: &str = "redis_mode:standalone\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n";

fn valkey(client: TcpStream, kept: &Kept, instead: &Instead) {
    let mut to = client.try_clone().unwrap();
    let mut from = BufReader::new(client);
    let mut request = || -> Option<Vec<Vec<u8>>> {
        let count: usize = line(&mut from)?.strip_prefix('*')?.parse().ok()?;
        (0..count)
            .map(|_| {
                let len = line(&mut from)?.strip_prefix('$')?.parse().ok()?;
                block(&mut from, len)
            })
            .collect()
    };
    while let Some(words) = request() {
        let answer = match &words[0][..] {
            b"PING" => b"+PONG\r\n".to_vec(),
            b"INFO" => format!("${}\r\n{INFO}\r\n", INFO.len()).into_bytes(),
            b"HGETALL" => b"*0\r\n".to_vec(),
            b"GET" => {
                if let Some(bytes) = instead.lock().unwrap().take() {
                    // The client may have closed the connection before it has read all of it.
                    let _ = to.write_all(&bytes);
                    return;
                }
                match kept.lock().unwrap().get(&words[1]) {
                    None => b"$-1\r\n".to_vec(),
                    Some(value) => {
                        let mut answer = format!("${}\r\n", value.len()).into_bytes();
                        answer.extend_from_slice(value);
                        answer.extend_from_slice(b"\r\n");
                        answer
                    }
                }
            }
            b"SET" => {
                let mut words = words.into_iter().skip(1);
                let (key, value) = (words.next().unwrap(), words.next().unwrap());
                kept.lock().unwrap().insert(key, value);
                b"+OK\r\n".to_vec()
            }
            _ => b":1\r\n".to_vec(),
        };
        if to.write_all(&answer).is_err() {
            return;
        }
    }
}

fn memcached(client: TcpStream, kept: &Kept, instead: &Instead) {
    let mut to = client.try_clone().unwrap();
    let mut from = BufReader::new(client);
    while let Some(request) = line(&mut from) {
        let words: Vec<&str> = request.split(' ').collect();
        let answer = match words[0] {
            "version" => b"VERSION 1.6.0\r\n".to_vec(),
            "stats" => b"STAT evictions off\r\nEND\r\n".to_vec(),
            "get" => {
                if let Some(bytes) = instead.lock().unwrap().take() {
                    let _ = to.write_all(&bytes);
                    return;
                }
                match kept.lock().unwrap().get(words[1].as_bytes()) {
                    None => b"END\r\n".to_vec(),
                    Some(value) => {
                        let mut answer =
                            format!("VALUE {} 0 {}\r\n", words[1], value.len()).into_bytes();
                        answer.extend_from_slice(value);
                        answer.extend_from_slice(b"\r\nEND\r\n");
                        answer
                    }
                }
            }
            "set" | "add" | "cas" => {
                let Some(value) = block(&mut from, words[4].parse().unwrap()) else {
                    return;
                };
                kept.lock()
                    .unwrap()
                    .insert(words[1].as_bytes().to_vec(), value);
                b"STORED\r\n".to_vec()
            }
            "gets" => b"END\r\n".to_vec(),
            _ => b"DELETED\r\n".to_vec(),
        };
        if to.write_all(&answer).is_err() {
            return;
        }
    }
}

fn with_body(head: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = head.as_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// Answers that are wrong in every way the protocols can be, and random ones that begin as an
/// answer does.
fn wrong_answers(heads: &[&str]) -> Vec<Vec<u8>> {
    let noise = |seed: u64, len: usize| -> Vec<u8> {
        let pages = (0..=len / 4096).map(|page| random_page(seed + page as u64).0);
        pages.flatten().take(len).collect()
    };
    let mut answers = vec![
        vec![],
        b"\r\n".to_vec(),
        b"\n".to_vec(),
        vec![0; 100],
        vec![b'x'; 100_000],
        b"*1\r\n".repeat(20_000),
        b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
    ];
    let lengths = [
        "-2",
        "-1",
        "0",
        "1",
        "4095",
        "4097",
        "4112",
        "4113",
        "33790",
        "33791",
        "100000",
        "1099511627776",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551614",
        "18446744073709551615",
        "99999999999999999999999",
        "",
        "0x10",
        "4112 ",
    ];
    for head in heads {
        for length in lengths {
            for body in [0, 1, 4096, 4114, 40_000] {
                answers.push(with_body(&format!("{head}{length}\r\n"), &noise(1, body)));
            }
        }
        for seed in 0..60 {
            answers.push(with_body(head, &noise(seed, 1 + seed as usize * 70)));
        }
    }
    answers
}

/// Reads one of three pages with each of `answers` instead of its value, and then all of them as
/// they are.
fn never_a_wrong_page(fake: &Fake, uri: &str, answers: Vec<Vec<u8>>) {
    let store = open(uri).unwrap();
    let held = some(&*store, 0..3);
    let mut refused = 0;
    for answer in answers {
        let shown: String = String::from_utf8_lossy(&answer).chars().take(40).collect();
        fake.say_instead(answer);
        let mut page = Page::ZERO;
        let read = store.get(held[1].0, &mut page);
        assert!(
            fake.instead.lock().unwrap().is_none(),
            "the answer was never asked for"
        );
        // A failure that may pass, such as a closed connection, is tried again, and then the right
        // answer comes.
        assert!(
            read.is_err() || page.0 == random_page(held[1].1).0,
            "`{}` was taken for a page",
            shown.escape_debug()
        );
        refused += usize::from(read.is_err());
        assert_all(&*store, &held);
    }
    assert!(refused > 100, "only {refused} answers were refused");
}

#[test]
fn wrong_answers_of_a_valkey_are_errors() {
    let fake = Fake::start(valkey);
    let uri = format!("valkey://{}?patience=5s&timeout=2s", fake.address);
    let answers = wrong_answers(&["$", "*", ":", "+", "-", "-MOVED ", "!"]);
    never_a_wrong_page(&fake, &uri, answers);
}

#[test]
fn wrong_answers_of_a_memcached_are_errors() {
    let fake = Fake::start(memcached);
    let uri = format!("memcached://{}?patience=5s&timeout=2s", fake.address);
    let answers = wrong_answers(&["VALUE x 0 ", "VALUE ", "END", "SERVER_ERROR "]);
    never_a_wrong_page(&fake, &uri, answers);
}

/// The same for what is asked when a store is opened: lists in lists, and lists of a length that
/// nobody has memory for.
#[test]
fn wrong_answers_at_the_start_are_errors() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(Mutex::new(vec![]));
    let said = Arc::clone(&answer);
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 256]);
            let _ = client.write_all(b"+PONG\r\n");
            let _ = client.read(&mut [0; 256]);
            let bytes: Vec<u8> = said.lock().unwrap().clone();
            let _ = client.write_all(&bytes);
        }
    });
    for bytes in wrong_answers(&["*", "$", "*1\r\n*3\r\n:0\r\n:16383\r\n*", "-"]) {
        *answer.lock().unwrap() = bytes;
        for scheme in ["valkey", "valkey-cluster"] {
            let error = open(&format!("{scheme}://{address}?timeout=2s"))
                .err()
                .unwrap();
            assert_says(&error.to_string(), &[&address.to_string()]);
        }
    }
}

#[test]
fn a_name_with_several_addresses_is_tried_at_each() {
    let fake = Fake::start(valkey);
    // `localhost` is ::1 as well where it is set up so; the server listens at 127.0.0.1 alone.
    let uri = format!("valkey://localhost:{}", fake.address.port());
    let store = open(&uri).unwrap();
    let held = some(&*store, 0..3);
    assert_all(&*store, &held);
}

#[test]
fn a_server_at_an_ipv6_address_is_reached() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("SKIPPED: there is no IPv6 here");
        return;
    };
    let address = Fake::on(listener, valkey).address;
    let store = open(&format!("valkey://{address}/six")).unwrap();
    let held = some(&*store, 0..3);
    assert_all(&*store, &held);
    let error = open("valkey://[::1]:1?timeout=1s").err().unwrap();
    assert_eq!(error.kind, ErrorKind::Config, "{error}");
    assert_says(&error.to_string(), &["[::1]:1"]);
}
