//! A second thread that brings pages holds still while the userfaultfd is read. Here the server is
//! in this process, so that its image can hold up that thread alone.
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use pagetide::track::SnapshotId;
use pagetide_kernel::PAGE_SIZE;
use pagetide_serve::counters::Origin;
use pagetide_serve::plan::{OnLost, Plan, Rate};
use pagetide_serve::server::{ENDING, Setup};
use pagetide_serve::source::{Buffer, Bytes, Piece, Source, SourceError};
use pagetide_serve::status::About;

use super::guest::{Guest, within_time};
use super::server::inside;
use super::support::patience::up_to;
use super::support::skip::skipped;
use super::{ZEROS, able};

const PAGES: u64 = 4096;
const BYTE: u8 = 0xa5;
/// What comes at once at most, in pages.
const AREA_PAGES: usize = 64;
/// How long the second thread is held up by somebody who waits for it.
const HELD: Duration = Duration::from_millis(500);

/// How long the first read of the client's own thread takes, after which it has a second one, and
/// each while that is held up: it is not to come to the end of the image, where it waits for it.
const SLOW: Duration = Duration::from_millis(5);

/// An image of equal pages. The client's own thread waits in its second read for the other one to
/// come. That waits in its first: it tells which page it installs last, and goes on when that was
/// given up, or whoever gives it up waits for the thread.
#[derive(Debug)]
struct Holding {
    bytes: Vec<u8>,
    first: Mutex<Option<(Sender<u64>, Receiver<()>)>>,
    is_held: AtomicBool,
    has_read: AtomicBool,
}

impl Holding {
    /// How the second thread reads what ends with `last`.
    fn wait_in_first_read(&self, last: u64) {
        let held = self.first.lock().unwrap().take();
        if let Some((asked, given_up)) = held {
            self.is_held.store(true, SeqCst);
            asked.send(last).unwrap();
            let _ = given_up.recv_timeout(HELD);
            self.is_held.store(false, SeqCst);
        }
    }

    /// How the client's own thread reads.
    fn read_slowly(&self) {
        let is_first = !self.has_read.swap(true, SeqCst);
        if is_first || self.is_held.load(SeqCst) {
            return sleep(SLOW);
        }
        let since = Instant::now();
        while self.first.lock().unwrap().is_some() && since.elapsed() < up_to(30) {
            sleep(Duration::from_millis(1));
        }
    }
}

impl Source for Holding {
    fn pages(&self) -> u64 {
        PAGES
    }

    fn id(&self) -> SnapshotId {
        SnapshotId::NONE
    }

    fn origin(&self, _: u64) -> Origin {
        Origin::Image
    }

    fn read<'b>(
        &'b self,
        first: u64,
        most: u64,
        _: &'b mut Buffer,
    ) -> Result<Piece<'b>, SourceError> {
        match std::thread::current().name() {
            Some("pagetide-second") => self.wait_in_first_read(first + most - 1),
            _ => self.read_slowly(),
        }
        let bytes = &self.bytes[..(most as usize).min(AREA_PAGES) * PAGE_SIZE];
        Ok(Piece::Bytes(Bytes::of(bytes)))
    }

    fn read_into(&self, _: u64, into: &mut [u8], _: &mut Buffer) -> Result<(), SourceError> {
        into.fill(BYTE);
        Ok(())
    }
}

/// Without that, the page would be given up and then installed.
#[test]
fn what_the_second_thread_is_about_to_install_is_not_given_up_beside_it() {
    if !able() {
        return;
    }
    if available_parallelism().is_ok_and(|processors| processors.get() < 2) {
        return skipped("serve", "there is no second thread on one processor");
    }
    let (asked, last_page) = channel();
    let (gone, given_up) = channel();
    let source = Holding {
        bytes: vec![BYTE; AREA_PAGES * PAGE_SIZE],
        first: Mutex::new(Some((asked, given_up))),
        is_held: AtomicBool::new(false),
        has_read: AtomicBool::new(false),
    };
    let setup = Setup {
        source: Arc::new(source),
        plan: Plan {
            rate: Rate::Unlimited,
            on_lost: OnLost::Leave,
            ..Plan::default()
        },
        recorder: None,
        clients_max: 1,
        patience: ENDING,
        say: Arc::new(|_| {}),
        about: About::default(),
    };
    let place = tempfile::tempdir().unwrap();
    let (socket, ending, thread) = inside(place.path(), setup);
    within_time(move || {
        let guest = Guest::connected(PAGES, &socket);
        let page = last_page.recv().unwrap();
        guest.give_up(page, 1);
        // Nobody may be there any more to be told.
        let _ = gone.send(());
        let others = (0..PAGES).filter(|other| *other != page);
        others.for_each(|other| assert_eq!(guest.read(other), [BYTE; PAGE_SIZE], "{other}"));
        assert_eq!(guest.read(page), ZEROS, "it came back");
    });
    ending.come();
    thread.join().unwrap().unwrap();
}
