//! The threads of clients: one each, whoever brought the client here.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pagetide_kernel::peer::Peer;
use pagetide_kernel::uffd::feature;

use crate::client::{Client, End, Handed, Service};
use crate::counters::Counters;
use crate::moment::Moment;
use crate::plan::{OnLost, Plan};
use crate::record::Recorder;
use crate::said::counted;
use crate::source::Source;
use crate::status::{About, Status};

/// The stack of a client's thread.
const STACK_BYTES: usize = 512 << 10;
/// How long clients' threads may take to end: a store answers, or fails, within less.
pub const ENDING: Duration = Duration::from_secs(60);

/// What is told to whoever watches.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// What clients are served with.
pub struct Setup {
    /// Where pages come from.
    pub source: Arc<dyn Source>,
    /// How clients are served.
    pub plan: Plan,
    /// The order of first touches is recorded here.
    pub recorder: Option<Recorder>,
    /// Clients served at a time; others are refused.
    pub clients_max: usize,
    /// How long clients' threads may take to end once the end has come: [`ENDING`].
    pub patience: Duration,
    /// Told of clients that come and go, and of what goes wrong.
    pub say: Say,
    /// What whoever asks is told of the server.
    pub about: About,
}

/// A client that is served.
struct Served {
    /// Who it is, where it has connected itself.
    peer: Option<Arc<Peer>>,
    /// Who is started next can take it over.
    is_kept: bool,
}

/// See the module's text.
pub(crate) struct Crew {
    pub source: Arc<dyn Source>,
    pub plan: Plan,
    pub recorder: Option<Arc<Recorder>>,
    pub clients_max: usize,
    pub patience: Duration,
    pub say: Say,
    pub status: Arc<Status>,
    pub ending: Arc<Moment>,
    /// From when on what nobody waits for comes.
    pub begins: Option<Arc<Moment>>,
    /// How many clients there have been.
    number: AtomicU64,
    /// Those that are served, by their numbers.
    served: Mutex<BTreeMap<u64, Served>>,
    one_less: Condvar,
}

impl Crew {
    /// Nobody is served yet.
    pub fn new(setup: Setup, ending: Arc<Moment>, begins: Option<Arc<Moment>>) -> Crew {
        Crew {
            source: setup.source,
            plan: setup.plan,
            recorder: setup.recorder.map(Arc::new),
            clients_max: setup.clients_max,
            patience: setup.patience,
            say: setup.say,
            status: Arc::new(Status::new(setup.about)),
            ending,
            begins,
            number: AtomicU64::new(0),
            served: Mutex::default(),
            one_less: Condvar::new(),
        }
    }

    fn served(&self) -> MutexGuard<'_, BTreeMap<u64, Served>> {
        self.served.lock().unwrap_or_else(|held| held.into_inner())
    }

    /// How many clients are served now.
    pub fn clients(&self) -> usize {
        self.served().len()
    }

    /// Waits until nobody is served any more, and says how many still are. Once the end has come,
    /// `at_end` is called, and clients' threads may take `patience`.
    pub fn wait_for_all(&self, patience: Duration, at_end: &dyn Fn()) -> usize {
        let mut served = self.served();
        let mut deadline = None;
        while !served.is_empty() {
            if self.ending.has_come() {
                let until = *deadline.get_or_insert_with(|| {
                    at_end();
                    Instant::now() + patience
                });
                if Instant::now() >= until {
                    break;
                }
            }
            let tick = Duration::from_millis(20);
            let waited = self.one_less.wait_timeout(served, tick);
            served = waited.unwrap_or_else(|held| held.into_inner()).0;
        }
        served.len()
    }

    /// Gives up the clients that are still served: their threads do not answer, and what a client
    /// misses is lost as the plan says. Says how many they are, without those that outlive this
    /// process where it `hands_over`.
    pub fn give_up(&self, hands_over: bool) -> u64 {
        let mut given_up = 0;
        for (number, client) in &*self.served() {
            let done = match &client.peer {
                _ if hands_over && client.is_kept => {
                    (self.say)(&format!("client {number} is left to who is started next"));
                    continue;
                }
                Some(peer) if self.plan.on_lost == OnLost::Kill => match peer.kill() {
                    Ok(()) => "it was killed".to_owned(),
                    Err(errno) => format!("it could not be killed ({errno})"),
                },
                _ => "whoever waits for its pages is left waiting".to_owned(),
            };
            given_up += 1;
            self.status.note_broken();
            (self.say)(&format!(
                "client {number} is given up, as its pages do not come; {done}"
            ));
        }
        given_up
    }

    /// Gives a client its thread.
    pub fn start(self: &Arc<Self>, handed: Handed) {
        let number = self.number.fetch_add(1, Relaxed) + 1;
        let pid = handed.pid;
        let who = match pid {
            Some(pid) => format!("client {number} (process {pid})"),
            None => format!("client {number}"),
        };
        let pages = handed.memory.pages();
        let counters = Arc::new(Counters::default());
        let crew = Arc::clone(self);
        let service = Service {
            source: Arc::clone(&self.source),
            plan: self.plan.clone(),
            begins: self.begins.clone(),
            recorder: self.recorder.clone(),
            counters: Arc::clone(&counters),
            latencies: self.status.latencies(),
            born: Arc::new(move |child| crew.start(child)),
        };
        self.status.add(number, pid, pages, counters);
        let served = Served {
            peer: handed.owner.as_ref().map(|owner| Arc::clone(&owner.peer)),
            is_kept: handed.holding.is_some(),
        };
        self.served().insert(number, served);
        let memory = counted(pages, "page");
        let told = match handed.uffd.features() & feature::EVENT_REMOVE {
            0 => "; pages that it gives up are not known as such (no EVENT_REMOVE)",
            _ => "",
        };
        (self.say)(&format!("{who}: {memory} of memory{told}"));
        let crew = Arc::clone(self);
        let body = move || {
            let say = |text: &str| (crew.say)(&format!("{who}: {text}"));
            match Client::new(handed, service).serve(&crew.ending, &say) {
                End::Gone => say("ended"),
                End::Whole => say("all its pages are there"),
                End::Told => say("is served no more"),
                End::Kept => say("is left to who is started next"),
                End::Lost(why) => say(&why),
                End::Broken(why) => {
                    crew.status.note_broken();
                    say(&format!("is served no more: {why}"));
                }
            }
            if let Some(recorder) = &crew.recorder {
                save(recorder, &say);
            }
            crew.ended(number);
        };
        let thread = std::thread::Builder::new()
            .name("pagetide-client".into())
            .stack_size(STACK_BYTES)
            .spawn(body);
        if let Err(error) = thread {
            self.status.note_broken();
            self.ended(number);
            (self.say)(&format!(
                "client {number} is refused: no thread for it ({error})"
            ));
        }
    }

    fn ended(&self, number: u64) {
        self.status.remove(number);
        self.served().remove(&number);
        self.one_less.notify_all();
    }
}

fn save(recorder: &Recorder, say: &dyn Fn(&str)) {
    match recorder.save() {
        Ok(pages) => say(&format!("{pages} pages of a working set were recorded")),
        Err(error) => say(&format!("the working set could not be recorded: {error}")),
    }
}
