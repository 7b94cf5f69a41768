//! Protecting a page that a pager's thread is just installing, or just making writable, under every
//! interleaving (loom): a page that ends protected and present is protected in the kernel, and no
//! write goes unnoticed.
//!
//! The steps are those of `pager::write_notification`, `track::guard` and `pager::fault`. Each is
//! one atomic operation (all of them sequentially consistent) or one system call, so the model
//! takes each under a lock. What the real code tries again is left undone here.
use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;

#[derive(Default)]
struct State {
    sections: u32,
    closing: bool,
    /// The tracker's mark.
    open: bool,
    present: bool,
    protected: bool,
    written: bool,
    /// The write was told before it went through.
    noticed: bool,
}

struct Page(Mutex<State>);

impl Page {
    fn new(present: bool, open: bool) -> Arc<Page> {
        Arc::new(Page(Mutex::new(State {
            open,
            present,
            protected: present && !open,
            ..State::default()
        })))
    }

    fn step<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }

    fn enter(&self) -> bool {
        self.step(|state| state.sections += 1);
        let closing = self.step(|state| state.closing);
        if closing {
            self.leave();
        }
        !closing
    }

    fn leave(&self) {
        self.step(|state| state.sections -= 1);
    }

    /// A fault on a missing page: installed as the mark says.
    fn install(&self) {
        if self.enter() {
            let protect = self.step(|state| !state.open);
            self.step(|state| {
                // UFFDIO_COPY never overwrites a page.
                if !state.present {
                    (state.present, state.protected) = (true, protect);
                }
            });
            self.leave();
        }
    }

    /// A write: a fault if the page is protected.
    fn write(&self) {
        if self.step(|state| state.present && state.protected) && self.enter() {
            if !self.step(|state| state.open) {
                self.step(|state| state.noticed = true);
            }
            self.step(|state| state.protected = false);
            self.step(|state| state.open = true);
            self.leave();
        }
        self.step(|state| state.written |= state.present && !state.protected);
    }

    fn protect(&self) {
        self.step(|state| state.protected |= state.present);
    }

    /// Nobody may enter from now on; false if a section is open still, when it is given up.
    fn begin_protecting(&self) -> bool {
        self.step(|state| state.closing = true);
        self.step(|state| state.sections == 0)
    }

    fn end_protecting(&self) {
        self.step(|state| state.closing = false);
    }

    /// Many pages: marks away, every open section has ended once, protect. Given up, everything
    /// counts as written and open.
    fn close_many(&self) -> bool {
        self.step(|state| state.open = false);
        let empty = self.begin_protecting();
        self.end_protecting();
        match empty {
            true => self.protect(),
            false => {
                self.step(|state| state.noticed = true);
                self.step(|state| state.open = true);
            }
        }
        empty
    }

    /// Few pages: while no section is open.
    fn close_few(&self) -> bool {
        let empty = self.begin_protecting();
        if empty && self.step(|state| std::mem::take(&mut state.open)) {
            self.protect();
        }
        self.end_protecting();
        empty
    }

    fn close(&self, few: bool) -> bool {
        if few {
            self.close_few()
        } else {
            self.close_many()
        }
    }

    fn assert_protection_holds(&self) {
        self.step(|state| assert!(state.open || !state.present || state.protected));
    }
}

/// All interleavings with at most four preemptions: more take minutes. The model's first thread
/// only starts and joins the others, for not all orders with what it does itself are tried.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(model);
}

#[test]
fn a_page_installed_while_it_is_being_protected_ends_protected() {
    for few in [false, true] {
        check(move || {
            let page = Page::new(false, true);
            let (other, closing) = (Arc::clone(&page), Arc::clone(&page));
            let installer = thread::spawn(move || other.install());
            let closer = thread::spawn(move || closing.close(few));
            closer.join().unwrap();
            installer.join().unwrap();
            page.assert_protection_holds();
        });
    }
}

#[test]
fn a_page_written_while_it_is_being_protected_ends_open_or_protected() {
    for few in [false, true] {
        check(move || {
            let page = Page::new(true, false);
            let (other, closing) = (Arc::clone(&page), Arc::clone(&page));
            let writer = thread::spawn(move || other.write());
            let closer = thread::spawn(move || closing.close(few));
            closer.join().unwrap();
            writer.join().unwrap();
            page.assert_protection_holds();
            page.step(|state| assert!(!state.written || state.noticed));
        });
    }
}

/// The instant: the writer is held while pages are protected; another thread's fault is not.
#[test]
fn a_write_after_the_instant_is_noticed_whoever_installs_the_page() {
    for few in [false, true] {
        check(move || {
            let page = Page::new(false, true);
            let (other, held) = (Arc::clone(&page), Arc::clone(&page));
            let reader = thread::spawn(move || other.install());
            let writer = thread::spawn(move || {
                let armed = held.close(few);
                // Let go.
                held.install();
                held.write();
                armed
            });
            let armed = writer.join().unwrap();
            reader.join().unwrap();
            page.step(|state| assert!(!armed || !state.written || state.noticed));
        });
    }
}
