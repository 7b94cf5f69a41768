//! `pagetide store`: for those who operate the servers that remote stores use.
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clap::Subcommand;
use pagetide_store::{Clear, PAGE_SIZE, Page, Remote, Slot, Store, StoreError, redact};
use serde::Serialize;

use super::volumes::{Volumes, volumes};
use super::{print, print_json};
use crate::exit::{Exit, Failure};

/// What to do with a store.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Check that a run could use it, and how long an answer takes
    #[command(after_help = crate::exit::OF_STORES)]
    Ping {
        /// The store
        uri: String,
    },
    /// List whose pages it holds, and which of them live
    #[command(after_help = crate::exit::OF_STORES)]
    Usage {
        /// The store
        uri: String,
        /// Print a JSON array, sizes in pages
        #[arg(long)]
        json: bool,
    },
    /// Remove what dead runs left: of this machine at once, of others when their lease has run out
    #[command(after_help = crate::exit::OF_STORES)]
    Gc {
        /// The store
        uri: String,
    },
    /// List the volumes that packed dumps are in, and remove those that no dump needs any more
    #[command(after_help = crate::exit::OF_STORES)]
    Volumes(Volumes),
    /// Put, read and delete pages, and say how long each takes
    #[command(after_help = crate::exit::OF_STORES)]
    Bench {
        /// The store
        uri: String,
        /// Pages
        #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(64..))]
        pages: u32,
        /// Print a JSON object, times in us
        #[arg(long)]
        json: bool,
    },
}

/// Does it.
pub fn run(command: &StoreCommand) -> Result<u8, Failure> {
    let (uri, done) = match command {
        StoreCommand::Ping { uri } => (uri, ping(uri)),
        StoreCommand::Usage { uri, json } => (uri, usage(uri, *json)),
        StoreCommand::Gc { uri } => (uri, clear(uri)),
        StoreCommand::Bench { uri, pages, json } => (uri, bench(uri, *pages as usize, *json)),
        StoreCommand::Volumes(options) => return volumes(options),
    };
    done.map(|()| Exit::Ok.code())
        .map_err(|failed| match failed {
            Failed::Store(error) => Failure::new(Exit::Store, format!("{}: {error}", redact(uri))),
            Failed::Print(failure) => failure,
        })
}

enum Failed {
    Store(StoreError),
    Print(Failure),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Store(error)
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        Failed::Print(failure)
    }
}

const PINGS: usize = 100;

fn ping(uri: &str) -> Result<(), Failed> {
    let remote = Remote::open(uri)?;
    let mut times: Vec<Duration> = (0..PINGS)
        .map(|_| remote.ping())
        .collect::<Result<_, _>>()?;
    times.sort_unstable();
    let mut text = String::new();
    for (name, value) in remote.describe()? {
        let _ = writeln!(text, "{name:<12} {value}");
    }
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let _ = writeln!(
        text,
        "{:<12} median {:.0} us, longest {:.0} us of {PINGS}",
        "answers in",
        us(times[PINGS / 2]),
        us(times[PINGS - 1])
    );
    Ok(print(&text)?)
}

#[derive(Serialize)]
struct OwnerRow {
    owner: String,
    pid: u32,
    host: String,
    slots_max: u32,
    lives: bool,
    known: bool,
}

fn usage(uri: &str, json: bool) -> Result<(), Failed> {
    let rows: Vec<OwnerRow> = Remote::open(uri)?
        .owners()?
        .into_iter()
        .map(|owned| OwnerRow {
            owner: owned.record.owner,
            pid: owned.record.pid,
            host: owned.record.host,
            slots_max: owned.record.slots,
            lives: owned.lives,
            known: owned.known,
        })
        .collect();
    if json {
        return Ok(print_json(&rows)?);
    }
    let mut text = format!("{:<32} {:>8} {:>10}  STATE\n", "OWNER", "PID", "SLOTS");
    for row in rows {
        let state = match (row.lives, row.known) {
            (true, true) => "lives",
            (false, true) => "dead: gc removes it",
            (true, false) => "of another machine, its lease runs",
            (false, false) => "of another machine, its lease has run out: gc removes it",
        };
        let _ = writeln!(
            text,
            "{:<32} {:>8} {:>10}  {state}",
            row.owner, row.pid, row.slots_max
        );
    }
    Ok(print(&text)?)
}

fn clear(uri: &str) -> Result<(), Failed> {
    let cleared = Remote::open(uri)?.clear(Clear::Expired)?;
    Ok(print(&format!(
        "removed {} dead owners, with at most {} pages\n",
        cleared.owners, cleared.slots
    ))?)
}

#[derive(Serialize)]
struct BenchRow {
    uri: String,
    pages: usize,
    put_us: f64,
    get_us: f64,
    get_p99_us: f64,
    get_many_us: f64,
    delete_us: f64,
}

fn bench(uri: &str, pages: usize, json: bool) -> Result<(), Failed> {
    let store = pagetide_store::open(uri)?;
    let row = measure(&*store, uri, pages)?;
    if json {
        return Ok(print_json(&row)?);
    }
    Ok(print(&format!(
        "us a page, {pages} pages, half of each random\nput, batched     {:8.2}\nget, one by one  \
         {:8.2}   p99 {:.2}\nget, batched     {:8.2}\ndelete           {:8.2}\n",
        row.put_us, row.get_us, row.get_p99_us, row.get_many_us, row.delete_us
    ))?)
}

fn measure(store: &dyn Store, uri: &str, pages: usize) -> Result<BenchRow, StoreError> {
    let batch = store.capabilities().put_batch_pages;
    let mut random = Random(1);
    let content: Vec<Page> = (0..batch + 63)
        .map(|_| {
            let mut page = Page::ZERO;
            page.0[..PAGE_SIZE / 2]
                .chunks_exact_mut(8)
                .for_each(|chunk| chunk.copy_from_slice(&random.next().to_ne_bytes()));
            page
        })
        .collect();
    let each = |begun: Instant| begun.elapsed().as_secs_f64() * 1e6 / pages as f64;
    let mut slots = vec![Slot(0); pages];
    let begun = Instant::now();
    for (index, slots) in slots.chunks_mut(batch).enumerate() {
        let first = index % 63;
        let some: Vec<&Page> = content[first..first + slots.len()].iter().collect();
        store.put(&some, slots)?;
    }
    let put_us = each(begun);
    let mut page = Page::ZERO;
    let mut times = Vec::with_capacity(pages);
    let begun = Instant::now();
    for _ in 0..pages {
        let start = Instant::now();
        store.get(slots[(random.next() % pages as u64) as usize], &mut page)?;
        times.push(start.elapsed());
    }
    let get_us = each(begun);
    times.sort_unstable();
    let mut many = vec![Page::ZERO; 64];
    let begun = Instant::now();
    for slots in slots.chunks(64) {
        store.get_many(slots, &mut many[..slots.len()])?;
    }
    let get_many_us = each(begun);
    let begun = Instant::now();
    store.delete(&slots);
    Ok(BenchRow {
        uri: redact(uri),
        pages,
        put_us,
        get_us,
        get_p99_us: times[pages * 99 / 100].as_secs_f64() * 1e6,
        get_many_us,
        delete_us: each(begun),
    })
}

/// splitmix64: numbers that do not compress.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
