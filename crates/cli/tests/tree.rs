//! One budget for all processes of a run: nobody loses a byte, all together stay within it, what a
//! killed process had goes to the others, and who works gets what sleepers have. Counts of pages,
//! no times.
mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pagetide_pager::protocol::files::launcher_of;
use pagetide_pager::tree::file::{FLOOR_PAGES, Part};
use support::compile::{compile_c, on_path};
use support::pagetide::{able_to_fork, governed, pagetide};
use support::patience::{fewer, up_to};
use support::process::{run, start};
use support::skip::{is_full, skipped};
use support::tree::{
    MIB, PAGE, Watch, directory, is_worker, ok_workers, parts_of, shares, shell, tree_of, wait_for,
    worker,
};

const LIMIT: Duration = Duration::from_secs(240);

/// Rounds of a test whose race may come once in many.
fn rounds() -> u64 {
    if is_full() { fewer(30) } else { 2 }
}

#[test]
fn a_pipeline_loses_nothing_and_is_within_one_budget() {
    let name = "a_pipeline_loses_nothing_and_is_within_one_budget";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    let stage = "\"$0\" $mib pipe";
    for (budget, mib) in [(1, 6), (4, 12), (16, 32)] {
        let pipeline = [stage; 6].join(" | ");
        let script = format!("mib={mib}; seq 1 120000 | {pipeline} >\"$1/out\"; cksum <\"$1/out\"");
        let mut native = Command::new("sh");
        let here = directory(&format!("pipeline-{budget}"));
        native.arg("-c").arg(&script).arg(worker()).arg(&here);
        let expected = run(&mut native, LIMIT).expect_code(0).stdout_text();
        for round in 0..rounds() {
            let size = format!("{budget}M");
            let mut command = shell(&["--resident", &size], &script, &here);
            let running = start(&mut command, b"");
            let watch = Watch::start(running.pid(), here.join("run"));
            let outcome = running.finish(LIMIT);
            outcome.expect_code(0);
            assert_eq!(
                outcome.stdout_text(),
                expected,
                "{budget} MiB, round {round}"
            );
            watch.expect_within(budget * MIB);
        }
    }
}

#[test]
fn forks_lose_nothing() {
    let name = "forks_lose_nothing";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    for hazard in [
        "fork_verify",
        "fork_deep",
        "daemon_double_fork",
        "process_vm",
    ] {
        let program = compile_c("hazards", hazard, &[]).unwrap_or_else(|error| panic!("{error}"));
        for budget in ["1M", "4M", "16M"] {
            for round in 0..rounds() {
                let mut command = governed(&["--resident", budget], &program);
                let outcome = run(command.arg("12"), LIMIT);
                if outcome.code() == Some(77) {
                    skipped(name, &outcome.stderr_text());
                    continue;
                }
                let said = outcome.stdout_text().contains(&format!("ok {hazard}\n"));
                let is_well = outcome.code() == Some(0) && said;
                assert!(is_well, "{budget}, round {round}: {}", outcome.describe());
            }
        }
    }
}

/// Writes a project of `files` C files, and a Makefile, to `directory`.
fn write_project(directory: &Path, files: u32) {
    let write = |name: &str, text: String| {
        std::fs::write(directory.join(name), text).expect("the project can be written");
    };
    for file in 0..files {
        let functions = (0..60).map(|n| {
            format!(
                "unsigned f{file}_{n}(unsigned x) {{ for (unsigned i = 0; i < x % 7; i++) \
                 x = x * {} + (i ^ {n}); return x; }}\n",
                2 * (file + n) + 3
            )
        });
        let calls = (0..60).map(|n| format!("x ^= f{file}_{n}(x + {n}); "));
        let all = format!(
            "unsigned all{file}(unsigned x) {{ {} return x; }}\n",
            calls.collect::<String>()
        );
        let text = format!("#include <stdio.h>\n{}{all}", functions.collect::<String>());
        write(&format!("part{file}.c"), text);
    }
    let each = |what: &dyn Fn(u32) -> String| (0..files).map(what).collect::<String>();
    let main = format!(
        "#include <stdio.h>\n{}int main(void) {{ unsigned x = 1; {} printf(\"%u\\n\", x); }}\n",
        each(&|file| format!("unsigned all{file}(unsigned);\n")),
        each(&|file| format!("x = all{file}(x);"))
    );
    write("main.c", main);
    let objects = each(&|file| format!(" part{file}.o"));
    let makefile =
        format!("program: main.o{objects}\n\tcc -o $@ $^\n%.o: %.c\n\tcc -O2 -c -o $@ $<\n");
    write("Makefile", makefile);
}

