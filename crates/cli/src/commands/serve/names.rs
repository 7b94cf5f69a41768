//! The names of Firecracker's example handlers: whoever starts one of those (its own tests, or
//! people's scripts) finds the command by a link of that name, with the same arguments.
use std::ffi::OsString;
use std::path::Path;

/// Each name, and what follows `SOCKET MEMFILE` then.
const NAMES: [(&str, &[&str]); 2] = [
    ("uffd_on_demand_handler", &[]),
    ("uffd_fault_all_handler", &["--prefetch-rate=max"]),
];

/// The command line `words`, with what it stands for where it was started by such a name.
pub fn expanded(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let name = words
        .first()
        .and_then(|word| Path::new(word).file_name()?.to_str());
    let known = NAMES.iter().find(|(known, _)| name == Some(known));
    if let Some((_, options)) = known {
        let stands_for = ["pagetide", "serve", "firecracker"].map(OsString::from);
        words.splice(..1, stands_for);
        words.extend(options.iter().map(OsString::from));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &str) -> String {
        let words = words.split(' ').map(OsString::from);
        let words = expanded(words).into_iter().map(|word| word.into_string());
        words.collect::<Result<Vec<_>, _>>().unwrap().join(" ")
    }

    #[test]
    fn the_names_of_the_examples_stand_for_serve() {
        assert_eq!(
            line("/usr/bin/uffd_on_demand_handler a.sock mem"),
            "pagetide serve firecracker a.sock mem"
        );
        assert_eq!(
            line("uffd_fault_all_handler a.sock mem"),
            "pagetide serve firecracker a.sock mem --prefetch-rate=max"
        );
        for other in ["pagetide ps", "/uffd_on_demand_handler/pagetide ps"] {
            assert_eq!(line(other), other);
        }
    }
}
