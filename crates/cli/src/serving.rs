//! The processes that serve pages (`pagetide serve`), found in the run directories as governed ones
//! are, and what each says of itself.
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use pagetide_kernel::peer::Peer;
use pagetide_pager::protocol::files;
use pagetide_serve::status::Report;

use crate::bases::Bases;
use crate::control::connect;
use crate::runs;

/// How long one may take to answer: one that is stopped holds up those who look at many.
const PATIENCE: Duration = Duration::from_millis(500);
/// The answer has some hundred bytes for each client; more than this is not one.
const REPLY_BYTES_MAX: u64 = 16 << 20;

/// What those say that this user may see and that answer, by process ID.
pub fn all(bases: &Bases) -> Vec<Report> {
    let mut found = Vec::new();
    for base in bases.visible() {
        runs::clean_stale(&base);
        let sockets = runs::runs(&base)
            .into_iter()
            .map(|run| files::serving(&run));
        found.extend(sockets.filter_map(|socket| ask(&socket)));
    }
    found.sort_by_key(|report| report.about.pid);
    found
}

/// What the one with this process ID says.
pub fn of(pid: u32, bases: &Bases) -> Option<Report> {
    all(bases)
        .into_iter()
        .find(|report| report.about.pid == pid)
}

/// `None` where nobody listens or answers, or it is a process that this one's PID namespace does
/// not see.
fn ask(socket: &Path) -> Option<Report> {
    let connection = connect(socket, PATIENCE).ok()?;
    let pid = Peer::of(connection.as_fd()).ok()?.pid()?;
    let mut text = String::new();
    connection
        .take(REPLY_BYTES_MAX)
        .read_to_string(&mut text)
        .ok()?;
    let mut report: Report = serde_json::from_str(&text).ok()?;
    // As it is known here.
    report.about.pid = pid;
    Some(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;

    #[test]
    fn one_that_does_not_answer_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let socket = |name: &str| dir.path().join(name);
        assert_eq!(ask(&socket("none")), None);
        // It never accepts, as one that is stopped.
        let _stopped = UnixListener::bind(socket("stopped")).unwrap();
        assert_eq!(ask(&socket("stopped")), None);
        let listener = UnixListener::bind(socket("good")).unwrap();
        let server = std::thread::spawn(move || {
            for answer in [
                "what?",
                "{\"refused\":3}",
                &serde_json::json!({
                    "pid": 1, "serves": "criu", "source": "", "socket": "", "wall_seconds": 1.5,
                    "clients": [], "clients_ended": 2, "clients_broken": 0, "refused": 0,
                    "total": {"faults": 7}, "fault_latency_ns": {"mean": 0, "p50": 0, "p90": 0,
                    "p99": 0, "p999": 0, "max": 0}, "fault_buckets_ns": [], "fault_sum_ns": 0,
                })
                .to_string(),
            ] {
                let (mut connection, _) = listener.accept().unwrap();
                connection.write_all(answer.as_bytes()).unwrap();
            }
        });
        assert_eq!(ask(&socket("good")), None);
        assert_eq!(ask(&socket("good")), None);
        let report = ask(&socket("good")).unwrap();
        assert_eq!(
            (report.about.pid, report.total.faults),
            (std::process::id(), 7)
        );
        server.join().unwrap();
    }
}
