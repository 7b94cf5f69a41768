//! While a run as a whole is far from its budget, the kernel fills the memory of its processes.
//! Then all of it is put under their pagers: also that of those that sleep, for others to have it.
mod support;

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pagetide_pager::tree::file::{FLOOR_PAGES, Part};
use support::pagetide::{able_to_fork, pagetide};
use support::process::{Outcome, Running, start};
use support::skip::skipped;
use support::tree::{
    MIB, PAGE, Watch, directory, is_worker, ok_workers, parts_of, shell, tree_of, wait_for,
};

const LIMIT: Duration = Duration::from_secs(240);
/// The least budget in MiB, a processor, from which on registration is deferred.
const MIB_PER_PROCESSOR: u64 = 128;
/// With more processors, the tests would fill too much.
const PROCESSORS_MAX: u64 = 8;

/// The least budget in MiB with which registration is deferred here; none, loudly, if the test
/// cannot be done.
fn least_budget(name: &str) -> Option<u64> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let able = able_to_fork().and_then(|_| match processors <= PROCESSORS_MAX {
        true => Ok(processors * MIB_PER_PROCESSOR),
        false => Err(format!(
            "{processors} processors fill too much memory for a test"
        )),
    });
    able.inspect_err(|reason| skipped(name, reason)).ok()
}

/// `script` in a run of `budget` MiB, and its statistics: of each process, `faults`,
/// `managed_bytes_max` and `run_budget_bytes`.
fn counted(name: &str, budget: u64, script: &str) -> Vec<[f64; 3]> {
    let here = directory(name);
    let statistics = here.join("statistics");
    let path = statistics.to_str().expect("a printable path");
    let size = format!("{budget}M");
    let running = start(
        &mut shell(&["--resident", &size, "--stats", path], script, &here),
        b"",
    );
    running.finish(LIMIT).expect_code(0);
    let text = std::fs::read_to_string(&statistics).expect("--stats wrote its file");
    let fields = ["faults", "managed_bytes_max", "run_budget_bytes"];
    let of_line = |line: &str| {
        fields.map(|field| support::pagetide::number(line, field).expect("it is in each line"))
    };
    text.lines().map(of_line).collect()
}

#[test]
fn processes_that_fit_together_have_no_faults() {
    let name = "processes_that_fit_together_have_no_faults";
    if least_budget(name).is_none() {
        return;
    }
    let stage = "\"$0\" 24 pipe";
    let script = format!("seq 1 50000 | {} >/dev/null", [stage; 4].join(" | "));
    let budget = 64 << 10;
    let processes = counted("fit", budget, &script);
    assert!(processes.len() >= 5, "{processes:?}");
    for process in &processes {
        assert_eq!(*process, [0.0, 0.0, (budget * MIB) as f64], "{processes:?}");
    }
}

#[test]
fn a_fork_that_executes_something_does_not_count_twice() {
    let name = "a_fork_that_executes_something_does_not_count_twice";
    let Some(budget) = least_budget(name) else {
        return;
    };
    // Twice this is beyond what may be filled before all is registered.
    let processes = counted("forks", budget, &format!("\"$0\" {} forks", budget * 3 / 8));
    for process in &processes {
        assert_eq!(process[..2], [0.0, 0.0], "{processes:?}");
    }
}

/// Two that sleep and one that works, in a run of `budget` MiB in which the sleepers fit.
struct Run {
    running: Running,
    watch: Watch,
    here: std::path::PathBuf,
    tree: std::path::PathBuf,
    budget: u64,
}

