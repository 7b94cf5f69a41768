//! The programs: what each is, what it needs here, and how it is called.

/// One program.
#[derive(Debug)]
pub struct Program {
    /// Its name in `--only` and in tables.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    /// How much of that, at scale 1: `{size}` in the words below.
    pub size: u64,
    /// What must be installed.
    pub needs: &'static [Need],
    /// Made in its directory, `{dir}` in the words below, before anything is measured.
    pub files: &'static [File],
    /// Whether a file `lines` of `{size}` random lines is made as well.
    pub lines: bool,
    /// What is run there then, such as a compiler; nothing for most.
    pub build: &'static [&'static str],
    /// The program as it is measured. `{python}` is the Python that has the modules.
    pub command: &'static [&'static str],
    /// What talks to it, if it is a server: measured is the server, from its start to its end, and
    /// the output is this one's.
    pub client: &'static [&'static str],
}

/// A file that comes with this command.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct File {
    pub name: &'static str,
    pub text: &'static str,
}

/// What a program cannot be without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Need {
    /// A command, and the Debian package that has it.
    Command {
        name: &'static str,
        package: &'static str,
    },
    /// A module of Python, which pip knows by this name.
    Module(&'static str),
}

impl Need {
    /// Python itself.
    pub const PYTHON: Need = command("python3");
}

macro_rules! file {
    ($name:literal) => {
        $crate::programs::catalogue::File {
            name: $name,
            text: include_str!(concat!("../../programs/", $name)),
        }
    };
}
pub(super) use file;

pub(super) const fn command(name: &'static str) -> Need {
    Need::Command {
        name,
        package: name,
    }
}

pub(super) const NODE: Need = Need::Command {
    name: "node",
    package: "nodejs",
};
pub(super) const JAVA: &[Need] = &[Need::Command {
    name: "javac",
    package: "default-jdk-headless",
}];
const SORT: Need = Need::Command {
    name: "sort",
    package: "coreutils",
};
pub(super) const PYTHON: Need = Need::PYTHON;
const CPP: &[Need] = &[command("g++")];

pub(super) const SCRIPT: Program = Program {
    name: "",
    what: "",
    size: 0,
    needs: &[PYTHON],
    files: &[],
    lines: false,
    build: &[],
    command: &[],
    client: &[],
};

const HEAP: Program = Program {
    size: 1_200_000,
    needs: JAVA,
    files: &[file!("Heap.java")],
    build: &["javac", "-d", "{dir}", "{dir}/Heap.java"],
    ..SCRIPT
};

/// A redis-server that saves nothing by itself.
pub(super) const REDIS: [&str; 11] = [
    "redis-server",
    "--port",
    "0",
    "--unixsocket",
    "{dir}/socket",
    "--dir",
    "{dir}",
    "--save",
    "",
    "--appendonly",
    "no",
];

