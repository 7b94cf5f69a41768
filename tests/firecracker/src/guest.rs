//! A restored guest: two threads for its processors, and a balloon.
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use crate::image::{PAGE_SIZE, page};
use crate::memory::Memory;
use crate::{Options, handshake, stop_at};

const ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
const PROCESSORS: usize = 2;

/// Those that the balloon takes.
fn is_taken(number: usize) -> bool {
    number % 16 == 5
}

/// Those that the guest writes to; what then.
fn written(number: usize) -> Option<[u8; PAGE_SIZE]> {
    (number % 16 == 9).then_some([number as u8 | 1; PAGE_SIZE])
}

/// From the handshake until every page has been verified.
pub fn run(socket: &Path, options: &Options) -> Result<(), String> {
    let memory = Memory::anonymous(options.pages, options.regions, options.is_huge)?;
    let uffd = memory.userfaultfd()?;
    handshake::send(socket, &memory, &uffd, options)?;
    if options.stop == "sent" {
        stop_at("sent");
    }
    // What restoring devices and processors touches: queues, clocks.
    for number in [0, memory.pages - 1, memory.pages / 2] {
        expect(&memory, number, &page(number))?;
    }
    if options.stop == "restored" {
        stop_at("restored");
    }
    let given_up = resume(&memory, options)?;
    for number in 0..memory.pages {
        let is_given_up = !options.is_huge && is_taken(number);
        let right = if is_given_up {
            ZEROS
        } else {
            written(number).unwrap_or_else(|| page(number))
        };
        expect(&memory, number, &right)?;
    }
    println!(
        "{} pages are right, of them {given_up} given up",
        memory.pages
    );
    // Firecracker has its userfaultfd open as long as it lives.
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(|error| error.to_string())?;
    drop(uffd);
    Ok(())
}

/// Processors that verify and write, and a balloon that takes pages meanwhile; how many it took.
fn resume(memory: &Memory, options: &Options) -> Result<usize, String> {
    let taken: Vec<AtomicBool> = (0..memory.pages).map(|_| AtomicBool::new(false)).collect();
    let looks = AtomicUsize::new(0);
    let is_endless = matches!(&*options.stop, "resumed" | "taken");
    let processor = |processor: usize| -> Result<(), String> {
        let steps = 0..memory.pages;
        let first = processor * memory.pages / PROCESSORS;
        loop {
            for number in steps
                .clone()
                .map(|step| (step * 769 + first) % memory.pages)
            {
                look(memory, number, processor == 0, &taken[number])?;
                looks.fetch_add(1, SeqCst);
            }
            if !is_endless {
                return Ok(());
            }
        }
    };
    thread::scope(|scope| {
        let processor = &processor;
        let threads: Vec<_> = (0..PROCESSORS)
            .map(|number| scope.spawn(move || processor(number)))
            .collect();
        if options.stop == "resumed" {
            while looks.load(SeqCst) < 10 {
                thread::yield_now();
            }
            stop_at("resumed");
        }
        // (A part of a huge page cannot be given up.)
        let balloon = (0..memory.pages).filter(|number| !options.is_huge && is_taken(*number));
        // Whoever is killed at that step is giving some up.
        let rounds = if is_endless { usize::MAX } else { 1 };
        let mut given_up = 0;
        for number in (0..rounds).flat_map(|_| balloon.clone()) {
            memory.discard(number);
            taken[number].store(true, SeqCst);
            given_up += 1;
            if options.stop == "taken" && given_up == 10 {
                println!("at taken");
            }
        }
        let mut ends = threads.into_iter().map(|thread| thread.join());
        ends.try_for_each(|end| end.expect("it does not panic"))?;
        Ok(given_up)
    })
}

/// One look at a page, which may be given up meanwhile: what was before the look stays away.
fn look(memory: &Memory, number: usize, is_writer: bool, taken: &AtomicBool) -> Result<(), String> {
    if let Some(bytes) = written(number) {
        if is_writer {
            memory.write(number, &bytes);
            expect(memory, number, &bytes)?;
        }
        return Ok(());
    }
    let was_taken = taken.load(SeqCst);
    let seen = memory.read(number);
    let is_right = match (is_taken(number), was_taken) {
        (false, _) => seen == page(number),
        (true, true) => seen == ZEROS,
        // While it is being given up it may be read half and half.
        (true, false) => true,
    };
    is_right
        .then_some(())
        .ok_or_else(|| format!("page {number} is wrong while the guest runs"))
}

fn expect(memory: &Memory, number: usize, right: &[u8; PAGE_SIZE]) -> Result<(), String> {
    let seen = memory.read(number);
    (seen == *right)
        .then_some(())
        .ok_or_else(|| format!("page {number} is wrong: it begins with {:?}", &seen[..8]))
}
