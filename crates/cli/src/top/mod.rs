//! `pagetide top`: the governed processes live, full screen.
mod keys;
mod state;
mod view;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::bases::Bases;
use crate::commands::limit;
use crate::exit::{Exit, Failure};
use crate::size::Bytes;
use crate::{runs, serving};
use keys::{Heard, Keyboard};
use state::{Action, State, Whose};

/// Time between two looks at the ledgers.
const REFRESH: Duration = Duration::from_millis(500);
/// How often keys and signals are looked for.
const RESPONSE: Duration = Duration::from_millis(100);
/// How long a process may take to reach a new budget.
const LIMIT_PATIENCE: Duration = Duration::from_secs(30);

/// Shows the processes until the user leaves.
pub fn top(bases: &Bases) -> Result<u8, Failure> {
    bases.check(true)?;
    if !keys::is_there() {
        return Err(Failure::new(
            Exit::Failed,
            "top needs a terminal on stdin and stdout; for a script use `pagetide ps --json`",
        ));
    }
    let cannot = |error: io::Error| {
        Failure::new(
            Exit::Failed,
            format!("the terminal cannot be used ({error})"),
        )
    };
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(cannot)?;
    }
    // Also restores the terminal when this process panics.
    let mut terminal = ratatui::try_init().map_err(cannot)?;
    let result = watch(&mut terminal, &ended, bases);
    if ratatui::try_restore().is_err() {
        // The terminal has gone. Dropping its state would write to it once more, and complain where
        // nobody hears it.
        std::mem::forget(terminal);
        return Ok(Exit::Ok.code());
    }
    result.map_err(cannot)?;
    Ok(Exit::Ok.code())
}

/// Until the user leaves, a signal comes, or the terminal goes away.
fn watch(terminal: &mut DefaultTerminal, ended: &AtomicBool, bases: &Bases) -> io::Result<()> {
    let mut state = State::default();
    let mut keyboard = Keyboard::default();
    let (sender, answers) = mpsc::channel::<String>();
    let mut refreshed: Option<Instant> = None;
    while !ended.load(Ordering::Relaxed) {
        if refreshed.is_none_or(|at| at.elapsed() >= REFRESH) {
            let elapsed = refreshed.map_or(REFRESH, |at| at.elapsed());
            refreshed = Some(Instant::now());
            state.update(runs::all(bases), elapsed);
            state.update_servers(serving::all(bases), elapsed);
        }
        if let Some(answer) = answers.try_iter().last() {
            state.say(answer);
        }
        terminal.draw(|frame| view::draw(frame, &state))?;
        let Heard::Keys(keys) = keyboard.listen(RESPONSE)? else {
            return Ok(());
        };
        for key in keys {
            match state.key(key) {
                Action::None => {}
                Action::Quit => return Ok(()),
                Action::Limit(whose, bytes) => set_limit(whose, bytes, sender.clone()),
            }
        }
    }
    Ok(())
}

/// Changes a budget on a thread of its own: the answer comes when the new bound holds.
fn set_limit(whose: Whose, bytes: u64, answers: mpsc::Sender<String>) {
    std::thread::spawn(move || {
        let name = whose.name();
        let answer = match whose {
            Whose::Run(common) => match limit::set_run(&common, bytes, LIMIT_PATIENCE) {
                Ok(_) => format!("{name}: budget is {}", Bytes(bytes)),
                Err(failure) => failure.to_string(),
            },
            Whose::Process(process) => match limit::set(&process, bytes, LIMIT_PATIENCE) {
                Ok(now) => format!("{name}: budget is {}", Bytes(now.limit_bytes())),
                Err(why) => format!("{name}: budget of {} does not hold: {why}", Bytes(bytes)),
            },
        };
        // The user may have left.
        let _ = answers.send(answer);
    });
}
