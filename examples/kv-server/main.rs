//! A small key-value server that lives in memory and saves itself every second by a live snapshot,
//! or by `fork` for comparison.
//!
//! `kv-server DIRECTORY PORT snapshot|fork`. The protocol is lines over TCP: `SET KEY VALUE` and
//! `GET KEY` with numbers of up to 64 bits, `SAVED` for the number of writes that the last complete
//! save holds. Killed at any moment it comes back with that save, lazily.
//!
//! The table is an array of slots in one mapping: open addressing, 16 bytes a slot. Word 0 counts
//! writes; it is saved with the rest, so the save says exactly which writes it has.
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use pagetide::track::snapshot::format::{BLOCK_PAGES_MAX, RegionEntry, SnapshotId};
use pagetide::track::snapshot::sink::FileSink;
use pagetide::track::snapshot::writer::Writer;
use pagetide::track::{Image, LazyPlan, Mapping, Memory, Plan, Restored, Snapshotter, restore};

type Error = Box<dyn std::error::Error + Send + Sync>;

const BYTES: usize = 256 << 20;
const SLOTS: usize = BYTES / 16 - 1;
const INTERVAL: Duration = Duration::from_secs(1);

struct Table {
    memory: Mapping,
    /// The save that it comes back from.
    restored: Option<Restored>,
    /// Writers share it; the pause of a save takes it alone.
    gate: RwLock<()>,
    saved: AtomicU64,
}

impl Table {
    fn open(path: &Path) -> Result<Table, Error> {
        let (memory, restored) = if path.exists() {
            let mut restored = restore(Image::open(path)?, LazyPlan::default())?;
            let other = |what: String| {
                format!(
                    "{}: {what}; expected a save of kv-server: move the file away, or name \
                     another directory",
                    path.display()
                )
            };
            let memory = restored
                .take_region("table")
                .ok_or_else(|| other("the snapshot has no region 'table'".to_owned()))?;
            let len = memory.len();
            if len != BYTES {
                return Err(other(format!("its table has {len} bytes rather than {BYTES}")).into());
            }
            (memory, Some(restored))
        } else {
            (Mapping::new(BYTES)?, None)
        };
        let table = Table {
            memory,
            restored,
            gate: RwLock::new(()),
            saved: AtomicU64::new(0),
        };
        table.saved.store(table.word(0).load(SeqCst), SeqCst);
        Ok(table)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < BYTES / 8);
        // SAFETY: within the mapping, aligned, and every access is atomic.
        unsafe { &*self.memory.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// The slot of `key`, or the empty one where it belongs. Keys are stored plus one: 0 is no key.
    fn slot(&self, key: u64) -> Option<usize> {
        let start = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize % SLOTS;
        let slots = (0..SLOTS).map(|step| 2 + 2 * ((start + step) % SLOTS));
        slots.into_iter().find(|slot| {
            let held = self.word(*slot).load(SeqCst);
            held == 0 || held == key.wrapping_add(1)
        })
    }

    fn set(&self, key: u64, value: u64) -> bool {
        let _shared = self.gate.read().unwrap_or_else(|held| held.into_inner());
        // One writer finds a slot at a time; the gate alone would let two take the same.
        static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(|held| held.into_inner());
        let Some(slot) = self.slot(key) else {
            return false;
        };
        self.word(slot).store(key.wrapping_add(1), SeqCst);
        self.word(slot + 1).store(value, SeqCst);
        self.word(0).fetch_add(1, SeqCst);
        true
    }

    fn get(&self, key: u64) -> Option<u64> {
        let slot = self.slot(key)?;
        (self.word(slot).load(SeqCst) != 0).then(|| self.word(slot + 1).load(SeqCst))
    }
}

/// How the server saves itself.
#[derive(Debug, Clone, Copy)]
enum How {
    Snapshot,
    Fork,
}

/// The directory, the port and the way to save; or what is wrong with the arguments.
fn parse(arguments: &[String]) -> Result<(&Path, u16, How), String> {
    let [directory, port, how] = arguments else {
        return Err("usage: kv-server DIRECTORY PORT snapshot|fork".to_owned());
    };
    let port = port.parse().map_err(|_| {
        format!("'{port}' is not a port; expected a number from 0 (any free one) to 65535")
    })?;
    let how = match how.as_str() {
        "snapshot" => How::Snapshot,
        "fork" => How::Fork,
        other => {
            return Err(format!(
                "'{other}' is not a way to save; expected snapshot or fork"
            ));
        }
    };
    let directory = Path::new(directory);
    if !directory.is_dir() {
        return Err(format!(
            "'{}' is not a directory; make it first, or name one that exists",
            directory.display()
        ));
    }
    Ok((directory, port, how))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, port, how) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(wrong) => {
            eprintln!("error: {wrong}");
            return ExitCode::from(2);
        }
    };
    match run(directory, port, how) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(directory: &Path, port: u16, how: How) -> Result<(), Error> {
    let path = directory.join("table.snapshot");
    let table = Arc::new(Table::open(&path)?);
    let listener = TcpListener::bind(("127.0.0.1", port))
        .map_err(|error| format!("port {port} of 127.0.0.1 cannot be listened on: {error}"))?;
    println!(
        "ready on {} with {} writes",
        listener.local_addr()?,
        table.saved.load(SeqCst)
    );
    let saver = Arc::clone(&table);
    std::thread::spawn(move || {
        end_on_error(
            match how {
                How::Snapshot => save_by_snapshot(&saver, &path),
                How::Fork => save_by_fork(&saver, &path),
            },
            &path,
        );
    });
    for stream in listener.incoming() {
        let (table, stream) = (Arc::clone(&table), stream?);
        std::thread::spawn(move || serve(&table, &stream));
    }
    Ok(())
}

