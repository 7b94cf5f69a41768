//! What `make install` and the packages lay out, from what is built here.
mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use support::compile::on_path;
use support::pagetide::binary;
use support::process::run;
use support::skip::skipped;

const LIMIT: Duration = Duration::from_secs(120);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where command and agent were built, unless `tools` or another part is missing.
fn build(name: &str, tools: &[&str], parts: &[&str]) -> Option<PathBuf> {
    let build = binary().unwrap().parent().unwrap().to_owned();
    let tool = tools.iter().find(|tool| !on_path(tool));
    let part = parts.iter().find(|part| !build.join(part).is_file());
    match tool.or(part) {
        None => Some(build),
        Some(missing) => {
            skipped(name, &format!("there is no {missing}"));
            None
        }
    }
}

/// Every file below `root`, by its path there.
fn files(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path => {
                    let path = path.strip_prefix(root).unwrap();
                    found.insert(path.to_str().unwrap().to_owned());
                }
            }
        }
    }
    found
}

#[test]
fn what_is_installed_is_complete_and_goes_again() {
    let name = "what_is_installed_is_complete_and_goes_again";
    let Some(build) = build(name, &["make"], &["pagetide-bench"]) else {
        return;
    };
    for (prefix, rules) in [("/usr/local", "etc"), ("/usr", "usr/lib")] {
        let root = tempfile::tempdir().unwrap();
        let make = |what: &str| {
            let mut command = Command::new("make");
            command.current_dir(repository()).arg(what);
            command.arg(format!("RELEASE={}", build.display()));
            command.arg(format!("DESTDIR={}", root.path().display()));
            run(command.arg(format!("PREFIX={prefix}")), LIMIT).expect_code(0);
        };
        make("install");
        let found = files(root.path());
        let below = prefix.trim_start_matches('/');
        for file in [
            "bin/pagetide",
            "bin/pagetide-bench",
            "lib/pagetide/libpagetide_preload.so",
            "share/man/man1/pagetide-run.1",
            "share/bash-completion/completions/pagetide",
            "share/zsh/site-functions/_pagetide",
            "share/fish/vendor_completions.d/pagetide.fish",
        ] {
            assert!(
                found.contains(&format!("{below}/{file}")),
                "{file}: {found:?}"
            );
        }
        let rule = format!("{rules}/udev/rules.d/60-pagetide.rules");
        assert!(found.contains(&rule), "{found:?}");
        make("uninstall");
        assert_eq!(files(root.path()), BTreeSet::new());
    }
}

#[test]
fn packages_have_the_documentation_and_no_page_of_a_command_that_they_lack() {
    let name = "packages_have_the_documentation_and_no_page_of_a_command_that_they_lack";
    let Some(build) = build(name, &["strip"], &[]) else {
        return;
    };
    let root = tempfile::tempdir().unwrap();
    let script = repository().join("packaging/stage.sh");
    run(Command::new(script).args([root.path(), &build]), LIMIT).expect_code(0);
    let found = files(root.path());
    assert!(found.contains("share/man/man1/pagetide-run.1"), "{found:?}");
    let bench = |file: &&String| file.contains("pagetide-bench");
    assert_eq!(found.iter().find(bench), None);
    // Each page that others lead to is there.
    let documentation = root.path().join("share/doc/pagetide");
    let mut links = 0;
    for page in found.iter().filter(|file| file.ends_with(".md")) {
        let page = root.path().join(page);
        let text = std::fs::read_to_string(&page).unwrap();
        let ends = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for link in ends.filter(|link| link.contains(".md") && !link.contains(':')) {
            let target = page.parent().unwrap().join(link.split('#').next().unwrap());
            // What is of the sources stays there.
            let is_page = target.starts_with(documentation.join("docs")) && !link.contains("..");
            if is_page {
                assert!(target.is_file(), "{}: {link}", page.display());
                links += 1;
            }
        }
    }
    assert!(links > 50, "{links}");
}
