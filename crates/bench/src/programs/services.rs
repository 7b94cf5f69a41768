//! Services: servers that keep values and answer one who asks. Half of the requests are for a 256th
//! of the values, and most of what is kept is seldom asked for, as of sessions, words or visitors.
use super::catalogue::{JAVA, NODE, PYTHON, Program, REDIS, SCRIPT, command, file};

/// What talks to one that speaks as redis does.
const CLIENT: [&str; 5] = [
    "{python}",
    "{dir}/requests.py",
    "{dir}/socket",
    "{size}",
    "redis",
];

const SERVICE: Program = Program {
    size: 400_000,
    files: &[file!("requests.py")],
    client: &CLIENT,
    ..SCRIPT
};

const IN_PYTHON: Program = Program {
    files: &[file!("requests.py"), file!("values.py")],
    ..SERVICE
};

/// All of them.
pub static SERVICES: [Program; 6] = [
    Program {
        name: "service-redis",
        what: "redis",
        needs: &[PYTHON, command("redis-server")],
        command: &REDIS,
        ..SERVICE
    },
    Program {
        name: "service-memcached",
        what: "memcached",
        needs: &[PYTHON, command("memcached")],
        command: &[
            "memcached",
            "--unix-socket={dir}/socket",
            "--memory-limit=65536",
            "--enable-shutdown",
            "--user=root",
            "--threads=1",
        ],
        client: &[CLIENT[0], CLIENT[1], CLIENT[2], CLIENT[3], "memcached"],
        ..SERVICE
    },
    Program {
        name: "service-python",
        what: "Python, a dict of bytes",
        command: &["{python}", "{dir}/values.py", "{dir}/socket", "dict"],
        ..IN_PYTHON
    },
    Program {
        name: "service-sqlite",
        what: "Python, a table of sqlite in memory",
        command: &["{python}", "{dir}/values.py", "{dir}/socket", "sqlite"],
        ..IN_PYTHON
    },
    Program {
        name: "service-node",
        what: "node, a Map of Buffers",
        needs: &[PYTHON, NODE],
        files: &[file!("requests.py"), file!("values.js")],
        command: &[
            "node",
            "--max-old-space-size=4096",
            "--max-semi-space-size=16",
            "{dir}/values.js",
            "{dir}/socket",
        ],
        ..SERVICE
    },
    Program {
        name: "service-java",
        what: "Java, a HashMap of arrays, G1",
        needs: &[PYTHON, JAVA[0]],
        files: &[file!("requests.py"), file!("Values.java")],
        build: &["javac", "-d", "{dir}", "{dir}/Values.java"],
        command: &[
            "java",
            "-XX:+UseG1GC",
            "-XX:-UseContainerSupport",
            "-Xmx768m",
            "-cp",
            "{dir}",
            "Values",
            "{dir}/socket",
        ],
        ..SERVICE
    },
];
