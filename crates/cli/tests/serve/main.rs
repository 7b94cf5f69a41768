//! `pagetide serve firecracker` with clients that do as Firecracker does: memory, a userfaultfd,
//! one message; `pagetide serve criu` with what does as CRIU's restore (`criu.rs`), also of dumps
//! that were packed (`packed.rs`). Clients that are to die are processes of their own
//! (`deaths.rs`), the others are threads here, so their servers are told to leave alone who lost a
//! page.
mod criu;
mod deaths;
mod dump;
mod guest;
mod held;
mod hostile;
mod manager;
mod observed;
mod packed;
mod page_server;
mod restart;
mod second;
mod server;
#[path = "../../../store/tests/behaviour/servers.rs"]
#[allow(dead_code)] // shared with the tests of the store
mod servers;
mod stalls;
mod stored;
#[path = "../support/mod.rs"]
mod support;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use guest::{Guest, expected, within_time};
use pagetide::track::SnapshotId;
use pagetide::track::snapshot::format::RegionEntry;
use pagetide::track::snapshot::sink::FileSink;
use pagetide::track::snapshot::writer::Writer;
use pagetide_kernel::PAGE_SIZE;
use pagetide_kernel::uffd::{feature, open};
use server::{PAGETIDE, Server, write_image};
use support::skip::skipped;

const LEAVE: [&str; 2] = ["--on-loss", "leave"];
const ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Whether a userfaultfd can be had; says so if not.
fn able() -> bool {
    match open(None) {
        Ok(_) => true,
        Err(error) => {
            skipped("serve", &error.to_string());
            false
        }
    }
}

/// A server that leaves its clients alone, with more options.
fn leaving(pages: u64, options: &[&str]) -> Server {
    Server::of(pages, &[&LEAVE, options].concat())
}

fn verify_all(server: &Server, pages: u64) {
    let guest = Guest::connected(pages, &server.socket());
    within_time(move || guest.verify(0, pages, 0));
}