fn end_on_error(result: Result<(), Error>, path: &Path) {
    if let Err(error) = result {
        eprintln!("error: saving to {} failed: {error}", path.display());
        std::process::exit(1);
    }
}

fn save_by_snapshot(table: &Table, path: &Path) -> Result<(), Error> {
    // Memory that is coming back belongs to the restore until it is all there.
    if let Some(restored) = &table.restored {
        restored.wait()?;
    }
    let memory = Memory::mapping("table", &table.memory)?;
    let snapshotter = Snapshotter::builder().memory(memory).build()?;
    loop {
        std::thread::sleep(INTERVAL);
        let mut writes = 0;
        let snapshot =
            snapshotter.snapshot(path, Plan::full().pre_armed(), |arm: &mut dyn FnMut()| {
                let _alone = table.gate.write().unwrap_or_else(|held| held.into_inner());
                arm();
                writes = table.word(0).load(SeqCst);
            })?;
        let report = snapshot.wait()?;
        table.saved.store(writes, SeqCst);
        eprintln!(
            "saved {writes} writes: pause {:?}, whole {:?}",
            report.pause, report.duration
        );
    }
}

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(code: i32) -> !;
}

/// A save that fails is told and tried again: the next child may find room.
fn save_by_fork(table: &Table, path: &Path) -> Result<(), Error> {
    if let Some(restored) = &table.restored {
        restored.wait()?;
    }
    loop {
        std::thread::sleep(INTERVAL);
        let start = std::time::Instant::now();
        let alone = table.gate.write().unwrap_or_else(|held| held.into_inner());
        let writes = table.word(0).load(SeqCst);
        // SAFETY: the child uses this thread's state and the table only, and ends by _exit.
        let child = unsafe { fork() };
        let no_child = (child < 0).then(std::io::Error::last_os_error);
        if child == 0 {
            let written = write_all(table, path).inspect_err(|error| {
                let line = format!("error: writing {}: {error}\n", path.display());
                // Not eprintln!: who held its lock when this was forked will never give it back
                // here.
                let _ = rustix::io::write(std::io::stderr(), line.as_bytes());
            });
            let code = i32::from(written.is_err());
            // SAFETY: ends the child without running anything else of the program.
            unsafe { _exit(code) };
        }
        drop(alone);
        let pause = start.elapsed();
        let written = match no_child {
            Some(error) => Err(format!("fork: {error}")),
            None => wait_for_child(child),
        };
        match written {
            Ok(()) => {
                table.saved.store(writes, SeqCst);
                eprintln!(
                    "saved {writes} writes by fork: pause {pause:?}, whole {:?}",
                    start.elapsed()
                );
            }
            Err(why) => eprintln!(
                "error: saving to {} by fork failed: {why}; the last complete save has {} writes, \
                 the next try is in {INTERVAL:?}",
                path.display(),
                table.saved.load(SeqCst)
            ),
        }
    }
}

/// Only a child that ended with 0 has saved; otherwise says why it has not.
fn wait_for_child(child: i32) -> Result<(), String> {
    let pid = rustix::process::Pid::from_raw(child);
    let waited = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty());
    let (_, status) = waited
        .map_err(|error| error.to_string())?
        .ok_or("the child is not known")?;
    match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => Ok(()),
        (_, Some(signal)) => Err(format!("signal {signal} ended the child")),
        _ => Err("the child could not write it".to_owned()),
    }
}

fn write_all(table: &Table, path: &Path) -> std::io::Result<()> {
    let pages = (BYTES / 4096) as u64;
    let region = RegionEntry {
        name: "table".into(),
        address: table.memory.as_ptr() as u64,
        pages,
    };
    let sink = Box::new(FileSink::create(path)?);
    let mut writer = Writer::new(sink, SnapshotId::random(), None, vec![region])?;
    for first in (0..pages).step_by(BLOCK_PAGES_MAX) {
        let numbers: [u64; BLOCK_PAGES_MAX] = std::array::from_fn(|number| first + number as u64);
        // In the child nobody writes.
        let bytes = &table.memory.as_slice()[first as usize * 4096..][..BLOCK_PAGES_MAX * 4096];
        writer.put(0, &numbers, bytes)?;
    }
    writer.finish().map(drop)
}

fn serve(table: &Table, stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(line)) = lines.next() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |text: &str| text.parse::<u64>().ok();
        let answer = match &words[..] {
            ["SET", key, value] => match (number(key), number(value)) {
                (Some(key), Some(value)) if table.set(key, value) => "OK".to_owned(),
                (Some(_), Some(_)) => "ERROR the table is full".to_owned(),
                _ => "ERROR expected SET NUMBER NUMBER".to_owned(),
            },
            ["GET", key] => match number(key).map(|key| table.get(key)) {
                Some(Some(value)) => value.to_string(),
                Some(None) => "NONE".to_owned(),
                None => "ERROR expected GET NUMBER".to_owned(),
            },
            ["SAVED"] => table.saved.load(SeqCst).to_string(),
            _ => "ERROR expected SET, GET or SAVED".to_owned(),
        };
        if (&*stream).write_all((answer + "\n").as_bytes()).is_err() {
            return;
        }
    }
}
