//! `pagetide serve criu` with what does as CRIU's restore: memory, a userfaultfd that tells of
//! everything, a process ID and a descriptor for each task, and the word that it is finished. What
//! forks or is killed is a process of its own.
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use pagetide_kernel::uffd::{Uffd, feature, open};

use super::dump::{self, LAZY, PRESENT};
use super::guest::{Guest, expected, send, within_time};
use super::server::{PAGETIDE, Server};
use super::support::skip::skipped;
use super::{ZEROS, able};

/// What CRIU asks for.
const FEATURES: u64 =
    feature::EVENT_FORK | feature::EVENT_REMAP | feature::EVENT_UNMAP | feature::EVENT_REMOVE;
pub const FINISHED: i32 = 0x5253_5446;
/// Set where a test is to do its work, and not to start a process for it.
const WORKER: &str = "PAGETIDE_TEST_CRIU_WORKER";
/// Pages of each task's memory that the dump has nothing in.
const BEYOND: u64 = 20;

/// Whether a userfaultfd with all events can be had; says so if not.
pub fn able_to_follow() -> bool {
    if !able() {
        return false;
    }
    let made = Uffd::negotiate(open(None).unwrap(), FEATURES);
    if let Err(errno) = made {
        skipped(
            "serve criu",
            &format!("no userfaultfd that tells of forks: {errno}"),
        );
    }
    made.is_ok()
}

/// Whether pages can be marked as lost as well (Linux 6.6); says so if not.
pub fn able_to_lose() -> bool {
    if !able_to_follow() {
        return false;
    }
    let features = Uffd::kernel_features(open(None).unwrap()).unwrap();
    if features & feature::POISON == 0 {
        skipped("serve criu", "lost pages: no UFFDIO_POISON");
    }
    features & feature::POISON != 0
}

/// Memory of a task with `pages` pages in the dump.
pub fn memory(pages: u64) -> Guest {
    Guest::new(pages + BEYOND, FEATURES)
}

/// The command over the dump in `place`.
pub fn serve(place: tempfile::TempDir, options: &[&str]) -> Server {
    let arguments = ["criu", "--images-dir", ".", "--status", "status"];
    let arguments = [&arguments[..], options].concat();
    Server::start(place, &arguments, "can be restored")
}

/// Tasks 101, 102, ... with these memories, all in one dump.
fn serve_tasks(tasks: &[&Guest], options: &[&str]) -> Server {
    let place = tempfile::tempdir().unwrap();
    let pids: Vec<u32> = (101..101 + tasks.len() as u32).collect();
    // One more had ended, and was not waited for.
    dump::tasks(place.path(), &[&pids[..], &[900]].concat());
    for (pid, guest) in pids.iter().zip(tasks) {
        let pages = guest.pages() - BEYOND;
        dump::task(place.path(), *pid, guest, pages, LAZY | PRESENT);
    }
    serve(place, options)
}

/// A restore that is under way.
pub struct Restore(UnixStream);

impl Restore {
    pub fn connect(server: &Server) -> Restore {
        Restore(UnixStream::connect(server.path("lazy-pages.socket")).unwrap())
    }

    /// Hands over a task, as CRIU does.
    pub fn task(&self, pid: i32, guest: &mut Guest) {
        send(&self.0, &pid.to_le_bytes(), &[]);
        let uffd = guest.hand_over();
        send(&self.0, &[0], &[uffd.as_fd()]);
    }

    pub fn say(&self, word: i32) {
        send(&self.0, &word.to_le_bytes(), &[]);
    }
}

/// The server of one task, and its restore up to the last word.
fn begun(guest: &mut Guest, options: &[&str]) -> (Server, Restore) {
    let server = serve_tasks(&[guest], options);
    let restore = Restore::connect(&server);
    restore.task(101, guest);
    server.wait_for("the task", |server| server.clients() == 1);
    (server, restore)
}

pub fn is_fine(server: Server) -> String {
    let (status, log, _place) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    log
}

