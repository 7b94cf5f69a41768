//! What `top` knows and how keys change it; nothing here touches the terminal.
use std::collections::VecDeque;
use std::time::Duration;

use pagetide_pager::report::Statistics;
use pagetide_serve::status::Report;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::commands::limit::{bytes_for, bytes_for_run};
use crate::governed::Governed;
use crate::runs::{self, Common};
use crate::size::{Bytes, PAGE_BYTES, Size};
use crate::whole::{self, Place};

/// Points of history kept for a process.
const HISTORY_MAX: usize = 400;
/// Longest text a limit can be typed in.
const INPUT_MAX: usize = 20;

/// Work done in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Faults served.
    pub faults: f64,
    /// Bytes read from the store.
    pub fetched_bytes: f64,
    /// Bytes written to the store.
    pub written_bytes: f64,
}

impl Rates {
    fn between(before: &Statistics, now: &Statistics, elapsed: Duration) -> Rates {
        let per_second = |counter: fn(&Statistics) -> u64| {
            counter(now).saturating_sub(counter(before)) as f64 / elapsed.as_secs_f64().max(1e-3)
        };
        Rates {
            faults: per_second(|s| s.faults),
            fetched_bytes: per_second(|s| s.fetched_pages) * PAGE_BYTES as f64,
            written_bytes: per_second(|s| s.writebacks) * PAGE_BYTES as f64,
        }
    }
}

/// One line on the screen.
#[derive(Debug, Clone)]
pub struct Row {
    /// The process as last seen, or a run of several as if it were one.
    pub process: Governed,
    /// Which of these.
    pub place: Place,
    /// Its rates since the time before.
    pub rates: Rates,
    /// Faults a second, latest last.
    pub history: VecDeque<u64>,
}

impl Row {
    /// Whether it is a run of several processes.
    pub fn is_run(&self) -> bool {
        self.place == Place::Whole
    }

    /// Whose budget keys change while it is selected; of a run whose processes have one each,
    /// nobody's.
    pub fn whose(&self) -> Option<Whose> {
        match Whose::of(&self.process) {
            Whose::Process(_) if self.is_run() => None,
            whose => Some(whose),
        }
    }
}

/// One that serves pages of other processes.
#[derive(Debug, Clone)]
pub struct Server {
    /// What it said last.
    pub report: Report,
    /// Faults a second, since the time before.
    pub faults: f64,
}

/// What a key asks for.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Nothing outside the state.
    None,
    /// Leave.
    Quit,
    /// Set a budget to so many bytes.
    Limit(Whose, u64),
}

/// Whose budget is changed.
#[derive(Debug, Clone, PartialEq)]
pub enum Whose {
    /// A process has one of its own.
    Process(Box<Governed>),
    /// All processes of a run have one together. A part of it for one of them would be out of sight
    /// afterwards: `pagetide limit` sets that.
    Run(Common),
}

impl Whose {
    /// Of a process that is shown.
    fn of(process: &Governed) -> Whose {
        match runs::common_with(process) {
            Some(common) => Whose::Run(common),
            None => Whose::Process(Box::new(process.clone())),
        }
    }

    /// `process 17`, or `run 17`.
    pub fn name(&self) -> String {
        match self {
            Whose::Process(process) => format!("process {}", process.pid),
            Whose::Run(common) => format!("run {}", common.run),
        }
    }
}

/// Everything on the screen.
#[derive(Debug, Default)]
pub struct State {
    /// The processes, those of a run below it.
    pub rows: Vec<Row>,
    /// Those that serve pages, by process ID.
    pub servers: Vec<Server>,
    /// Which line is selected.
    pub selected: usize,
    /// The limit being typed, when one is.
    pub input: Option<String>,
    /// The last answer or complaint.
    pub message: String,
}

impl State {
    /// Takes in the processes seen now, `elapsed` after the time before.
    pub fn update(&mut self, processes: Vec<Governed>, elapsed: Duration) {
        let selected = self
            .selected_row()
            .map(|row| (row.process.pid, row.is_run()));
        let mut before = std::mem::take(&mut self.rows);
        for whole::Line { process, place } in whole::lines(processes) {
            let same = |row: &Row| {
                row.process.pid == process.pid
                    && row.process.reading.started_ns == process.reading.started_ns
                    && row.is_run() == (place == Place::Whole)
            };
            let (rates, mut history) = match before.iter().position(same) {
                Some(index) => {
                    let row = before.swap_remove(index);
                    let (old, new) = (&row.process.reading.statistics, &process.reading.statistics);
                    (Rates::between(old, new, elapsed), row.history)
                }
                None => (Rates::default(), VecDeque::new()),
            };
            history.push_back(rates.faults as u64);
            if history.len() > HISTORY_MAX {
                history.pop_front();
            }
            self.rows.push(Row {
                process,
                place,
                rates,
                history,
            });
        }
        let is_selected = |row: &Row| Some((row.process.pid, row.is_run())) == selected;
        let kept = self.rows.iter().position(is_selected);
        self.selected = kept
            .unwrap_or(self.selected)
            .min(self.rows.len().saturating_sub(1));
        if self.rows.is_empty() {
            self.input = None;
        }
    }

