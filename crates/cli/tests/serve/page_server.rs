//! `pagetide serve criu --page-server`: pages that come from another machine.
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use pagetide_kernel::PAGE_SIZE;

use super::ZEROS;
use super::criu::{
    FINISHED, Restore, able_to_follow, able_to_lose, in_own_process, is_fine, is_killed_by_sigbus,
    memory, serve,
};
use super::dump::{self, LAZY};
use super::guest::{expected, within_time};

/// A page server for one task, that answers with at most three pages; the commands it heard.
///
/// Its thread allocates nothing once it has begun: another test's thread that forks in this process
/// holds the allocator until the server has read of it, which may wait for an answer from here.
fn page_server(start: u64) -> (u16, std::thread::JoinHandle<Vec<u32>>) {
    const HEADER: usize = 24;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut heard = Vec::with_capacity(4096);
    let mut answer = [0u8; HEADER + 3 * PAGE_SIZE];
    let body = move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.read_exact(&mut answer[..HEADER]).is_ok() {
            let number = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().unwrap());
            let command = number(0);
            assert!(heard.len() < heard.capacity());
            heard.push(command);
            if command != 7 {
                stream.write_all(&0i32.to_le_bytes()).unwrap();
                break;
            }
            let address = u64::from_le_bytes(answer[8..16].try_into().unwrap());
            let pages = number(4).min(3);
            answer[..4].copy_from_slice(&0x0004_0006u32.to_le_bytes());
            answer[4..8].copy_from_slice(&pages.to_le_bytes());
            let first = (address - start) / PAGE_SIZE as u64;
            let (bytes, _) = answer[HEADER..].as_chunks_mut::<PAGE_SIZE>();
            for (page, bytes) in (first..).zip(&mut bytes[..pages as usize]) {
                *bytes = expected(page);
            }
            let len = HEADER + pages as usize * PAGE_SIZE;
            stream.write_all(&answer[..len]).unwrap();
        }
        heard
    };
    (port, std::thread::spawn(body))
}

#[test]
fn pages_come_from_a_page_server() {
    if !able_to_follow() {
        return;
    }
    let mut task = memory(500);
    let (port, thread) = page_server(task.address(0) as u64);
    let place = tempfile::tempdir().unwrap();
    dump::tasks(place.path(), &[101]);
    dump::task(place.path(), 101, &task, 500, LAZY);
    let port = port.to_string();
    let options = ["--page-server", "--address", "127.0.0.1", "--port", &port];
    let server = serve(place, &options);
    let restore = Restore::connect(&server);
    restore.task(101, &mut task);
    let task = within_time(move || {
        task.verify(100, 10, 100);
        task
    });
    restore.say(FINISHED);
    is_fine(server);
    within_time(move || task.verify(0, 500, 0));
    let heard = thread.join().unwrap();
    assert_eq!(heard.last(), Some(&0x1023));
    assert!(heard.len() > 500 / 3, "{}", heard.len());
}

/// Told to end, it does not wait for the page server: what has not come is lost, and no zeros.
#[test]
fn a_page_server_that_does_not_answer_holds_up_no_end() {
    let name = "page_server::a_page_server_that_does_not_answer_holds_up_no_end";
    match in_own_process(name) {
        Some(status) => return assert!(status.success(), "{status}"),
        None if !able_to_lose() => return,
        None => {}
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap().to_string();
    let mut task = memory(300);
    let place = tempfile::tempdir().unwrap();
    dump::tasks(place.path(), &[101]);
    dump::task(place.path(), 101, &task, 300, LAZY);
    let server = serve(place, &["--page-server", &at]);
    let restore = Restore::connect(&server);
    restore.task(101, &mut task);
    restore.say(FINISHED);
    let (mut connection, _) = silent.accept().unwrap();
    connection.read_exact(&mut [0; 24]).unwrap();
    server.tell();
    server.wait_for("the message", |server| {
        server.log().contains("another signal")
    });
    let (status, log, _place) = server.end();
    assert_eq!(status.code(), Some(5), "{log}");
    assert!(log.contains("lost: 300 pages"), "{log}");
    assert!(is_killed_by_sigbus(|| task.read(100) == ZEROS));
}
