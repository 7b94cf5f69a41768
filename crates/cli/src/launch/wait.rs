//! Standing in for the program while it runs: signals to the launcher go on to it, its stops and
//! its end come back.
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};
use pagetide_kernel::procfs::stat::Stat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::exit::{Exit, Failure};

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Exited(u8),
    /// By this signal.
    Killed(Signal),
}

impl Ended {
    /// The code a shell would report.
    pub fn code(self) -> u8 {
        match self {
            Ended::Exited(code) => code,
            Ended::Killed(signal) => 128 + signal as i32 as u8,
        }
    }
}

/// That the launcher cannot stand in for the program.
pub fn failure(error: Errno) -> Failure {
    Failure::new(
        Exit::CannotPage,
        format!("the launcher cannot take over signals or wait ({error})"),
    )
}

/// The program, and what there is to know of it while waiting.
struct Watch {
    child: Pid,
    stopped: bool,
    /// There is a terminal, so that a stop by job control has a shell that will continue us.
    job_control: bool,
}

/// Waits for `child` to end, calling `tick` every `interval` if there is one. `signals` are blocked
/// and read here.
pub fn wait(
    child: Pid,
    signals: &SigSet,
    interval: Option<Duration>,
    mut tick: impl FnMut(),
) -> nix::Result<Ended> {
    let queue = SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let job_control = std::fs::File::open("/dev/tty").is_ok();
    let mut watch = Watch {
        child,
        stopped: false,
        job_control,
    };
    let mut next_tick = Instant::now();
    loop {
        // The program may have ended before there was a queue.
        if let Some(ended) = watch.reap()? {
            return Ok(ended);
        }
        let timeout = interval.map(|interval| {
            let now = Instant::now();
            if now >= next_tick {
                tick();
                // Late ticks are left out, not made up for.
                next_tick = (next_tick + interval).max(now);
            }
            next_tick.saturating_duration_since(Instant::now())
        });
        let timeout = timeout.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let queue_fd = queue.as_fd();
        match poll(
            &mut [PollFd::new(&queue_fd, PollFlags::IN)],
            timeout.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Errno::from_raw(error.raw_os_error())),
        }
        while let Some(info) = queue.read_signal()? {
            watch.receive(&info);
        }
    }
}

impl Watch {
    /// Takes every report about the child; its end if that was among them.
    fn reap(&mut self) -> nix::Result<Option<Ended>> {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED;
        loop {
            match waitpid(self.child, Some(flags)) {
                Ok(WaitStatus::Exited(_, code)) => return Ok(Some(Ended::Exited(code as u8))),
                Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(Some(Ended::Killed(signal))),
                Ok(WaitStatus::Stopped(_, signal)) => self.stop_too(signal),
                Ok(WaitStatus::Continued(_)) => self.stopped = false,
                Ok(WaitStatus::StillAlive) => return Ok(None),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Stops with the child when the terminal's job control stopped it, and continues it when the
    /// shell continues us. A plain SIGSTOP is between the child and whoever sent it, who will
    /// continue the child and not us.
    fn stop_too(&mut self, signal: Signal) {
        self.stopped = true;
        let by_job_control = matches!(signal, Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU);
        if by_job_control && self.job_control && self.child_is_stopped() {
            let _ = kill(getpid(), Signal::SIGSTOP);
            self.continue_child();
        }
    }

    fn child_is_stopped(&self) -> bool {
        Stat::of(self.child.as_raw() as u32).is_some_and(|stat| stat.state == 'T')
    }

    fn continue_child(&mut self) {
        // A running child must not see a second SIGCONT: the shell sends one to the whole group.
        if self.child_is_stopped() {
            let _ = kill(self.child, Signal::SIGCONT);
        }
        self.stopped = false;
    }

    /// Passes a signal on, unless the child has it already.
    fn receive(&mut self, info: &siginfo) {
        let number = info.ssi_signo as i32;
        match Signal::try_from(number) {
            Ok(Signal::SIGCHLD) => return,
            Ok(Signal::SIGCONT) => return self.continue_child(),
            _ => {}
        }
        // The terminal signals the whole foreground group, which the child is in; a process signals
        // us alone. What the child sends to its own group is no news to it, and a broken pipe of
        // ours no matter of its.
        let by_process = info.ssi_code <= 0;
        let sender = info.ssi_pid;
        if by_process && sender != self.child.as_raw() as u32 && sender != std::process::id() {
            super::spawn::send(self.child, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Ended::Exited(7).code(), 7);
        assert_eq!(Ended::Killed(Signal::SIGKILL).code(), 137);
        assert_eq!(Ended::Killed(Signal::SIGSEGV).code(), 139);
    }
}
