//! One client: reading its userfaultfd, and answering.
//!
//! One thread does all for a client, in this order: the events that have been read are acted on,
//! then faults are answered, then comes what nobody waits for, a little at a time. The kernel holds
//! back whoever raised an event until it has been read, and installs nothing until then. So a page
//! that the client gives up is known as given up before the kernel empties it, and what is
//! installed after that is zeros.
//!
//! Events of several threads can be read in another order than the one things happened in. Here
//! that makes no difference, so they are not put in order as the pager does: memory is only given
//! up and unmapped, both for good ([`crate::memory`]), nothing is moved or comes later, and clients
//! whose userfaultfd tells of moves and forks are refused ([`refuses`]).
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagetide_kernel::PageNumber;
use pagetide_kernel::peer::Peer;
use pagetide_kernel::uffd::{Event, Message, Uffd, feature};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::counters::{Counters, Histogram, count};
use crate::ending::Ending;
use crate::fill::{Fill, Next, Why};
use crate::install::{Failure, Installer, Put};
use crate::memory::{Area, Memory};
use crate::plan::{OnLost, Plan};
use crate::record::Recorder;
use crate::source::{Buffer, Source, SourceError};

/// Messages read at once.
const MESSAGES: usize = 64;
/// After what time is tried again what an event has put off, at first and at most: whoever raised
/// it may have been stopped.
const LATER: Duration = Duration::from_micros(200);
const LATER_MAX: Duration = Duration::from_millis(50);
/// So many faults in a row that find their page there already, or that are where no memory is any
/// more, are no chance: the client makes faults of a kind that is not served.
const IDLE_FAULTS_MAX: u32 = 100_000;
/// How long the system may be without memory for a page that is waited for.
const NO_MEMORY_MAX: Duration = Duration::from_secs(10);

/// Features of a userfaultfd that this can serve: events that tell of memory given up, and what
/// changes nothing for who serves.
const UNDERSTOOD: u64 = !(feature::EVENT_FORK | feature::EVENT_REMAP | feature::SIGBUS);
/// Features with which a client may protect memory by the same userfaultfd: it is never released.
const PROTECTING: u64 = feature::PAGEFAULT_FLAG_WP
    | feature::WP_ASYNC
    | feature::WP_UNPOPULATED
    | feature::WP_HUGETLBFS_SHMEM
    | feature::RWP
    | feature::RWP_ASYNC;

/// How the service of a client ended.
#[derive(Debug)]
pub enum End {
    /// It ended.
    Gone,
    /// This process is to end.
    Told,
    /// A page could not be had. What was done then, the plan says.
    Lost(String),
    /// Its userfaultfd cannot be read any more.
    Broken(String),
}

/// What a client has handed over.
pub struct Handed {
    /// Of its address space.
    pub uffd: Uffd,
    /// Its memory.
    pub areas: Vec<Area>,
    /// The connection; its end is the client's.
    pub connection: UnixStream,
    /// Who it is.
    pub peer: Peer,
}

/// What a client is served with.
#[derive(Clone)]
pub struct Service {
    /// Where pages come from.
    pub source: Arc<dyn Source>,
    /// How.
    pub plan: Plan,
    /// The order of first touches goes here; then pages come one by one.
    pub recorder: Option<Arc<Recorder>>,
    /// What was done for this client.
    pub counters: Arc<Counters>,
    /// How long faults took, for all.
    pub latencies: Arc<Histogram>,
}

/// Whether a userfaultfd with these features can be served; if not, why.
pub fn refuses(features: u64) -> Option<String> {
    let beyond = features & !UNDERSTOOD;
    let names = [
        (feature::EVENT_FORK, "fork events"),
        (feature::EVENT_REMAP, "remap events"),
        (feature::SIGBUS, "SIGBUS instead of faults"),
    ];
    let named = names.iter().filter(|(bit, _)| beyond & bit != 0);
    let named: Vec<&str> = named.map(|(_, name)| *name).collect();
    let text = format!(
        "its userfaultfd asks for {}, which is not served",
        named.join(", ")
    );
    (beyond != 0).then_some(text)
}

