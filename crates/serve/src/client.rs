//! One client: reading its userfaultfd, and answering.
//!
//! One thread does all for a client, in this order: the events that have been read are acted on,
//! then faults are answered, then comes what nobody waits for, a little at a time. While nobody
//! waits for anything a second thread copies beside it ([`Second`]). The kernel holds
//! back whoever raised an event until it has been read, and installs nothing until then. So a page
//! that the client gives up is known as given up before the kernel empties it, and what is
//! installed after that is zeros.
//!
//! Where all that a client needs is to come ([`Plan::until_whole`]), its service ends with the last
//! page; else with the client.
mod bringing;
mod lost;
mod waiting;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagetide_kernel::PageRange;
use pagetide_kernel::peer::Peer;
use pagetide_kernel::uffd::{Uffd, feature};
use pagetide_pager::protocol::histogram::Histogram;
use rustix::io::Errno;

use crate::counters::{Counters, count};
use crate::fill::Fill;
use crate::inbox::{Fault, Inbox, MESSAGES};
use crate::install::{Failure, Hand, Installer, Put};
use crate::keeper::Holding;
use crate::memory::{Area, Memory};
use crate::moment::Moment;
use crate::plan::{Beyond, Plan};
use crate::record::Recorder;
use crate::second::Second;
use crate::source::{Buffer, Source, SourceError};

/// After what time is tried again what an event has put off, at first and at most: whoever raised
/// it may have been stopped.
const LATER: Duration = Duration::from_micros(200);
const LATER_MAX: Duration = Duration::from_millis(50);
/// So many faults in a row that find their page there already, or that are where no memory is any
/// more, are no chance: the client makes faults of a kind that is not served.
const IDLE_FAULTS_MAX: u32 = 100_000;
/// How long the system may be without memory for a page that is waited for.
const NO_MEMORY_MAX: Duration = Duration::from_secs(10);

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
    /// All its pages are there.
    Whole,
    /// This process is to end.
    Told,
    /// This process is to end, and who is started next takes it over.
    Kept,
    /// A page could not be had. What was done then, the plan says.
    Lost(String),
    /// Its userfaultfd cannot be read any more.
    Broken(String),
}

/// What waiting came to.
enum Woken {
    /// Something may have happened.
    Usable,
    /// The client is gone.
    Gone,
    /// The userfaultfd is one that blocks, which its owner can make it at any time.
    Blocking,
}

/// The process that handed a client over, which is the client itself.
pub struct Owner {
    /// The connection; its end is the client's.
    pub connection: UnixStream,
    /// Who it is.
    pub peer: Arc<Peer>,
}

/// What a client has handed over.
pub struct Handed {
    /// Of its address space.
    pub uffd: Uffd,
    /// Its memory.
    pub memory: Memory,
    /// Where the client itself has connected.
    pub owner: Option<Owner>,
    /// Its process ID, as far as it was told.
    pub pid: Option<u32>,
    /// Where it is kept for who is started next.
    pub(crate) holding: Option<Holding>,
}

/// What a client is served with.
#[derive(Clone)]
pub struct Service {
    /// Where pages come from.
    pub source: Arc<dyn Source>,
    /// How.
    pub plan: Plan,
    /// What nobody waits for comes from this moment on; else at once.
    pub begins: Option<Arc<Moment>>,
    /// The order of first touches goes here; then pages come one by one.
    pub recorder: Option<Arc<Recorder>>,
    /// What was done for this client.
    pub counters: Arc<Counters>,
    /// How long faults took, for all.
    pub latencies: Arc<Histogram>,
    /// Has a forked child of the client's served as well.
    pub born: Arc<dyn Fn(Handed) + Send + Sync>,
}