impl Run {
    fn start(name: &str, budget: u64) -> Run {
        let here = directory(name);
        // The shell is to wait without starting anything: whatever comes to the run has a floor.
        let made = Command::new("mkfifo").arg(here.join("go")).status();
        assert!(made.expect("mkfifo can be started").success());
        let (idle, busy) = (budget * 3 / 16, budget * 9 / 8);
        let script = format!(
            "for i in 1 2; do \"$0\" {idle} idle \"$1/end\" & done; \
             read _ <\"$1/go\"; \"$0\" {busy} busy \"$1/end\" & wait"
        );
        let size = format!("{budget}M");
        let mut running = start(&mut shell(&["--resident", &size], &script, &here), b"");
        let watch = Watch::start(running.pid(), here.join("run"));
        let tree = tree_of(&mut running, &here);
        Run {
            running,
            watch,
            here,
            tree,
            budget,
        }
    }

    /// The sleepers once they have filled their memory, which is the kernel's still.
    fn sleepers(&mut self) -> Vec<Part> {
        let (tree, least) = (self.tree.clone(), self.budget * 3 / 16 * MIB / PAGE);
        wait_for(
            &mut self.running,
            "two sleepers have what they fill",
            || {
                let sleepers = parts_of(&tree, |part| is_worker(part.pid) && part.granted >= least);
                assert!(sleepers.iter().all(|part| part.margin > 0), "{sleepers:?}");
                (sleepers.len() == 2).then_some(sleepers)
            },
        )
    }

    fn end(self) -> Outcome {
        std::fs::write(self.here.join("end"), "").expect("a file");
        let outcome = self.running.finish(LIMIT);
        outcome.expect_code(0);
        self.watch.expect_within(self.budget * MIB);
        outcome
    }
}

fn begin_to_work(here: &Path) {
    let mut options = std::fs::File::options();
    let options = options
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let until = Instant::now() + LIMIT;
    let mut go = loop {
        match options.open(here.join("go")) {
            Ok(go) => break go,
            Err(error) => assert!(Instant::now() < until, "the shell does not read: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    go.write_all(b"\n").expect("the shell reads");
}

#[test]
fn sleepers_take_their_memory_over_and_give_it_up() {
    let name = "sleepers_take_their_memory_over_and_give_it_up";
    let Some(budget) = least_budget(name) else {
        return;
    };
    let mut run = Run::start("sleepers", budget);
    let sleepers = run.sleepers();
    begin_to_work(&run.here);
    let tree = run.tree.clone();
    wait_for(&mut run.running, "the busy one has nearly all", || {
        let all = parts_of(&tree, |part| is_worker(part.pid));
        let asleep = |part: &&Part| sleepers.iter().any(|sleeper| sleeper.pid == part.pid);
        let (asleep, busy): (Vec<&Part>, Vec<&Part>) = all.iter().partition(asleep);
        let gave_up = |part: &&Part| part.granted <= 2 * FLOOR_PAGES && part.margin == 0;
        let has_most = busy.first()?.granted > budget * MIB / PAGE * 4 / 5;
        (has_most && asleep.iter().all(gave_up)).then_some(())
    });
    let outcome = run.end();
    assert_eq!(ok_workers(&outcome), 3, "{}", outcome.describe());
}

#[test]
fn a_lowered_limit_of_a_run_is_kept_when_it_is_answered() {
    let name = "a_lowered_limit_of_a_run_is_kept_when_it_is_answered";
    let Some(budget) = least_budget(name) else {
        return;
    };
    let mut run = Run::start("lowered", budget);
    run.sleepers();
    let launcher = run.running.pid().to_string();
    pagetide(&["limit", &launcher, "4M"], LIMIT).expect_code(0);
    let parts = parts_of(&run.tree, |_| true);
    let granted: u64 = parts.iter().map(|part| part.granted).sum();
    assert!(granted <= 4 * MIB / PAGE, "{granted} pages are granted");
    assert!(parts.iter().all(|part| part.margin == 0), "{parts:?}");
    pagetide(&["limit", &launcher, &format!("{budget}M")], LIMIT).expect_code(0);
    begin_to_work(&run.here);
    let outcome = run.end();
    assert_eq!(ok_workers(&outcome), 3, "{}", outcome.describe());
}
