//! Real programs at a quarter of the memory they use by themselves, with byte-identical results.
//!
//! Each is run natively first, which measures the peak of its anonymous memory. Sizes are a
//! sixteenth of the full ones unless `PAGETIDE_TESTS_FULL` is set, and half of that where
//! `PAGETIDE_TESTS_TIME_SCALE` says that the system is slow.
mod support;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use support::compile::{compile_c, on_path, scratch, tests_folder};
use support::pagetide::{able, able_to_fork, governed};
use support::patience::is_slow;
use support::process::{self, Outcome};
use support::resident::Watch;
use support::skip::{is_full, skipped};

const LIMIT: Duration = Duration::from_secs(900);
/// Under this, what is measured is the program's start and not its work.
const PEAK_LEAST: u64 = 8 << 20;

/// `full`, or a sixteenth of it, or on a slow system a quarter of that.
fn scaled(full: u64) -> u64 {
    match is_full() {
        true => full,
        false if is_slow() => full / 64,
        false => full / 16,
    }
}

/// What a program gets of its peak: a quarter. An emulated processor takes minutes for what it then
/// misses, and gets half.
fn share(peak: u64) -> u64 {
    if is_slow() { peak / 2 } else { peak / 4 }
}

/// A program, its arguments, and what it produces.
struct Case {
    name: &'static str,
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, String)>,
    input: Vec<u8>,
    /// A file it writes, compared too.
    output: Option<PathBuf>,
    /// It cannot do its work without fork.
    forks: bool,
}

impl Case {
    fn new(name: &'static str, program: impl Into<OsString>) -> Case {
        let (arguments, environment, input) = (Vec::new(), Vec::new(), Vec::new());
        Case {
            name,
            program: program.into(),
            arguments,
            environment,
            input,
            output: None,
            forks: false,
        }
    }

    fn argument(mut self, argument: impl Into<OsString>) -> Case {
        self.arguments.push(argument.into());
        self
    }

    fn arguments(self, words: &str) -> Case {
        words
            .split_whitespace()
            .fold(self, |case, word| case.argument(word))
    }