/// Runs the test of this name, its module included, in a process of its own, where it does its
/// work; `None` there.
pub fn in_own_process(name: &str) -> Option<ExitStatus> {
    if std::env::var_os(WORKER).is_some() {
        return None;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(WORKER, "1")
        .spawn()
        .unwrap();
    Some(within_time(move || child.wait().unwrap()))
}

#[test]
fn all_pages_come_and_then_the_command_ends() {
    if !able_to_follow() {
        return;
    }
    let (mut one, mut other) = (memory(700), memory(300));
    let server = serve_tasks(&[&one, &other], &[]);
    let restore = Restore::connect(&server);
    restore.task(101, &mut one);
    restore.say(-900);
    restore.task(102, &mut other);
    // Tasks touch memory before the restore is finished. Nothing else comes until then.
    let one = within_time(move || {
        one.verify(0, 5, 0);
        one.verify(300, 1, 300);
        assert_eq!(one.read(705), ZEROS);
        one
    });
    server.counts(&["fault_pages"], 6);
    let came = ["block_pages", "background_pages"];
    server.counts(&came, 0);
    server.counts(&["beyond_pages"], 1);
    server.wait_for("both", |server| server.clients() == 2);
    restore.say(FINISHED);
    let log = is_fine(server);
    assert_eq!(log.matches("all its pages are there").count(), 2, "{log}");
    within_time(move || {
        one.verify(0, 700, 0);
        other.verify(0, 300, 0);
        // Nobody serves them any more, and nobody needs to.
        assert_eq!((one.read(719), other.read(300)), (ZEROS, ZEROS));
    });
}

#[test]
fn what_tasks_do_to_their_memory_is_followed() {
    if !able_to_follow() {
        return;
    }
    let mut task = memory(1000);
    let place = Guest::new(400, 0);
    let (server, restore) = begun(&mut task, &[]);
    let (task, place) = within_time(move || {
        task.verify(200, 10, 200);
        // Touched and not touched.
        task.move_to(150, 100, &place, 0);
        task.give_up(50, 60);
        task.unmap(400, 50);
        place.verify(40, 20, 190);
        assert_eq!(task.read(55), ZEROS);
        // Once more, and what was given up moves too.
        place.move_to(70, 30, &place, 200);
        task.move_to(90, 30, &place, 300);
        place.verify(210, 5, 230);
        place.verify(320, 10, 110);
        assert_eq!(place.read(305), ZEROS);
        (task, place)
    });
    server.counts(&["moves"], 3);
    server.counts(&["removed_pages"], 60);
    restore.say(FINISHED);
    is_fine(server);
    within_time(move || {
        task.verify(0, 50, 0);
        (50..90).for_each(|page| assert_eq!(task.read(page), ZEROS, "{page}"));
        task.verify(120, 30, 120);
        task.verify(250, 150, 250);
        task.verify(450, 550, 450);
        place.verify(0, 70, 150);
        place.verify(200, 30, 220);
        (300..320).for_each(|page| assert_eq!(place.read(page), ZEROS, "{page}"));
        place.verify(320, 10, 110);
    });
}

/// What `work` says in a forked child.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only reads memory and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let code = i32::from(!work());
            // SAFETY: ends this process.
            unsafe { nix::libc::_exit(code) }
        }
        ForkResult::Parent { child } => {
            matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0)))
        }
    }
}

fn is_image(guest: &Guest, first: u64, pages: u64, image: u64) -> bool {
    (0..pages).all(|page| guest.read(first + page) == expected(image + page))
}

#[test]
fn a_forked_child_has_what_its_parent_had() {
    match in_own_process("criu::a_forked_child_has_what_its_parent_had") {
        Some(status) => return assert!(status.success(), "{status}"),
        None if !able_to_follow() => return,
        None => {}
    }
    let mut task = memory(600);
    let place = Guest::new(100, 0);
    let (server, restore) = begun(&mut task, &[]);
    task.verify(0, 30, 0);
    task.give_up(10, 40);
    task.move_to(100, 50, &place, 7);
    assert!(in_child(|| {
        let zeros = (10..50).all(|page| task.read(page) == ZEROS);
        let kept = is_image(&task, 0, 10, 0) && is_image(&task, 50, 50, 50);
        // A child of the child's.
        let grandchild = || is_image(&place, 7, 50, 100) && task.read(610) == ZEROS;
        zeros && kept && in_child(grandchild) && is_image(&task, 150, 450, 150)
    }));
    server.counts(&["forks"], 2);
    assert!(is_image(&task, 150, 450, 150));
    restore.say(FINISHED);
    is_fine(server);
}

