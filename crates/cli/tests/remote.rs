//! Programs whose pages are on a server: the same bytes whatever happens to the server, or an end
//! that says why.
#[path = "../../store/tests/behaviour/servers.rs"]
#[allow(dead_code)] // shared with the tests of the store
mod servers;
mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use servers::{Memcached, Valkey};
use support::compile::{compile_c, on_path, scratch, tests_folder};
use support::pagetide::{able, able_to_fork, binary, governed};
use support::patience::{is_slow, up_to};
use support::process::{Running, run, start};
use support::resident::Watch;
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(120);
const SIGBUS: i32 = 128 + 7;
const DATA_LOST: i32 = 5;
const STORE_REFUSED: i32 = 4;

/// A server, if programs can be paged here.
fn server(arguments: &[&str]) -> Option<Valkey> {
    if let Err(reason) = able() {
        skipped("remote", &reason);
        return None;
    }
    Valkey::start(arguments)
}

/// A program that writes and verifies `mib` MiB from four threads, over and over.
fn four_threads(uri: &str, mib: &str) -> Running {
    let program =
        compile_c("programs", "four_threads", &[]).unwrap_or_else(|error| panic!("{error}"));
    start(
        governed(&["--resident", "4M", "--store", uri], program).arg(mib),
        b"",
    )
}

