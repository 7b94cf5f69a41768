//! A small key-value server that lives in memory and saves itself every second by a live snapshot, or by `fork` for comparison.
//!
//! `kv-server DIRECTORY PORT snapshot|fork`. The protocol is lines over TCP: `SET KEY VALUE` and `GET KEY` with numbers of up to 64 bits, `SAVED`
//! for the number of writes that the last complete save holds. Killed at any moment it comes back with that save, lazily.
//!
//! The table is an array of slots in one mapping: open addressing, 16 bytes a slot. Word 0 counts writes; it is saved with the rest, so the
//! save says exactly which writes it has.
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use pagetide::track::snapshot::Plan;
use pagetide::track::snapshot::format::{BLOCK_PAGES_MAX, RegionEntry, SnapshotId};
use pagetide::track::snapshot::image::Image;
use pagetide::track::snapshot::lazy::{LazyPlan, Restored, restore};
use pagetide::track::snapshot::sink::FileSink;
use pagetide::track::snapshot::writer::Writer;
use pagetide::track::{Memory, Snapshotter};

type Error = Box<dyn std::error::Error + Send + Sync>;

const BYTES: usize = 256 << 20;
const SLOTS: usize = BYTES / 16 - 1;
const INTERVAL: Duration = Duration::from_secs(1);

struct Table {
    address: usize,
    /// Keeps the memory mapped that came back from a save.
    restored: Option<Restored>,
    /// Keeps new memory mapped.
    _new: Option<pagetide_kernel::own::Mapping>,
    /// Writers share it; the pause of a save takes it alone.
    gate: RwLock<()>,
    saved: AtomicU64,
}

impl Table {
    fn open(path: &Path) -> Result<Table, Error> {
        let (address, restored, new) = if path.exists() {
            let restored = restore(Image::open(path)?, LazyPlan::default())?;
            let (address, len) = restored
                .region("table")
                .ok_or("the snapshot has no table")?;
            if len != BYTES {
                return Err("the snapshot's table has another size".into());
            }
            (address as usize, Some(restored), None)
        } else {
            let mapping = pagetide_kernel::own::Mapping::new(BYTES)?;
            (mapping.as_ptr() as usize, None, Some(mapping))
        };
        let table = Table {
            address,
            restored,
            _new: new,
            gate: RwLock::new(()),
            saved: AtomicU64::new(0),
        };
        table.saved.store(table.word(0).load(SeqCst), SeqCst);
        Ok(table)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < BYTES / 8);
        // SAFETY: within the mapping, aligned, and every access is atomic.
        unsafe { &*(self.address as *const AtomicU64).add(index) }
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

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, directory, port, how] = &arguments[..] else {
        return Err("usage: kv-server DIRECTORY PORT snapshot|fork".into());
    };
    let port: u16 = port.parse().map_err(|_| {
        format!("'{port}' is not a port; expected a number from 0 (any free one) to 65535")
    })?;
    let path = Path::new(directory).join("table.snapshot");
    let table = Arc::new(Table::open(&path)?);
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!(
        "ready on {} with {} writes",
        listener.local_addr()?,
        table.saved.load(SeqCst)
    );
    let saver = Arc::clone(&table);
    match how.as_str() {
        "snapshot" => std::thread::spawn(move || end_on_error(save_by_snapshot(&saver, &path))),
        "fork" => std::thread::spawn(move || end_on_error(save_by_fork(&saver, &path))),
        other => {
            return Err(
                format!("'{other}' is not a way to save; expected snapshot or fork").into(),
            );
        }
    };
    for stream in listener.incoming() {
        let (table, stream) = (Arc::clone(&table), stream?);
        std::thread::spawn(move || serve(&table, &stream));
    }
    Ok(())
}

fn end_on_error(result: Result<(), Error>) {
    if let Err(error) = result {
        eprintln!("saving failed: {error}");
        std::process::exit(1);
    }
}

fn save_by_snapshot(table: &Table, path: &Path) -> Result<(), Error> {
    // Memory that is coming back belongs to the restore until it is all there.
    if let Some(restored) = &table.restored {
        restored.wait()?;
    }
    // SAFETY: the table lives as long as the process.
    let memory = unsafe { Memory::mapping("table", table.address as *mut u8, BYTES) }?;
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
        if child == 0 {
            let code = i32::from(write_all(table, path.to_owned()).is_err());
            // SAFETY: ends the child without running anything else of the program.
            unsafe { _exit(code) };
        }
        drop(alone);
        let pause = start.elapsed();
        let pid = rustix::process::Pid::from_raw(child).ok_or("fork failed")?;
        let status = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
        if status.is_some_and(|(_, status)| status.exit_status() == Some(0)) {
            table.saved.store(writes, SeqCst);
        }
        eprintln!(
            "saved {writes} writes by fork: pause {pause:?}, whole {:?}",
            start.elapsed()
        );
    }
}

fn write_all(table: &Table, path: PathBuf) -> std::io::Result<()> {
    let pages = (BYTES / 4096) as u64;
    let region = RegionEntry {
        name: "table".into(),
        address: table.address as u64,
        pages,
    };
    let sink = Box::new(FileSink::create(&path)?);
    let mut writer = Writer::new(sink, SnapshotId::random(), None, vec![region])?;
    for first in (0..pages).step_by(BLOCK_PAGES_MAX) {
        let numbers: [u64; BLOCK_PAGES_MAX] = std::array::from_fn(|number| first + number as u64);
        let address = table.address + first as usize * 4096;
        // SAFETY: within the mapping; in the child nobody writes.
        let bytes =
            unsafe { std::slice::from_raw_parts(address as *const u8, BLOCK_PAGES_MAX * 4096) };
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
