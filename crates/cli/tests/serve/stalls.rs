//! A source of pages that does not answer when the server is told to end: the guests that wait for
//! it are ended, or left, as the user chose, and that is said. The first test has a real store that
//! was stopped; in the second the server is in this process, so that its source stalls for ever.
use std::sync::{Arc, Condvar, Mutex};
use std::thread::sleep;
use std::time::Duration;

use pagetide::track::SnapshotId;
use pagetide_kernel::PAGE_SIZE;
use pagetide_serve::counters::Origin;
use pagetide_serve::plan::{OnLost, Plan};
use pagetide_serve::server::{Failed, Setup};
use pagetide_serve::source::{Buffer, Bytes, Piece, Source, SourceError};
use pagetide_serve::status::About;

use super::deaths::{PAGES, client_at, is_killed};
use super::guest::{expected, within_time};
use super::held::HeldStore;
use super::packed::packed;
use super::server::{Server, inside, write_image};
use super::{ZEROS, able};

/// How long the real store does not answer: longer than a server that gives up early waits.
const STOPPED: Duration = Duration::from_secs(7);
/// The pages that come, of the source that stalls.
const COMING: u64 = 1000;

#[test]
fn a_guest_whose_store_stalls_at_the_end_is_not_left_waiting() {
    if !able() {
        return;
    }
    let Some(store) = HeldStore::start() else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("image");
    write_image(&image, PAGES);
    packed(&image, &store.uri(), &["--remove-pages"]);
    let arguments = ["firecracker", "socket", "image.pages", "--status", "status"];
    let server = Server::start(place, &arguments, "is served at");
    let (mut guest, _said) = client_at(&server.socket(), "waiting");
    store.stall();
    drop(guest.stdin.take());
    server.wait_for("that a page is asked for", |_| store.is_asked());
    server.tell();
    sleep(STOPPED);
    store.go_on();
    let (status, log, _place) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("not all of its pages are there"), "{log}");
    assert!(is_killed(guest));
}

#[derive(Debug, Default)]
struct State {
    /// Somebody has asked for a page that does not come.
    is_asked: bool,
    /// They come after all.
    may_come: bool,
}

/// An image some of whose pages do not come before that is allowed.
#[derive(Debug)]
struct Stalling {
    pages: Vec<[u8; PAGE_SIZE]>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Stalling {
    fn wait_until(&self, is_so: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !is_so(state)));
    }

    fn change(&self, how: impl FnOnce(&mut State)) {
        how(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }
}

impl Source for Stalling {
    fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    fn id(&self) -> SnapshotId {
        SnapshotId::NONE
    }

    fn origin(&self, first: u64) -> Origin {
        match self.pages[first as usize] == ZEROS {
            true => Origin::Zeros,
            false => Origin::Image,
        }
    }

    fn read<'b>(&'b self, first: u64, _: u64, _: &'b mut Buffer) -> Result<Piece<'b>, SourceError> {
        if first >= COMING {
            self.change(|state| state.is_asked = true);
            self.wait_until(|state| state.may_come);
        }
        Ok(Piece::Bytes(Bytes::of(&self.pages[first as usize])))
    }

    fn read_into(&self, first: u64, into: &mut [u8], _: &mut Buffer) -> Result<(), SourceError> {
        into.copy_from_slice(&self.pages[first as usize]);
        Ok(())
    }
}

#[test]
fn a_guest_whose_source_never_answers_is_given_up_and_that_is_said() {
    if !able() {
        return;
    }
    for on_lost in [OnLost::Kill, OnLost::Leave] {
        let source = Arc::new(Stalling {
            pages: (0..PAGES).map(expected).collect(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let said = Arc::new(Mutex::new(String::new()));
        let say = Arc::clone(&said);
        let setup = Setup {
            source: Arc::clone(&source) as _,
            plan: Plan {
                on_lost,
                ..Plan::default()
            },
            recorder: None,
            clients_max: 9,
            patience: Duration::from_millis(300),
            say: Arc::new(move |text| *say.lock().unwrap() += text),
            about: About::default(),
        };
        let place = tempfile::tempdir().unwrap();
        let (socket, ending, thread) = inside(place.path(), setup);
        let (mut guest, _said) = client_at(&socket, "waiting");
        let (idle, _said) = client_at(&socket, "waiting");
        drop(guest.stdin.take());
        let stalled = Arc::clone(&source);
        within_time(move || stalled.wait_until(|state| state.is_asked));
        ending.come();
        let result = within_time(move || thread.join().unwrap());
        let said = said.lock().unwrap().clone();
        // The other one misses pages as well, and its thread answers.
        assert!(matches!(result, Err(Failed::GivenUp(1))), "{result:?}");
        assert!(said.contains("client 1 is given up"), "{said}");
        match on_lost {
            OnLost::Kill => assert!(is_killed(guest) && is_killed(idle)),
            _ => {
                assert!(said.contains("is left waiting"), "{said}");
                for mut left in [guest, idle] {
                    assert_eq!(left.try_wait().unwrap(), None);
                    left.kill().unwrap();
                    left.wait().unwrap();
                }
            }
        }
        // The thread that is left behind goes on to its end.
        source.change(|state| state.may_come = true);
    }
}
