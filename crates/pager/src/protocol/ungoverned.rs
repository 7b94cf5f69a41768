//! Programs that a governed process started and that no agent is loaded into: a small table in its
//! ledger.
//!
//! A child made by `vfork` writes here while it runs in its parent's memory, and may be killed at
//! any moment. So nothing here waits, locks or allocates: what is given up half way costs one
//! entry.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Files that are told apart; starts of further ones are only counted.
const ENTRIES: usize = 8;
const PATH_WORDS: usize = 14;
/// Of a longer path the end is kept.
pub const PATH_BYTES_MAX: usize = PATH_WORDS * 8;
/// In the place of a length: the entry is being filled in.
const BUSY: u32 = u32::MAX;

macro_rules! obstacles {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Why the dynamic linker loads no agent into a program.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Obstacle { $($(#[$doc])* $name = $number,)* }

        impl Obstacle {
            /// For people: what follows "because".
            pub fn text(self) -> &'static str {
                match self { $(Obstacle::$name => $text,)* }
            }

            fn from_number(number: u32) -> Option<Obstacle> {
                match number { $($number => Some(Obstacle::$name),)* _ => None }
            }
        }
    };
}

obstacles! {
    /// No dynamic linker takes part.
    Static = 1, "it is statically linked";
    /// Of another word size.
    Narrow = 2, "it is a 32-bit program";
    /// Of another architecture.
    Foreign = 3, "it is made for another architecture";
    /// Of another C library.
    Musl = 4, "it uses the musl C library, and the agent is made for glibc";
    /// Executed with other privileges than its user's.
    Privilege = 5, "it runs with privileges that are not its user's (setuid, setgid, file \
        capabilities), and gets no agent then";
    /// It cannot open the agent's file.
    OutOfReach = 6, "the agent's file is out of its reach";
}

/// Starts of one file.
#[repr(C)]
struct Entry {
    starts: AtomicU32,
    /// Of the first of them.
    pid: AtomicU32,
    obstacle: AtomicU32,
    /// 0 while the entry is free.
    path_len: AtomicU32,
    path: [AtomicU64; PATH_WORDS],
}

/// The table. All zeros is an empty one.
#[repr(C)]
pub struct Ungoverned {
    entries: [Entry; ENTRIES],
    others: AtomicU64,
}

/// Where a start was noted, so that it can be withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noted(Option<usize>);

/// What a table says of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The process that was the first to execute it.
    pub pid: u32,
    /// How often it was.
    pub starts: u64,
    /// Why no agent was loaded.
    pub obstacle: Obstacle,
    /// The file, or the end of a long path.
    pub path: String,
}

/// `path` in the form in which it is kept, and its length.
fn words(path: &[u8]) -> ([u64; PATH_WORDS], u32) {
    let end = &path[path.len().saturating_sub(PATH_BYTES_MAX)..];
    let mut words = [0; PATH_WORDS];
    for (word, chunk) in words.iter_mut().zip(end.chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_ne_bytes(bytes);
    }
    (words, end.len() as u32)
}

impl Entry {
    /// Takes a free entry for this file; whether the entry is the file's.
    fn is_or_becomes(&self, obstacle: Obstacle, path: &[u64; PATH_WORDS], len: u32) -> bool {
        match self.path_len.compare_exchange(0, BUSY, Acquire, Acquire) {
            Ok(_) => {
                for (mine, word) in self.path.iter().zip(path) {
                    mine.store(*word, Relaxed);
                }
                self.obstacle.store(obstacle as u32, Relaxed);
                self.path_len.store(len, Release);
                true
            }
            Err(known) => {
                let same_path = || {
                    self.path
                        .iter()
                        .zip(path)
                        .all(|(mine, word)| mine.load(Relaxed) == *word)
                };
                known == len && self.obstacle.load(Relaxed) == obstacle as u32 && same_path()
            }
        }
    }

    fn started(&self) -> Option<Started> {
        let len = self.path_len.load(Acquire);
        let starts = self.starts.load(Relaxed);
        if starts == 0 || len == 0 || len as usize > PATH_BYTES_MAX {
            return None;
        }
        let bytes: Vec<u8> = (self.path.iter())
            .flat_map(|word| word.load(Relaxed).to_ne_bytes())
            .take(len as usize)
            .collect();
        Some(Started {
            pid: self.pid.load(Relaxed),
            starts: starts.into(),
            obstacle: Obstacle::from_number(self.obstacle.load(Relaxed))?,
            path: String::from_utf8_lossy(&bytes).into_owned(),
        })
    }
}

