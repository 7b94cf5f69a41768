//! The files named on the command line, and those below the directories among them.
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};

/// Regular files in the order of naming, each once however many names it has. Below directories, links and special files are passed over.
pub fn expand(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Found::default();
    for path in named {
        let meta = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
        if meta.is_dir() {
            found.below(path)?;
        } else if meta.is_file() {
            found.add(path, &meta);
        } else {
            return Err(Failure::new(
                Exit::Usage,
                format!(
                    "{}: expected a regular file or a directory; this has no pages to keep",
                    path.display()
                ),
            ));
        }
    }
    if found.files.is_empty() {
        return Err(Failure::new(
            Exit::Usage,
            "there is no regular file in what was named; expected at least one",
        ));
    }
    Ok(found.files)
}

#[derive(Default)]
struct Found {
    files: Vec<PathBuf>,
    seen: HashSet<(u64, u64)>,
}

impl Found {
    fn add(&mut self, path: &Path, meta: &std::fs::Metadata) {
        if self.seen.insert((meta.dev(), meta.ino())) {
            self.files.push(path.to_owned());
        }
    }

    fn below(&mut self, top: &Path) -> Result<(), Failure> {
        let mut directories = vec![top.to_owned()];
        while let Some(directory) = directories.pop() {
            let failed = |error: std::io::Error| unreadable(&directory, &error);
            let mut entries = std::fs::read_dir(&directory)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(failed)?;
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let path = entry.path();
                // Not followed: links may lead out of the directory or around in it.
                let meta = match entry.metadata() {
                    Ok(meta) => meta,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(unreadable(&path, &error)),
                };
                if meta.is_dir() {
                    directories.push(path);
                } else if meta.is_file() {
                    self.add(&path, &meta);
                }
            }
        }
        Ok(())
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        Exit::Store,
        format!("{}: cannot be opened ({error})", path.display()),
    )
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
        let mut files = expand(&[dir.path().to_owned(), at("3")]).unwrap();
        files.sort();
        assert_eq!(files, [at("3"), at("a/2"), at("a/b/1")]);
        assert_eq!(expand(&[at("none")]).unwrap_err().exit, Exit::Store);
        std::fs::create_dir(at("empty")).unwrap();
        assert_eq!(expand(&[at("empty")]).unwrap_err().exit, Exit::Usage);
        assert_eq!(expand(&["/dev/null".into()]).unwrap_err().exit, Exit::Usage);
    }
}