/// Events of several threads come in any order.
#[test]
fn threads_move_memory_while_others_fork() {
    const BLOCK: u64 = 16;
    const BLOCKS: u64 = 40;
    match in_own_process("criu::threads_move_memory_while_others_fork") {
        Some(status) => return assert!(status.success(), "{status}"),
        None if !able_to_follow() => return,
        None => {}
    }
    let mut task = memory(4 * BLOCK * BLOCKS);
    let places: Vec<Guest> = (0..3).map(|_| Guest::new(BLOCK * BLOCKS, 0)).collect();
    let (server, restore) = begun(&mut task, &[]);
    let fixed = 3 * BLOCK * BLOCKS;
    std::thread::scope(|scope| {
        for (number, place) in (0u64..).zip(&places) {
            let task = &task;
            scope.spawn(move || {
                for block in 0..BLOCKS {
                    let (from, at) = ((number * BLOCKS + block) * BLOCK, block * BLOCK);
                    task.move_to(from, BLOCK, place, at);
                    if block % 3 == 0 {
                        place.verify(at + 3, 5, from + 3);
                    }
                    if block % 5 == 4 {
                        place.unmap(at, BLOCK);
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..10 {
                let pages = (fixed + round..fixed + BLOCK * BLOCKS).step_by(7);
                let mut pages = pages.take(60);
                assert!(in_child(|| pages.all(|page| is_image(&task, page, 1, page))));
            }
        });
    });
    restore.say(FINISHED);
    is_fine(server);
    for (number, place) in (0u64..).zip(&places) {
        for block in (0..BLOCKS).filter(|block| block % 5 != 4) {
            place.verify(block * BLOCK, BLOCK, (number * BLOCKS + block) * BLOCK);
        }
    }
    task.verify(fixed, BLOCK * BLOCKS, fixed);
}

#[test]
fn a_lost_page_is_sigbus_and_nobody_elses_affair() {
    let name = "criu::a_lost_page_is_sigbus_and_nobody_elses_affair";
    match in_own_process(name) {
        Some(status) => return assert!(status.success(), "{status}"),
        None if !able_to_lose() => return,
        None => {}
    }
    let (mut one, mut other) = (memory(200), memory(200));
    let server = serve_tasks(&[&one, &other], &[]);
    let file = std::fs::File::options()
        .write(true)
        .open(server.path("pages-101.img"));
    file.unwrap().set_len(100 * 4096).unwrap();
    let restore = Restore::connect(&server);
    restore.task(101, &mut one);
    restore.task(102, &mut other);
    one.verify(0, 100, 0);
    restore.say(FINISHED);
    let (status, log, _place) = server.ended();
    assert_eq!(status.code(), Some(5), "{log}");
    assert!(log.contains("lost: 100 pages"), "{log}");
    other.verify(0, 200, 0);
    one.verify(0, 100, 0);
    assert!(is_killed_by_sigbus(|| one.read(150) == ZEROS));
}

/// Whether a forked child that does `work` is ended by SIGBUS.
pub fn is_killed_by_sigbus(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only reads memory and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            std::hint::black_box(work());
            // SAFETY: ends this process.
            unsafe { nix::libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            let status = waitpid(child, None);
            matches!(
                status,
                Ok(WaitStatus::Signaled(_, nix::sys::signal::Signal::SIGBUS, _))
            )
        }
    }
}

#[test]
fn it_ends_early_only_when_told_twice() {
    match in_own_process("criu::it_ends_early_only_when_told_twice") {
        Some(status) => return assert!(status.success(), "{status}"),
        None if !able_to_lose() => return,
        None => {}
    }
    let mut task = memory(300);
    let (mut server, restore) = begun(&mut task, &[]);
    task.verify(0, 50, 0);
    server.tell();
    server.wait_for("the message", |server| {
        server.log().contains("another signal")
    });
    task.verify(50, 50, 50);
    assert!(server.runs());
    let (status, log, _place) = server.end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("200 pages did not come"), "{log}");
    task.verify(0, 100, 0);
    assert!(is_killed_by_sigbus(|| task.read(100) == ZEROS));
    drop(restore);
}

#[test]
fn a_task_that_dies_is_nobody_elses_affair() {
    const STEP: &str = "PAGETIDE_TEST_CRIU_SOCKET";
    if let Ok(socket) = std::env::var(STEP) {
        // The task that dies.
        let mut task = memory(10);
        let connection = UnixStream::connect(&socket).unwrap();
        let address = task.address(0) as u64;
        send(&connection, &address.to_le_bytes(), &[]);
        let uffd = task.hand_over();
        send(&connection, &[0], &[uffd.as_fd()]);
        drop(uffd);
        loop {
            std::thread::park();
        }
    }
    if !able_to_follow() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("meeting");
    let meeting = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "criu::a_task_that_dies_is_nobody_elses_affair"])
        .env(STEP, &socket)
        .spawn()
        .unwrap();
    let (mut from, _) = meeting.accept().unwrap();
    let mut address = [0; 8];
    from.read_exact(&mut address).unwrap();
    let mut uffd = super::guest::receive(&from);
    let mut other = memory(400);
    dump::tasks(place.path(), &[101, 102]);
    dump::task(place.path(), 102, &other, 400, LAZY | PRESENT);
    let start = u64::from_le_bytes(address);
    dump::task_at(place.path(), 101, start, 10, 10, LAZY | PRESENT);
    let server = serve(place, &[]);
    let restore = Restore::connect(&server);
    restore.say(101);
    send(&restore.0, &[0], &[uffd.take().unwrap().as_fd()]);
    restore.task(102, &mut other);
    server.wait_for("both", |server| server.clients() == 2);
    child.kill().unwrap();
    child.wait().unwrap();
    restore.say(FINISHED);
    let log = is_fine(server);
    assert!(log.contains("client 1 (process 101): ended"), "{log}");
    within_time(move || other.verify(0, 400, 0));
}