/// Waits until the server holds pages of the program.
fn wait_for_pages(server: &Valkey) {
    let begun = Instant::now();
    while server.keys() < 500 {
        assert!(begun.elapsed() < up_to(60), "no pages arrive");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Python builds, sorts and hashes records at a quarter of the memory it uses by itself.
fn python_says_the_same(uri: &str) {
    if !on_path("python3") {
        return skipped("python3", "python3 is not installed here");
    }
    let program = tests_folder().join("programs/sort_and_hash.py");
    let records = if is_slow() { "8" } else { "24" };
    let running = start(Command::new("python3").arg(&program).arg(records), b"");
    let watch = Watch::start(running.pid(), Duration::from_millis(5));
    let native = running.finish(LIMIT);
    let budget = (watch.peak() / 4).to_string();
    native.expect_code(0);
    assert!(!native.stdout.is_empty());
    let options = ["--resident", &budget, "--quiet", "--store", uri];
    let paged = run(
        governed(&options, "python3").arg(&program).arg(records),
        LIMIT,
    );
    paged.expect_code(0);
    assert!(
        native.stdout == paged.stdout,
        "python says something else when paged: {}\nnative: {}",
        paged.describe(),
        native.describe()
    );
}

#[test]
fn python_over_a_socket() {
    let Some(server) = server(&[]) else { return };
    python_says_the_same(&server.uri(""));
    assert_eq!(server.keys(), 0, "a run takes its keys with it");
    assert!(
        server
            .cli(&["INFO", "commandstats"])
            .contains("cmdstat_set:"),
        "nothing was stored"
    );
}

/// Pager and program go where the server is, and the program is none the wiser.
#[test]
fn python_on_the_servers_processor() {
    let Some(server) = server(&["--server_cpulist", "0"]) else {
        return;
    };
    python_says_the_same(&server.uri("server-cpu=0"));
    assert_eq!(server.keys(), 0);
}

/// A program that goes through its memory in order has it read ahead by requests of many pages.
#[test]
fn a_scan_asks_for_many_pages_at_once() {
    let Some(server) = server(&[]) else { return };
    if !on_path("python3") {
        return skipped("python3", "python3 is not installed here");
    }
    let count = |section, name: &str| -> u64 {
        let said = server.cli(&["INFO", section]);
        let at = said.find(name).unwrap_or_else(|| panic!("{name}: {said}")) + name.len();
        let digits = said[at..].split(|c: char| !c.is_ascii_digit()).next();
        digits.unwrap().parse().unwrap()
    };
    // Pages got, and requests read by the server, which reads all that has arrived at once.
    let after = |passes: &str| {
        let program = "import os, sys\npart = os.urandom(1 << 20)\ndata = bytearray(part * 32)\n\
                       for _ in range(int(sys.argv[1])): \
                       assert sum(data[::4096]) == 32 * sum(part[::4096])";
        let mut paged = governed(
            &["--resident", "12M", "--store", &server.uri("")],
            "python3",
        );
        run(paged.args(["-c", program, passes]), LIMIT).expect_code(0);
        let read = count("stats", "total_reads_processed:");
        (count("commandstats", "cmdstat_get:calls="), read)
    };
    let (one, five) = (after("1"), after("5"));
    let (gets, reads) = (five.0 - 2 * one.0, five.1 - 2 * one.1);
    assert!(gets > 2 * (8 << 10), "{gets} pages: nothing was paged");
    assert!(reads * 8 < gets, "{gets} pages took {reads} requests");
}

#[test]
fn python_over_a_port_sealed_behind_a_tier() {
    let port = servers::free_port().to_string();
    let Some(server) = server(&["--port", &port]) else {
        return;
    };
    python_says_the_same(&format!("ram:?max=8M&then=valkey://localhost:{port}/tier"));
    assert_eq!(server.keys(), 0);
    assert!(
        server
            .cli(&["INFO", "commandstats"])
            .contains("cmdstat_set:")
    );
}

#[test]
fn python_on_memcached() {
    if let Err(reason) = able() {
        return skipped("memcached", &reason);
    }
    let (Some(one), Some(two)) = (Memcached::start(&["-M"]), Memcached::start(&["-M"])) else {
        return;
    };
    python_says_the_same(&format!("memcached://{},{}", one.address(), two.address()));
}

/// A forked child, and its child, read what their parents evicted, also when these are gone.
#[test]
fn forks() {
    if let Err(reason) = able_to_fork() {
        return skipped("forks", &reason);
    }
    let Some(server) = server(&[]) else { return };
    let mebibytes = if is_slow() { "8" } else { "32" };
    for program in ["fork_verify", "fork_parent_first", "fork_deep"] {
        let path = match compile_c("hazards", program, &[]) {
            Ok(path) => path,
            Err(error) => panic!("{error}"),
        };
        let uri = server.uri("encrypt=1");
        run(
            governed(&["--resident", "4M", "--store", &uri], path).arg(mebibytes),
            LIMIT,
        )
        .expect_code(0);
    }
    // What outlived its launcher is gone by now, and the next run takes away what it left.
    let begun = Instant::now();
    while server.keys() > 0 {
        assert!(begun.elapsed() < up_to(20), "{} keys stay", server.keys());
        run(
            &mut governed(&["--resident", "4M", "--store", &server.uri("")], "true"),
            LIMIT,
        )
        .expect_code(0);
    }
}

#[test]
fn a_server_killed_and_restarted_is_not_noticed() {
    let Some(mut server) = server(&["--appendonly", "yes", "--appendfsync", "always"]) else {
        return;
    };
    let program = four_threads(&server.uri(""), "16");
    for _ in 0..3 {
        wait_for_pages(&server);
        server.kill();
        std::thread::sleep(Duration::from_millis(300));
        server.restart();
        std::thread::sleep(Duration::from_millis(200));
    }
    program.finish(LIMIT).expect_code(0);
}

#[test]
fn a_server_that_stands_still_is_not_noticed() {
    let Some(server) = server(&[]) else { return };
    let program = four_threads(&server.uri("timeout=500ms"), "48");
    for _ in 0..2 {
        wait_for_pages(&server);
        server.signal("STOP");
        std::thread::sleep(Duration::from_secs(2));
        server.signal("CONT");
        std::thread::sleep(Duration::from_millis(300));
    }
    program.finish(LIMIT).expect_code(0);
}

/// The program must end with a signal or exit code 5, and a message with a cause; never with a
/// wrong word.
fn ends_loudly(program: Running, cause: &str) {
    let outcome = program.finish(LIMIT);
    let said = outcome.stderr_text();
    assert!(
        !said.contains("FAILED"),
        "wrong bytes were handed out: {}",
        outcome.describe()
    );
    assert!(
        matches!(outcome.code(), Some(SIGBUS | DATA_LOST)),
        "expected SIGBUS or exit 5: {}",
        outcome.describe()
    );
    assert!(said.contains(cause), "no `{cause}`: {}", outcome.describe());
}

#[test]
fn a_server_that_lost_its_data_is_data_lost() {
    let Some(mut server) = server(&[]) else {
        return;
    };
    let program = four_threads(&server.uri(""), "48");
    wait_for_pages(&server);
    server.kill();
    server.restart();
    ends_loudly(program, "no longer has it");
}

#[test]
fn a_server_that_stays_away_is_data_lost() {
    let Some(mut server) = server(&[]) else {
        return;
    };
    let program = four_threads(&server.uri("patience=1s"), "48");
    wait_for_pages(&server);
    server.kill();
    ends_loudly(program, "sock");
}

#[test]
fn a_full_server_holds_the_program_or_ends_it() {
    let Some(server) = server(&["--maxmemory", "12mb"]) else {
        return;
    };
    let outcome = four_threads(&server.uri(""), "48").finish(LIMIT);
    outcome.expect_code(DATA_LOST);
    assert!(
        outcome.stderr_text().contains("OOM"),
        "{}",
        outcome.describe()
    );
}

/// Given room in time, it goes on.
#[test]
fn a_full_server_that_is_given_room_is_not_noticed() {
    let Some(server) = server(&["--maxmemory", "12mb"]) else {
        return;
    };
    let program = four_threads(&server.uri(""), "48");
    wait_for_pages(&server);
    std::thread::sleep(Duration::from_secs(2));
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    program.finish(LIMIT).expect_code(0);
}

#[test]
fn what_is_wrong_is_told_before_the_program_starts() {
    let Some(server) = server(&["--requirepass", "right"]) else {
        return;
    };
    let uri = format!("valkey+unix://:wrong@{}", server.socket().display());
    let outcome = run(&mut governed(&["--store", &uri], "true"), LIMIT);
    outcome.expect_code(STORE_REFUSED);
    let said = outcome.stderr_text();
    assert!(
        said.contains("WRONGPASS") && !said.contains("wrong@"),
        "{said}"
    );
    let outcome = run(
        &mut governed(&["--store", "valkey+unix:///nowhere/x"], "true"),
        LIMIT,
    );
    outcome.expect_code(STORE_REFUSED);
}

fn pagetide(words: &[&str]) -> String {
    let outcome = run(Command::new(binary().unwrap()).args(words), LIMIT);
    outcome.expect_code(0);
    outcome.stdout_text()
}

/// A run of which nothing is left but its keys.
fn crash(uri: &str, server: &Valkey) {
    let mut program = four_threads(uri, "64");
    wait_for_pages(server);
    program.signal_group("KILL");
    while program.is_running() {
        std::thread::sleep(Duration::from_millis(5));
    }
    program.finish(LIMIT);
    assert!(server.keys() > 500);
}

#[test]
fn keys_of_a_crashed_run_go_with_the_next_or_by_gc() {
    let Some(server) = server(&[]) else { return };
    let uri = server.uri("");
    crash(&uri, &server);
    let listed = pagetide(&["store", "usage", &uri]);
    assert!(listed.contains("dead: gc removes it"), "{listed}");
    let said = pagetide(&["store", "gc", &uri]);
    assert!(said.contains("removed 1 dead owners"), "{said}");
    assert_eq!(server.keys(), 0);
    crash(&uri, &server);
    run(&mut governed(&["--store", &uri], "true"), LIMIT).expect_code(0);
    assert_eq!(server.keys(), 0);
}

#[test]
fn gc_leaves_a_living_run_alone() {
    let Some(server) = server(&[]) else { return };
    let uri = server.uri("");
    let program = four_threads(&uri, "48");
    wait_for_pages(&server);
    let listed = pagetide(&["store", "usage", "--json", &uri]);
    assert!(listed.contains("\"lives\":true"), "{listed}");
    for _ in 0..5 {
        let said = pagetide(&["store", "gc", &uri]);
        assert!(said.contains("removed 0 dead owners"), "{said}");
    }
    program.finish(LIMIT).expect_code(0);
    assert_eq!(server.keys(), 0);
}

#[test]
fn operators_can_look_and_measure() {
    let Some(server) = server(&[]) else { return };
    let uri = server.uri("");
    let said = pagetide(&["store", "ping", &uri]);
    assert!(
        said.contains("noeviction") && said.contains("answers in"),
        "{said}"
    );
    let said = pagetide(&["store", "bench", "--json", "--pages", "1000", &uri]);
    for field in ["\"put_us\":", "\"get_us\":", "\"get_many_us\":"] {
        assert!(said.contains(field), "{said}");
    }
    assert_eq!(server.keys(), 0);
    let outcome = run(
        Command::new(binary().unwrap()).args(["store", "ping", "ram:"]),
        LIMIT,
    );
    outcome.expect_code(STORE_REFUSED);
    assert!(
        outcome.stderr_text().contains("valkey://"),
        "{}",
        outcome.describe()
    );
}

/// A virtual machine whose memory is on a server boots, is shrunk to 180 pages and grown back, and
/// every byte of it verifies.
#[test]
fn a_virtual_machine() {
    if !support::skip::is_full() {
        return skipped(
            "virtual machine",
            "two minutes of software emulation: `make test-full` runs it",
        );
    }
    let needed = ["qemu-system-x86_64", "busybox", "python3", "redis-server"];
    if let Some(missing) = needed.iter().find(|program| !on_path(program)) {
        return skipped(
            missing,
            "not installed here (packages qemu-system-x86, busybox-static, python3, redis-server)",
        );
    }
    let binary = match able() {
        Ok(binary) => binary,
        Err(reason) => return skipped("virtual machine", &reason),
    };
    let example = tests_folder().join("../../../examples/virtual-machine");
    let fetched = run(
        Command::new(example.join("fetch-kernel.sh")).arg(scratch().join("guest-kernel")),
        LIMIT,
    );
    if fetched.code() != Some(0) {
        return skipped(
            "virtual machine",
            "Debian's cloud kernel cannot be downloaded here",
        );
    }
    let mut command = Command::new("python3");
    command
        .arg(example.join("run.py"))
        .arg("--pagetide")
        .arg(binary)
        .args(["--kernel", fetched.stdout_text().trim()]);
    let outcome = run(&mut command, Duration::from_secs(1800));
    outcome.expect_code(0);
    assert!(
        outcome.stdout_text().contains("every byte verified"),
        "{}",
        outcome.describe()
    );
}
