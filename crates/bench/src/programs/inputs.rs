//! What a program reads and is made of, put into a directory before anything is measured.
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Error, Result, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::catalogue::Program;
use crate::content::Random;
use crate::launch;

/// A program that can be started.
#[derive(Debug, Clone)]
pub struct Ready {
    /// Its own directory.
    pub directory: PathBuf,
    /// The words to start it with.
    pub command: Vec<String>,
    /// The words to start its client with; none for what is no server.
    pub client: Vec<String>,
    /// What is in its directory when it starts.
    made: Vec<OsString>,
}

impl Ready {
    /// Removes what a run left in its directory: a server would begin with what the last one saved.
    pub fn clear(&self) -> Result<()> {
        for name in names(&self.directory)? {
            if !self.made.contains(&name) {
                std::fs::remove_file(self.directory.join(name))?;
            }
        }
        Ok(())
    }
}

fn names(directory: &Path) -> Result<Vec<OsString>> {
    let entries = std::fs::read_dir(directory)?;
    entries.map(|entry| Ok(entry?.file_name())).collect()
}

/// Makes what `program` needs in a directory of its own in `parent`.
pub fn prepare(program: &Program, scale: f64, python: &Path, parent: &Path) -> Result<Ready> {
    let directory = parent.join(program.name);
    std::fs::create_dir_all(&directory)?;
    let size = ((program.size as f64 * scale) as u64).max(1);
    for file in program.files {
        std::fs::write(directory.join(file.name), file.text)?;
    }
    if program.lines {
        lines(&directory.join("lines"), size)?;
    }
    let words = |words: &[&str]| -> Vec<String> {
        let filled = words.iter().map(|word| {
            word.replace("{size}", &size.to_string())
                .replace("{dir}", &directory.to_string_lossy())
                .replace("{python}", &python.to_string_lossy())
        });
        filled.collect()
    };
    if let [compiler, rest @ ..] = &words(program.build)[..] {
        let (status, _) = launch::output(Command::new(compiler).args(rest))?;
        if !status.success() {
            return Err(Error::other(format!("`{compiler}` ended with {status}")));
        }
    }
    Ok(Ready {
        command: words(program.command),
        client: words(program.client),
        made: names(&directory)?,
        directory,
    })
}

/// Writes so many lines of a random key and a number.
fn lines(path: &Path, count: u64) -> Result<()> {
    let mut random = Random::new(10);
    let mut file = BufWriter::new(File::create(path)?);
    for number in 0..count {
        writeln!(file, "{:016x} line {number}", random.number())?;
    }
    file.flush()
}
