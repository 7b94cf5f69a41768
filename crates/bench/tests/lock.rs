//! `pagetide-bench lock` as a user calls it, on a file of a mebibyte: what it prints, not how fast
//! it is.
use std::path::Path;
use std::process::Command;

const STRATEGIES: [&str; 11] = [
    "none",
    "whole",
    "each-access",
    "handler-1",
    "handler-8",
    "handler-16",
    "on-fault",
    "on-fault-random",
    "on-fault-exact",
    "adaptive",
    "prefetch",
];

fn bench(more: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_pagetide-bench"))
        .args(["lock", "--file-size", "1M", "--warm", "--runs", "1"])
        .args([
            "--accesses",
            "10,1000",
            "--dir",
            env!("CARGO_TARGET_TMPDIR"),
        ])
        .args(more)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_strategy_has_a_row_for_each_count() {
    let results: serde_json::Value = serde_json::from_str(&bench(&["--json"])).unwrap();
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * STRATEGIES.len(), "{}", results["skipped"]);
    for strategy in STRATEGIES {
        for accesses in [10, 1000] {
            let row = rows
                .iter()
                .find(|row| row["strategy"] == strategy && row["accesses"] == accesses)
                .unwrap_or_else(|| panic!("no row of {strategy} at {accesses}"));
            assert_eq!(row["cache"], "warm");
            for time in ["setup_ms", "processing_ms"] {
                assert!(row[time].as_f64().unwrap() > 0.0, "{row}");
            }
            let bytes = |field: &str| row[field].as_u64().unwrap();
            assert!(bytes("resident_bytes") >= bytes("touched_bytes"), "{row}");
            assert!(row["major_faults"].is_u64(), "{row}");
        }
    }
}

#[test]
fn the_picture_and_the_tables_name_the_strategies() {
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lock.svg");
    let text = bench(&[
        "--strategies=on-fault,adaptive",
        "--plot",
        picture.to_str().unwrap(),
    ]);
    assert!(
        text.contains("warm (all in the page cache), 1000 accesses"),
        "{text}"
    );
    assert!(text.contains("adaptive over the best single strategy that locks (on-fault)"));
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.contains("<svg") && picture.contains("adaptive"));
    assert_eq!(picture.matches("<circle").count(), 4);
}
