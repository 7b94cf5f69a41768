//! Drawing `top`: a line of totals, the processes, the selected one in detail, the keys. Fits 80
//! columns by 24 lines.
use pagetide_pager::report::Statistics;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, Borders, Cell, Paragraph, Row as TableRow, Sparkline, Table, TableState,
};

use super::state::{Row, Server, State};
use crate::bound;
use crate::commands::served::ahead;
use crate::governed::bound_of;
use crate::size::{Bytes, Count, Nanoseconds, ShortNanoseconds};
use crate::text::printable;

/// Characters of the bar in the table.
const BAR_CHARS: usize = 7;
const DETAIL_LINES: u16 = 10;
/// Most of those that serve pages: the others are counted.
const SERVERS_SHOWN: usize = 4;
/// Below this height the detail gives way to the list.
const DETAIL_FROM_LINES: u16 = 18;

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, state: &State) {
    let detail = if frame.area().height >= DETAIL_FROM_LINES {
        DETAIL_LINES
    } else {
        0
    };
    let servers = state.servers.len().min(SERVERS_SHOWN) as u16;
    let [totals, list, serving, selected, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(if servers > 0 { servers + 1 } else { 0 }),
        Constraint::Length(detail),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(totals_line(state), totals);
    draw_list(frame, state, list);
    draw_servers(frame, state, serving);
    if let Some(row) = state.selected_row().filter(|_| detail > 0) {
        draw_selected(frame, row, selected);
    }
    frame.render_widget(keys_line(state), keys);
}

fn totals_line(state: &State) -> Line<'static> {
    let processes = || state.rows.iter().filter(|row| !row.is_run());
    let sum = |counter: fn(&Statistics) -> u64| {
        processes()
            .map(|row| counter(&row.process.reading.statistics))
            .fold(0u64, u64::saturating_add)
    };
    let faults: f64 = processes().map(|row| row.rates.faults).sum();
    Line::from(vec![
        Span::from(format!("{} governed", processes().count())).bold(),
        // All of it has room in 80 columns.
        Span::from(format!(
            "   resident {} of {}   in all {}   {} faults/s",
            Bytes(sum(|s| s.resident_bytes)),
            Bytes(bound_of(processes().map(|row| &row.process))),
            Bytes(sum(|s| s.memory_bytes)),
            Count(faults)
        )),
    ])
}

fn draw_list(frame: &mut Frame<'_>, state: &State, area: Rect) {
    if state.rows.is_empty() {
        let hint = "No governed process. Start one: pagetide run --resident 256M -- PROGRAM";
        frame.render_widget(
            Paragraph::new(hint).block(Block::new().borders(Borders::TOP)),
            area,
        );
        return;
    }
    let columns = columns(area.width);
    let widths = columns.iter().map(|column| match column {
        Column::Command => Constraint::Min(column.width()),
        _ => Constraint::Length(column.width()),
    });
    let rows = state.rows.iter().map(|row| list_row(row, &columns));
    let heading = columns.iter().map(|column| column.heading());
    let table = Table::new(rows, widths)
        .header(
            TableRow::new(heading)
                .style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)),
        )
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .column_spacing(1);
    let mut selection = TableState::default().with_selected(Some(state.selected));
    frame.render_stateful_widget(table, area, &mut selection);
}

/// Those that serve pages, a line each.
fn draw_servers(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let more = state.servers.len().saturating_sub(SERVERS_SHOWN);
    let title = match more {
        0 => " serving pages ".to_owned(),
        more => format!(" serving pages, and {more} more "),
    };
    let line = |server: &Server| {
        let (report, latency) = (&server.report, &server.report.fault_latency_ns);
        Line::from(format!(
            "{} {}: {} clients   {} faults/s, p50 {}, p99 {}   {} ahead   {} lost",
            report.about.pid,
            printable(&report.about.serves),
            report.clients.len(),
            Count(server.faults.round()),
            Nanoseconds(latency.p50),
            Nanoseconds(latency.p99),
            Count(ahead(&report.total) as f64),
            report.total.lost_pages
        ))
    };
    let lines: Vec<Line<'_>> = state.servers.iter().take(SERVERS_SHOWN).map(line).collect();
    let block = Block::new().borders(Borders::TOP).title(title);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// What the list shows of a process, from left to right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Pid,
    Budget,
    Faults,
    Fetched,
    Written,
    Latency,
    Memory,
    Command,
}

impl Column {
    const IN_ORDER: [Column; 8] = [
        Column::Pid,
        Column::Budget,
        Column::Faults,
        Column::Fetched,
        Column::Written,
        Column::Latency,
        Column::Memory,
        Column::Command,
    ];
    /// The least important first; the process ID always stays.
    const TO_LEAVE_OUT: [Column; 7] = [
        Column::Written,
        Column::Fetched,
        Column::Latency,
        Column::Memory,
        Column::Faults,
        Column::Command,
        Column::Budget,
    ];