#[test]
fn every_byte_is_the_images() {
    if !able() {
        return;
    }
    let server = leaving(700, &[]);
    verify_all(&server, 700);
    // Two regions, the other way round in the image, in a message of many parts.
    let mut guest = Guest::new(600, feature::EVENT_REMOVE);
    let said = guest.regions(&[(0, 250, 450), (250, 350, 7)]);
    let parts: Vec<String> = said.as_bytes().chunks(11).map(text).collect();
    guest.connect(
        &server.socket(),
        &parts.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    within_time(move || {
        guest.verify(0, 250, 450);
        guest.verify(250, 350, 7);
    });
    server.counts(&["fault_pages", "block_pages"], 1300);
    assert_eq!(server.total("lost_pages"), 0);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A snapshot of `pages` pages, with those of zeros left out.
fn write_snapshot(path: &Path, pages: u64) {
    let region = RegionEntry {
        name: "memory".into(),
        address: 0,
        pages,
    };
    let sink = Box::new(FileSink::create(path).unwrap());
    let mut writer = Writer::new(sink, SnapshotId::random(), None, vec![region]).unwrap();
    for page in (0..pages).filter(|page| page % 5 != 3) {
        writer.put(0, &[page], &[expected(page)].concat()).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_snapshot_is_served_as_a_memory_file_is() {
    if !able() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    write_snapshot(&place.path().join("image"), 400);
    let server = Server::at(place, &[&LEAVE[..], &["--prefetch-rate", "max"]].concat());
    verify_all(&server, 400);
}

#[test]
fn the_last_part_of_an_image_is_extended_with_zeros() {
    if !able() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("image");
    write_image(&image, 3);
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.set_len(2 * 4096 + 100).unwrap();
    let server = Server::at(place, &LEAVE);
    let guest = Guest::connected(3, &server.socket());
    within_time(move || {
        guest.verify(0, 2, 0);
        let mut last = expected(2);
        last[100..].fill(0);
        assert_eq!(guest.read(2), last);
    });
}

/// Firecracker does not close its connection while it lives, and its own handlers serve on who does.
#[test]
fn who_closes_the_connection_and_lives_on_is_served_on() {
    if !able() {
        return;
    }
    let server = leaving(600, &[]);
    let mut guest = Guest::connected(600, &server.socket());
    let guest = within_time(move || {
        guest.verify(0, 10, 0);
        guest.hang_up();
        // A server that took that for its end would know by then.
        std::thread::sleep(Duration::from_millis(200));
        guest
    });
    assert_eq!(server.clients(), 1);
    within_time(move || {
        guest.give_up(20, 10);
        guest.verify(30, 570, 30);
        assert_eq!(guest.read(25), ZEROS);
    });
    server.counts(&["removed_pages"], 10);
}

#[test]
fn what_a_balloon_takes_is_zeros_from_then_on() {
    if !able() {
        return;
    }
    for options in [
        &[][..],
        &["--prefetch-rate", "max"],
        &["--prefetch-rate", "16M"],
    ] {
        let server = leaving(600, options);
        let guest = Guest::connected(600, &server.socket());
        let guest = within_time(move || {
            guest.verify(0, 100, 0);
            // Touched, and not touched.
            guest.give_up(50, 200);
            (50..250).for_each(|page| assert_eq!(guest.read(page), ZEROS, "{page}"));
            guest.write(60, 9);
            guest.give_up(61, 1);
            assert_eq!((guest.read(60), guest.read(61)), ([9; PAGE_SIZE], ZEROS));
            guest.verify(250, 350, 250);
            guest.verify(0, 50, 0);
            // Again, and after all has come.
            guest.give_up(0, 600);
            (0..600).for_each(|page| assert_eq!(guest.read(page), ZEROS, "{page}"));
            guest
        });
        if options.is_empty() {
            // Every page once, however often.
            server.counts(&["removed_pages"], 600);
        }
        drop(guest);
    }
}

#[test]
fn memory_of_huge_pages_comes_two_mebibytes_at_a_time() {
    const HUGE: u64 = 512;
    if !able() {
        return;
    }
    // Of three huge pages the image has two, and a part of the last.
    let Some(mut guest) = Guest::huge(3 * HUGE) else {
        return skipped("serve", "no huge pages (vm.nr_hugepages): 3 are needed");
    };
    let server = leaving(2 * HUGE + 100, &[]);
    let said = guest.regions(&[(0, 3 * HUGE, 0)]);
    guest.connect(&server.socket(), &[&said]);
    let guest = within_time(move || {
        guest.verify(0, 2 * HUGE + 100, 0);
        assert_eq!(guest.read(3 * HUGE - 1), ZEROS);
        guest
    });
    server.counts(&["faults"], 3);
    server.counts(&["fault_pages"], 3 * HUGE);
    within_time(move || {
        guest.give_up(HUGE, HUGE);
        assert_eq!(guest.read(HUGE + 7), ZEROS);
        guest.verify(0, HUGE, 0);
    });
}

/// Readers that come after a page was given up never see the image's bytes again.
#[test]
fn a_page_that_was_given_up_does_not_come_back_under_readers() {
    if !able() {
        return;
    }
    const PAGES: u64 = 2000;
    let server = leaving(PAGES, &[]);
    give_up_under_readers(&server, PAGES);
    server.counts(&["removed_pages"], PAGES / 4);
    // Here the last may be given up when all pages have come, and nobody is told any more.
    give_up_under_readers(&leaving(PAGES, &["--prefetch-rate", "max"]), PAGES);
}

/// Two threads bring pages that nobody waits for, and a third gives some up at the same time.
#[test]
fn what_is_given_up_beside_two_threads_does_not_come_back() {
    if !able() {
        return;
    }
    const PAGES: u64 = 40_000;
    let server = leaving(PAGES, &["--prefetch-rate", "max"]);
    let guest = Guest::connected(PAGES, &server.socket());
    // Nobody touches anything, so that there are two; and in no order, so that some of it is what
    // the second one has before it.
    let given_up = |page: u64| page % 8 == 3;
    let (guest, given) = within_time(move || {
        let pages = (0..PAGES).map(|step| step * 769 % PAGES);
        let mut given = 0;
        for page in pages.filter(|page| given_up(*page)) {
            guest.give_up(page, 1);
            given += 1;
        }
        (guest, given)
    });
    assert_eq!(given, PAGES / 8);
    server.wait_for("all pages", |server| {
        server.total("background_pages") + server.total("removed_pages") >= PAGES
    });
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1) {
        assert_ne!(server.total("second_pages"), 0);
    }
    within_time(move || {
        for page in 0..PAGES {
            let right = if given_up(page) {
                ZEROS
            } else {
                expected(page)
            };
            assert_eq!(guest.read(page), right, "page {page}");
        }
    });
}

fn give_up_under_readers(server: &Server, pages: u64) {
    let guest = Guest::connected(pages, &server.socket());
    let gone: Vec<AtomicBool> = (0..pages).map(|_| AtomicBool::new(false)).collect();
    within_time(move || {
        std::thread::scope(|scope| {
            for reader in 0..3 {
                let (guest, gone) = (&guest, &gone);
                scope.spawn(move || {
                    for page in (0..3 * pages).map(|step| (step * 769 + reader * 311) % pages) {
                        let was_gone = gone[page as usize].load(SeqCst);
                        let seen = guest.read(page);
                        assert!(!was_gone || seen == ZEROS, "page {page} came back");
                        // One that is being given up may be read half and half.
                        assert!(
                            page % 4 == 0 || seen == expected(page),
                            "page {page} is wrong"
                        );
                    }
                });
            }
            for page in (0..pages).step_by(4) {
                guest.give_up(page, 1);
                gone[page as usize].store(true, SeqCst);
            }
        });
    });
}

#[test]
fn sixteen_clients_are_served_at_once() {
    if !able() {
        return;
    }
    const PAGES: u64 = 512;
    let server = leaving(PAGES, &[]);
    let guests: Vec<Guest> = (0..16)
        .map(|_| Guest::connected(PAGES, &server.socket()))
        .collect();
    server.wait_for("sixteen clients", |server| server.clients() == 16);
    within_time(move || {
        std::thread::scope(|scope| {
            for (number, guest) in guests.iter().enumerate() {
                scope.spawn(move || {
                    for step in 0..PAGES {
                        let page = (step * 37 + number as u64 * 101) % PAGES;
                        assert_eq!(guest.read(page), expected(page), "{number}: {page}");
                        guest.write(page, number as u8);
                    }
                    for page in 0..PAGES {
                        assert_eq!(guest.read(page), [number as u8; PAGE_SIZE]);
                    }
                });
            }
        });
    });
    server.counts(&["fault_pages", "block_pages"], 16 * PAGES);
}

#[test]
fn memory_may_be_unmapped_under_the_server() {
    if !able() {
        return;
    }
    for features in [
        feature::EVENT_REMOVE,
        feature::EVENT_REMOVE | feature::EVENT_UNMAP,
    ] {
        let server = leaving(3000, &["--prefetch-rate", "max"]);
        let mut guest = Guest::new(3000, features);
        // Some before it is told of, some while pages come.
        if features & feature::EVENT_UNMAP == 0 {
            guest.unmap(2000, 300);
        }
        let said = guest.regions(&[(0, 3000, 0)]);
        guest.connect(&server.socket(), &[&said]);
        within_time(move || {
            guest.verify(0, 10, 0);
            guest.unmap(10, 990);
            guest.verify(1000, 1000, 1000);
            guest.verify(2300, 700, 2300);
            guest.unmap(2500, 1);
        });
        assert_eq!(server.total("lost_pages"), 0, "{}", server.log());
        verify_all(&server, 3000);
    }
}

#[test]
fn all_that_nobody_waits_for_comes_and_then_nobody_is_needed() {
    if !able() {
        return;
    }
    let server = leaving(1000, &["--prefetch-rate", "max"]);
    let guest = Guest::connected(1000, &server.socket());
    server.wait_for("all pages", |server| {
        server.total("background_pages") == 1000
    });
    let (status, _, _place) = server.end();
    assert_eq!(status.code(), Some(0));
    within_time(move || {
        guest.verify(0, 1000, 0);
        guest.give_up(5, 10);
        assert_eq!(guest.read(7), ZEROS);
    });
}

/// By the names and arguments of Firecracker's example handlers.
#[test]
fn it_is_started_as_firecrackers_examples_are() {
    if !able() {
        return;
    }
    for (name, background) in [
        ("uffd_on_demand_handler", 0),
        ("uffd_fault_all_handler", 600),
    ] {
        let place = tempfile::tempdir().unwrap();
        write_image(&place.path().join("image"), 600);
        let handler = place.path().join(name);
        std::os::unix::fs::symlink(PAGETIDE, &handler).unwrap();
        let mut command = Command::new(handler);
        command.args([
            "socket",
            "image",
            "--status",
            "status",
            "--on-loss",
            "leave",
        ]);
        let server = Server::run(place, command, "is served at");
        let guest = Guest::connected(600, &server.socket());
        server.counts(&["background_pages"], background);
        within_time(move || guest.verify(0, 600, 0));
    }
}

#[test]
fn a_recorded_working_set_spares_a_later_start_its_faults() {
    if !able() {
        return;
    }
    const PAGES: u64 = 4000;
    // Far from each other, in no order.
    let touched: Vec<u64> = (0..200).map(|step| step * 1187 % PAGES).collect();
    let touch = |server: &Server, wait: &dyn Fn(&Server)| {
        let guest = Guest::connected(PAGES, &server.socket());
        wait(server);
        let touched = touched.clone();
        let read = move || {
            touched
                .into_iter()
                .for_each(|page| guest.verify(page, 1, page))
        };
        within_time(read);
        server.total("faults")
    };
    let server = leaving(PAGES, &["--record", "set"]);
    let set = server.path("set");
    assert_eq!(touch(&server, &|_| {}), 200);
    server.counts(&["fault_pages"], 200);
    let (status, log, place) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(set.is_file());
    let server = Server::at(place, &[&LEAVE[..], &["--replay", "set"]].concat());
    let arrived = |server: &Server| server.total("working_set_pages") == 200;
    let faults = touch(&server, &|server| {
        server.wait_for("the working set", arrived)
    });
    assert_eq!(faults, 0);
    assert_eq!(server.total("background_pages"), 0);
}

#[test]
fn what_cannot_be_done_is_said_with_its_own_code() {
    let place = tempfile::tempdir().unwrap();
    write_image(&place.path().join("image"), 4);
    write_image(&place.path().join("other"), 9);
    std::fs::write(place.path().join("empty"), "").unwrap();
    std::fs::write(place.path().join("taken"), "kept").unwrap();
    std::fs::write(place.path().join("no-set"), "nothing").unwrap();
    let cases: [(&[&str], i32, &str); 10] = [
        (&["socket", "nowhere"], 4, "nowhere"),
        (&["socket", "empty"], 4, "empty"),
        (&["taken", "image"], 1, "taken"),
        (&["no/where", "image"], 1, "no/where"),
        (&["socket", "image", "--status", "taken"], 1, "taken"),
        (
            &["socket", "image", "--replay", "no-set"],
            4,
            "--replay: no-set",
        ),
        (
            &["socket", "image", "--record", "no/where"],
            4,
            "--record: no/where",
        ),
        (
            &["socket", "image", "--record", "image"],
            4,
            "--record: image is there, and no working set",
        ),
        (
            &["socket", "image", "--record", "a", "--replay", "b"],
            2,
            "--replay",
        ),
        (
            &["socket", "image", "--prefetch-rate", "0"],
            2,
            "leave the option out",
        ),
    ];
    for (arguments, code, said) in cases {
        let output = Command::new(PAGETIDE)
            .args(["serve", "firecracker"])
            .args(arguments)
            .current_dir(place.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(said), "{arguments:?}: {text}");
        assert!(!place.path().join("socket").exists(), "{arguments:?}");
    }
    assert_eq!(std::fs::read(place.path().join("taken")).unwrap(), b"kept");
}

/// The file of a socket was removed, and another server has made its own there.
#[test]
fn the_socket_of_another_server_is_not_removed() {
    if !able() {
        return;
    }
    let first = leaving(4, &[]);
    let socket = first.socket();
    let status = first.path("status");
    std::fs::remove_file(&socket).unwrap();
    std::fs::remove_file(&status).unwrap();
    let _second = UnixListener::bind(&socket).unwrap();
    let _other = UnixListener::bind(&status).unwrap();
    let (code, log, _place) = first.end();
    assert_eq!(code.code(), Some(0), "{log}");
    assert!(socket.exists() && status.exists(), "{log}");
}
