//! Where volumes are: a directory, or a server.
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pagetide_store::{Archive, Entry, EntryWriter, ErrorKind, StoreError, file_directory, redact};
use pagetide_track::SnapshotId;
use pagetide_track::snapshot::reader::{self, FileError, SnapshotFile};
use pagetide_track::snapshot::sink::{FileSink, Sink, remove_leftovers_of};

/// How the name of a volume's file ends.
const SUFFIX: &str = ".snapshot";
/// What a process that is gone left behind is removed when it is as old as this.
const LEFT_AGE: Duration = Duration::from_secs(60);

/// Why a shelf cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ShelfError {
    /// It has no room. What was put before is there.
    #[error("{0}")]
    Full(String),
    /// It cannot be reached or used, or a volume is not what it should be.
    #[error("{0}")]
    Unusable(String),
}

impl From<StoreError> for ShelfError {
    fn from(error: StoreError) -> ShelfError {
        match error.kind {
            ErrorKind::Full => ShelfError::Full(error.to_string()),
            _ => ShelfError::Unusable(error.to_string()),
        }
    }
}

impl From<io::Error> for ShelfError {
    fn from(error: io::Error) -> ShelfError {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => ShelfError::Full(error.to_string()),
            _ => ShelfError::Unusable(error.to_string()),
        }
    }
}

impl From<FileError> for ShelfError {
    fn from(error: FileError) -> ShelfError {
        ShelfError::Unusable(error.to_string())
    }
}

/// A volume that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its id.
    pub id: SnapshotId,
    /// How many bytes it has.
    pub bytes: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct Shelf {
    uri: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Directory(PathBuf),
    Server(Arc<Archive>),
}

impl Shelf {
    /// Opens the one at `uri`, which is there: `file:DIR`, or a server of the Valkey family.
    ///
    /// # Errors
    /// It is not there, or cannot be used.
    pub fn open(uri: &str) -> Result<Shelf, ShelfError> {
        let Some(directory) = file_directory(uri)? else {
            return Ok(Shelf {
                uri: uri.to_owned(),
                kind: Kind::Server(Arc::new(Archive::open(uri)?)),
            });
        };
        let path = std::path::absolute(directory)?;
        match path.metadata() {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => {
                let text = format!("{}: a directory was expected", path.display());
                return Err(ShelfError::Unusable(text));
            }
            Err(error) => {
                let text = format!("{}: {error}", path.display());
                return Err(ShelfError::Unusable(text));
            }
        }
        Ok(Shelf {
            uri: format!("file:{}", path.display()),
            kind: Kind::Directory(path),
        })
    }

    /// Opens the one at `uri` to put volumes there; makes it where it is a directory.
    ///
    /// # Errors
    /// As [`Shelf::open`]. A password in the URI is refused: whoever copies the images would
    /// copy it with them.
    pub fn make(uri: &str) -> Result<Shelf, ShelfError> {
        if redact(uri) != uri {
            return Err(ShelfError::Unusable(format!(
                "{}: its password would be copied with the images, whose index has the URI; name \
                 a file that has it: ?password-file=FILE",
                redact(uri)
            )));
        }
        if let Some(directory) = file_directory(uri)? {
            let made = DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory);
            made.map_err(|error| ShelfError::from(naming(Path::new(directory), error)))?;
            remove_leftovers_of(Path::new(directory), SUFFIX, LEFT_AGE);
        }
        Shelf::open(uri)
    }

    /// Where it is, from any directory.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The volumes that are whole.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn volumes(&self) -> Result<Vec<Stored>, ShelfError> {
        match &self.kind {
            Kind::Directory(path) => {
                let mut volumes = Vec::new();
                for entry in path.read_dir().map_err(|error| naming(path, error))? {
                    let entry = entry?;
                    let id = entry.file_name().to_str().and_then(id_of_file);
                    // One that is removed meanwhile is none.
                    if let (Some(id), Ok(meta)) = (id, entry.metadata()) {
                        let bytes = meta.len();
                        volumes.push(Stored { id, bytes });
                    }
                }
                // In an order that is the same each time.
                volumes.sort_unstable_by_key(|volume| volume.id.0);
                Ok(volumes)
            }
            Kind::Server(archive) => {
                let entries = archive.entries()?;
                let stored = |entry: &Entry| {
                    let id = id_of(&entry.name)?;
                    let bytes = entry.bytes;
                    Some(Stored { id, bytes })
                };
                Ok(entries.iter().filter_map(stored).collect())
            }
        }
    }

    /// Opens a volume.
    ///
    /// # Errors
    /// It cannot be read, or is not whole.
    pub fn read(&self, volume: &Stored) -> Result<SnapshotFile, ShelfError> {
        let file = match &self.kind {
            Kind::Directory(path) => SnapshotFile::open(&path.join(file_of(volume.id)))?,
            Kind::Server(archive) => {
                let name = format!("volume {} at {}", volume.id, redact(&self.uri));
                let read = Reading {
                    archive: Arc::clone(archive),
                    entry: entry_of(volume),
                };
                SnapshotFile::from_source(&name, Box::new(read))?
            }
        };
        if file.header().id != volume.id {
            let text = format!("{}: it is snapshot {}", file.name(), file.header().id);
            return Err(ShelfError::Unusable(text));
        }
        Ok(file)
    }

    /// Begins a volume. It is there when its bytes are committed.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn begin(&self) -> Result<(SnapshotId, Box<dyn Sink>), ShelfError> {
        match &self.kind {
            Kind::Directory(path) => {
                let id = SnapshotId::random();
                let sink = FileSink::create(&path.join(file_of(id)))?;
                Ok((id, Box::new(sink)))
            }
            Kind::Server(archive) => {
                let writer = archive.write()?;
                let id = id_of(writer.name());
                let id = id.ok_or(ShelfError::Unusable("a name that is no id".to_owned()))?;
                Ok((id, Box::new(Writing(Some(writer)))))
            }
        }
    }

    /// Takes a volume away.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, volume: &Stored) -> Result<(), ShelfError> {
        match &self.kind {
            Kind::Directory(path) => {
                let path = path.join(file_of(volume.id));
                std::fs::remove_file(&path).map_err(|error| naming(&path, error))?;
            }
            Kind::Server(archive) => archive.remove(&entry_of(volume))?,
        }
        Ok(())
    }
}

