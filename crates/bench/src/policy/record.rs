//! `record-accesses`: writes down which pages a program accesses, for `policy` to simulate with.
//!
//! The program runs under valgrind, with a tool that comes with this command as its source
//! (`programs/accesses.c`) and is compiled when it is needed. (Valgrind's own tool, lackey, makes a
//! system call for each instruction and access; of what it prints a program of a second's work
//! would take hours.) Programs take about twenty times as long as alone.
//!
//! What is written down:
//!
//! - Loads and stores by the program and by the kernel on its behalf. Not its instructions.
//! - Accesses to anonymous memory, the stack included. Not to memory that a file lies behind.
//! - The process itself, with all threads, of which valgrind lets one run at a time. Not its
//!   children, nor a program it executes.
//! - An access across the border of two pages as one to the first.
//!
//! A page that is among the last 64 written down is not written down again, unless it was loaded
//! there and is stored to now. So a page in constant use is in the file again and again, and a
//! simulated memory that has given it up misses it at most 64 accesses late, which is nothing to
//! one of thousands of pages. (An exact LRU of 64 pages as the filter would never let such a page
//! through again: right for LRU, which would not give it up, and wrong for FIFO, which does.)
use std::ffi::OsString;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use super::accesses;
use crate::arguments::Usage;
use crate::report::say;
use crate::undo;

const SOURCE: &str = include_str!("../../programs/accesses.c");
/// What valgrind calls the tool's executable.
const TOOL: &str = "accesses-amd64-linux";
/// Where distributions put the tools and the libraries that tools are made of.
const PLACES: [&str; 4] = [
    "/usr/libexec/valgrind",
    "/usr/lib/x86_64-linux-gnu/valgrind",
    "/usr/lib64/valgrind",
    "/usr/lib/valgrind",
];
const HEADERS: &str = "/usr/include/valgrind";

/// What to record.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// The file to write
    #[arg(long)]
    pub output: PathBuf,
    /// End the program after so many accesses written down
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub accesses: Option<u64>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

fn missing(what: &str) -> Error {
    let advice = "install valgrind (Debian's package has the tools, the headers and the libraries)";
    Error::new(ErrorKind::NotFound, format!("there is no {what}: {advice}"))
}

/// The one of [`PLACES`] that has `file`.
fn place_of(file: &str) -> Result<&'static Path> {
    let places = PLACES.iter().map(Path::new);
    let mut having = places.filter(|place| place.join(file).is_file());
    having.next().ok_or_else(|| {
        let places = PLACES.join(", ");
        missing(&format!("`{file}` in {places}"))
    })
}

/// Runs a step of compiling the tool.
fn compile(words: &mut Command) -> Result<()> {
    let status = words.status().map_err(|error| {
        let advice = "compiling valgrind's tool needs gcc: install it";
        Error::new(error.kind(), format!("gcc: {error}; {advice}"))
    })?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::other(format!(
            "gcc could not compile valgrind's tool ({status}); its words are above"
        ))),
    }
}

/// Makes the tool in `directory`, and beside it what valgrind looks for where its tools are.
fn make_tool(directory: &Path) -> Result<()> {
    if !Path::new(HEADERS).join("pub_tool_tooliface.h").is_file() {
        return Err(missing(&format!("`pub_tool_tooliface.h` in {HEADERS}")));
    }
    let libraries = place_of("libcoregrind-amd64-linux.a")?;
    let tools = place_of("lackey-amd64-linux")?;
    for entry in std::fs::read_dir(tools)? {
        let entry = entry?;
        symlink(entry.path(), directory.join(entry.file_name()))?;
    }
    std::fs::write(directory.join("accesses.c"), SOURCE)?;
    let mut gcc = Command::new("gcc");
    gcc.current_dir(directory).args(["-O2", "-c", "accesses.c"]);
    gcc.args(["-fno-pie", "-fno-stack-protector", "-fno-builtin"]);
    gcc.args(["-fno-strict-aliasing", "-I", HEADERS]);
    gcc.args(["-DVGA_amd64", "-DVGO_linux", "-DVGP_amd64_linux"]);
    compile(gcc.arg("-DVGPV_amd64_linux_vanilla"))?;
    let mut gcc = Command::new("gcc");
    gcc.current_dir(directory).args(["-o", TOOL, "accesses.o"]);
    gcc.args(["-static", "-nodefaultlibs", "-nostartfiles", "-no-pie"]);
    gcc.args(["-u", "_start", "-Wl,-Ttext-segment=0x58000000"]);
    for library in ["libcoregrind", "libvex", "libgcc-sup"] {
        gcc.arg(libraries.join(format!("{library}-amd64-linux.a")));
    }
    compile(gcc.arg("-lgcc"))
}

/// Runs the program with the tool in `directory` to its end.
fn run_recorded(plan: &Plan, directory: &Path) -> Result<()> {
    let mut valgrind = Command::new("valgrind");
    valgrind.env("VALGRIND_LIB", directory);
    valgrind.args(["-q", "--tool=accesses"]);
    let mut output = OsString::from("--output=");
    output.push(std::path::absolute(&plan.output)?);
    valgrind.arg(output);
    if let Some(most) = plan.accesses {
        valgrind.arg(format!("--accesses={most}"));
    }
    let status = valgrind.arg("--").args(&plan.command).status();
    let status = status.map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing("`valgrind` in PATH"),
        kind => Error::new(kind, format!("valgrind: {error}")),
    })?;
    if !status.success() {
        let program = plan.command[0].display();
        say(&format!(
            "`{program}` ended with {status}; the recording goes up to there"
        ));
    }
    Ok(())
}

/// Records, and says on stderr how much was.
pub fn run(plan: &Plan) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Usage::error(
            "record-accesses knows x86-64 alone; record on such a machine and copy the file"
                .to_owned(),
        ));
    }
    let file = plan.output.display();
    let named = |error: Error| Error::new(error.kind(), format!("{file}: {error}"));
    // Found out before the program runs; and if that does not start, no older recording is taken
    // for its.
    std::fs::File::create(&plan.output).map_err(named)?;
    undo::arm()?;
    let mark = undo::mark();
    let name = format!("pagetide-accesses-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let made = directory.clone();
    undo::change(
        &format!("making {}", directory.display()),
        || std::fs::create_dir(&directory),
        move || std::fs::remove_dir_all(&made),
    )?;
    make_tool(&directory)?;
    run_recorded(plan, &directory)?;
    undo::back_to(mark)?;
    let bytes = std::fs::read(&plan.output).map_err(named)?;
    let (all, stores, pages) = accesses::count(&bytes).map_err(named)?;
    say(&format!(
        "{file}: {all} accesses, {stores} of them stores, to {pages} pages"
    ));
    Ok(())
}
