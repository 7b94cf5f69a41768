//! The files of a run: a directory `run-PID`, named after the launcher, and in it what the governed
//! processes leave there.
use std::path::{Path, PathBuf};

use super::outside;

/// How the name of a run's directory begins; the launcher's process ID follows.
pub const RUN_PREFIX: &str = "run-";

/// The launcher's process ID, from the name of its run's directory.
pub fn launcher_of(run_dir: &Path) -> Option<u32> {
    let name = run_dir.file_name()?.to_str()?;
    let pid = name.strip_prefix(RUN_PREFIX)?.parse().ok()?;
    (name == format!("{RUN_PREFIX}{pid}")).then_some(pid)
}

/// Whether files of this name are made in a run's directory.
pub fn is_of_a_run(name: &str) -> bool {
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    match name.split_at(digits) {
        ("", rest) => ["lines", "tree", "serve.sock"].contains(&rest),
        (_, ".sock") => true,
        (_, rest) => {
            ledger_pid(name).is_some() || Note::ALL.iter().any(|note| note.suffix() == rest)
        }
    }
}

/// The control socket of process `pid`.
pub fn socket(run_dir: &Path, pid: u32) -> PathBuf {
    run_dir.join(format!("{pid}.sock"))
}

/// Where `pagetide serve`, whose directory this is, says what it does to everyone who connects.
pub fn serving(run_dir: &Path) -> PathBuf {
    run_dir.join("serve.sock")
}

/// The budget that the processes of a run have in common, where they have.
pub fn tree(run_dir: &Path) -> PathBuf {
    run_dir.join("tree")
}

/// The ledger of the process image that process `pid` began at `started_ns` of `CLOCK_MONOTONIC`.
pub fn ledger(run_dir: &Path, pid: u32, started_ns: u64) -> PathBuf {
    run_dir.join(format!("{pid}-{started_ns}.stats"))
}

/// The process ID in a ledger file's name.
pub fn ledger_pid(name: &str) -> Option<u32> {
    name.strip_suffix(".stats")?.split_once('-')?.0.parse().ok()
}

/// Whether a file is of an image of process `pid` that made a ledger.
pub fn is_ledger_of(name: &[u8], pid: u32) -> bool {
    let digits = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
    name[..digits] == *pid.to_string().as_bytes() && name.get(digits) == Some(&b'-')
}

/// A text file that an agent leaves for the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Why the program could not be governed; it was ended.
    Refused,
    /// Why a descendant is not governed; it runs on.
    Ungoverned,
    /// Why a process that is governed has no ledger.
    Uncounted,
    /// Why a process without a ledger was ended by its pager.
    Lost,
}

/// Bytes that a launcher reserves for [`lines`], so that a full file system silences nobody.
pub const LINES_BYTES: u64 = 64 << 10;
/// What the notes of a run may come to when they are read; there is no end to what a directory may
/// hold.
const NOTES_BYTES_MAX: usize = 16 << 20;
/// From here on in that file there is room for losses alone: whoever fills it has told of one.
pub const LINES_OTHERS_BYTES: u64 = LINES_BYTES * 3 / 4;

/// The file to which processes append their notes, as lines `PID.SUFFIX TEXT`, that cannot make
/// files in the directory: it is full, or they were forked after the program gave up its
/// privileges, and inherit the file open.
pub fn lines(run_dir: &Path) -> PathBuf {
    run_dir.join("lines")
}

impl Note {
    const ALL: [Note; 4] = [Note::Refused, Note::Ungoverned, Note::Uncounted, Note::Lost];

