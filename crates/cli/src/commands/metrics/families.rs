//! The metrics, declared once: name, unit, help, and where each is found.
use super::scrape::{Counters, Gauges};

/// A sum of bytes that goes up and down. Its unit is added to its name.
pub struct Gauge {
    pub name: &'static str,
    pub help: &'static str,
    pub of: fn(&Gauges) -> u64,
}

/// A count that only goes up. `_total` is added to its name.
pub struct Counter {
    pub name: &'static str,
    pub help: &'static str,
    pub of: fn(&Counters) -> u64,
}

pub const GAUGES: [Gauge; 9] = [
    Gauge {
        name: "pagetide_budget",
        help: "The most bytes that may be resident",
        of: |gauges| gauges.budget,
    },
    Gauge {
        name: "pagetide_run_budget",
        help: "The most bytes that may be resident of all processes of the run together, on each \
               of its samples; 0 where each has a budget of its own",
        of: |gauges| gauges.run_budget,
    },
    Gauge {
        name: "pagetide_resident",
        help: "Governed bytes in physical memory now",
        of: |gauges| gauges.resident,
    },
    Gauge {
        name: "pagetide_over_budget",
        help: "Resident bytes beyond the budget; not 0 for longer than a moment is a defect",
        of: |gauges| gauges.over_budget,
    },
    Gauge {
        name: "pagetide_managed",
        help: "Bytes of address space that are governed",
        of: |gauges| gauges.managed,
    },
    Gauge {
        name: "pagetide_store",
        help: "Bytes the store holds, tables included; with ram: they are in memory too",
        of: |gauges| gauges.store,
    },
    Gauge {
        name: "pagetide_memory",
        help: "Bytes of this machine's memory in all: resident, stored in memory, and other",
        of: |gauges| gauges.memory,
    },
    Gauge {
        name: "pagetide_memory_budget",
        help: "The most bytes that memory in all may be, of processes where that is bounded",
        of: |gauges| gauges.memory_budget,
    },
    Gauge {
        name: "pagetide_over_memory_budget",
        help: "Bytes in all beyond that; not 0 for longer than a moment is a defect",
        of: |gauges| gauges.over_memory_budget,
    },
];

pub const COUNTERS: [Counter; 12] = [
    Counter {
        name: "pagetide_faults",
        help: "Fault messages served",
        of: |counters| counters.faults,
    },
    Counter {
        name: "pagetide_faults_waited",
        help: "Faults that had to wait for room in the budget",
        of: |counters| counters.faults_waited,
    },
    Counter {
        name: "pagetide_faults_taken_back",
        help: "Faults and loads on pages on their way out, which came back without the store",
        of: |counters| counters.faults_taken_back,
    },
    Counter {
        name: "pagetide_zero_faults",
        help: "Faults and loads that were given zeros",
        of: |counters| counters.zero_faults,
    },
    Counter {
        name: "pagetide_fetches",
        help: "Faults and loads that read from the store",
        of: |counters| counters.fetches,
    },
    Counter {
        name: "pagetide_fetched_pages",
        help: "Pages read from the store, those read ahead included",
        of: |counters| counters.fetched_pages,
    },
    Counter {
        name: "pagetide_prefetched_pages",
        help: "Pages read ahead",
        of: |counters| counters.prefetched_pages,
    },
    Counter {
        name: "pagetide_evicted_pages",
        help: "Pages made non-resident",
        of: |counters| counters.evictions,
    },
    Counter {
        name: "pagetide_clean_drops",
        help: "Of the evicted pages, those that the store had already",
        of: |counters| counters.clean_drops,
    },
    Counter {
        name: "pagetide_written_pages",
        help: "Of the evicted pages, those written to the store",
        of: |counters| counters.writebacks,
    },
    Counter {
        name: "pagetide_store_errors",
        help: "Errors of the store, those that passed included",
        of: |counters| counters.errors,
    },
    Counter {
        name: "pagetide_lost_processes",
        help: "Processes that were ended because data were lost",
        of: |counters| counters.lost,
    },
];
