//! The store before the program starts: opened once, so that what is wrong with it is told while
//! somebody can mend it.
use pagetide_pager::ledger::Ledger;
use pagetide_pager::tree::file::TreeFile;
use rustix::process::{Resource, getrlimit};

use crate::exit::{Exit, Failure};

/// Opens the store once, so that a wrong URI is told before the program starts. Returns the URI
/// with a relative path made absolute, as the program's processes may change their directory, and
/// with a limit for a tier in memory that has none, where all memory of a process is bounded.
pub fn open(uri: &str, memory_bytes: Option<u64>) -> Result<String, Failure> {
    let uri = &with_limit(uri, memory_bytes);
    let uri = match uri.strip_prefix("file:") {
        Some(path) if !path.is_empty() && !path.starts_with(['/', '?']) => {
            let here = std::env::current_dir().unwrap_or_default();
            format!("file:{}/{path}", here.display())
        }
        _ => uri.to_owned(),
    };
    let refused = |error| {
        let shown = pagetide_store::redact(&uri);
        Failure::new(
            Exit::Store,
            format!("--store {shown}: cannot be opened: {error}"),
        )
    };
    // Names are looked up here, once: the program's processes must not.
    let uri = pagetide_store::resolve(&uri).map_err(refused)?;
    match pagetide_store::open(&unkept(&uri)) {
        Ok(store) => {
            drop(store);
            Ok(uri)
        }
        Err(error) => Err(refused(error)),
    }
}

/// The same store; a tier in memory without a limit has all memory of the process as one. What it
/// may really have the pager says, by what else there is.
fn with_limit(uri: &str, memory_bytes: Option<u64>) -> String {
    match (uri.strip_prefix("ram:?then="), memory_bytes) {
        (Some(behind), Some(bytes)) => format!("ram:?max={bytes}&then={behind}"),
        _ => uri.to_owned(),
    }
}

/// The same store, but for its file: that is kept by the processes that put pages in it, not by the
/// trial.
fn unkept(uri: &str) -> String {
    let Some((place, options)) = uri.rsplit_once('?') else {
        return uri.to_owned();
    };
    let options: Vec<&str> = options
        .split('&')
        .map(|option| match option {
            "keep" | "keep=" | "keep=1" => "keep=0",
            other => other,
        })
        .collect();
    format!("{place}?{}", options.join("&"))
}

/// Refuses a limit on file sizes that leaves no room for the counters of a process, or for the
/// budget of a run: with it a write ends who writes, by SIGXFSZ.
pub fn check_file_limit(is_shared: bool) -> Result<(), Failure> {
    let (least, what) = match is_shared {
        true => (
            TreeFile::SIZE,
            "for who has how much of the budget (less with --per-process)",
        ),
        false => (Ledger::SIZE, "for the counters of each process"),
    };
    let least = least as u64;
    let limit = getrlimit(Resource::Fsize);
    let Some(most) = limit.current.filter(|most| *most < least) else {
        return Ok(());
    };
    let line = if limit.maximum.is_some_and(|hard| hard < least) {
        "its hard limit is as low, so as root: prlimit --pid $$ --fsize=unlimited:unlimited"
    } else {
        "lift it: ulimit -f unlimited"
    };
    Err(Failure::new(
        Exit::CannotPage,
        format!(
            "the limit on file sizes (RLIMIT_FSIZE, `ulimit -f`) is {most} bytes; expected \
             {least} or more, {what}; {line}"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_has_the_limit_of_all_memory_unless_it_has_one() {
        let limited = |uri| with_limit(uri, Some(64 << 20));
        assert_eq!(
            limited("ram:?then=file:/x?keep=1"),
            "ram:?max=67108864&then=file:/x?keep=1"
        );
        for uri in ["ram:", "ram:?max=2M&then=file:/x", "file:/x?then=y"] {
            assert_eq!(limited(uri), uri);
        }
        assert_eq!(with_limit("ram:?then=file:/x", None), "ram:?then=file:/x");
    }

    #[test]
    fn the_trial_keeps_no_file() {
        for (uri, tried) in [
            ("file:/tmp/x", "file:/tmp/x"),
            ("file:/tmp/x?keep", "file:/tmp/x?keep=0"),
            ("file:/tmp/x?max=2M&keep=1", "file:/tmp/x?max=2M&keep=0"),
            (
                "ram:?max=2M&then=file:/x?keep=1",
                "ram:?max=2M&then=file:/x?keep=0",
            ),
            ("file:/tmp/keep=1/?keep=yes", "file:/tmp/keep=1/?keep=yes"),
        ] {
            assert_eq!(unkept(uri), tried);
        }
    }
}
