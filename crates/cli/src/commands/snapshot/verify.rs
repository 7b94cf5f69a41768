//! `pagetide snapshot verify`.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pagetide::track::snapshot::format::SnapshotId;
use pagetide::track::snapshot::image;
use pagetide::track::snapshot::reader::{BlockBuffer, FileError, SnapshotFile};

use super::shared::{failure, lack, open, print, print_json, progress, tell};
use crate::exit::{Exit, Failure};
use crate::size::Bytes;

/// What was found of one file, as JSON.
#[derive(serde::Serialize)]
struct Found {
    file: PathBuf,
    /// Every byte of it is as it was written.
    whole: bool,
    blocks: u32,
    bytes: u64,
    /// Why it cannot be restored as it is, though whole: what its chain lacks.
    lack: Option<String>,
    /// What is wrong with it.
    error: Option<String>,
}

/// Checks all files, whatever is wrong with some; the code is the highest.
pub fn verify(files: &[PathBuf], json: bool) -> Result<u8, Failure> {
    let (mut chains, mut worst) = (Chains::default(), Exit::Ok.code());
    let mut all = Vec::new();
    for path in files {
        let found = match verify_file(path) {
            Ok(file) => Found {
                file: path.clone(),
                whole: true,
                blocks: file.blocks(),
                bytes: file.file_len(),
                lack: chains.lack(path, &file),
                error: None,
            },
            Err(error) => {
                let failure = failure(error);
                worst = worst.max(tell(&failure));
                Found {
                    file: path.clone(),
                    whole: false,
                    blocks: 0,
                    bytes: 0,
                    lack: None,
                    error: Some(failure.message),
                }
            }
        };
        if !json && found.whole {
            print(&found.text())?;
        }
        all.push(found);
    }
    if json {
        print_json(&all)?;
    }
    Ok(worst)
}

fn verify_file(path: &Path) -> Result<SnapshotFile, FileError> {
    let file = open(path)?;
    let bar = progress(u64::from(file.blocks()), "checking");
    let mut buffer = BlockBuffer::default();
    for block in 0..file.blocks() {
        file.read_block(block, &mut buffer)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(file)
}

impl Found {
    /// What to say of a file that is whole.
    fn text(&self) -> String {
        let mut text = format!(
            "{}: whole, {} blocks, {}\n",
            self.file.display(),
            self.blocks,
            Bytes(self.bytes)
        );
        if let Some(lack) = &self.lack {
            text += &format!("  cannot be restored as it is: {lack}\n");
        }
        text
    }
}

/// Looks for the parents of files, for each once.
#[derive(Default)]
struct Chains {
    /// By where a parent should be and its id: what is lacking there or before.
    known: HashMap<(PathBuf, SnapshotId), Option<String>>,
}

impl Chains {
    /// What the chain of the file at `path` lacks.
    fn lack(&mut self, path: &Path, file: &SnapshotFile) -> Option<String> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let place = |child: &SnapshotFile| {
            let parent = child.parent()?;
            Some((directory.join(child.parent_name()), parent))
        };
        let mut looked_for = Vec::new();
        let mut next = place(file);
        let mut held: Option<SnapshotFile> = None;
        let mut lacking = None;
        while let Some(place_of_parent) = next {
            if let Some(known) = self.known.get(&place_of_parent) {
                lacking = known.clone();
                break;
            }
            // Stands until the search is over: met before that, the chain goes round.
            let round = format!("the chain of {} goes round", path.display());
            self.known.insert(place_of_parent.clone(), Some(round));
            looked_for.push(place_of_parent);
            match image::open_parent(directory, held.as_ref().unwrap_or(file)) {
                Ok(parent) => held = parent.map(|(parent, _)| parent),
                Err(error) => {
                    lacking = Some(lack(&error));
                    break;
                }
            }
            next = held.as_ref().and_then(place);
        }
        for place in looked_for {
            self.known.insert(place, lacking.clone());
        }
        lacking
    }
}
