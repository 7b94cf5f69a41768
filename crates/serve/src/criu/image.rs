//! An image file of CRIU's: two magic numbers and records, each a length and a message.
use std::path::{Path, PathBuf};

/// Begins every image but the inventory.
const COMMON: u32 = 0x5456_4319;
/// Most bytes of an image file that is read as a whole: no pagemap has more.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// Kinds of images, by their second magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    Pstree = 0x5027_3030,
    Mm = 0x5749_2820,
    Pagemap = 0x5608_4025,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Pstree => "a process tree (pstree)",
            Kind::Mm => "an address space (mm)",
            Kind::Pagemap => "a page map (pagemap)",
        }
    }
}

/// An image file is not what it should be.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct ImageError {
    /// Which file.
    pub path: PathBuf,
    /// What was expected, and what is there.
    pub what: String,
}

impl ImageError {
    pub(super) fn new(path: &Path, what: impl ToString) -> ImageError {
        ImageError {
            path: path.to_owned(),
            what: what.to_string(),
        }
    }
}

/// An image file, read as a whole.
#[derive(Debug)]
pub(super) struct ImageFile {
    pub path: PathBuf,
    bytes: Vec<u8>,
    at: usize,
    /// Records read.
    records: u64,
}

impl ImageFile {
    /// Reads the image at `path`.
    ///
    /// # Errors
    /// It cannot be read, or is no image of this kind.
    pub fn open(path: &Path, kind: Kind) -> Result<ImageFile, ImageError> {
        let told = |error: std::io::Error| ImageError::new(path, error);
        let len = std::fs::metadata(path).map_err(told)?.len();
        if len > FILE_BYTES_MAX {
            let text = format!("it has {len} bytes; at most {FILE_BYTES_MAX} were expected");
            return Err(ImageError::new(path, text));
        }
        let bytes = std::fs::read(path).map_err(told)?;
        let mut file = ImageFile {
            path: path.to_owned(),
            bytes,
            at: 0,
            records: 0,
        };
        let magic = (
            file.number("its magic number")?,
            file.number("its second magic number")?,
        );
        if magic != (COMMON, kind as u32) {
            let text = format!(
                "it begins with {:#010x} {:#010x}; {COMMON:#010x} {:#010x} was expected, of an \
                 image of CRIU's of {}",
                magic.0,
                magic.1,
                kind as u32,
                kind.name()
            );
            return Err(file.error(text));
        }
        Ok(file)
    }

    /// All its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Something is wrong with it.
    pub fn error(&self, what: impl ToString) -> ImageError {
        ImageError::new(&self.path, what)
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// The file ends within it, or it is no such message.
    pub fn next<M: prost::Message + Default>(&mut self) -> Result<Option<M>, ImageError> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let number = self.records;
        let len = self.number(&format!("the length of record {number}"))? as usize;
        let left = self.bytes.len() - self.at;
        let Some(bytes) = self.bytes.get(self.at..).and_then(|rest| rest.get(..len)) else {
            let text = format!(
                "record {number} is said to have {len} bytes, and the file ends after {left} of \
                 them"
            );
            return Err(self.error(text));
        };
        let message = M::decode(bytes).map_err(|error| {
            self.error(format!("record {number} is not what was expected: {error}"))
        })?;
        self.at += len;
        self.records += 1;
        Ok(Some(message))
    }

    /// The next record, which has to be there.
    ///
    /// # Errors
    /// As [`ImageFile::next`], and where there is none.
    pub fn first<M: prost::Message + Default>(&mut self, what: &str) -> Result<M, ImageError> {
        self.next()?
            .ok_or_else(|| self.error(format!("it ends where {what} was expected")))
    }

    fn number(&mut self, what: &str) -> Result<u32, ImageError> {
        let bytes = self.bytes.get(self.at..self.at + 4);
        let Some(bytes) = bytes.and_then(|bytes| bytes.try_into().ok()) else {
            return Err(self.error(format!("the file ends within {what}, at byte {}", self.at)));
        };
        self.at += 4;
        Ok(u32::from_le_bytes(bytes))
    }
}

/// Images as CRIU writes them, for tests.
#[cfg(test)]
pub(super) mod written {
    use super::*;

    /// The bytes of an image.
    pub fn image<M: prost::Message>(kind: Kind, records: &[M]) -> Vec<u8> {
        let mut bytes = [COMMON.to_le_bytes(), (kind as u32).to_le_bytes()].concat();
        records.iter().for_each(|record| add(&mut bytes, record));
        bytes
    }

    /// Adds a record.
    pub fn add(bytes: &mut Vec<u8>, record: &impl prost::Message) {
        let record = record.encode_to_vec();
        bytes.extend((record.len() as u32).to_le_bytes());
        bytes.extend(record);
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::PstreeEntry;
    use super::written::image;
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<u32>, String> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pstree.img");
        std::fs::write(&path, bytes).unwrap();
        let mut pids = Vec::new();
        let result = ImageFile::open(&path, Kind::Pstree).and_then(|mut file| {
            while let Some(entry) = file.next::<PstreeEntry>()? {
                pids.extend(entry.pid);
            }
            Ok(())
        });
        result.map(|()| pids).map_err(|error| error.to_string())
    }

    fn task(pid: u32) -> PstreeEntry {
        PstreeEntry { pid: Some(pid) }
    }

    #[test]
    fn records_are_read_to_the_end() {
        assert_eq!(
            read(&image(Kind::Pstree, &[task(7), task(9)])),
            Ok(vec![7, 9])
        );
        // Fields that are not known are passed over.
        let mut more = image(Kind::Pstree, &[task(7)]);
        more[8] += 2;
        more.extend([0x10, 3]);
        assert_eq!(read(&more), Ok(vec![7]));
        assert_eq!(read(&image::<PstreeEntry>(Kind::Pstree, &[])), Ok(vec![]));
    }

    #[test]
    fn what_is_no_image_is_refused_by_name_and_with_what_was_expected() {
        let whole = image(Kind::Pstree, &[task(700), task(701)]);
        for len in (0..whole.len()).filter(|len| *len != 8 && *len != 15) {
            let why = read(&whole[..len]).unwrap_err();
            assert!(
                why.contains("pstree.img: ") && why.contains("ends"),
                "{len}: {why}"
            );
        }
        let other = read(&image(Kind::Mm, &[task(7)])).unwrap_err();
        assert!(
            other.contains("0x57492820; 0x54564319 0x50273030 was expected"),
            "{other}"
        );
        let mut long = whole.clone();
        long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let why = read(&long).unwrap_err();
        assert!(
            why.contains("4294967295 bytes, and the file ends after 10"),
            "{why}"
        );
        let mut wrong = whole;
        wrong[12] = 0x0f;
        assert!(
            read(&wrong)
                .unwrap_err()
                .contains("record 0 is not what was expected")
        );
        let missing = ImageFile::open(Path::new("no/where.img"), Kind::Mm).unwrap_err();
        assert!(missing.to_string().starts_with("no/where.img: "));
    }
}
