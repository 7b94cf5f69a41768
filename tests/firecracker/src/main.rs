//! A client of `pagetide serve firecracker` that restores its memory as Firecracker does, with the
//! crates that Firecracker is made of and in the order of its sources, but runs no guest.
//!
//! ```text
//! firecracker-client image FILE PAGES
//! firecracker-client guest SOCKET PAGES [regions=N] [handshake=whole|split|padded]
//!                          [memfd=first|last] [huge=2M] [stop=STEP]
//! ```
//!
//! The second verifies every page and says so, or stops at a step, says that, and waits to be
//! killed. `run.py` beside it has the tests.
mod guest;
mod handshake;
mod image;
mod memory;

use std::path::Path;
use std::process::ExitCode;

/// What a client was told to do.
struct Options {
    pages: usize,
    regions: usize,
    handshake: String,
    memfd: Option<String>,
    is_huge: bool,
    stop: String,
}

impl Options {
    fn of(pages: usize, words: &[String]) -> Result<Options, String> {
        let mut options = Options {
            pages,
            regions: 2,
            handshake: "whole".into(),
            memfd: None,
            is_huge: false,
            stop: String::new(),
        };
        for word in words {
            match word.split_once('=') {
                Some(("regions", value)) => options.regions = number(value)?,
                Some(("handshake", value)) => options.handshake = value.into(),
                Some(("memfd", value)) => options.memfd = Some(value.into()),
                Some(("huge", "2M")) => options.is_huge = true,
                Some(("stop", value)) => options.stop = value.into(),
                _ => return Err(format!("'{word}' is no option; see the head of main.rs")),
            }
        }
        Ok(options)
    }
}

fn number(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|error| format!("'{text}' is no number: {error}"))
}

/// Says that a step is reached, and waits for the end, which is a signal.
fn stop_at(step: &str) -> ! {
    println!("at {step}");
    loop {
        std::thread::park();
    }
}

fn run(words: &[String]) -> Result<(), String> {
    match words {
        [what, file, pages] if what == "image" => image::write(Path::new(file), number(pages)?)
            .map_err(|error| format!("{file}: {error}")),
        [what, socket, pages, more @ ..] if what == "guest" => {
            guest::run(Path::new(socket), &Options::of(number(pages)?, more)?)
        }
        _ => Err("usage: image FILE PAGES | guest SOCKET PAGES [NAME=VALUE...]".into()),
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("firecracker-client: {message}");
            ExitCode::FAILURE
        }
    }
}