/// A fault that is to be answered.
#[derive(Debug, Clone, Copy)]
struct Fault {
    page: PageNumber,
    since: Instant,
    /// It was put off before.
    late: bool,
}

/// See the module's text.
pub struct Client {
    installer: Installer,
    service: Service,
    connection: UnixStream,
    peer: Peer,
    fill: Fill,
    faults: VecDeque<Fault>,
    /// When what was put off may be tried again.
    later: Duration,
    /// Faults since something was installed for one.
    idle_faults: u32,
    /// Every page that was to come has come, or has been given up.
    whole: bool,
    released: bool,
    /// The connection, and the process at its other end, are over.
    closed: bool,
    exited: bool,
}

impl Client {
    /// A client that is served from now on.
    pub fn new(handed: Handed, service: Service) -> Client {
        let installer = Installer {
            uffd: handed.uffd,
            memory: Memory::new(handed.areas),
            source: Arc::clone(&service.source),
            counters: Arc::clone(&service.counters),
            buffer: Buffer::default(),
            installed: 0,
        };
        Client {
            installer,
            service,
            connection: handed.connection,
            exited: handed.peer.pidfd().is_none(),
            peer: handed.peer,
            fill: Fill::new(Instant::now()),
            faults: VecDeque::new(),
            later: LATER,
            idle_faults: 0,
            whole: true,
            released: false,
            closed: false,
        }
    }

    /// Serves it until it ends, or the end of all has come. `say` is told what somebody should
    /// know.
    pub fn serve(mut self, ending: &Ending, say: &dyn Fn(&str)) -> End {
        loop {
            if ending.has_come() {
                return self.leave(say);
            }
            if self.closed && self.exited {
                return End::Gone;
            }
            let read = match self.read_messages() {
                Ok(read) => read,
                Err(errno) => return End::Broken(format!("its userfaultfd gives {errno}")),
            };
            let result = self.answer().and_then(|()| match self.faults.is_empty() {
                true => self.bring_more(say),
                false => Ok(Some(self.later)),
            });
            match result {
                // There may be more.
                Ok(_) if read == MESSAGES => {}
                Ok(wait) if self.wait(ending, wait) => {}
                Ok(_) => return End::Broken("it made its userfaultfd one that blocks".into()),
                Err(Failure::Gone) => return End::Gone,
                Err(Failure::Lost(why)) => match self.lose(&why, say) {
                    Some(end) => return end,
                    None => continue,
                },
            }
        }
    }

    /// Reads what there is, acts on events at once and queues faults; how many were read.
    fn read_messages(&mut self) -> Result<usize, Errno> {
        let mut messages = [Message::default(); MESSAGES];
        let count = self.installer.uffd.read(&mut messages)?;
        let since = Instant::now();
        for message in &messages[..count] {
            match message.decode() {
                Event::Fault {
                    page,
                    write_protect: false,
                    ..
                } => self.note_fault(page, since),
                Event::Fault { page, .. } => self.end_protection(page),
                Event::Remove(range) => {
                    let removed = self.installer.memory.remove(range);
                    crate::counters::count(&self.service.counters.removed_pages, removed);
                }
                Event::Unmap(range) => {
                    self.installer.memory.unmap(range);
                    self.installer.uffd.wake(range);
                }
                // Not asked for by those that are served.
                Event::Fork(_) | Event::Remap { .. } | Event::Unknown(_) => {}
            }
        }
        Ok(count)
    }

    fn note_fault(&mut self, page: PageNumber, since: Instant) {
        count(&self.service.counters.faults, 1);
        let late = false;
        self.faults.push_back(Fault { page, since, late });
    }

    /// The client protects memory itself, to learn what is written: that somebody writes now is
    /// its affair, and the page is opened.
    fn end_protection(&mut self, page: PageNumber) {
        count(&self.service.counters.write_faults, 1);
        if let Some(unit) = self.installer.memory.unit_of(page)
            && self
                .installer
                .uffd
                .write_protect(unit.range, false)
                .is_err()
        {
            // It tries again, and is heard of again.
            self.installer.uffd.wake(unit.range);
        }
    }