#[test]
fn a_parallel_make_builds_what_it_builds_alone() {
    let name = "a_parallel_make_builds_what_it_builds_alone";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    if !on_path("make") || !on_path("cc") {
        return skipped(name, "there is no make or no cc");
    }
    let files = fewer(if is_full() { 200 } else { 16 }) as u32;
    let script = "cd \"$1\" && make -s -j4 program && cksum <program && ./program";
    let here = directory("make");
    write_project(&here, files);
    let mut native = Command::new("sh");
    native.arg("-c").arg(script).arg("sh").arg(&here);
    let expected = run(&mut native, LIMIT).expect_code(0).stdout_text();
    Command::new("sh")
        .arg("-c")
        .arg("rm \"$0\"/*.o \"$0\"/program")
        .arg(&here)
        .status()
        .expect("there is a shell");
    let mut command = shell(&["--resident", "48M"], script, &here);
    let running = start(&mut command, b"");
    let watch = Watch::start(running.pid(), here.join("run"));
    let outcome = running.finish(LIMIT * 4);
    outcome.expect_code(0);
    assert_eq!(outcome.stdout_text(), expected);
    watch.expect_within(48 * MIB);
}

#[test]
fn who_works_gets_what_sleepers_have() {
    let name = "who_works_gets_what_sleepers_have";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    let here = directory("busy");
    // The sleepers first: they have the memory until it is asked for.
    let script = "for i in 1 2 3 4; do \"$0\" 6 idle \"$1/end\" & done; \
        while [ ! -e \"$1/go\" ]; do sleep 0.05; done; \
        \"$0\" 40 busy \"$1/end\" & wait";
    let mut command = shell(&["--resident", "24M"], script, &here);
    let mut running = start(&mut command, b"");
    let watch = Watch::start(running.pid(), here.join("run"));
    let tree = tree_of(&mut running, &here);
    let budget = 24 * MIB / PAGE;
    let workers = || parts_of(&tree, |part| is_worker(part.pid));
    let sleepers = wait_for(
        &mut running,
        "four sleepers have half of the budget",
        || {
            let sleepers = workers();
            let have: u64 = sleepers.iter().map(|part| part.granted).sum();
            (sleepers.len() == 4 && have > budget / 2).then_some(sleepers)
        },
    );
    std::fs::write(here.join("go"), "").expect("a file");
    let others = |part: &Part| sleepers.iter().all(|sleeper| sleeper.pid != part.pid);
    wait_for(&mut running, "the busy one has nearly all", || {
        let (asleep, busy): (Vec<Part>, Vec<Part>) = workers().iter().partition(|p| !others(p));
        let has_most = busy.first()?.granted > budget * 9 / 10;
        let gave_up = asleep.iter().all(|part| part.granted <= 2 * FLOOR_PAGES);
        (has_most && gave_up).then_some(())
    });
    std::fs::write(here.join("end"), "").expect("a file");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(0);
    assert_eq!(ok_workers(&outcome), 5, "{}", outcome.describe());
    watch.expect_within(24 * MIB);
}