    fn heading(self) -> &'static str {
        match self {
            Column::Pid => "PID",
            Column::Budget => "USED/BUDGET",
            Column::Faults => "FAULT/s",
            Column::Fetched => "FETCH/s",
            Column::Written => "WRITE/s",
            Column::Latency => "P50/P99",
            Column::Memory => "IN ALL",
            Column::Command => "COMMAND",
        }
    }

    /// Characters it has; the command takes what the others leave, and this much at least.
    fn width(self) -> u16 {
        match self {
            Column::Pid | Column::Faults => 7,
            Column::Budget => 16,
            Column::Latency => 11,
            Column::Fetched | Column::Written | Column::Memory | Column::Command => 8,
        }
    }
}

/// The columns there is room for in full: a number that is cut would be another number.
fn columns(width: u16) -> Vec<Column> {
    let mut shown = Column::IN_ORDER.to_vec();
    for least in Column::TO_LEAVE_OUT {
        let taken: u16 = shown.iter().map(|column| column.width() + 1).sum();
        if taken <= width.saturating_add(1) {
            break;
        }
        shown.retain(|column| *column != least);
    }
    shown
}

fn list_row(row: &Row, columns: &[Column]) -> TableRow<'static> {
    let s = &row.process.reading.statistics;
    let latency = &s.fault_latency_ns;
    TableRow::new(columns.iter().map(|column| match column {
        Column::Pid => Cell::from(row.process.pid.to_string()),
        Column::Budget => Cell::from(Line::from(vec![
            Span::styled(bar(s, BAR_CHARS), Style::new().fg(bar_color(s))),
            Span::from(format!(" {}", Bytes(s.bound_bytes()))),
        ])),
        Column::Faults => Cell::from(Count(row.rates.faults.round()).to_string()),
        Column::Fetched => Cell::from(Bytes(row.rates.fetched_bytes as u64).to_string()),
        Column::Written => Cell::from(Bytes(row.rates.written_bytes as u64).to_string()),
        Column::Latency => Cell::from(format!(
            "{}/{}",
            ShortNanoseconds(latency.p50),
            ShortNanoseconds(latency.p99)
        )),
        Column::Memory => Cell::from(Bytes(s.memory_bytes).to_string()),
        Column::Command => Cell::from(format!("{}{}", row.place.branch(), printable(&s.command))),
    }))
}

fn share(s: &Statistics) -> f64 {
    s.limited_bytes() as f64 / s.bound_bytes().max(1) as f64
}

fn bar(s: &Statistics, chars: usize) -> String {
    let full = ((share(s) * chars as f64).round() as usize).min(chars);
    format!(
        "{}{}",
        "\u{2588}".repeat(full),
        "\u{2591}".repeat(chars - full)
    )
}

fn bar_color(s: &Statistics) -> Color {
    match share(s) {
        over if over > 1.0 => Color::Red,
        near if near > 0.9 => Color::Yellow,
        _ => Color::Green,
    }
}

/// What it has of its bound, and what that is.
fn of_bound(s: &Statistics) -> String {
    let what = match (bound::automatic(s), s.cap_bytes()) {
        (Some(automatic), _) => format!(", {automatic}"),
        (None, Some(_)) => format!(", limited, of the run's {}", Bytes(s.run_budget_bytes)),
        (None, None) => String::new(),
    };
    format!(
        " {} of {} ({:.0} %{what})",
        Bytes(s.limited_bytes()),
        Bytes(s.bound_bytes()),
        100.0 * share(s)
    )
}

fn draw_selected(frame: &mut Frame<'_>, row: &Row, area: Rect) {
    let s = &row.process.reading.statistics;
    let latency = &s.fault_latency_ns;
    let kind = if row.is_run() { "run " } else { "" };
    let title = format!(" {kind}{} {} ", row.process.pid, printable(&s.command));
    let block = Block::new().borders(Borders::TOP).title(title);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let [text, graph_title, graph] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Length(1),
        Constraint::Min(1),
    ])
    .areas(inside);
    let lines = vec![
        Line::from(vec![
            Span::from(match s.memory_budget_bytes {
                0 => "resident ",
                _ => "in all   ",
            }),
            Span::styled(bar(s, 24), Style::new().fg(bar_color(s))),
            Span::from(of_bound(s)),
        ]),
        Line::from(format!(
            "managed  {}   store {}, ratio {:.2}   {}   errors {}",
            Bytes(s.managed_bytes),
            Bytes(s.store_bytes),
            s.compression_ratio,
            match s.memory_budget_bytes {
                0 => format!("memory in all {}", Bytes(s.memory_bytes)),
                _ => format!("resident {}", Bytes(s.resident_bytes)),
            },
            s.errors
        )),
        Line::from(format!(
            "faults   {}: {} zero-filled, {} fetched   evicted {}, {} clean",
            Count(s.faults as f64),
            Count(s.zero_fills as f64),
            Count(s.fetches as f64),
            Count(s.evictions as f64),
            Count(s.clean_drops as f64)
        )),
        Line::from(format!(
            "latency  p50 {}   p99 {}   p99.9 {}   max {}",
            Nanoseconds(latency.p50),
            Nanoseconds(latency.p99),
            Nanoseconds(latency.p999),
            Nanoseconds(latency.max)
        )),
    ];
    frame.render_widget(Paragraph::new(lines), text);
    let shown = row.history.len().saturating_sub(usize::from(graph.width));
    let points: Vec<u64> = row.history.iter().skip(shown).copied().collect();
    let most = points.iter().copied().max().unwrap_or(0);
    frame.render_widget(
        Line::from(format!("faults/s, at most {}", Count(most as f64))).dim(),
        graph_title,
    );
    frame.render_widget(
        Sparkline::default()
            .data(points)
            .style(Style::new().fg(Color::Cyan)),
        graph,
    );
}

