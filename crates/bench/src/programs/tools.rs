//! What programs need on this machine: looked for, and installed where that can be done without
//! asking: Debian packages by root, Python's modules into an environment of their own.
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::catalogue::{Need, Program};
use super::plan::Plan;
use crate::launch;
use crate::report::say;

const INSTALL: &str = include_str!("../../programs/install-for-tests.sh");

/// Where things are found, and whether they may be installed.
pub struct Tools {
    /// The environment of Python's modules.
    environment: PathBuf,
    install: bool,
}

/// Where `name` is in PATH.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path).map(|directory| directory.join(name));
    places.into_iter().find(|path| path.is_file())
}

/// Runs `command`, which is a step of `doing`.
fn step(doing: &str, command: &mut Command) -> Result<Vec<u8>> {
    let (status, printed) = launch::output(command)
        .map_err(|error| Error::new(error.kind(), format!("{doing}: {error}")))?;
    match status.success() {
        true => Ok(printed),
        false => Err(Error::other(format!("{doing} ended with {status}"))),
    }
}

impl Tools {
    /// As the plan has it.
    pub fn new(plan: &Plan) -> Result<Tools> {
        let home = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let cache = plan.cache.clone().or_else(|| {
            let all = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")))?;
            Some(all.join("pagetide-bench"))
        });
        let cache =
            cache.ok_or_else(|| Error::other("HOME is not set; name a directory with --cache"))?;
        Ok(Tools {
            environment: std::path::absolute(cache)?.join("python"),
            install: !plan.no_install,
        })
    }

    /// Sees to it that all is there that `program` needs; the Python it is to use.
    pub fn meet(&self, program: &Program) -> Result<PathBuf> {
        for need in program.needs {
            match need {
                Need::Command { name, package } => self.command(name, package)?,
                Need::Module(name) => self.module(name)?,
            }
        }
        let modules = program.needs.iter().any(|n| matches!(n, Need::Module(_)));
        match modules {
            true => Ok(self.python()),
            false if program.needs.contains(&Need::PYTHON) => system_python(),
            false => Ok(PathBuf::new()),
        }
    }

    fn command(&self, name: &str, package: &str) -> Result<()> {
        if find(name).is_none() && self.install {
            let mut script = Command::new("sh");
            script.args(["-c", INSTALL, "install"]);
            script.arg(format!("{name}={package}"));
            step(&format!("installing {package}"), &mut script)?;
        }
        match find(name) {
            Some(_) => Ok(()),
            None => Err(Error::other(format!(
                "there is no `{name}` in PATH; install {package}"
            ))),
        }
    }

    fn python(&self) -> PathBuf {
        self.environment.join("bin/python")
    }

    fn has(&self, module: &str) -> bool {
        let mut python = Command::new(self.python());
        python.args(["-c", &format!("import {module}")]);
        python.stderr(std::process::Stdio::null());
        self.python().is_file() && python.status().is_ok_and(|status| status.success())
    }

    fn module(&self, name: &str) -> Result<()> {
        let place = self.environment.display();
        if self.has(name) {
            return Ok(());
        }
        if !self.install {
            return Err(Error::other(format!(
                "there is no Python module `{name}` in {place}; leave out --no-install"
            )));
        }
        if !self.python().is_file() {
            say(&format!("making an environment for Python in {place}"));
            let mut python = Command::new(system_python()?);
            python.args(["-m", "venv"]).arg(&self.environment);
            step(
                "python3 -m venv (Debian's package is python3-venv)",
                &mut python,
            )?;
        }
        say(&format!("installing {name} into {place} with pip"));
        let mut pip = Command::new(self.python());
        pip.args(["-m", "pip", "install", "--quiet"]);
        pip.args(["--disable-pip-version-check", "--no-input", name]);
        step(&format!("pip install {name}"), &mut pip).map(|_| ())
    }
}

/// The interpreter itself: `python3` may be a script that looks for it, which would be measured,
/// too.
fn system_python() -> Result<PathBuf> {
    let mut python = Command::new("python3");
    python.args(["-c", "import sys; print(sys.executable)"]);
    let printed = step("python3", &mut python)?;
    Ok(Path::new(String::from_utf8_lossy(&printed).trim()).to_owned())
}
