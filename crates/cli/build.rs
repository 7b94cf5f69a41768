//! What `pagetide --version` says: version, commit, features.
use std::process::Command;

/// What git says; nothing where there is no repository, as in a tarball.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn main() {
    // Named from the root of the workspace; and it is another crate's, too.
    println!("cargo::rerun-if-changed=../../{}", file!());
    // Written at each commit and checkout.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file])
            && std::path::Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let commit = commit.map_or_else(String::new, |commit| format!("{commit}, "));
    println!("cargo::rustc-env=PAGETIDE_VERSION={version} ({commit}features: remote, tls)");
}
