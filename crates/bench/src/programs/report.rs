//! What `programs` tells people: for each bound a table of times, a table of pages and the means,
//! and a picture.
use super::catalogue::Program;
use super::findings::Findings;
use super::plan::Bound;
use super::results::{Mean, Measured, Results, Row, Side, Summary};
use crate::plot::bars;
use crate::report::{Table, cell, mib};

/// A line for each program.
pub fn list(programs: &[Program]) -> String {
    let mut table = Table::new(&["program"]);
    for program in programs {
        table.row([format!("{:<17}  {}", program.name, program.what)]);
    }
    table.to_string()
}

/// All tables.
pub fn text(results: &Results) -> String {
    let mut out = format!(
        "{} programs at scale {}, medians of {} runs in turns; times in seconds, ratios below 1 \
         are better\n{}\n",
        results.programs.len(),
        results.scale,
        results.runs,
        results.machine
    );
    let rows = || results.programs.iter().flat_map(|program| &program.rows);
    if rows().any(|row| row.swap.is_some()) {
        out += &format!(
            "swap: zram with LZ4, page-cluster 0, in a memory cgroup with the budget for anonymous \
             pages, and at most {} + a 512th of the peak besides\n",
            mib(results.allowance_bytes as f64)
        );
        if rows().any(|row| row.is_helped()) {
            out += "OOM: so often the OOM killer was called with most of the swap free, and held \
                    off\n";
        }
    }
    let any = rows().next().is_some();
    for (at, summary) in results.summary.iter().enumerate().filter(|_| any) {
        out += &match summary.share {
            Bound::Fits => fits(&results.programs, at),
            Bound::Percent(_) => bounded(&results.programs, at, summary.share),
        };
        out += &means(summary);
        out += &failures(&results.programs, at);
    }
    if results.programs.iter().any(|p| p.measuring.is_some()) {
        out += &expectations(&results.programs);
    }
    if let Some(percent) = results.auto_percent {
        out += &following(&results.programs, percent);
    }
    for (what, why) in &results.not_measured {
        out += &format!("\nNOT MEASURED: {what}: {why}\n");
    }
    out
}

/// A number of a side's medians, or how many runs failed and how.
fn of(side: &Side, decimals: usize, number: fn(&Findings) -> Option<f64>) -> String {
    match side.failures.first() {
        None => cell(side.median.as_ref().and_then(number), decimals),
        Some(first) => {
            let (failed, runs) = (side.failures.len(), side.runs.len());
            format!("{} {failed}/{runs}", first.word())
        }
    }
}

fn pages(side: &Side, number: fn(&Findings) -> Option<u64>) -> String {
    let number = side.median.as_ref().and_then(number);
    number.map_or_else(|| cell(None, 0), |number| number.to_string())
}

fn memory(side: &Side) -> String {
    let bytes = side.median.as_ref().and_then(|median| median.memory_bytes);
    cell(bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)), 0)
}

fn bounded(programs: &[Measured], at: usize, share: Bound) -> String {
    let heads = [
        "", "peak MiB", "alone", "cpu", "pagetide", "cpu", "swap", "cpu",
    ];
    let mut times = Table::new(&[&heads[..], &["OOM", "wall ratio", "cpu ratio"]].concat());
    let heads = [
        "",
        "on demand",
        "ahead",
        "swap-ins",
        "ratio",
        "written",
        "swap-outs",
    ];
    let mut counts = Table::new(&[&heads[..], &["MiB in all", "swap's"]].concat());
    for program in programs {
        let Row {
            pagetide,
            swap,
            ratio,
            ..
        } = &program.rows[at];
        let swap_of =
            |get: &dyn Fn(&Side) -> String| swap.as_ref().map_or_else(|| cell(None, 0), get);
        let wall = |side: &Side| of(side, 2, |f| Some(f.wall_seconds));
        let cpu = |side: &Side| {
            let number = side.median.as_ref().map(|f| f.cpu_seconds);
            cell(number, 2)
        };
        times.row([
            program.name.to_owned(),
            cell(program.peak_bytes as f64 / f64::from(1 << 20), 0),
            wall(&program.alone),
            cpu(&program.alone),
            wall(pagetide),
            cpu(pagetide),
            swap_of(&wall),
            swap_of(&cpu),
            swap_of(&|side| pages(side, |f| f.held_off)),
            cell(ratio.wall, 2),
            cell(ratio.cpu, 2),
        ]);
        counts.row([
            program.name.to_owned(),
            pages(pagetide, |f| f.demand_pages),
            pages(pagetide, |f| f.ahead_pages),
            swap_of(&|side| pages(side, |f| f.demand_pages)),
            cell(ratio.demand, 2),
            pages(pagetide, |f| f.written_pages),
            swap_of(&|side| pages(side, |f| f.written_pages)),
            memory(pagetide),
            swap_of(&memory),
        ]);
    }
    format!("\n{share} of the peak: time\n{times}\n{share} of the peak: pages\n{counts}\n")
}

