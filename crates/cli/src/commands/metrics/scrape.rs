//! What is known now of all runs, added up by name.
use std::collections::BTreeMap;
use std::path::Path;

use pagetide_pager::protocol::files::{self, Note};
use pagetide_pager::report::Statistics;

use crate::args::Metrics;
use crate::governed::{self, Governed};
use crate::ledger_file::FaultTimes;
use crate::runs;
use crate::text::printable;

/// What tells samples apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels {
    /// The process ID of the run's launcher.
    pub run: u32,
    /// The program's name.
    pub name: String,
    /// The process, where each stands for itself.
    pub pid: Option<u32>,
}

/// The processes of these labels, together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Processes that live.
    pub processes: u64,
    /// Sums over those that live.
    pub gauges: Gauges,
    /// Sums over those that live and those that have ended, so that they never go down.
    pub counters: Counters,
}

/// What goes up and down, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Gauges {
    pub budget: u64,
    /// Of the run as a whole: the most of the processes, not the sum.
    pub run_budget: u64,
    pub resident: u64,
    pub over_budget: u64,
    pub managed: u64,
    pub store: u64,
    pub memory: u64,
    pub memory_budget: u64,
    pub over_memory_budget: u64,
}

/// What only goes up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    pub faults: u64,
    pub faults_waited: u64,
    pub faults_taken_back: u64,
    pub zero_faults: u64,
    pub fetches: u64,
    pub fetched_pages: u64,
    pub prefetched_pages: u64,
    pub evictions: u64,
    pub clean_drops: u64,
    pub writebacks: u64,
    pub errors: u64,
    pub lost: u64,
    pub fault_thread_seconds: f64,
    pub evictor_seconds: f64,
    pub fault_times: FaultTimes,
}

/// Of all runs that this user may see.
pub fn now(options: &Metrics) -> BTreeMap<Labels, Sample> {
    let mut samples = BTreeMap::new();
    for base in options.bases.visible() {
        runs::clean_stale(&base);
        for run in runs::runs(&base) {
            add_run(&run, options.pids, &mut samples);
        }
    }
    samples
}

fn add_run(run: &Path, pids: bool, samples: &mut BTreeMap<Labels, Sample>) {
    let launcher = files::launcher_of(run).unwrap_or(0);
    let mut add = |process: &Governed| {
        let labels = Labels {
            run: launcher,
            name: name_of(process),
            pid: pids.then_some(process.pid),
        };
        samples.entry(labels).or_default().add(process);
    };
    governed::recorded(run).iter().for_each(&mut add);
    // Nothing is kept of those without a ledger when they have ended, but that they lost data.
    governed::uncounted(run).for_each(|process| add(&process));
    for (pid, _) in Note::Lost.read_all(run) {
        let labels = Labels {
            run: launcher,
            name: String::new(),
            pid: pids.then_some(pid),
        };
        samples.entry(labels).or_default().counters.lost += 1;
    }
}

/// The program's name: the file of its first word.
fn name_of(process: &Governed) -> String {
    let command = printable(&process.reading.statistics.command);
    let first = command.split(' ').next().unwrap_or_default();
    first.rsplit('/').next().unwrap_or_default().to_owned()
}

impl Sample {
    fn add(&mut self, process: &Governed) {
        let statistics = &process.reading.statistics;
        if governed::is_alive(process) {
            self.processes += 1;
            self.gauges.add(statistics);
        }
        self.counters.add(statistics);
        self.counters.fault_times.add(&process.reading.fault_times);
        self.counters.lost += u64::from(process.reading.loss.is_some());
    }
}

impl Gauges {
    fn add(&mut self, of: &Statistics) {
        self.budget = self.budget.saturating_add(of.budget_bytes);
        self.run_budget = self.run_budget.max(of.run_budget_bytes);
        self.resident = self.resident.saturating_add(of.resident_bytes);
        let over = of.resident_bytes.saturating_sub(of.budget_bytes);
        self.over_budget = self.over_budget.saturating_add(over);
        self.managed = self.managed.saturating_add(of.managed_bytes);
        self.store = self.store.saturating_add(of.store_bytes);
        self.memory = self.memory.saturating_add(of.memory_bytes);
        let bound = of.memory_budget_bytes;
        self.memory_budget = self.memory_budget.saturating_add(bound);
        if bound > 0 {
            let over = of.memory_bytes.saturating_sub(bound);
            self.over_memory_budget = self.over_memory_budget.saturating_add(over);
        }
    }
}

impl Counters {
    fn add(&mut self, of: &Statistics) {
        for (sum, more) in [
            (&mut self.faults, of.faults),
            (&mut self.faults_waited, of.faults_waited),
            (&mut self.faults_taken_back, of.faults_taken_back),
            (&mut self.zero_faults, of.zero_faults),
            (&mut self.fetches, of.fetches),
            (&mut self.fetched_pages, of.fetched_pages),
            (&mut self.prefetched_pages, of.prefetched_pages),
            (&mut self.evictions, of.evictions),
            (&mut self.clean_drops, of.clean_drops),
            (&mut self.writebacks, of.writebacks),
            (&mut self.errors, of.errors),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.fault_thread_seconds += of.fault_thread_cpu_seconds;
        self.evictor_seconds += of.evictor_cpu_seconds;
    }
}