    /// Answers the faults that are queued, until one has to wait: what holds up one holds up all.
    fn answer(&mut self) -> Result<(), Failure> {
        while let Some(fault) = self.faults.front().copied() {
            let Some(unit) = self.installer.memory.unit_of(fault.page) else {
                self.note_idle()?;
                self.answer_nowhere(fault.page)?;
                self.faults.pop_front();
                continue;
            };
            let before = self.installer.installed;
            let put = self.installer.put(unit);
            let installed = self.installer.installed - before;
            count(&self.service.counters.fault_pages, installed);
            match put? {
                Put::Done => {
                    match installed {
                        0 => self.note_idle()?,
                        _ => self.idle_faults = 0,
                    }
                    self.faults.pop_front();
                    self.answered(unit, fault.since);
                }
                put => return self.put_off(put),
            }
        }
        Ok(())
    }

    /// A fault for which nothing is to be installed.
    fn note_idle(&mut self) -> Result<(), Failure> {
        self.idle_faults += 1;
        if self.idle_faults < IDLE_FAULTS_MAX {
            return Ok(());
        }
        self.idle_faults = 0;
        let text = "it is there, or unmapped, and the client faults again and again: faults other \
                    than those on missing and on write-protected pages are not served";
        Err(Failure::Lost(SourceError(text.to_owned())))
    }

    /// The first fault waits, and the others behind it.
    fn put_off(&mut self, put: Put) -> Result<(), Failure> {
        let Some(fault) = self.faults.front_mut() else {
            return Ok(());
        };
        if put == Put::NoMemory && fault.since.elapsed() > NO_MEMORY_MAX {
            let text = format!("the system has had no memory for it for {NO_MEMORY_MAX:?}");
            return Err(Failure::Lost(SourceError(text)));
        }
        if !fault.late {
            fault.late = true;
            count(&self.service.counters.deferred, 1);
            self.later = LATER;
        }
        self.wait_longer();
        Ok(())
    }

    fn wait_longer(&mut self) {
        self.later = (self.later * 2).min(LATER_MAX);
    }

    fn answered(&mut self, unit: Area, since: Instant) {
        let taken = since.elapsed().as_nanos();
        self.service
            .latencies
            .note(taken.min(u64::MAX.into()) as u64);
        match &self.service.recorder {
            Some(recorder) => recorder.note(unit.first, unit.unit),
            None => self.fill.note_fault(unit.range.start, &self.service.plan),
        }
    }

    /// A fault where the client has told of no memory.
    fn answer_nowhere(&mut self, page: PageNumber) -> Result<(), Failure> {
        if self.installer.memory.has_shrunk() {
            // Heard of before it was unmapped: it tries again, and finds no memory. What was mapped
            // there since and registered anew faults on, and is counted.
            self.installer
                .uffd
                .wake(pagetide_kernel::PageRange::one(page));
            return Ok(());
        }
        let text = "it is in none of the regions that the client told of";
        Err(Failure::Lost(SourceError(text.to_owned())))
    }

    /// Brings a little of what nobody waits for; how long there is nothing more to bring. `None`:
    /// until something happens.
    fn bring_more(&mut self, say: &dyn Fn(&str)) -> Result<Option<Duration>, Failure> {
        if self.service.recorder.is_some() || self.released {
            return Ok(None);
        }
        let now = Instant::now();
        match self
            .fill
            .next(&self.installer.memory, &self.service.plan, now)
        {
            Next::At(when) => Ok(Some(when - now)),
            Next::Pages(area, why) => self.bring(area, why, say),
            Next::Done => {
                self.release_if_whole();
                Ok(None)
            }
        }
    }