fn fits(programs: &[Measured], at: usize) -> String {
    let heads = ["", "peak MiB", "alone", "cpu", "pagetide", "cpu"];
    let mut table = Table::new(&[&heads[..], &["wall ratio", "cpu ratio", "evicted"]].concat());
    for program in programs {
        let Row {
            pagetide, ratio, ..
        } = &program.rows[at];
        table.row([
            program.name.to_owned(),
            cell(program.peak_bytes as f64 / f64::from(1 << 20), 0),
            of(&program.alone, 2, |f| Some(f.wall_seconds)),
            of(&program.alone, 2, |f| Some(f.cpu_seconds)),
            of(pagetide, 2, |f| Some(f.wall_seconds)),
            of(pagetide, 2, |f| Some(f.cpu_seconds)),
            cell(ratio.wall, 2),
            cell(ratio.cpu, 2),
            pages(pagetide, |f| f.evicted_pages),
        ]);
    }
    format!("\nfits: a budget of 8 GiB, or twice the peak, against the program alone\n{table}\n")
}

/// The table of times expected and found, over those alone, and the mean error, in the share of the
/// time found; and of pages missed.
fn expectations(programs: &[Measured]) -> String {
    let heads = ["", "share", "expected", "found", "error"];
    let mut table = Table::new(&[&heads[..], &["pages expected", "found"]].concat());
    let mut errors = Vec::new();
    for program in programs {
        let measuring = program.measuring.as_ref().and_then(|side| side.survived());
        let need = measuring.and_then(|findings| findings.need.as_ref());
        let alone = program.alone.survived().map(|alone| alone.wall_seconds);
        for row in &program.rows {
            let point = need.and_then(|need| need.expected(row.resident_bytes));
            let expected = point.map(|point| point.expected_time);
            let misses = point.map(|point| point.misses);
            let fetched = row.pagetide.survived().and_then(|found| {
                let pages = found.demand_pages.zip(found.ahead_pages);
                pages.map(|(demand, ahead)| (demand + ahead) as f64)
            });
            let found = row.pagetide.survived().zip(alone);
            let found = found.map(|(side, alone)| side.wall_seconds / alone);
            let error = expected.zip(found);
            let error = error.map(|(expected, found)| (expected - found).abs() / found);
            errors.extend(error);
            table.row([
                program.name.to_owned(),
                row.share.to_string(),
                cell(expected, 2),
                cell(found, 2),
                cell(error, 2),
                cell(misses, 0),
                cell(fetched, 0),
            ]);
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    format!(
        "\ntime over alone, as `run --measure` expected it and as it was found; pages \
         fetched\n{table}\nmean error {:.0} % of the time found, of {}\n",
        100.0 * mean,
        errors.len()
    )
}

/// The table of budgets that follow their programs: time over alone, and memory in the mean of the
/// time, against that alone in the mean and at most.
fn following(programs: &[Measured], percent: f64) -> String {
    let heads = ["", "alone", "auto", "time ratio", "mean MiB alone", "auto"];
    let mut table = Table::new(&[&heads[..], &["saved %", "peak MiB alone", "saved %"]].concat());
    let (mut ratios, mut saved) = (Vec::new(), Vec::new());
    for program in programs {
        let Some(side) = &program.following else {
            continue;
        };
        let alone = program.alone.survived().map(|alone| alone.wall_seconds);
        let found = side.survived();
        let ratio = found.zip(alone);
        let ratio = ratio.map(|(found, alone)| found.wall_seconds / alone);
        let mean = found.and_then(|found| found.resident_bytes_mean);
        let less = |than: u64| mean.map(|mean| 1.0 - mean as f64 / than as f64);
        ratios.extend(ratio);
        saved.extend(less(program.mean_bytes));
        let in_mib = |bytes: u64| cell(Some(bytes as f64 / f64::from(1 << 20)), 0);
        let in_percent = |share: Option<f64>| cell(share.map(|share| 100.0 * share), 0);
        table.row([
            program.name.to_owned(),
            of(&program.alone, 2, |f| Some(f.wall_seconds)),
            of(side, 2, |f| Some(f.wall_seconds)),
            cell(ratio, 2),
            in_mib(program.mean_bytes),
            mean.map_or_else(|| cell(None, 0), in_mib),
            in_percent(less(program.mean_bytes)),
            in_mib(program.peak_bytes),
            in_percent(less(program.peak_bytes)),
        ]);
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
    format!(
        "\n--resident auto:{percent}%; memory in the mean of the time\n{table}\nmean of {}: \
         {:.0} % longer, {:.0} % less in the mean\n",
        ratios.len(),
        100.0 * (mean(&ratios) - 1.0),
        100.0 * mean(&saved)
    )
}

fn means(summary: &Summary) -> String {
    let line = |what: &str, mean: &Option<Mean>| match mean {
        None => String::new(),
        Some(mean) => format!(
            "{what}: geometric mean {:.2} over {} programs, worst {:.2} ({})\n",
            mean.geometric, mean.programs, mean.worst, mean.worst_program
        ),
    };
    let over = match summary.share {
        Bound::Fits => "alone",
        Bound::Percent(_) => "swap",
    };
    let mut out = line(&format!("wall over {over}"), &summary.wall);
    out += &line(&format!("cpu over {over}"), &summary.cpu);
    out += &line("pages on demand over swap-ins", &summary.demand);
    for (what, programs) in [
        ("not survived under pagetide", &summary.pagetide_failed),
        ("not survived under swap", &summary.swap_failed),
        ("survived under swap with help alone", &summary.swap_helped),
    ] {
        if !programs.is_empty() {
            out += &format!("{what}: {}\n", programs.join(", "));
        }
    }
    out
}

/// Each run that did not end well, and how.
fn failures(programs: &[Measured], at: usize) -> String {
    let mut out = String::new();
    for program in programs {
        let row = &program.rows[at];
        let sides = [
            ("pagetide", Some(&row.pagetide)),
            ("swap", row.swap.as_ref()),
        ];
        for (whom, side) in sides {
            for failure in side.into_iter().flat_map(|side| &side.failures) {
                out += &format!("  {} under {whom}: {}\n", program.name, failure.text());
            }
        }
    }
    out
}

/// The ratios of wall time as bars, one for each program and bound; of those without a ratio, why.
pub fn draw(results: &Results) -> String {
    let colours = ["#3b6ea5", "#d62728", "#2ca02c", "#b0b0b0"];
    let mut all = Vec::new();
    for program in &results.programs {
        for (row, colour) in program.rows.iter().zip(colours.iter().cycle()) {
            let name = format!("{}, {}{}", program.name, row.share, why_none(row));
            let percent = row.ratio.wall.map_or(f64::NAN, |ratio| ratio * 100.0);
            all.push((name, percent, *colour));
        }
    }
    let all: Vec<_> = all
        .iter()
        .map(|(name, value, colour)| (&**name, *value, *colour))
        .collect();
    bars(
        "Wall time as % of swap's; where a program fits, of its time alone",
        &all,
    )
}

fn why_none(row: &Row) -> String {
    let sides = [
        ("pagetide", Some(&row.pagetide)),
        ("swap", row.swap.as_ref()),
    ];
    let mut failed = sides.into_iter().filter_map(|(whom, side)| {
        let failure = side?.failures.first()?;
        Some(format!(": {} under {whom}", failure.word()))
    });
    failed.next().unwrap_or_default()
}