fn naming(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn file_of(id: SnapshotId) -> String {
    format!("{id}{SUFFIX}")
}

fn id_of_file(name: &str) -> Option<SnapshotId> {
    id_of(name.strip_suffix(SUFFIX)?)
}

/// The id with this name: 32 hexadecimal digits, the small ones.
fn id_of(name: &str) -> Option<SnapshotId> {
    let number = u128::from_str_radix(name, 16).ok()?;
    let id = SnapshotId(number.to_be_bytes());
    (id.to_string() == name).then_some(id)
}

fn entry_of(volume: &Stored) -> Entry {
    Entry {
        name: volume.id.to_string(),
        bytes: volume.bytes,
    }
}

/// An entry of an archive as a snapshot's bytes.
struct Reading {
    archive: Arc<Archive>,
    entry: Entry,
}

impl reader::Source for Reading {
    fn len(&self) -> io::Result<u64> {
        Ok(self.entry.bytes)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.archive.read_at(&self.entry, buffer, offset);
        read.map_err(io_error)
    }
}

/// An entry of an archive that a snapshot is written to.
struct Writing(Option<EntryWriter>);

impl Sink for Writing {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let writer = self.0.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writer.append(bytes).map_err(io_error)
    }

    fn commit(&mut self) -> io::Result<()> {
        let writer = self.0.take().ok_or(io::ErrorKind::BrokenPipe)?;
        writer.finish().map(drop).map_err(io_error)
    }
}

fn io_error(error: StoreError) -> io::Error {
    let kind = match error.kind {
        ErrorKind::Full => io::ErrorKind::StorageFull,
        ErrorKind::Corrupt => io::ErrorKind::InvalidData,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_ids() {
        let id = SnapshotId::random();
        assert_eq!(id_of_file(&file_of(id)), Some(id));
        for name in ["", ".snapshot", "x.snapshot", "+1.snapshot"] {
            assert_eq!(id_of_file(name), None, "{name}");
        }
        assert_eq!(id_of_file(&file_of(id).to_uppercase()), None);
        assert_eq!(id_of_file(&format!(".{}", file_of(id))), None);
    }

    #[test]
    fn what_cannot_be_a_shelf_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "kept").unwrap();
        let uri = |path: &Path| format!("file:{}", path.display());
        let why = |uri: &str| Shelf::make(uri).unwrap_err().to_string();
        assert!(why(&uri(&file)).contains("file"), "{}", why(&uri(&file)));
        assert!(why("file:").contains("file:DIR"));
        assert!(why("file:/tmp?keep=1").contains("`?keep=1`"));
        assert!(why("ram:").contains("expected file:DIR"));
        assert!(why("memcached://h").contains("expected file:DIR"));
        assert!(why("valkey://u:secret@h").contains("password-file"));
        assert!(!why("valkey://u:secret@h").contains("secret"));
        assert!(why("valkey://127.0.0.1:1?max=4M").contains("`max`"));
        assert!(why("valkey://127.0.0.1:1?encrypt=1").contains("`encrypt`"));
        let none = place.path().join("none");
        let error = Shelf::open(&uri(&none)).unwrap_err();
        assert!(error.to_string().contains("none: "), "{error}");
        Shelf::make(&uri(&none)).unwrap();
        assert_eq!(Shelf::open(&uri(&none)).unwrap().volumes().unwrap(), []);
    }
}