    fn bring(
        &mut self,
        area: Area,
        why: Why,
        say: &dyn Fn(&str),
    ) -> Result<Option<Duration>, Failure> {
        let counters = Arc::clone(&self.service.counters);
        let counter = match why {
            Why::Block => &counters.block_pages,
            Why::WorkingSet => &counters.working_set_pages,
            Why::Background => &counters.background_pages,
        };
        let before = self.installer.installed;
        let put = self.installer.put(area);
        count(counter, self.installer.installed - before);
        match put {
            Ok(Put::Done) => {
                self.later = LATER;
                Ok(Some(Duration::ZERO))
            }
            Ok(Put::Later) => {
                self.fill.again(area, why);
                self.wait_longer();
                Ok(Some(self.later))
            }
            Ok(Put::NoMemory) => {
                self.fill.again(area, why);
                Ok(Some(LATER_MAX))
            }
            Err(Failure::Lost(error)) => {
                // It matters once somebody waits for it.
                if std::mem::replace(&mut self.whole, false) {
                    say(&format!("pages from {:#x} on were not brought: {error}", {
                        area.range.address()
                    }));
                }
                Ok(Some(Duration::ZERO))
            }
            Err(gone) => Err(gone),
        }
    }

    /// Once all is there the client needs nobody: what it gives up from now on the kernel fills
    /// with zeros by itself.
    fn release_if_whole(&mut self) {
        if self
            .fill
            .is_through(&self.installer.memory, &self.service.plan)
        {
            self.release();
        }
    }

    /// Lets go of a client all of whose pages are there, unless it protects memory itself by the
    /// same userfaultfd.
    fn release(&mut self) {
        let protecting = self.installer.uffd.features() & PROTECTING != 0;
        if self.whole && !protecting && !self.installer.memory.has_absent() {
            self.installer.release_whole();
            self.released = true;
        }
    }

    /// The end of all has come: a client that has all its pages goes on without anybody. Another
    /// would be left waiting at its next missing page, so pages are lost to it now.
    fn leave(mut self, say: &dyn Fn(&str)) -> End {
        self.release();
        if self.released || self.service.plan.on_lost == OnLost::Leave {
            return End::Told;
        }
        match self.peer.kill() {
            Ok(()) => End::Lost("it was killed, as not all of its pages are there".into()),
            // It has ended just now.
            Err(Errno::SRCH) => End::Gone,
            Err(errno) => {
                say(&format!(
                    "it could not be killed ({errno}), and misses pages"
                ));
                End::Told
            }
        }
    }

    /// A page cannot be had. `Some`: the client's service is over.
    fn lose(&mut self, why: &SourceError, say: &dyn Fn(&str)) -> Option<End> {
        let fault = self.faults.pop_front()?;
        count(&self.service.counters.lost_pages, 1);
        self.whole = false;
        let text = format!("the page at {:#x} is lost: {why}", fault.page.address());
        if self.service.plan.on_lost == OnLost::Leave {
            say(&format!("{text}; whoever waits for it is left waiting"));
            return None;
        }
        match self.peer.kill() {
            Ok(()) => Some(End::Lost(format!("{text}; the client was killed"))),
            Err(errno) => {
                say(&format!("{text}; the client could not be killed ({errno})"));
                None
            }
        }
    }

    /// Waits for a message, or the end of the client or of all; at most `wait`. False: the
    /// userfaultfd is one that blocks, which its owner can make it at any time.
    fn wait(&mut self, ending: &Ending, wait: Option<Duration>) -> bool {
        let timeout = wait.map(|wait| Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        let mut fds = vec![
            PollFd::new(&self.installer.uffd, PollFlags::IN),
            PollFd::new(ending, PollFlags::IN),
        ];
        if !self.closed {
            fds.push(PollFd::new(&self.connection, PollFlags::RDHUP));
        }
        let pidfd = self.peer.pidfd().filter(|_| !self.exited);
        if let Some(pidfd) = pidfd {
            fds.push(PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN));
        }
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return true;
        }
        let usable = !fds[0].revents().contains(PollFlags::ERR);
        let mut ended = fds[2..].iter().map(|fd| !fd.revents().is_empty());
        let closed = !self.closed && ended.next() == Some(true);
        let exited = pidfd.is_some() && ended.next() == Some(true);
        self.closed |= closed;
        self.exited |= exited;
        usable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_served_is_named() {
        assert_eq!(refuses(feature::EVENT_REMOVE | feature::THREAD_ID), None);
        let why = refuses(feature::EVENT_FORK | feature::SIGBUS).unwrap();
        assert!(why.contains("fork events, SIGBUS"), "{why}");
    }
}
