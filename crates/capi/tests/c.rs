//! The C interface as C programs see it: the examples and a program of mistakes, by each compiler,
//! in C and C++, with both libraries.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

#[path = "../../cli/tests/support/skip.rs"]
#[allow(dead_code)]
mod skip;
use skip::skipped;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// What a program exits with that cannot be run here, and has said why.
const SKIPPED: i32 = 77;

fn run(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn succeed(command: &mut Command) -> String {
    let output = run(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The libraries, linked once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let out = scratch.join("capi");
        let target = scratch.parent().expect("it is in the target directory");
        let mut command = Command::new(format!("{HERE}/link.sh"));
        command.args(["dev".as_ref(), target, &out]);
        // What Cargo tells a test of its package would have build scripts run anew.
        for (name, _) in std::env::vars() {
            if ["CARGO_PKG_", "CARGO_MANIFEST_"]
                .iter()
                .any(|of| name.starts_with(of))
            {
                command.env_remove(name);
            }
        }
        succeed(command.env("CARGO", env!("CARGO")));
        out
    })
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// An example: its file from here, whether it takes a file's name, and what else it is compiled
/// with.
struct Example {
    source: &'static str,
    argument: bool,
    options: &'static [&'static str],
}

/// One without another library.
fn plain(source: &'static str, argument: bool) -> Example {
    Example {
        source,
        argument,
        options: &[],
    }
}

/// Whether `header` is here; else says what is SKIPPED.
fn has_header(header: &str, options: &[&str]) -> bool {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("includes.c");
    std::fs::write(&source, format!("#include <{header}>\n")).unwrap();
    let mut command = Command::new("gcc");
    let found = has("gcc") && {
        command.arg("-E").args(options).arg(&source);
        run(&mut command).status.success()
    };
    if !found {
        skipped(header, "it is not here");
    }
    found
}

/// Compiles `example` and runs it, with a directory of its own as its argument.
fn compile_and_run(compiler: &str, standard: &str, linking: &str, example: &Example) {
    let source = &Path::new(HERE).join(example.source);
    let library = library();
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("program");
    let mut command = Command::new(compiler);
    command.args([
        standard, "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread",
    ]);
    command
        .arg("-I")
        .arg(library.join("include"))
        .arg("-o")
        .arg(&program);
    if standard.contains("++") {
        command.args(["-x", "c++"]).arg(source).args(["-x", "none"]);
    } else {
        command.arg(source);
    }
    match linking {
        "static" => {
            command.arg(library.join("lib/libpagetide.a"));
            command.args(["-lgcc_s", "-lrt", "-lpthread", "-lm", "-ldl"]);
        }
        _ => {
            if linking == "sanitized" {
                command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
            }
            command.arg("-L").arg(library.join("lib")).arg("-lpagetide");
            let path = library.join("lib");
            command.arg(format!("-Wl,-rpath,{}", path.display()));
        }
    }
    succeed(command.args(example.options));
    let mut command = Command::new(&program);
    if example.argument {
        command.arg(scratch.path().join("argument"));
    }
    if source.ends_with("mistakes.c") {
        command = Command::new(&program);
        command.arg(scratch.path());
    }
    let output = run(&mut command);
    let text = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => {}
        Some(SKIPPED) => skipped(example.source, &text),
        _ => panic!(
            "{compiler} {standard} {linking} {}: {}\n{text}",
            source.display(),
            output.status
        ),
    }
}

/// In C11 and C++17, by the compilers that are here, shared and static, and under AddressSanitizer.
fn in_every_way(example: &Example) {
    for (compiler, standard) in [
        ("gcc", "-std=c11"),
        ("g++", "-std=c++17"),
        ("clang", "-std=c11"),
        ("clang++", "-std=c++17"),
    ] {
        if !has(compiler) {
            skipped(compiler, "it is not here");
            continue;
        }
        compile_and_run(compiler, standard, "shared", example);
    }
    if has("gcc") {
        compile_and_run("gcc", "-std=c11", "static", example);
        compile_and_run("gcc", "-std=c11", "sanitized", example);
    }
}

#[test]
fn a_region_in_c() {
    in_every_way(&plain("../../examples/c/region.c", false));
}

#[test]
fn dirty_pages_in_c() {
    in_every_way(&plain("../../examples/c/dirty.c", false));
}

#[test]
fn a_snapshot_in_c() {
    in_every_way(&plain("../../examples/c/snapshot.c", true));
}

#[test]
fn locked_memory_in_c() {
    in_every_way(&plain("../../examples/c/lock.c", false));
}

/// The new processes go on as the one did that was saved.
#[test]
fn a_lua_heap_is_saved_while_it_goes_on() {
    let options = &["-I/usr/include/lua5.4", "-no-pie", "-l:liblua5.4.a", "-lm"];
    if has_header("lua.h", options) {
        in_every_way(&Example {
            source: "../../examples/c/lua.c",
            argument: true,
            options,
        });
    }
}

#[test]
fn a_file_of_sqlites_follows_the_database_in_memory() {
    let options = &["-lsqlite3"];
    if has_header("sqlite3.h", options) {
        in_every_way(&Example {
            source: "../../examples/c/sqlite.c",
            argument: true,
            options,
        });
    }
}

/// The program that `compare.py` measures calls with.
#[test]
fn calls_that_are_measured_do_what_they_should() {
    in_every_way(&plain("tests/c/cost.c", false));
}

#[test]
fn mistakes_get_a_code_and_a_message() {
    in_every_way(&plain("tests/c/mistakes.c", true));
}

/// What the header declares is what the shared library has, under a version, and nothing else.
#[test]
fn the_header_and_the_library_have_the_same_functions() {
    if !has("nm") || !has("readelf") {
        return skipped("binutils", "they are not here");
    }
    let shared = library().join("lib/libpagetide.so");
    let listed = succeed(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(&shared),
    );
    let exported: BTreeSet<String> = listed
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .filter(|symbol| *symbol != "PAGETIDE_0")
        .map(|symbol| match symbol.split_once("@@") {
            Some((name, "PAGETIDE_0")) => name.to_owned(),
            _ => panic!("{symbol} has not this version"),
        })
        .collect();
    let header = std::fs::read_to_string(format!("{HERE}/include/pagetide.h")).unwrap();
    let code: String = header
        .lines()
        .filter(|line| !line.trim_start().starts_with(['*', '/']) && !line.contains("#define"))
        .map(|line| line.split("/*").next().unwrap_or(line).to_owned() + "\n")
        .collect();
    let declared: BTreeSet<String> = code
        .match_indices("pagetide_")
        .map(|(at, _)| &code[at..])
        .filter_map(|text| text.split_once('('))
        .filter(|(name, _)| {
            name.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        })
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(exported, declared);
    let dynamic = succeed(Command::new("readelf").arg("-d").arg(&shared));
    assert!(
        dynamic.contains("Library soname: [libpagetide.so.0]"),
        "{dynamic}"
    );
}
