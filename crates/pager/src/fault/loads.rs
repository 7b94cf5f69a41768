//! Requests served by the fault thread: pages to load, memory to attach or detach.
use rustix::io::Errno;

use super::handler::{Fault, Outcome};
use super::thread::FaultThread;
use crate::page::word::State;
use crate::requests::{Load, Request};

/// Pages of a load request served between two looks for faults.
const LOAD_SLICE: usize = 16;

impl FaultThread<'_> {
    pub(super) fn serve_requests(&mut self) -> bool {
        let requests = self.pager.requests.take();
        let any = !requests.is_empty();
        for request in requests {
            match request {
                Request::Attach(range, done) => done.finish(self.attach(range)),
                Request::Detach(range, done) => done.finish(self.detach(range)),
                Request::Load { range, must, done } => self.loads.push_back(Load {
                    rest: range,
                    must,
                    done,
                }),
            }
        }
        any
    }

    /// Serves a slice of the oldest load request. Returns whether it made headway.
    pub(super) fn serve_loads(&mut self) -> bool {
        self.load_waits = false;
        let Some(mut load) = self.loads.pop_front() else {
            return false;
        };
        let mut headway = false;
        for _ in 0..LOAD_SLICE {
            if load.rest.is_empty() {
                break;
            }
            let page = load.rest.start;
            let word = self.pager.table.load(page);
            if word.state() == State::Stored {
                let fetched = self.handler.load_run(load.rest);
                if fetched > 0 {
                    load.rest = load.rest.after(fetched);
                    headway = true;
                    break;
                }
            }
            let outcome = match word.state() {
                State::Poisoned => {
                    load.done.finish(Err(Errno::IO));
                    return true;
                }
                State::Resident | State::Clean => Outcome::Installed,
                // It stays, unless it has just left that state: it is looked at again.
                State::Protecting => {
                    self.pager.table.update(page, |now| match now.state() {
                        State::Protecting => now.recalled(),
                        _ => now,
                    });
                    continue;
                }
                _ => self.handler.serve(Fault {
                    page,
                    write: false,
                    write_protect: false,
                    read_at_ns: 0,
                    waited: false,
                }),
            };
            match outcome {
                Outcome::Installed => {}
                // Nothing is mapped there.
                Outcome::Woken if self.pager.table.load(page).state() == word.state() => {}
                // Someone else was quicker, perhaps the evictor: it is looked at again.
                Outcome::Woken => continue,
                Outcome::NoRoom if !load.must => {
                    load.done.finish(Err(Errno::NOBUFS));
                    return true;
                }
                Outcome::Busy | Outcome::NoRoomForOldBytes => break,
                Outcome::NoRoom | Outcome::EventPending => {
                    self.load_waits = true;
                    self.ask_for_room();
                    break;
                }
            }
            load.rest.start = page.add(1);
            headway = true;
        }
        if load.rest.is_empty() {
            load.done.finish(Ok(()));
        } else {
            self.loads.push_front(load);
        }
        headway
    }
}
