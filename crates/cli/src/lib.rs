//! The `pagetide` command: run a program in a fixed amount of memory, watch it, change its budget,
//! and examine the system.
//!
//! [`args`] declares the command line, [`exit`] the exit codes. `run` is [`launch`]; what it needs
//! to know first is in
//! [`program`] and [`agent`]. What runs already is found by [`runs`] in the
//! directories of [`rundir`], in [`bases`], read from [`ledger_file`] and spoken to by [`control`];
//! what cannot make itself known there, by [`descendants`].
// Inner documentation, read with the source: it names what is private.
#![allow(rustdoc::private_intra_doc_links)]
#![deny(unsafe_code)]
// They panic where there is no room: `commands::print` and `commands::told` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod agent;
pub mod args;
pub mod bases;
pub mod bound;
pub mod candidates;
pub mod commands;
pub mod container;
pub mod control;
pub mod curve;
pub mod date;
pub mod descendants;
pub mod doctor;
pub mod exit;
pub mod fix;
pub mod governed;
pub mod held;
pub mod launch;
pub mod ledger_file;
pub mod plot;
pub mod program;
pub mod rundir;
pub mod runs;
pub mod serving;
pub mod size;
pub mod table;
pub mod text;
pub mod top;
pub mod whole;

use clap::Parser as _;

use crate::args::{Arguments, Command};
use crate::exit::{Exit, Failure};

/// Runs the command line and returns the exit code.
pub fn main() -> u8 {
    commanded().unwrap_or_else(|failure| {
        commands::told(&failure.to_string());
        failure.exit.code()
    })
}

fn commanded() -> Result<u8, Failure> {
    let inherited = launch::inherited::Inherited::read();
    if let Some(code) = commands::completions::answer(std::env::args_os()) {
        return Ok(code);
    }
    let words = commands::serve::names::expanded(std::env::args_os());
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            // A closed stderr leaves nobody to tell.
            let _ = error.print();
            return Ok(Exit::Usage.code());
        }
        // Help, or the version.
        Err(asked) => {
            commands::printed(asked.print())?;
            return Ok(Exit::Ok.code());
        }
    };
    if let Err(unknown) = pagetide_kernel::mask::check_environment() {
        return Err(Failure::new(Exit::Usage, unknown.to_string()));
    }
    match arguments.command {
        Command::Run(options) => launch::run(&options, &inherited),
        Command::Ps {
            json,
            serving,
            bases,
        } => commands::ps::ps(json, serving, &bases),
        Command::Stat {
            pid,
            json,
            curve,
            measure_for,
            plot,
            bases,
        } => {
            let measure_for = curve.then_some(measure_for);
            commands::stat::stat(pid, json, measure_for, plot.as_deref(), &bases)
        }
        Command::Limit {
            pid,
            size,
            timeout,
            bases,
        } => commands::limit::limit(pid, size, timeout, &bases),
        Command::Top { bases } => top::top(&bases),
        Command::Metrics(options) => commands::metrics::metrics(&options),
        Command::Doctor { json } => doctor::doctor(json),
        Command::Snapshot(command) => commands::snapshot::snapshot(&command),
        Command::Store(command) => commands::store::run(&command),
        Command::Lock(options) => commands::lock::lock(&options, &inherited),
        Command::Residency { json, files } => commands::residency::residency(&files, json),
        Command::Locks { pid, json } => commands::locks::locks(pid, json),
        Command::Serve(command) => commands::serve::serve(&command),
        Command::Pack(options) => commands::pack::pack(&options),
        Command::Bench { arguments } => commands::bench::bench(&arguments),
        Command::Completions { shell } => commands::completions::completions(shell),
        Command::Man { directory } => commands::pages::man(directory.as_deref()),
    }
}