    /// How the name of such a file ends, after the process ID.
    pub fn suffix(self) -> &'static str {
        match self {
            Note::Refused => ".refused",
            Note::Ungoverned => ".ungoverned",
            Note::Uncounted => ".uncounted",
            Note::Lost => ".lost",
        }
    }

    /// The file of process `pid`.
    pub fn path(self, run_dir: &Path, pid: u32) -> PathBuf {
        run_dir.join(format!("{pid}{}", self.suffix()))
    }

    /// The texts of such files in a run directory, and of such lines, by process ID.
    pub fn read_all(self, run_dir: &Path) -> Vec<(u32, String)> {
        let pid_of = |name: &str| name.strip_suffix(self.suffix())?.parse::<u32>().ok();
        let read = |path: &Path| outside::read_file(path, LINES_BYTES);
        let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
        let mut left = NOTES_BYTES_MAX;
        let mut found: Vec<(u32, String)> = entries
            .filter_map(|entry| {
                let name = entry.file_name();
                let pid = pid_of(name.to_str()?)?;
                let text = read(&entry.path()).ok()?;
                Some((pid, String::from_utf8_lossy(&text).trim().to_owned()))
            })
            .take_while(|(_, text)| {
                let room = left.checked_sub(text.len());
                left = room.unwrap_or(0);
                room.is_some()
            })
            .collect();
        let lines = read(&lines(run_dir)).unwrap_or_default();
        found.extend(String::from_utf8_lossy(&lines).lines().filter_map(|line| {
            let (name, text) = line.split_once(' ')?;
            Some((pid_of(name)?, text.to_owned()))
        }));
        found.sort();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ledger_files_name_a_process() {
        let dir = Path::new("/x/run-7");
        assert_eq!(launcher_of(dir), Some(7));
        for other in ["/x/walk-7", "/x/run-007", "/x/run-seven", "/x/run-"] {
            assert_eq!(launcher_of(Path::new(other)), None, "{other}");
        }
        let name = ledger(dir, 12, 99);
        let name = name.file_name().and_then(|name| name.to_str()).unwrap();
        assert_eq!(ledger_pid(name), Some(12));
        assert!(is_ledger_of(name.as_bytes(), 12));
        for other in [1, 2, 123] {
            assert!(!is_ledger_of(name.as_bytes(), other));
        }
        for name in ["12.sock", "12.stats", "x-1.stats", "12-9.stats.tmp"] {
            assert_eq!(ledger_pid(name), None, "{name}");
        }
        assert!(!is_ledger_of(b"12.sock", 12));
    }

    #[test]
    fn files_of_a_run_are_told_from_others() {
        let dir = Path::new("/x/run-7");
        let mut made = vec![
            lines(dir),
            tree(dir),
            serving(dir),
            socket(dir, 8),
            ledger(dir, 8, 9),
        ];
        made.extend(Note::ALL.map(|note| note.path(dir, 8)));
        for path in made {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap();
            assert!(is_of_a_run(name), "{name}");
        }
        for other in [
            "",
            "8",
            "weights",
            "8.txt",
            "lines.txt",
            ".lost",
            "8-x",
            "model.stats",
        ] {
            assert!(!is_of_a_run(other), "{other}");
        }
    }

    #[test]
    fn notes_are_read_by_their_kind_in_the_order_of_processes() {
        let dir = std::env::temp_dir().join(format!("pagetide-notes-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        for (pid, note) in [(9, Note::Refused), (8, Note::Refused), (7, Note::Uncounted)] {
            std::fs::write(note.path(&dir, pid), "because\n").unwrap();
        }
        // What is no note is passed over, and nothing waits for it.
        std::os::unix::fs::symlink(Note::Refused.path(&dir, 9), Note::Refused.path(&dir, 3))
            .unwrap();
        let pipe = Note::Refused.path(&dir, 2);
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        std::fs::write(lines(&dir), "6.lost because\n5.uncounted because\n4.lost").unwrap();
        let because = |pid| (pid, "because".to_owned());
        assert_eq!(Note::Refused.read_all(&dir), [because(8), because(9)]);
        assert_eq!(Note::Uncounted.read_all(&dir), [because(5), because(7)]);
        assert_eq!(Note::Lost.read_all(&dir), [because(6)]);
        assert_eq!(Note::Ungoverned.read_all(&dir), []);
        // Without an end.
        let file = std::fs::File::options().write(true).open(lines(&dir));
        file.unwrap().set_len(1 << 40).unwrap();
        assert_eq!(Note::Lost.read_all(&dir), [because(6)]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