impl Ungoverned {
    /// Notes that process `pid` executes the file `path`.
    pub fn note(&self, pid: u32, obstacle: Obstacle, path: &[u8]) -> Noted {
        let (path, len) = words(path);
        let place = (self.entries.iter())
            .position(|entry| len > 0 && entry.is_or_becomes(obstacle, &path, len));
        match place {
            Some(index) => {
                let entry = &self.entries[index];
                if entry.starts.fetch_add(1, Relaxed) == 0 {
                    entry.pid.store(pid, Relaxed);
                }
            }
            None => drop(self.others.fetch_add(1, Relaxed)),
        }
        Noted(place)
    }

    /// It could not be executed after all.
    pub fn withdraw(&self, noted: Noted) {
        match noted.0 {
            Some(index) => drop(self.entries[index].starts.fetch_sub(1, Relaxed)),
            None => drop(self.others.fetch_sub(1, Relaxed)),
        }
    }

    /// The files that were executed.
    pub fn list(&self) -> Vec<Started> {
        self.entries.iter().filter_map(Entry::started).collect()
    }

    /// How often files were that are not among them.
    pub fn others(&self) -> u64 {
        self.others.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Box<Ungoverned> {
        // SAFETY: integers only, for which zero is a value.
        Box::new(unsafe { std::mem::zeroed() })
    }

    #[test]
    fn starts_of_one_file_are_one_entry_with_the_first_process() {
        let table = table();
        table.note(7, Obstacle::Static, b"/bin/a");
        table.note(8, Obstacle::Static, b"/bin/a");
        table.note(9, Obstacle::Static, b"/bin/b");
        let list = table.list();
        assert_eq!(list.len(), 2);
        assert_eq!(
            (list[0].pid, list[0].starts, &*list[0].path),
            (7, 2, "/bin/a")
        );
        assert_eq!(
            (list[1].pid, list[1].starts, &*list[1].path),
            (9, 1, "/bin/b")
        );
    }

    #[test]
    fn what_is_withdrawn_was_never_started() {
        let table = table();
        let noted = table.note(7, Obstacle::Musl, b"/bin/a");
        table.withdraw(noted);
        assert!(table.list().is_empty());
        table.note(8, Obstacle::Musl, b"/bin/a");
        assert_eq!((table.list()[0].pid, table.list()[0].starts), (8, 1));
    }

    #[test]
    fn a_full_table_counts_on() {
        let table = table();
        for file in 0..ENTRIES as u32 + 3 {
            table.note(file, Obstacle::Static, format!("/bin/{file}").as_bytes());
        }
        assert_eq!((table.list().len(), table.others()), (ENTRIES, 3));
        let noted = table.note(1, Obstacle::Static, b"/bin/one more");
        table.withdraw(noted);
        assert_eq!(table.others(), 3);
    }

    #[test]
    fn of_a_long_path_the_end_is_kept() {
        let table = table();
        let path = format!("/{}/program", "x".repeat(300));
        table.note(7, Obstacle::Static, path.as_bytes());
        let kept = &table.list()[0].path;
        assert!(kept.len() == PATH_BYTES_MAX && path.ends_with(kept.as_str()));
    }

    #[test]
    fn an_entry_given_up_half_way_is_left_out() {
        let table = table();
        table.entries[0].path_len.store(BUSY, Relaxed);
        table.note(7, Obstacle::Static, b"/bin/a");
        assert_eq!(table.list().len(), 1);
        table.entries[1].obstacle.store(99, Relaxed);
        assert!(table.list().is_empty());
    }

    #[test]
    fn threads_lose_no_start() {
        let table = table();
        std::thread::scope(|scope| {
            for pid in 1..5 {
                let table = &table;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        table.note(pid, Obstacle::Static, b"/bin/a");
                    }
                });
            }
        });
        let sum: u64 = table.list().iter().map(|started| started.starts).sum();
        assert_eq!(sum + table.others(), 4000);
    }
}
