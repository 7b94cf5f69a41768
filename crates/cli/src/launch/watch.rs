//! What the launcher looks at while the program runs: samples for the picture, and whether there is
//! something to warn of.
use std::path::Path;
use std::time::Duration;

use super::warnings::{self, Warnings};
use crate::args::Run;
use crate::plot::samples::{self, Recorder};

/// What is looked at.
#[derive(Debug)]
pub struct Watch {
    /// For the picture; empty where none is to be drawn.
    pub recorder: Recorder,
    /// What was warned of.
    pub warnings: Warnings,
    draws: bool,
    warns: bool,
}

impl Watch {
    /// By the options of the run.
    pub fn new(options: &Run) -> Watch {
        Watch {
            recorder: Recorder::default(),
            warnings: Warnings::default(),
            draws: options.plot.is_some(),
            warns: !options.quiet,
        }
    }

    /// How often to look, if there is anything to look at.
    pub fn interval(&self) -> Option<Duration> {
        match (self.draws, self.warns) {
            (true, _) => Some(samples::INTERVAL),
            (false, true) => Some(warnings::INTERVAL),
            (false, false) => None,
        }
    }

    /// Looks at the run in `directory`; what is to be said.
    pub fn look(&mut self, directory: &Path) -> Vec<String> {
        if self.draws {
            self.recorder.sample(directory);
        }
        match self.warns {
            true => self.warnings.look(directory),
            false => Vec::new(),
        }
    }
}
