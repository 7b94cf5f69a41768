//! `pagetide metrics`: the counters of all governed processes, for those who watch machines.
mod exposition;
mod families;
mod scrape;
mod serve;
mod served;
mod times;

use std::io::Write as _;
use std::path::Path;

use crate::args::Metrics;
use crate::exit::{Exit, Failure};

/// Exports what is known of all governed processes.
pub fn metrics(options: &Metrics) -> Result<u8, Failure> {
    options.bases.check(!options.once)?;
    if let Some(address) = options.listen {
        serve::serve(address, options)?;
    } else if let Some(path) = &options.textfile {
        loop {
            write(path, options)?;
            std::thread::sleep(options.every);
        }
    } else {
        super::print(&exposition::now(options)?)?;
    }
    Ok(Exit::Ok.code())
}

/// Writes the file beside and renames it, so that nobody reads half of it.
fn write(path: &Path, options: &Metrics) -> Result<(), Failure> {
    let failure = |error: std::io::Error| {
        let text = format!(
            "--textfile: {} cannot be written: {error}; give a file in a directory that exists \
             and that you may write to",
            path.display()
        );
        Failure::new(Exit::Failed, text)
    };
    // A device, say: renaming would put a file in its place, for everybody.
    if let Ok(there) = path.symlink_metadata()
        && !(there.is_file() || there.is_symlink())
    {
        return Err(failure(std::io::Error::other("it is no regular file")));
    }
    let text = exposition::now(options)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path
        .file_name()
        .ok_or_else(|| failure(std::io::Error::other("it names no file")))?;
    // node_exporter reads what ends in .prom, and nothing else.
    let name = format!(".{}.{}", name.to_string_lossy(), std::process::id());
    let beside = directory.join(name);
    let written = std::fs::File::create(&beside)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        failure(error)
    })
}