/// All of them but the services.
pub static PROGRAMS: [Program; 15] = [
    Program {
        name: "python-sort",
        what: "Python, sort of tuples",
        size: 1_600_000,
        files: &[file!("sort.py")],
        command: &["{python}", "{dir}/sort.py", "{size}"],
        ..SCRIPT
    },
    Program {
        name: "python-dict",
        what: "Python, dict with skewed look-ups",
        size: 1_200_000,
        files: &[file!("lookups.py")],
        command: &["{python}", "{dir}/lookups.py", "{size}"],
        ..SCRIPT
    },
    Program {
        name: "numpy",
        what: "numpy, random gathers",
        size: 30_000_000,
        needs: &[PYTHON, Need::Module("numpy")],
        files: &[file!("gathers.py")],
        command: &["{python}", "{dir}/gathers.py", "{size}"],
        ..SCRIPT
    },
    Program {
        name: "pandas",
        what: "pandas, merge and group",
        size: 4_000_000,
        needs: &[PYTHON, Need::Module("numpy"), Need::Module("pandas")],
        files: &[file!("merge.py")],
        command: &["{python}", "{dir}/merge.py", "{size}"],
        ..SCRIPT
    },
    Program {
        name: "duckdb",
        what: "DuckDB, 2 threads",
        size: 5_000_000,
        needs: &[PYTHON, Need::Module("duckdb")],
        files: &[file!("duck.py")],
        command: &["{python}", "{dir}/duck.py", "{size}"],
        ..SCRIPT
    },
    Program {
        name: "node",
        what: "node, objects and a Map",
        size: 600_000,
        needs: &[NODE],
        files: &[file!("objects.js")],
        command: &[
            "node",
            "--max-old-space-size=4096",
            "--max-semi-space-size=16",
            "{dir}/objects.js",
            "{size}",
        ],
        ..SCRIPT
    },
    Program {
        name: "java-serial",
        what: "Java, tree and hash map, SerialGC",
        command: &[
            "java",
            "-XX:+UseSerialGC",
            "-XX:-UseContainerSupport",
            "-Xmx640m",
            "-cp",
            "{dir}",
            "Heap",
            "{size}",
        ],
        ..HEAP
    },
    Program {
        name: "java-g1",
        what: "Java, the same, G1",
        command: &[
            "java",
            "-XX:+UseG1GC",
            "-XX:-UseContainerSupport",
            "-Xmx640m",
            "-cp",
            "{dir}",
            "Heap",
            "{size}",
        ],
        ..HEAP
    },
    Program {
        name: "gnu-sort",
        what: "GNU sort, 2 threads, in memory",
        size: 4_000_000,
        needs: &[SORT],
        lines: true,
        command: &["sort", "--parallel=2", "-S", "4G", "{dir}/lines"],
        ..SCRIPT
    },
    Program {
        name: "sqlite",
        what: "sqlite in memory, two indexes",
        size: 1_500_000,
        needs: &[command("sqlite3")],
        files: &[file!("items.sql")],
        command: &[
            "sqlite3",
            "-init",
            "/dev/null",
            "-cmd",
            "PRAGMA temp_store = MEMORY",
            "-cmd",
            ".parameter init",
            "-cmd",
            ".parameter set @rows {size}",
            ":memory:",
            ".read {dir}/items.sql",
        ],
        ..SCRIPT
    },
    Program {
        name: "redis",
        what: "redis, skewed GETs and BGSAVE",
        size: 500_000,
        needs: &[PYTHON, command("redis-server")],
        files: &[file!("redis_client.py")],
        command: &REDIS,
        client: &[
            "{python}",
            "{dir}/redis_client.py",
            "{dir}/socket",
            "{size}",
        ],
        ..SCRIPT
    },
    Program {
        name: "g++",
        what: "g++, templates",
        size: 12,
        needs: CPP,
        files: &[file!("templates.cpp")],
        command: &[
            "g++",
            "-std=c++17",
            "-O1",
            "-DINSTANCES={size}",
            "-S",
            "-o",
            "-",
            "{dir}/templates.cpp",
        ],
        ..SCRIPT
    },
    Program {
        name: "c++-maps",
        what: "C++ map and unordered_map",
        size: 1_600_000,
        needs: CPP,
        files: &[file!("maps.cpp")],
        build: &[
            "g++",
            "-std=c++17",
            "-O2",
            "-o",
            "{dir}/maps",
            "{dir}/maps.cpp",
        ],
        command: &["{dir}/maps", "{size}"],
        ..SCRIPT
    },
    Program {
        name: "c++-graph",
        what: "C++ graph, BFS and PageRank",
        size: 1_400_000,
        needs: CPP,
        files: &[file!("graph.cpp")],
        build: &[
            "g++",
            "-std=c++17",
            "-O2",
            "-o",
            "{dir}/graph",
            "{dir}/graph.cpp",
        ],
        command: &["{dir}/graph", "{size}"],
        ..SCRIPT
    },
    Program {
        name: "c-threads",
        what: "C, eight threads",
        size: 20_000_000,
        needs: &[command("gcc")],
        files: &[file!("threads.c")],
        build: &[
            "gcc",
            "-O2",
            "-pthread",
            "-o",
            "{dir}/threads",
            "{dir}/threads.c",
        ],
        command: &["{dir}/threads", "{size}"],
        ..SCRIPT
    },
];

#[cfg(test)]
mod tests {
    use super::super::services::SERVICES;
    use super::*;

    #[test]
    fn programs_are_told_apart_and_say_how_much() {
        let all = || PROGRAMS.iter().chain(&SERVICES);
        for (index, program) in all().enumerate() {
            assert!(!all().take(index).any(|p| p.name == program.name));
            let words = [program.command, program.client].concat();
            let sized = words.iter().any(|word| word.contains("{size}"));
            assert!(sized || program.lines, "{}", program.name);
            assert!(program.size > 0 && !program.what.is_empty());
        }
    }

    #[test]
    fn files_are_short_enough_to_be_read() {
        let all = PROGRAMS.iter().chain(&SERVICES);
        for file in all.flat_map(|program| program.files) {
            assert!(file.text.lines().count() < 70, "{}", file.name);
        }
    }
}
