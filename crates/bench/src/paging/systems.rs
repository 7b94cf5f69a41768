//! The systems whose paging is compared: each runs the same worker in some place.
use std::io::{Error, Result};
use std::path::PathBuf;
use std::rc::Rc;

use super::kernel_swap::KernelSwap;
use super::shape::Answer;
use super::task::{Findings, Home, Task, WORKER};
use super::{device, floor};
use crate::launch;
use crate::runner::{self, Measured, System};

/// Those that are compared.
pub type Systems<'a> = runner::Systems<'a, Task, Findings>;

/// Swap read-ahead settings the peer is tried with; the better one counts.
const PAGE_CLUSTERS: [u32; 2] = [0, 3];

/// A worker whose data live in a home of its own.
pub struct Worker {
    name: String,
    pagetide: Option<PathBuf>,
    change: Box<dyn Fn(Task) -> Task>,
}

impl Worker {
    /// Where the data live is what `change` makes of the task.
    pub fn new(name: &str, change: impl Fn(Task) -> Task + 'static) -> Box<Worker> {
        Box::new(Worker {
            name: name.to_owned(),
            pagetide: None,
            change: Box::new(change),
        })
    }

    /// Its data live at `home`.
    pub fn at(name: &str, home: Home) -> Box<Worker> {
        Worker::new(name, move |task| Task { home, ..task })
    }

    /// An unmodified program under `pagetide run`, with the store that `change` says.
    pub fn under_run(
        name: &str,
        pagetide: PathBuf,
        change: impl Fn(Task) -> Task + 'static,
    ) -> Box<Worker> {
        let mut worker = Worker::new(name, change);
        worker.pagetide = Some(pagetide);
        worker
    }
}

impl System<Task> for Worker {
    type Found = Findings;

    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self, task: &Task) -> Result<Findings> {
        let task = (self.change)(task.clone());
        let mut command = match &self.pagetide {
            None => launch::worker(WORKER, &task)?,
            Some(pagetide) => {
                let resident = task.resident.to_string();
                let place = ["--resident", &resident, "--store", &task.store];
                let options = [&["--quiet", "--policy", &task.policy], &place[..]].concat();
                launch::under_run(pagetide, &options, WORKER, &task)?
            }
        };
        launch::findings(&mut command)
    }
}

/// The kernel's swap with read-ahead of two to the power of `cluster` pages.
pub struct Swap {
    name: String,
    kernel: Rc<KernelSwap>,
    cluster: u32,
}

impl Swap {
    /// One for each setting of read-ahead.
    pub fn settings<'a>(kernel: &Rc<KernelSwap>, name: &str) -> Systems<'a> {
        let one = |cluster| Swap {
            name: format!("{name}, cluster {cluster}"),
            kernel: Rc::clone(kernel),
            cluster,
        };
        PAGE_CLUSTERS
            .map(|cluster| Box::new(one(cluster)) as _)
            .into()
    }
}

impl System<Task> for Swap {
    type Found = Findings;

    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self, task: &Task) -> Result<Findings> {
        self.kernel.run(task, self.cluster)
    }
}

/// Every system must have ended each turn with the same bytes, or with the `answer` of a run in
/// unbounded memory.
pub fn check_agreement(all: &[Measured<Findings>], answer: Option<&Answer>) -> Result<()> {
    // The device and the bare handler hold nothing that could be lost.
    let holds = |system: &&Measured<_>| ![device::NAME, floor::BARE].contains(&&*system.name);
    let all: Vec<_> = all.iter().filter(holds).collect();
    for system in &all {
        for (turn, (run, first)) in system.runs.iter().zip(&all[0].runs).enumerate() {
            let same = match answer {
                Some(_) => run.answer.as_ref() == answer,
                None => run.checksum.is_some() && run.checksum == first.checksum,
            };
            if !same {
                return Err(Error::other(format!(
                    "{} ended turn {turn} with {:?} {:?}, which is not what the others have: data \
                     was lost",
                    system.name, run.checksum, run.answer
                )));
            }
        }
    }
    Ok(())
}