fn keys_line(state: &State) -> Line<'static> {
    match (&state.input, state.selected_row()) {
        (Some(input), Some(row)) => Line::from(format!(
            "new budget for {}: {input}_   (such as 256M or 25%; Enter, Esc)",
            row.whose().map_or(String::new(), |whose| whose.name())
        ))
        .bold(),
        _ if !state.message.is_empty() => Line::from(state.message.clone()).reversed(),
        _ => Line::from("up/down select   +/- budget by 10 %   l type a budget   q quit").dim(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::governed::Governed;
    use crate::ledger_file::Reading;
    use pagetide_pager::report::Latency;
    use pagetide_serve::status::Report;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    fn screen(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height)
            .map(|y| format!("{}\n", line(y).trim_end()))
            .collect()
    }

    fn some_state() -> State {
        let process = |pid: u32, faults: u64| {
            let statistics = Statistics {
                pid,
                command: "python3 big.py\x1b[31m".into(),
                budget_bytes: 256 << 20,
                resident_bytes: 250 << 20,
                store_bytes: 300 << 20,
                memory_bytes: 550 << 20,
                faults,
                fetched_pages: faults,
                writebacks: faults / 2,
                fault_latency_ns: Latency {
                    p50: 850_000,
                    p99: 118_000_000,
                    ..Latency::default()
                },
                ..Statistics::default()
            };
            Governed {
                pid,
                socket: "".into(),
                reading: Reading {
                    statistics,
                    ..Reading::default()
                },
            }
        };
        let mut state = State::default();
        for step in 0..50 {
            state.update(
                vec![process(4_194_303, step * step * 100), process(77, 0)],
                Duration::from_millis(500),
            );
        }
        state
    }

    #[test]
    fn eighty_by_twenty_four_shows_everything() {
        let text = screen(&some_state(), 80, 24);
        for expected in [
            "4194303",
            "256 MiB",
            "python3",
            "19.4 k",
            "q quit",
            "faults/s, at most",
            "250 MiB of 256 MiB (98 %)",
            " 850us/118ms ",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(!text.contains('\x1b'));
        let totals = text.lines().next().unwrap();
        assert!(
            totals.ends_with(" in all 1.07 GiB   19.4 k faults/s"),
            "{text}"
        );
    }

    #[test]
    fn those_that_serve_pages_have_lines_of_their_own() {
        let mut state = some_state();
        let report = |pid: u32, faults| {
            let mut report = Report::default();
            (report.about.pid, report.about.serves) = (pid, "criu\x1b".into());
            (report.total.faults, report.total.lost_pages) = (faults, 3);
            report
        };
        for faults in [100, 1100] {
            let reports = (1..7).map(|number| report(9000 + number, faults));
            state.update_servers(reports.collect(), Duration::from_millis(500));
        }
        let text = screen(&state, 80, 24);
        let line = "9001 criu?: 0 clients   2 k faults/s";
        for expected in [line, "9004", "and 2 more", "3 lost", "4194303"] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(!text.contains("9005"), "{text}");
    }

    #[test]
    fn a_run_stands_above_its_processes_and_counts_once() {
        let mut processes: Vec<Governed> = (some_state().rows.into_iter())
            .map(|row| row.process)
            .collect();
        for process in &mut processes {
            process.socket = format!("/run/pagetide/run-3/{}.sock", process.pid).into();
        }
        let mut state = State::default();
        state.update(processes, Duration::from_millis(500));
        let text = screen(&state, 80, 24);
        for expected in [
            "2 governed   resident 500 MiB of 512 MiB",
            "\u{251c} python",
            "\u{2514} python",
            " run 3 2 processes ",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
    }

    #[test]
    fn a_process_id_is_never_cut() {
        for width in [7, 10, 24, 33, 40, 41, 60, 79] {
            let text = screen(&some_state(), width, 10);
            assert!(
                text.lines().any(|line| line.starts_with("4194303")),
                "{width}: {text}"
            );
        }
        assert_eq!(columns(80), Column::IN_ORDER);
        assert_eq!(columns(40), [Column::Pid, Column::Budget, Column::Command]);
        assert_eq!(columns(1), [Column::Pid]);
    }

    #[test]
    fn any_size_can_be_drawn() {
        for (width, height) in [(1, 1), (10, 3), (40, 10), (300, 100)] {
            screen(&some_state(), width, height);
            screen(&State::default(), width, height);
        }
        assert!(screen(&State::default(), 80, 24).contains(" 0 faults/s"));
        assert!(screen(&State::default(), 80, 24).contains("No governed process"));
    }
}
