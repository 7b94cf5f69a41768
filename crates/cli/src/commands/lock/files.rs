//! The files named on the command line, and those below the directories among them.
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};

/// A file to work on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Where it is.
    pub path: PathBuf,
    /// Named itself, not below a directory that was.
    pub named: bool,
}

/// Regular files in the order of naming, each once however many names it has. Below directories,
/// links and special files are passed over. The first thing that cannot be looked at is an error.
pub fn expand(named: &[PathBuf]) -> Result<Vec<Listed>, Failure> {
    let (files, failures) = expand_all(named);
    match failures.into_iter().next() {
        Some(failure) => Err(failure),
        None => Ok(files),
    }
}

/// The same, with all that could not be looked at beside what could.
pub fn expand_all(named: &[PathBuf]) -> (Vec<Listed>, Vec<Failure>) {
    let mut found = Found::default();
    for path in named {
        match std::fs::metadata(path) {
            Err(error) => found.unreadable(path, &error),
            Ok(meta) if meta.is_dir() => found.below(path),
            Ok(meta) if meta.is_file() => found.add(path, &meta, true),
            Ok(_) => found.failures.push(Failure::new(
                Exit::Usage,
                format!(
                    "{}: expected a regular file or a directory; this has no pages in the page \
                     cache",
                    path.display()
                ),
            )),
        }
    }
    if found.files.is_empty() && found.failures.is_empty() {
        found.failures.push(Failure::new(
            Exit::Usage,
            "there is no regular file in what was named; expected at least one",
        ));
    }
    (found.files, found.failures)
}

#[derive(Default)]
struct Found {
    files: Vec<Listed>,
    failures: Vec<Failure>,
    seen: HashSet<(u64, u64)>,
}

impl Found {
    fn add(&mut self, path: &Path, meta: &std::fs::Metadata, named: bool) {
        if self.seen.insert((meta.dev(), meta.ino())) {
            let path = path.to_owned();
            self.files.push(Listed { path, named });
        }
    }

    fn unreadable(&mut self, path: &Path, error: &std::io::Error) {
        self.failures.push(Failure::new(
            Exit::Store,
            format!("{}: cannot be opened ({error})", path.display()),
        ));
    }

    fn below(&mut self, top: &Path) {
        let mut directories = vec![top.to_owned()];
        while let Some(directory) = directories.pop() {
            let listed =
                std::fs::read_dir(&directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let mut entries = match listed {
                Ok(entries) => entries,
                Err(error) => {
                    self.unreadable(&directory, &error);
                    continue;
                }
            };
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let path = entry.path();
                // Not followed: links may lead out of the directory or around in it.
                let meta = match entry.metadata() {
                    Ok(meta) => meta,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(error) => {
                        self.unreadable(&path, &error);
                        continue;
                    }
                };
                if meta.is_dir() {
                    directories.push(path);
                } else if meta.is_file() {
                    self.add(&path, &meta, false);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_gone_through_once() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        for name in ["a/b/1", "a/2", "3"] {
            std::fs::write(at(name), "x").unwrap();
        }
        std::fs::hard_link(at("3"), at("a/4")).unwrap();
        std::os::unix::fs::symlink(dir.path(), at("a/loop")).unwrap();
        let files = expand(&[at("3"), dir.path().to_owned()]).unwrap();
        let mut below: Vec<PathBuf> = files[1..].iter().map(|file| file.path.clone()).collect();
        below.sort();
        assert_eq!(below, [at("a/2"), at("a/b/1")]);
        let named: Vec<bool> = files.iter().map(|file| file.named).collect();
        assert_eq!(
            (&files[0].path, named),
            (&at("3"), vec![true, false, false])
        );
        let (found, failures) = expand_all(&[at("none"), at("3"), "/dev/null".into()]);
        assert_eq!((found.len(), failures.len()), (1, 2));
        assert_eq!(expand(&[at("none")]).unwrap_err().exit, Exit::Store);
        std::fs::create_dir(at("empty")).unwrap();
        assert_eq!(expand(&[at("empty")]).unwrap_err().exit, Exit::Usage);
        assert_eq!(expand(&["/dev/null".into()]).unwrap_err().exit, Exit::Usage);
    }
}