/// Which of `features`, of a userfaultfd, cannot be served: those in `refused`.
pub fn refuses(features: u64, refused: u64) -> Option<String> {
    let beyond = features & refused;
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

/// See the module's text.
pub struct Client {
    installer: Installer,
    service: Service,
    owner: Option<Owner>,
    pid: Option<u32>,
    holding: Option<Holding>,
    fill: Fill,
    /// Brings what nobody waits for beside this thread; `alone`: there is none to be had.
    second: Option<Second>,
    alone: bool,
    /// This thread is to bring what comes next.
    own_turn: bool,
    /// When somebody waited last.
    waited_for: Instant,
    inbox: Inbox,
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
            hand: Hand {
                uffd: Arc::new(handed.uffd),
                source: Arc::clone(&service.source),
                buffer: Buffer::default(),
            },
            memory: handed.memory,
            counters: Arc::clone(&service.counters),
            installed: 0,
        };
        Client {
            installer,
            service,
            exited: handed
                .owner
                .as_ref()
                .is_some_and(|owner| owner.peer.pidfd().is_none()),
            owner: handed.owner,
            pid: handed.pid,
            holding: handed.holding,
            fill: Fill::new(Instant::now()),
            second: None,
            alone: false,
            own_turn: false,
            waited_for: Instant::now(),
            inbox: Inbox::default(),
            later: LATER,
            idle_faults: 0,
            whole: true,
            released: false,
            closed: false,
        }
    }

    /// Serves it until it ends, or the end of all has come. `say` is told what somebody should
    /// know.
    pub fn serve(mut self, ending: &Moment, say: &dyn Fn(&str)) -> End {
        let end = self.serve_on(ending, say);
        match (&end, self.holding.take()) {
            // What is kept of it stays.
            (End::Kept, _) | (_, None) => {}
            (_, Some(holding)) => holding.end(),
        }
        end
    }

    fn serve_on(&mut self, ending: &Moment, say: &dyn Fn(&str)) -> End {
        loop {
            if ending.has_come() {
                return self.leave(say);
            }
            if self.closed && self.exited {
                return End::Gone;
            }
            let read = match self.hear() {
                Ok(read) => read,
                Err(errno) => return End::Broken(format!("its userfaultfd gives {errno}")),
            };
            let result = match self.settle() {
                true => self.work(say),
                false => {
                    self.wait_longer();
                    Ok(Some(self.later))
                }
            };
            match result {
                Ok(_) if self.released && self.service.plan.until_whole => return End::Whole,
                // There may be more.
                Ok(_) if read == MESSAGES => {}
                Ok(wait) => match self.wait(ending, wait) {
                    Woken::Usable => {}
                    Woken::Gone => return End::Gone,
                    Woken::Blocking => {
                        return End::Broken("it made its userfaultfd one that blocks".into());
                    }
                },
                Err(Failure::Gone) => return End::Gone,
                Err(Failure::Lost(why)) => match self.lose(&why, say) {
                    Some(end) => return end,
                    None => continue,
                },
            }
        }
    }

    /// Reads what the userfaultfd says; how many messages there were.
    fn hear(&mut self) -> Result<usize, Errno> {
        if self.second.is_some() {
            if !self.installer.uffd().is_readable() {
                return Ok(0);
            }
            self.hold_still();
        }
        self.inbox.read(&mut self.installer)
    }

    /// Settles what events have left in doubt, and has forked children served; whether anything may
    /// be installed.
    fn settle(&mut self) -> bool {
        if !self.inbox.is_clear() {
            // More may be read.
            self.hold_still();
        }
        let (born, pid) = (&self.service.born, self.pid);
        let mut born = |child: crate::inbox::Child| {
            born(Handed {
                uffd: child.uffd,
                memory: child.memory,
                owner: None,
                pid,
                holding: None,
            });
        };
        let settled = self.inbox.settle(&mut self.installer, &mut born);
        if let Some(to) = self.inbox.take_moved_to() {
            self.fill.note_move(to);
        }
        settled
    }

    /// Answers who waits, then brings a little; until when there is nothing more to do. `None`:
    /// until something happens.
    fn work(&mut self, say: &dyn Fn(&str)) -> Result<Option<Duration>, Failure> {
        self.answer()?;
        match self.inbox.faults.is_empty() {
            true => self.bring_more(say),
            false => Ok(Some(self.later)),
        }
    }

    /// Answers the faults that are queued, until one has to wait: what holds up one holds up all.
    fn answer(&mut self) -> Result<(), Failure> {
        if !self.inbox.faults.is_empty() {
            self.waited_for = Instant::now();
        }
        while let Some(fault) = self.inbox.faults.front().copied() {
            let Some(unit) = self.installer.memory.unit_of(fault.page) else {
                match self.answer_nowhere(fault)? {
                    Put::Done => self.inbox.faults.pop_front(),
                    put => return self.put_off(put),
                };
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
                    self.inbox.faults.pop_front();
                    self.answered(unit, fault.since, installed > 0);
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
        let Some(fault) = self.inbox.faults.front_mut() else {
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

    /// A fault on `unit` was answered; `brought`: its page had not come before.
    fn answered(&mut self, unit: Area, since: Instant, brought: bool) {
        self.note_latency(since);
        let replay = self.service.plan.replay.as_ref();
        let is_in_set = replay.is_some_and(|replay| replay.has(unit.first));
        if is_in_set && brought && !self.installer.memory.is_removed(unit.first) {
            count(&self.service.counters.working_set_faults, 1);
        }
        match self.recorder() {
            Some(recorder) => recorder.note(unit.first, unit.unit),
            // Which pages follow one of the working set, that knows better.
            None if self.has_begun() && !is_in_set => {
                self.fill.note_fault(unit.range.start, &self.service.plan);
            }
            // Neighbours may not be registered yet.
            None => {}
        }
    }

    fn note_latency(&self, since: Instant) {
        let taken = since.elapsed().as_nanos();
        self.service
            .latencies
            .record(taken.min(u64::MAX.into()) as u64);
    }

    /// Where first touches are noted, while they are.
    fn recorder(&self) -> Option<&Recorder> {
        let recorder = self.service.recorder.as_deref();
        recorder.filter(|recorder| recorder.is_under_way())
    }

    /// Whether what nobody waits for may come.
    fn has_begun(&self) -> bool {
        let begins = self.service.begins.as_ref();
        begins.is_none_or(|moment| moment.has_come())
    }

    /// A fault where the client has told of no memory.
    fn answer_nowhere(&mut self, fault: Fault) -> Result<Put, Failure> {
        let page = fault.page;
        if self.service.plan.beyond == Beyond::Zeros {
            let put = self.installer.put_beyond(page)?;
            if put == Put::Done {
                self.note_latency(fault.since);
            }
            return Ok(put);
        }
        self.note_idle()?;
        if self.installer.memory.has_shrunk() {
            // Heard of before it was unmapped: it tries again, and finds no memory. What was mapped
            // there since and registered anew faults on, and is counted.
            self.installer.uffd().wake(PageRange::one(page));
            return Ok(Put::Done);
        }
        let text = "it is in none of the regions that the client told of";
        Err(Failure::Lost(SourceError(text.to_owned())))
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
        let protecting = self.installer.uffd().features() & PROTECTING != 0;
        if self.whole && !protecting && !self.installer.memory.has_absent() {
            // A userfaultfd that is closed lets go of all that it has.
            if !self.service.plan.until_whole {
                self.installer.release_whole();
            }
            self.released = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_served_is_named() {
        let refused = feature::EVENT_FORK | feature::SIGBUS;
        assert_eq!(
            refuses(feature::EVENT_REMOVE | feature::THREAD_ID, refused),
            None
        );
        let why = refuses(feature::EVENT_FORK | feature::SIGBUS, refused).unwrap();
        assert!(why.contains("fork events, SIGBUS"), "{why}");
    }
}
