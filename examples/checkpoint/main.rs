//! A long computation that checkpoints itself and, killed at any moment, goes on from its last
//! checkpoint.
//!
//! It walks a table of 64 MiB in a pseudo-random order and mixes every word it meets; the result
//! depends on every step. Usage: `checkpoint DIRECTORY STEPS`. Prints the result; the same with and
//! without interruptions.
use std::path::Path;
use std::process::ExitCode;

use pagetide::track::{
    Image, Mapping, Memory, Plan, Snapshot, SnapshotError, Snapshotter, read_region,
};

const WORDS: usize = 8 << 20;
/// Steps between checkpoints.
const INTERVAL: u64 = 2_000_000;
/// Words that hold the computation's own state: steps done, place, sum.
const STATE: usize = 3;

/// The directory and the steps; or what is wrong with the arguments.
fn parse(arguments: &[String]) -> Result<(&Path, u64), String> {
    let [directory, steps] = arguments else {
        return Err("usage: checkpoint DIRECTORY STEPS".to_owned());
    };
    let steps = steps.parse().map_err(|_| {
        format!("'{steps}' is not a number of steps; expected a whole number such as 30000000")
    })?;
    let directory = Path::new(directory);
    if !directory.is_dir() {
        return Err(format!(
            "'{}' is not a directory; make it first, or name one that exists",
            directory.display()
        ));
    }
    Ok((directory, steps))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, steps) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(wrong) => {
            eprintln!("error: {wrong}");
            return ExitCode::from(2);
        }
    };
    match run(&directory.join("checkpoint"), steps) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: &Path, steps: u64) -> Result<(), Box<dyn std::error::Error>> {
    let failed =
        |error: SnapshotError| format!("checkpointing to {} failed: {error}", path.display());
    let mut table = Mapping::new(WORDS * 8)?;
    let memory = Memory::mapping("table", &table)?;
    if path.exists() {
        read_region(&Image::open(path)?, "table", table.as_mut_slice())?;
    }
    // SAFETY: pages are aligned for words, and every byte pattern is a valid one.
    let (_, words, _) = unsafe { table.as_mut_slice().align_to_mut::<u64>() };
    if words[0] > 0 {
        eprintln!("resumed at step {}", words[0]);
    }
    let snapshotter = Snapshotter::builder().memory(memory).build()?;
    let mut under_way: Option<Snapshot> = None;
    while words[0] < steps {
        step(words);
        if words[0].is_multiple_of(INTERVAL) && under_way.as_ref().is_none_or(Snapshot::is_finished)
        {
            if let Some(complete) = under_way.take() {
                complete.wait().map_err(failed)?;
            }
            // One thread computes, and it is here: nothing has to be held.
            let begun = snapshotter.snapshot(path, Plan::full(), |arm: &mut dyn FnMut()| arm());
            under_way = Some(begun.map_err(failed)?);
        }
    }
    if let Some(last) = under_way.take() {
        last.wait().map_err(failed)?;
    }
    println!("{:016x}", words[2]);
    Ok(())
}

fn step(words: &mut [u64]) {
    let place = words[1] as usize % (WORDS - STATE) + STATE;
    let mixed = (words[place] ^ words[0])
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(23)
        + 1;
    words[place] = mixed;
    words[1] = words[1]
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(mixed | 1)
        >> 1;
    words[2] = words[2].rotate_left(5) ^ mixed;
    words[0] += 1;
}