    fn environment(mut self, name: &'static str, value: &str) -> Case {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Runs it; the outcome, the file it wrote, and its peak.
    fn run(&self, mut command: Command) -> (Outcome, Vec<u8>, u64) {
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        let running = process::start(&mut command, &self.input);
        let watch = Watch::start(running.pid(), Duration::from_millis(10));
        let outcome = running.finish(LIMIT);
        let peak = watch.peak();
        outcome.expect_code(0);
        let written = self.output.as_ref().map(|path| {
            let bytes =
                std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            std::fs::remove_file(path).ok();
            bytes
        });
        (outcome, written.unwrap_or_default(), peak)
    }

    /// Native, then in [`share`] of the native peak: both must produce the same bytes.
    fn compare(&self) {
        let (native, native_file, peak) = self.run(Command::new(&self.program));
        assert!(
            peak >= PEAK_LEAST,
            "{} used only {peak} bytes: it proves nothing",
            self.name
        );
        assert!(
            !native.stdout.is_empty() || !native_file.is_empty(),
            "{} produced nothing to compare",
            self.name
        );
        let able = if self.forks { able_to_fork() } else { able() };
        if let Err(reason) = able {
            return skipped(self.name, &reason);
        }
        let budget = share(peak).to_string();
        let (paged, paged_file, _) =
            self.run(governed(&["--resident", &budget, "--quiet"], &self.program));
        assert!(
            native.stdout == paged.stdout,
            "{} says something else when paged: {}\nnative: {}",
            self.name,
            paged.describe(),
            native.describe()
        );
        assert!(
            native_file == paged_file,
            "{} writes another file when paged",
            self.name
        );
        note(self.name, peak, &native, &paged);
    }
}

/// One line for people, past the test harness.
fn note(name: &str, peak: u64, native: &Outcome, paged: &Outcome) {
    use std::io::Write;
    let (before, after) = (native.elapsed.as_secs_f64(), paged.elapsed.as_secs_f64());
    let line = format!(
        "{name}: {} MiB in {} MiB: {before:.1} s became {after:.1} s\n",
        peak >> 20,
        share(peak) >> 20
    );
    std::io::stderr().write_all(line.as_bytes()).ok();
}

/// Whether the programs are there; says so loudly if not.
fn have(name: &str, programs: &[&str]) -> bool {
    let missing: Vec<_> = programs
        .iter()
        .copied()
        .filter(|program| !on_path(program))
        .collect();
    if !missing.is_empty() {
        skipped(name, &format!("not installed: {}", missing.join(", ")));
    }
    missing.is_empty()
}

fn script(name: &str) -> PathBuf {
    tests_folder().join("programs").join(name)
}

#[test]
fn python_sorts_and_hashes() {
    if have("python_sorts_and_hashes", &["python3"]) {
        let interpreter = real_python();
        Case::new("python_sorts_and_hashes", interpreter)
            .argument(script("sort_and_hash.py"))
            .argument(scaled(1024).to_string())
            .compare();
    }
}

/// Version managers put shell scripts on the path; the interpreter itself is what is to be paged.
fn real_python() -> OsString {
    let output = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or("python3".into(), |path| path.trim().into())
}

#[test]
fn gnu_sort() {
    if !have("gnu_sort", &["sort"]) {
        return;
    }
    let (input, output) = (scratch().join("sort-input"), scratch().join("sort-output"));
    let mut text = Vec::new();
    let mut state = 1u64;
    while (text.len() as u64) < scaled(700 << 20) {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        text.extend_from_slice(
            format!(
                "{:016x} {}\n",
                state >> 3,
                "sorted by its key ".repeat((state >> 60) as usize)
            )
            .as_bytes(),
        );
    }
    std::fs::write(&input, text).expect("the input can be written");
    let mut case = Case::new("gnu_sort", "sort").environment("LC_ALL", "C");
    case = case
        .argument(format!("--buffer-size={}M", scaled(1024)))
        .argument("--parallel=2")
        .argument("-o")
        .argument(&output);
    case = case.argument(&input);
    case.output = Some(output);
    case.compare();
    std::fs::remove_file(input).ok();
}

#[test]
fn sqlite_in_memory() {
    if have("sqlite_in_memory", &["sqlite3"]) {
        let sql = std::fs::read_to_string(script("in_memory.sql")).expect("the script is there");
        let mut case = Case::new("sqlite_in_memory", "sqlite3").arguments("-batch :memory:");
        case.input = sql
            .replace("ROWS", &scaled(1_000_000).max(30_000).to_string())
            .into_bytes();
        case.compare();
    }
}

#[test]
fn four_threads_verify_every_word() {
    let program =
        compile_c("programs", "four_threads", &[]).unwrap_or_else(|error| panic!("{error}"));
    Case::new("four_threads_verify_every_word", program)
        .argument(scaled(1024).to_string())
        .argument("2")
        .compare();
}

/// The session drives two servers in turn, so it is told how to start them and is not paged itself.
#[test]
fn redis_saves_in_the_background() {
    let name = "redis_saves_in_the_background";
    if !have(name, &["python3", "redis-server"]) {
        return;
    }
    let session = |prefix: &[OsString]| {
        let mut case = Case::new(name, real_python())
            .argument(script("redis_session.py"))
            .argument(scaled(500).max(15).to_string());
        case.arguments.extend_from_slice(prefix);
        case = case.argument("redis-server");
        case.run(Command::new(&case.program))
    };
    let (native, _, peak) = session(&[]);
    let binary = match able_to_fork() {
        Ok(binary) => binary,
        Err(reason) => return skipped(name, &reason),
    };
    let budget = share(peak).to_string();
    let words = ["run", "--quiet", "--resident", &budget, "--"].map(OsString::from);
    let prefix: Vec<OsString> = std::iter::once(binary.into_os_string())
        .chain(words)
        .collect();
    let (paged, _, _) = session(&prefix);
    assert_eq!(
        native.stdout_text(),
        paged.stdout_text(),
        "{}",
        paged.describe()
    );
    note(name, peak, &native, &paged);
}

#[test]
fn cpp_compiler() {
    if have("cpp_compiler", &["g++"]) {
        let output = scratch().join("heavy.o");
        let mut case = Case::new("cpp_compiler", "g++")
            .arguments("-std=c++17 -O1 -frandom-seed=1 -c -o")
            .argument(&output);
        let (instances, source) = match is_full() {
            true => ("-DINSTANCES=20", "heavy.cpp"),
            false if is_slow() => ("-DINSTANCES=0", "light.cpp"),
            false => ("-DINSTANCES=2", "heavy.cpp"),
        };
        case = case.argument(instances).argument(script(source));
        case.output = Some(output);
        case.compare();
    }
}

/// A shell with some of the memory of its commands in a variable forks for each of them.
#[test]
fn a_shell_script_pipes_and_forks() {
    let name = "a_shell_script_pipes_and_forks";
    if have(name, &["sh", "awk", "sort", "cksum"]) {
        let mut case = Case::new(name, "sh")
            .argument(script("pipes_and_forks.sh"))
            .argument(
                if is_slow() {
                    3 << 20
                } else {
                    scaled(32 << 20).max(8 << 20)
                }
                .to_string(),
            );
        case.forks = true;
        case.compare();
    }
}

#[test]
fn rust_compiler() {
    if !have("rust_compiler", &["rustc"]) {
        return;
    }
    // The compiler itself and not the launcher of a version manager.
    let sysroot = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .expect("rustc is there");
    let compiler = Path::new(String::from_utf8_lossy(&sysroot.stdout).trim()).join("bin/rustc");
    let (source, output) = (scratch().join("heavy.rs"), scratch().join("heavy-rust.o"));
    let mut text = "use std::collections::{BTreeMap, HashMap};\n".to_owned();
    for number in 0..scaled(800) {
        text += &format!(
            "pub fn f{number}(x: &[u64]) -> Vec<(String, u64)> {{ \
             let mut a: BTreeMap<String, u64> = BTreeMap::new(); \
             let mut b: HashMap<u64, Vec<u64>> = HashMap::new(); \
             for (i, v) in x.iter().enumerate() {{ \
             *a.entry(format!(\"{{}}-{{}}\", v, i + {number})).or_default() += v; \
             b.entry(v % {}).or_default().push(*v); }} \
             let mut c: Vec<_> = a.into_iter().collect(); \
             c.sort_by(|p, q| q.1.cmp(&p.1).then(p.0.cmp(&q.0))); \
             c.retain(|e| b.contains_key(&(e.1 % 7))); c }}\n",
            number + 1
        );
    }
    std::fs::write(&source, text).expect("the source can be written");
    let mut case = Case::new("rust_compiler", compiler)
        .arguments("--edition 2021 --crate-type lib --emit obj -O -C codegen-units=1 -o");
    case = case.argument(&output).argument(&source);
    case.output = Some(output);
    case.compare();
}

#[test]
fn node() {
    if have("node", &["node"]) {
        Case::new("node", "node")
            .arguments("--max-old-space-size=4096")
            .argument(script("heap.js"))
            .argument(scaled(400).to_string())
            .compare();
    }
}

#[test]
fn java() {
    if !have("java", &["java", "javac"]) {
        return;
    }
    let classes = scratch().join("classes");
    let compiled = Command::new("javac")
        .arg("-d")
        .arg(&classes)
        .arg(script("Heap.java"))
        .status();
    assert!(
        compiled.is_ok_and(|status| status.success()),
        "javac failed"
    );
    let mut case = Case::new("java", "java").arguments("-XX:-UsePerfData -XX:+UseParallelGC");
    case = case
        .argument(format!("-Xmx{}m", scaled(2400)))
        .argument("-cp")
        .argument(classes)
        .argument("Heap");
    case.argument(scaled(400).to_string()).compare();
}

#[test]
fn perl() {
    if have("perl", &["perl"]) {
        Case::new("perl", "perl")
            .argument(script("hash.pl"))
            .argument(if is_slow() { 10 } else { scaled(800) }.to_string())
            .environment("PERL_HASH_SEED", "0")
            .compare();
    }
}

#[test]
fn go_with_cgo() {
    if !have("go_with_cgo", &["go", "cc"]) {
        return;
    }
    let program = scratch().join("heap-go");
    let mut build = Command::new("go");
    build
        .args(["build", "-o"])
        .arg(&program)
        .arg(script("heap.go"))
        .envs([("CGO_ENABLED", "1"), ("GO111MODULE", "off")]);
    let outcome = process::run(
        build
            .env("GOCACHE", scratch().join("go-cache"))
            .env("GOFLAGS", ""),
        LIMIT,
    );
    if outcome.code() != Some(0) {
        return skipped(
            "go_with_cgo",
            &format!("it cannot be built here: {}", outcome.stderr_text()),
        );
    }
    Case::new("go_with_cgo", program)
        .argument(scaled(400).to_string())
        .compare();
}
