//! What `ps`, `stat`, `metrics` and `limit` say of a process that serves pages.
use nix::sys::signal::Signal;
use serde_json::Value;

use super::guest::{Guest, within_time};
use super::server::Server;
use super::{ZEROS, able, leaving};

const PAGES: u64 = 1000;

fn printed(server: &Server, arguments: &[&str]) -> String {
    let output = server.asked(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What `metrics` has for a name with these labels beside those of the process.
fn metric(text: &str, server: &Server, name: &str, labels: &str) -> f64 {
    let key = format!(
        "{name}{{run=\"{}\",name=\"firecracker\"{labels}}} ",
        server.pid()
    );
    let line = text.lines().find_map(|line| line.strip_prefix(&key));
    let line = line.unwrap_or_else(|| panic!("no {key} in\n{text}"));
    line.parse().unwrap()
}

#[test]
fn it_is_shown_beside_those_that_are_governed() {
    if !able() {
        return;
    }
    let server = leaving(PAGES, &[]);
    let pid = server.pid().to_string();
    let guest = Guest::connected(PAGES, &server.socket());
    let guest = within_time(move || {
        guest.verify(0, PAGES, 0);
        guest.give_up(100, 7);
        guest
    });
    server.counts(&["fault_pages", "block_pages"], PAGES);
    server.counts(&["removed_pages"], 7);
    let all: Value =
        serde_json::from_str(&printed(&server, &["ps", "--serving", "--json"])).unwrap();
    let report: Value = serde_json::from_str(&printed(&server, &["stat", &pid, "--json"])).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 1);
    for report in [&all[0], &report] {
        assert_eq!(report["pid"], server.pid());
        assert_eq!(report["serves"], "firecracker");
        assert_eq!(report["total"], server.status()["total"]);
        assert_eq!(
            report["fault_latency_ns"],
            server.status()["fault_latency_ns"]
        );
        assert_eq!(report["source"], server.path("image").to_str().unwrap());
        assert_eq!(report["clients"][0]["memory_pages"], PAGES);
    }
    // One in five of the image's pages is zeros, and in its file all the same.
    let total = &report["total"];
    assert_eq!(
        (&total["image_pages"], &total["zero_pages"]),
        (&PAGES.into(), &0.into())
    );
    assert_eq!(printed(&server, &["ps", "--json"]), "[]\n");
    assert!(printed(&server, &["ps"]).contains(&pid));
    let text = printed(&server, &["stat", &pid]);
    for expected in [
        "1 now, 0 ended",
        "files 1 k",
        "given up      7 pages",
        "3.91 MiB",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    let limit = server.asked(&["limit", &pid, "64M"]);
    let said = String::from_utf8_lossy(&limit.stderr).into_owned();
    assert_eq!(limit.status.code(), Some(1), "{said}");
    assert!(said.contains("serves pages of other processes"), "{said}");
    metrics_are_its_counters(&server, &report);
    drop(guest);
    let run = server.path("pagetide").join(format!("run-{pid}"));
    assert!(run.is_dir());
    let (status, log, _place) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!run.exists());
}

fn metrics_are_its_counters(server: &Server, report: &Value) {
    let text = printed(server, &["metrics", "--once"]);
    let total = |name: &str| report["total"][name].as_f64().unwrap();
    let metric = |name: &str, labels: &str| metric(&text, server, name, labels);
    assert_eq!(metric("pagetide_serve_clients", ""), 1.0);
    assert_eq!(metric("pagetide_serve_faults_total", ""), total("faults"));
    assert_eq!(metric("pagetide_serve_removed_pages_total", ""), 7.0);
    for (label, name) in [("fault", "fault_pages"), ("block", "block_pages")] {
        let labels = format!(",reason=\"{label}\"");
        assert_eq!(metric("pagetide_serve_pages_total", &labels), total(name));
    }
    let origin = ",origin=\"image\"";
    assert_eq!(
        metric("pagetide_serve_page_origins_total", origin),
        PAGES as f64
    );
    let count = report["fault_buckets_ns"].as_array().unwrap().iter();
    let count: f64 = count.map(|bucket| bucket[1].as_f64().unwrap()).sum();
    assert_eq!(
        metric("pagetide_serve_fault_latency_seconds_count", ""),
        count
    );
    let labels = format!("le=\"+Inf\",run=\"{}\"", server.pid());
    let name = "pagetide_serve_fault_latency_seconds_bucket";
    let all = format!("{name}{{{labels},name=\"firecracker\"}} {count}\n");
    assert!(text.contains(&all), "no {all} in\n{text}");
    assert!(metric("pagetide_serve_fault_latency_seconds_sum", "") > 0.0);
    assert_eq!(
        metric("pagetide_serve_former_clients_total", ",how=\"refused\""),
        0.0
    );
}

#[test]
fn what_of_the_working_set_comes_too_late_is_counted() {
    if !able() {
        return;
    }
    let server = leaving(PAGES, &["--record", "set"]);
    let guest = Guest::connected(PAGES, &server.socket());
    within_time(move || (0..100).for_each(|page| guest.verify(page, 1, page)));
    server.counts(&["fault_pages"], 100);
    let (_, _, place) = server.end();
    let server = Server::at(place, &["--on-loss", "leave", "--replay", "set"]);
    // It hears of the client when a fault of it waits already.
    server.signal(Signal::SIGSTOP);
    let guest = Guest::connected(PAGES, &server.socket());
    let reader = std::thread::spawn(move || {
        guest.verify(50, 1, 50);
        guest
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    server.signal(Signal::SIGCONT);
    let guest = within_time(move || reader.join().unwrap());
    server.counts(&["fault_pages", "block_pages", "working_set_pages"], 100);
    server.counts(&["working_set_faults"], 1);
    // What was given up comes anew, which no working set could spare.
    let guest = within_time(move || {
        guest.give_up(60, 1);
        assert_eq!(guest.read(60), ZEROS);
        guest
    });
    server.counts(&["zero_pages"], 1);
    server.counts(&["working_set_faults"], 1);
    let text = printed(&server, &["stat", &server.pid().to_string()]);
    assert!(text.contains("1 were waited for"), "{text}");
    drop(guest);
}
