//! Units and manifests in `examples/`.
use std::path::{Path, PathBuf};
use std::process::Command;

use super::LIMIT;
use super::support::compile::on_path;
use super::support::pagetide::binary;
use super::support::process::run;
use super::support::skip::skipped;

/// The files of `examples/FOLDER` with the extension.
fn examples(folder: &str, extension: &str) -> Vec<PathBuf> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let entries = std::fs::read_dir(examples.join(folder)).expect("a folder of examples");
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|other| other == extension))
        .collect()
}

/// systemd's own check has nothing to say of them.
#[test]
fn the_units_are_as_systemd_wants_them() {
    let name = "the_units_are_as_systemd_wants_them";
    if !on_path("systemd-analyze") {
        return skipped(name, "systemd-analyze is not installed (package systemd)");
    }
    let directory = tempfile::tempdir().expect("a directory can be made");
    let command = binary().expect("there is a command");
    let mut check = Command::new("systemd-analyze");
    check.args(["verify", "--man=no"]);
    for kind in ["service", "socket"] {
        for unit in examples("systemd", kind) {
            let text = std::fs::read_to_string(&unit).expect("it can be read");
            let installed = "ExecStart=/usr/bin/pagetide ";
            assert!(kind != "service" || text.contains(installed), "{text}");
            let here = format!("ExecStart={} ", command.display());
            let copy = directory
                .path()
                .join(unit.file_name().expect("it is a file"));
            std::fs::write(&copy, text.replace(installed, &here)).expect("it can be written");
            check.arg(copy);
        }
    }
    let outcome = run(&mut check, LIMIT);
    outcome.expect_code(0);
    assert_eq!(outcome.stderr_text(), "", "{}", outcome.describe());
}

fn manifest(name: &str) -> saphyr::YamlOwned {
    use saphyr::LoadableYamlNode as _;
    let all = examples("kubernetes", "yml");
    let path = all.iter().find(|path| path.ends_with(name));
    let path = path.unwrap_or_else(|| panic!("{name} is not there"));
    let text = std::fs::read_to_string(path).expect("it can be read");
    let mut documents =
        saphyr::YamlOwned::load_from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(documents.len(), 1, "{name}");
    documents.remove(0)
}

/// The words of a list.
fn words(list: &saphyr::YamlOwned) -> Vec<&str> {
    let list = list.as_sequence().expect("a list");
    list.iter()
        .map(|word| word.as_str().expect("a word"))
        .collect()
}

/// Its limit has room for more than the budget.
#[test]
fn the_pod_asks_for_what_the_device_plugin_gives() {
    use saphyr::LoadableYamlNode as _;
    let plugin = manifest("device-plugin.yml");
    let plugin = &plugin["spec"]["template"]["spec"]["containers"][0];
    let arguments = words(&plugin["args"]);
    let after = |option| {
        let at = arguments.iter().position(|word| *word == option);
        arguments[at.expect("the option is given") + 1]
    };
    let device = saphyr::YamlOwned::load_from_str(after("--device")).expect("it is YAML");
    let path = device[0]["groups"][0]["paths"][0]["path"].as_str();
    assert_eq!(path, Some("/dev/userfaultfd"));
    let name = device[0]["name"].as_str().expect("it has a name");
    let resource = format!("{}/{name}", after("--domain"));

    let pod = manifest("pod.yml");
    let container = &pod["spec"]["containers"][0];
    let limits = &container["resources"]["limits"];
    assert_eq!(
        limits[resource.as_str()].as_integer(),
        Some(1),
        "{resource}"
    );
    let bytes = |text: &str| {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = if text[digits.len()..].starts_with('M') {
            1 << 20
        } else {
            1 << 30
        };
        digits.parse::<u64>().expect("a number") * unit
    };
    let command = words(&container["command"]);
    assert_eq!(command[..4], ["pagetide", "run", "--exec", "--resident"]);
    let limit = limits["memory"].as_str().expect("there is a limit");
    assert!(
        bytes(limit) >= 2 * bytes(command[4]),
        "{limit}, {}",
        command[4]
    );
}