    /// Takes in those that serve pages, `elapsed` after the time before.
    pub fn update_servers(&mut self, reports: Vec<Report>, elapsed: Duration) {
        let before = std::mem::take(&mut self.servers);
        let server = |report: Report| {
            let is_same = |server: &&Server| server.report.about == report.about;
            let old = before.iter().find(is_same);
            let old = old.map_or(report.total.faults, |server| server.report.total.faults);
            let new = report.total.faults.saturating_sub(old);
            let faults = new as f64 / elapsed.as_secs_f64().max(1e-3);
            Server { report, faults }
        };
        self.servers = reports.into_iter().map(server).collect();
    }

    /// The selected process.
    pub fn selected_row(&self) -> Option<&Row> {
        self.rows.get(self.selected)
    }

    /// Shows a message.
    pub fn say(&mut self, message: String) {
        self.message = message;
    }

    /// Takes a key.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        if let Some(mut input) = self.input.take() {
            match key.code {
                KeyCode::Enter => return self.limit_typed(&input),
                KeyCode::Esc => return Action::None,
                KeyCode::Backspace => {
                    input.pop();
                }
                KeyCode::Char(typed) if input.len() < INPUT_MAX && typed.is_ascii_graphic() => {
                    input.push(typed)
                }
                _ => {}
            }
            self.input = Some(input);
            return Action::None;
        }
        self.message.clear();
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                self.selected = (self.selected + 1).min(self.rows.len().saturating_sub(1));
            }
            KeyCode::Char('+' | '=') => return self.limit_by(11, 10),
            KeyCode::Char('-') => return self.limit_by(9, 10),
            KeyCode::Char('l') if self.whose().is_some() => {
                self.input = Some(String::new());
            }
            _ => {}
        }
        Action::None
    }

    /// Whose budget the selected line stands for. Says so if it is nobody's.
    fn whose(&mut self) -> Option<Whose> {
        let row = self.selected_row()?;
        let whose = row.whose();
        if whose.is_none() {
            self.message = format!(
                "each process of run {} has a budget of its own: select one",
                row.process.pid
            );
        }
        whose
    }

    /// A new limit of `over`/`under` times the budget, in whole pages, and different from it.
    fn limit_by(&mut self, over: u128, under: u128) -> Action {
        let Some(row) = self.selected_row() else {
            return Action::None;
        };
        let statistics = &row.process.reading.statistics;
        let budget = match statistics.run_budget_bytes {
            0 => statistics.limit_bytes(),
            bytes => bytes,
        };
        let scaled = (u128::from(budget) * over / under).min(u128::from(u64::MAX)) as u64;
        let bytes = if over > under {
            scaled.max(budget.saturating_add(PAGE_BYTES))
        } else {
            scaled
        };
        self.ask_limit((bytes / PAGE_BYTES * PAGE_BYTES).max(PAGE_BYTES))
    }

    fn limit_typed(&mut self, input: &str) -> Action {
        let Some(whose) = self.whose() else {
            return Action::None;
        };
        let size = input.parse::<Size>().map_err(|error| error.to_string());
        let bytes = size.and_then(|size| match &whose {
            Whose::Process(process) => Ok(bytes_for(process, size)),
            Whose::Run(common) => {
                bytes_for_run(common, size).map_err(|failure| failure.to_string())
            }
        });
        match bytes {
            Ok(bytes) => self.ask_limit(bytes),
            Err(message) => {
                self.message = message;
                Action::None
            }
        }
    }

    fn ask_limit(&mut self, bytes: u64) -> Action {
        let Some(whose) = self.whose() else {
            return Action::None;
        };
        let name = whose.name();
        self.message = format!("{name}: asked for a budget of {} ...", Bytes(bytes));
        Action::Limit(whose, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger_file::Reading;

    fn process(pid: u32, faults: u64) -> Governed {
        let statistics = Statistics {
            pid,
            budget_bytes: 100 << 20,
            faults,
            ..Statistics::default()
        };
        let reading = Reading {
            statistics,
            started_ns: u64::from(pid),
            ..Reading::default()
        };
        Governed {
            pid,
            socket: "".into(),
            reading,
        }
    }

    fn press(state: &mut State, code: KeyCode) -> Action {
        state.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn limit_of(action: Action) -> (u32, u64) {
        match action {
            Action::Limit(Whose::Process(process), bytes) => (process.pid, bytes),
            Action::Limit(Whose::Run(common), bytes) => (common.run, bytes),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rates_are_per_second_and_the_selection_follows_its_process() {
        let mut state = State::default();
        let second = Duration::from_secs(2);
        state.update(vec![process(1, 0), process(5, 100)], second);
        press(&mut state, KeyCode::Down);
        assert_eq!(state.selected_row().unwrap().process.pid, 5);
        state.update(vec![process(1, 0), process(3, 0), process(5, 500)], second);
        let row = state.selected_row().unwrap();
        assert_eq!((row.process.pid, row.rates.faults), (5, 200.0));
        assert_eq!(row.history, [0, 200]);
        state.update(vec![process(1, 0)], second);
        assert_eq!(state.selected_row().unwrap().process.pid, 1);
        state.update(vec![], second);
        assert!(state.selected_row().is_none());
        assert_eq!(press(&mut state, KeyCode::Char('+')), Action::None);
    }

    #[test]
    fn the_limit_goes_up_and_down_by_a_tenth_and_never_below_a_page() {
        let mut state = State::default();
        state.update(vec![process(7, 0)], Duration::from_secs(1));
        let page = |bytes: u64| bytes / PAGE_BYTES * PAGE_BYTES;
        assert_eq!(
            limit_of(press(&mut state, KeyCode::Char('+'))),
            (7, page(110 << 20))
        );
        assert_eq!(
            limit_of(press(&mut state, KeyCode::Char('-'))),
            (7, page(90 << 20))
        );
        state.rows[0].process.reading.statistics.budget_bytes = PAGE_BYTES;
        assert_eq!(
            limit_of(press(&mut state, KeyCode::Char('-'))).1,
            PAGE_BYTES
        );
        assert_eq!(
            limit_of(press(&mut state, KeyCode::Char('+'))).1,
            2 * PAGE_BYTES
        );
    }

    #[test]
    fn a_budget_that_a_run_has_is_changed_as_a_whole() {
        let mut state = State::default();
        let mut process = process(7, 0);
        process.socket = "/run/pagetide/run-3/7.sock".into();
        process.reading.statistics.run_budget_bytes = 300 << 20;
        state.update(vec![process], Duration::from_secs(1));
        let mut limit = |key| limit_of(press(&mut state, KeyCode::Char(key)));
        assert_eq!(limit('+'), (3, 330 << 20));
        assert_eq!(limit('-'), (3, 270 << 20));
        assert!(
            state.message.starts_with("run 3: asked for"),
            "{}",
            state.message
        );
        press(&mut state, KeyCode::Char('l'));
        for typed in ['6', '4', 'M'] {
            press(&mut state, KeyCode::Char(typed));
        }
        // Sizes need no look at the run's file, which is not here; shares do.
        assert_eq!(limit_of(press(&mut state, KeyCode::Enter)), (3, 64 << 20));
    }

    #[test]
    fn a_run_of_several_is_a_line_above_them_and_has_no_budget_if_each_has_one() {
        let mut state = State::default();
        let of_run = |pid| Governed {
            socket: format!("/run/pagetide/run-3/{pid}.sock").into(),
            ..process(pid, 10)
        };
        state.update(vec![of_run(7), of_run(8)], Duration::from_secs(1));
        let pids: Vec<u32> = state.rows.iter().map(|row| row.process.pid).collect();
        assert_eq!(pids, [3, 7, 8]);
        for key in ['+', '-', 'l'] {
            assert_eq!(press(&mut state, KeyCode::Char(key)), Action::None);
            assert!(state.message.contains("run 3 has a budget of its own"));
            assert_eq!(state.input, None);
        }
        press(&mut state, KeyCode::Down);
        assert_eq!(limit_of(press(&mut state, KeyCode::Char('+'))).0, 7);
    }

    #[test]
    fn a_limit_can_be_typed_corrected_and_abandoned() {
        let mut state = State::default();
        state.update(vec![process(7, 0)], Duration::from_secs(1));
        press(&mut state, KeyCode::Char('l'));
        for typed in ['6', '5', 'q'] {
            assert_eq!(press(&mut state, KeyCode::Char(typed)), Action::None);
        }
        press(&mut state, KeyCode::Backspace);
        press(&mut state, KeyCode::Backspace);
        press(&mut state, KeyCode::Char('4'));
        press(&mut state, KeyCode::Char('M'));
        assert_eq!(limit_of(press(&mut state, KeyCode::Enter)), (7, 64 << 20));
        press(&mut state, KeyCode::Char('l'));
        press(&mut state, KeyCode::Char('x'));
        assert_eq!(press(&mut state, KeyCode::Enter), Action::None);
        assert!(state.message.contains("'x' is not a size"));
        press(&mut state, KeyCode::Char('l'));
        press(&mut state, KeyCode::Esc);
        assert_eq!(state.input, None);
        assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Quit);
    }
}