#[test]
fn what_killed_processes_had_goes_to_the_survivor() {
    let name = "what_killed_processes_had_goes_to_the_survivor";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    let mut seed = 1u64;
    for round in 0..rounds() {
        let here = directory(&format!("killed-{round}"));
        let script = "for i in 1 2 3 4 5 6; do \"$0\" 20 busy \"$1/end\" & done; wait";
        let mut command = shell(&["--resident", "8M"], script, &here);
        let mut running = start(&mut command, b"");
        let tree = tree_of(&mut running, &here);
        let workers = || parts_of(&tree, |part| is_worker(part.pid));
        wait_for(&mut running, "six workers", || {
            (workers().len() == 6).then_some(())
        });
        while let [first, rest @ ..] = &workers()[..] {
            if rest.is_empty() {
                break;
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let all = [&[*first], rest].concat();
            let victim = all[(seed >> 33) as usize % all.len()].pid;
            Command::new("kill")
                .arg("-KILL")
                .arg(victim.to_string())
                .status()
                .expect("kill");
            std::thread::sleep(Duration::from_micros((seed >> 40) % 40_000));
            wait_for(&mut running, "it is gone", || {
                (!is_worker(victim)).then_some(())
            });
        }
        let budget = 8 * MIB / PAGE;
        // The shell and the survivor are left, and nothing of the others.
        wait_for(&mut running, "the survivor has the whole budget", || {
            let shares = shares(&tree)?;
            let most = shares.parts.iter().map(|part| part.granted).max()?;
            let all_of_it = most + 2 * FLOOR_PAGES >= budget && shares.granted() == budget;
            (shares.parts.len() == 2 && all_of_it).then_some(())
        });
        std::fs::write(here.join("end"), "").expect("a file");
        let outcome = running.finish(LIMIT);
        outcome.expect_code(0);
        assert_eq!(ok_workers(&outcome), 1, "{}", outcome.describe());
    }
}

/// As a daemon does that does not execute itself again.
#[test]
fn what_a_parent_had_goes_to_the_child_that_outlives_it() {
    let name = "what_a_parent_had_goes_to_the_child_that_outlives_it";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    let here = directory("orphan");
    let script = "\"$0\" 20 orphan \"$1/end\" >\"$1/out\"; echo >\"$1/over\"; \
                  until [ -s \"$1/out\" ]; do sleep 0.1; done; cat \"$1/out\"";
    let mut running = start(&mut shell(&["--resident", "16M"], script, &here), b"");
    let tree = tree_of(&mut running, &here);
    wait_for(&mut running, "the child has its parent's part", || {
        let is_over = here.join("over").exists();
        let workers = parts_of(&tree, |part| is_over && is_worker(part.pid));
        let [child] = workers[..] else { return None };
        (child.granted * PAGE >= 12 * MIB).then_some(())
    });
    let launcher = running.pid().to_string();
    pagetide(&["limit", &launcher, "4M"], LIMIT).expect_code(0);
    std::fs::write(here.join("end"), "").expect("a file");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(0);
    assert_eq!(ok_workers(&outcome), 1, "{}", outcome.describe());
}

#[test]
fn the_limit_of_a_run_and_of_a_process_in_it_can_be_changed() {
    let name = "the_limit_of_a_run_and_of_a_process_in_it_can_be_changed";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    let here = directory("limit");
    let script = "\"$0\" 24 busy \"$1/end\" & \"$0\" 24 busy \"$1/end\" & wait";
    let mut running = start(&mut shell(&["--resident", "16M"], script, &here), b"");
    let tree = tree_of(&mut running, &here);
    let workers = || parts_of(&tree, |part| is_worker(part.pid));
    let granted = || shares(&tree).map_or(0, |shares| shares.granted());
    let full = |pages: u64| (granted() + FLOOR_PAGES > pages).then_some(());
    wait_for(&mut running, "16 MiB are granted", || full(16 * MIB / PAGE));
    let launcher = running.pid().to_string();
    let outcome = pagetide(&["limit", &launcher, "6M"], LIMIT);
    outcome.expect_code(0).expect_told("budget 6 MiB");
    for _ in 0..100 {
        assert!(
            granted() <= 6 * MIB / PAGE,
            "{} pages are granted",
            granted()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    pagetide(&["limit", &launcher, "12M"], LIMIT).expect_code(0);
    wait_for(&mut running, "12 MiB are granted", || full(12 * MIB / PAGE));
    // One of the two, which leaves the rest to the other.
    let one = workers()[0].pid;
    pagetide(&["limit", &one.to_string(), "1M"], LIMIT).expect_code(0);
    wait_for(&mut running, "the other has the rest", || {
        let capped = workers()
            .iter()
            .any(|part| part.pid == one && part.granted <= MIB / PAGE);
        capped.then_some(()).and_then(|()| full(12 * MIB / PAGE))
    });
    let listed = pagetide(&["ps"], LIMIT).expect_code(0).stdout_text();
    let line = |pid: u32| {
        let mut lines = listed.lines();
        lines
            .find(|line| line.trim_start().starts_with(&format!("{pid} ")))
            .map(str::to_owned)
    };
    let said = line(one).unwrap_or_default();
    assert!(
        said.contains("12 MiB") && said.contains(", at most 1 MiB"),
        "{listed}"
    );
    let stat = pagetide(&["stat", &one.to_string()], LIMIT);
    let stat = stat.expect_code(0).stdout_text();
    assert!(
        stat.contains("(its part of the run's 12 MiB, limited to 1 MiB, "),
        "{stat}"
    );
    pagetide(&["limit", &one.to_string(), "1G"], LIMIT)
        .expect_code(0)
        .expect_told("all of the run's 12 MiB");
    std::fs::write(here.join("end"), "").expect("a file");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(0);
    assert_eq!(ok_workers(&outcome), 2, "{}", outcome.describe());
}

/// Its parent ends before any of it is governed.
#[test]
fn a_daemon_that_is_just_starting_is_named_at_the_end() {
    let name = "a_daemon_that_is_just_starting_is_named_at_the_end";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    let here = directory("just-starting");
    let script = "exec 1>/dev/null 2>&1; \"$0\" 8 idle \"$1/end\" & exit 0";
    for _ in 0..8 {
        let _ = std::fs::remove_file(here.join("end"));
        let outcome = run(&mut shell(&["--resident", "32M"], script, &here), LIMIT);
        std::fs::write(here.join("end"), "").expect("a file");
        outcome
            .expect_code(0)
            .expect_told("goes on, and is governed");
    }
}

#[test]
fn a_run_whose_launcher_has_ended_is_limited_and_shown_by_its_number() {
    let name = "a_run_whose_launcher_has_ended_is_limited_and_shown_by_its_number";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    let here = directory("launcher-ended");
    let daemon = "\"$0\" 8 idle \"$1/end\" >\"$1/out\" 2>&1 &";
    let script = format!("{daemon} {daemon} exit 0").replacen("/out", "/other", 1);
    let outcome = run(&mut shell(&["--resident", "32M"], &script, &here), LIMIT);
    outcome
        .expect_code(0)
        .expect_told("1 more go on, and are governed");
    let read = |file: &str| std::fs::read_to_string(here.join(file)).unwrap_or_default();
    let launcher = launcher_of(Path::new(read("run").trim())).expect("a run's directory");
    let launcher = launcher.to_string();
    pagetide(&["limit", &launcher, "6M"], LIMIT)
        .expect_code(0)
        .expect_told(&format!(
            "run {launcher}: budget 6 MiB, of which its processes (2) have"
        ));
    let listed = pagetide(&["stat", &launcher], LIMIT);
    let listed = listed.expect_code(0).stdout_text();
    assert!(
        listed.starts_with(&format!("run {launcher}: 2 processes, "))
            && listed.contains("of 6 MiB"),
        "{listed}"
    );
    let all = pagetide(&["ps"], LIMIT);
    let all = all.expect_code(0).stdout_text();
    let of_run = |line: &&str| line.split_whitespace().nth(1) == Some(&launcher);
    assert_eq!(all.lines().filter(of_run).count(), 2, "{all}");
    let json = pagetide(&["ps", "--json"], LIMIT).stdout_text();
    assert_eq!(
        json.matches(&format!("\"run\":{launcher}")).count(),
        2,
        "{json}"
    );
    std::fs::write(here.join("end"), "").expect("a file");
    let deadline = Instant::now() + up_to(60);
    while ["out", "other"]
        .iter()
        .any(|file| read(file) != "ok share_worker\n")
    {
        assert!(
            Instant::now() < deadline,
            "{} {}",
            read("out"),
            read("other")
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    // Nobody of the run is left.
    let deadline = Instant::now() + up_to(60);
    while pagetide(&["limit", &launcher, "6M"], LIMIT).code() != Some(1) {
        assert!(Instant::now() < deadline, "run {launcher} does not end");
    }
}

#[test]
fn the_budget_is_the_runs_unless_otherwise_wished_and_a_wrong_weight_is_refused() {
    let name = "the_budget_is_the_runs_unless_otherwise_wished_and_a_wrong_weight_is_refused";
    if let Err(reason) = able_to_fork() {
        return skipped(name, &reason);
    }
    let ls = "ls \"$PAGETIDE_RUN_DIR\"";
    let has_tree = |options: &[&str]| {
        let mut command = governed(options, "sh");
        let outcome = run(command.args(["-c", ls]), LIMIT);
        outcome.expect_code(0);
        outcome.stdout_text().lines().any(|line| line == "tree")
    };
    assert!(has_tree(&[]));
    assert!(has_tree(&["--per-run"]));
    assert!(!has_tree(&["--per-run", "--per-process"]));
    for of_each in [&["--per-process"][..], &["--memory", "1G"], &["--measure"]] {
        assert!(!has_tree(of_each), "{of_each:?}");
    }
    let mut command = governed(&[], "true");
    let outcome = run(command.env("PAGETIDE_WEIGHT", "0"), LIMIT);
    outcome
        .expect_code(2)
        .expect_told("PAGETIDE_WEIGHT=0 is not a weight");
    let script = "PAGETIDE_WEIGHT=abc /bin/true; true";
    let outcome = run(
        governed(&["--resident", "8M"], "sh").args(["-c", script]),
        LIMIT,
    );
    outcome
        .expect_code(0)
        .expect_told("PAGETIDE_WEIGHT=abc is not a weight; expected a number from 1 to 10000; it");
}