#[test]
fn the_pages_waited_for_come_first_the_next_time() {
    if !able_to_follow() {
        return;
    }
    let touched: Vec<u64> = (0..40).map(|step| step * 337 % 900).collect();
    let mut task = memory(900);
    let (server, restore) = begun(&mut task, &["--record", "set"]);
    restore.say(FINISHED);
    let pages = touched.clone();
    let task = within_time(move || {
        pages
            .into_iter()
            .for_each(|page| task.verify(page, 1, page));
        task
    });
    server.counts(&["fault_pages"], 40);
    server.counts(&["background_pages", "block_pages"], 0);
    // The recording ends, and all others come.
    server.tell();
    let (status, log, place) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    let mut task = within_time(move || {
        task.verify(0, 900, 0);
        task
    });
    // The same memory again.
    task.renew(FEATURES);
    let server = serve(place, &["--replay", "set"]);
    let restore = Restore::connect(&server);
    restore.task(101, &mut task);
    restore.say(FINISHED);
    let log = is_fine(server);
    assert!(log.contains("900 before anybody asked"), "{log}");
    within_time(move || task.verify(0, 900, 0));
    // Of other images it says nothing.
    let other = memory(900);
    let place = tempfile::tempdir().unwrap();
    dump::tasks(place.path(), &[101]);
    dump::task(place.path(), 101, &other, 900, LAZY | PRESENT);
    std::fs::write(place.path().join("set"), "nothing").unwrap();
    let output = Command::new(PAGETIDE)
        .args(["serve", "criu", "-D", ".", "--replay", "set"])
        .current_dir(place.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}

/// The restore has failed, and its task lives: CRIU would have ended it.
fn ends_with_failure(server: Server, why: &str) {
    server.wait_for("the message", |server| server.log().contains(why));
    server.tell();
    server.wait_for("another", |server| server.log().contains("another signal"));
    let (status, log, _place) = server.end();
    assert_eq!(status.code(), Some(1), "{log}");
}

#[test]
fn what_cannot_be_restored_is_said() {
    if !able_to_follow() {
        return;
    }
    let mut task = memory(50);
    for (word, why) in [
        (4711, "task 4711, which the images do not know"),
        (0, "task 0, which"),
    ] {
        let (server, restore) = begun(&mut task, &[]);
        restore.say(word);
        send(&restore.0, &[0], &[std::io::stdin().as_fd()]);
        ends_with_failure(server, why);
        task = memory(50);
    }
    let (server, restore) = begun(&mut task, &[]);
    drop(restore);
    ends_with_failure(server, "before the restore was finished");
    let output = Command::new(PAGETIDE)
        .args(["serve", "criu", "-D", "/"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("/pstree.img: "), "{text}");
}

#[test]
fn whoever_waits_is_told_that_a_restore_can_begin() {
    let guest = Guest::new(30, 0);
    let place = tempfile::tempdir().unwrap();
    dump::tasks(place.path(), &[101]);
    dump::task(place.path(), 101, &guest, 10, LAZY | PRESENT);
    let (mut told, tell) = std::io::pipe().unwrap();
    let mut child = Command::new("/bin/sh")
        .args([
            "-c",
            "exec \"$0\" serve criu -v4 -D \"$1\" -o log --status-fd 7 7>&1",
        ])
        .arg(PAGETIDE)
        .arg(place.path())
        .stdout(tell)
        .spawn()
        .unwrap();
    let mut byte = [9];
    told.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [0]);
    let restore = UnixStream::connect(place.path().join("lazy-pages.socket")).unwrap();
    send(&restore, &FINISHED.to_le_bytes(), &[]);
    let status = within_time(move || child.wait().unwrap());
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    let log = std::fs::read_to_string(place.path().join("log")).unwrap();
    assert!(log.contains("1 task (40 KiB) can be restored"), "{log}");
}
