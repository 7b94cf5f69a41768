//! Dumps made here, packed and read again.
use super::super::dumped::Dump;
use super::super::entries::{LAZY, PARENT, PRESENT};
use super::super::others::Others;
use super::super::tree::Tree;
use super::*;
use crate::source::{Buffer, Source as _};

const HERE: u32 = LAZY | PRESENT;

fn at(place: &tempfile::TempDir, name: &str) -> PathBuf {
    place.path().join(name)
}

fn shelf(place: &tempfile::TempDir) -> Shelf {
    Shelf::make(&format!("file:{}", at(place, "store").display())).unwrap()
}

/// Packs what is in `directory`, where nothing is worth a word.
fn packed(directory: &Path, shelf: &Shelf, remove_pages: bool) -> Summary {
    let say = |text: &str| panic!("{text}");
    pack(directory, shelf, remove_pages, &say).unwrap()
}

/// The first byte of each page of the dump.
fn contents(directory: &Path, shelf: &Shelf) -> Vec<u8> {
    let index = index_of(directory).unwrap().unwrap();
    let packed = Arc::new(Packed::open(index, shelf).unwrap());
    let tree = Tree::packed(directory, packed).unwrap();
    let mut all = vec![0xee; tree.pages() as usize * PAGE_SIZE];
    tree.read_into(0, &mut all, &mut Buffer::default()).unwrap();
    all.iter().step_by(PAGE_SIZE).copied().collect()
}

/// A dump of task 7, whose lazy pages hold these bytes.
fn dumped(directory: &Path, bytes: &[u8]) {
    let dump = Dump { place: directory };
    dump.tasks(&[7]);
    dump.mappings(7, &[(0x10, 0x10 + bytes.len() as u64)]);
    dump.pagemap(7, 1, &[(0x10, bytes.len() as u32, HERE)]);
    dump.pages(1, bytes);
}

#[test]
fn equal_pages_are_there_once() {
    let place = tempfile::tempdir().unwrap();
    let (one, other) = (at(&place, "one"), at(&place, "other"));
    let shelf = shelf(&place);
    let bytes = [1, 2, 0, 2, 3, 0, 0, 1];
    dumped(&one, &bytes);
    let first = packed(&one, &shelf, false);
    assert_eq!(
        (first.pages, first.zero_pages, first.distinct_pages),
        (8, 3, 3)
    );
    assert_eq!((first.known_pages, first.new_pages), (0, 3));
    assert!(0 < first.new_bytes && first.new_bytes < first.added_bytes);
    assert_eq!(contents(&one, &shelf), bytes);
    // Again: nothing is added.
    let again = packed(&one, &shelf, false);
    assert_eq!(
        (again.known_pages, again.new_pages, again.added_bytes),
        (3, 0, 0)
    );
    // Another dump has one page that the first does not.
    dumped(&other, &[3, 4, 1]);
    let second = packed(&other, &shelf, true);
    assert_eq!((second.known_pages, second.new_pages), (2, 1));
    assert!(!other.join("pages-1.img").exists());
    assert_eq!(contents(&other, &shelf), [3, 4, 1]);
    assert_eq!(contents(&one, &shelf), bytes);
    assert_eq!(shelf.volumes().unwrap().len(), 2);
    // All it says is in the index now.
    let last = packed(&other, &shelf, true);
    assert_eq!((last.pages, last.new_pages, last.added_bytes), (3, 0, 0));
    // What it does not name was not packed, and stays.
    Dump { place: &other }.pages(9, &[7]);
    packed(&other, &shelf, true);
    assert!(other.join("pages-9.img").exists());
}

#[test]
fn a_dump_is_packed_with_those_it_builds_on_and_what_criu_reads_comes_back() {
    let place = tempfile::tempdir().unwrap();
    let (older, newer) = (at(&place, "1"), at(&place, "2"));
    let shelf = shelf(&place);
    let dump = Dump { place: &older };
    dump.pagemap(7, 5, &[(0x10, 3, HERE), (0x13, 2, PRESENT)]);
    dump.pages(5, &[1, 2, 3, 4, 5]);
    let dump = Dump { place: &newer };
    dump.tasks(&[7]);
    dump.mappings(7, &[(0x10, 0x20)]);
    let entries = [(0x10, 1, HERE), (0x11, 2, LAZY | PARENT), (0x13, 2, PARENT)];
    dump.pagemap(7, 1, &[&entries[..], &[(0x15, 2, PRESENT)]].concat());
    dump.pages(1, &[21, 22, 0]);
    std::os::unix::fs::symlink("../1", newer.join("parent")).unwrap();
    assert_eq!(packed(&newer, &shelf, true).pages, 8);
    let (old_pages, new_pages) = (older.join("pages-5.img"), newer.join("pages-1.img"));
    assert!(old_pages.exists() && !new_pages.exists());
    fs::remove_file(&old_pages).unwrap();
    assert_eq!(contents(&newer, &shelf), [21, 2, 3]);
    let index = index_of(&newer).unwrap().unwrap();
    let source = Arc::new(Packed::open(index, &shelf).unwrap());
    let others = Others::make(&newer, &source).unwrap();
    let firsts = |path: &Path| -> Vec<u8> {
        let bytes = fs::read(path).unwrap();
        bytes.chunks_exact(PAGE_SIZE).map(|page| page[0]).collect()
    };
    assert_eq!(firsts(&old_pages), [0, 0, 0, 4, 5]);
    assert_eq!(firsts(&new_pages), [0, 22, 0]);
    // They are not taken for whole ones.
    assert!(is_remainder(&new_pages) && is_remainder(&old_pages));
    assert_eq!(packed(&newer, &shelf, false).new_pages, 0);
    assert_eq!(contents(&newer, &shelf), [21, 2, 3]);
    drop(others);
    assert!(!old_pages.exists() && !new_pages.exists());
    // One that was left is made anew, one that is whole is left.
    std::mem::forget(Others::make(&newer, &source).unwrap());
    Dump { place: &older }.pages(5, &[1, 2, 3, 4, 5]);
    drop(Others::make(&newer, &source).unwrap());
    assert!(old_pages.exists() && !new_pages.exists());
}

#[test]
fn an_index_of_other_images_is_refused_and_replaced() {
    let place = tempfile::tempdir().unwrap();
    let images = at(&place, "images");
    let shelf = shelf(&place);
    dumped(&images, &[1, 2]);
    packed(&images, &shelf, false);
    dumped(&images, &[1, 2, 3]);
    let why = index_of(&images).unwrap_err().to_string();
    assert!(
        why.contains("pagetide.pages: it is of other images"),
        "{why}"
    );
    assert_eq!(packed(&images, &shelf, true).new_pages, 1);
    fs::write(images.join("core-7.img"), "another").unwrap();
    let why = index_of(&images).unwrap_err().to_string();
    assert!(why.contains("of other images"), "{why}");
    // There is nothing to pack it anew from.
    let why = pack(&images, &shelf, false, &|_| {})
        .unwrap_err()
        .to_string();
    assert!(why.contains("of other images"), "{why}");
    fs::remove_file(images.join(INDEX_NAME)).unwrap();
    let why = pack(&images, &shelf, false, &|_| {})
        .unwrap_err()
        .to_string();
    assert!(why.contains("no pages-NUMBER.img"), "{why}");
}

#[test]
fn what_the_store_lost_is_noticed_and_put_again() {
    let place = tempfile::tempdir().unwrap();
    let images = at(&place, "images");
    let shelf = shelf(&place);
    let bytes: Vec<u8> = (1..=100).collect();
    dumped(&images, &bytes);
    packed(&images, &shelf, false);
    let id = shelf.volumes().unwrap()[0].id;
    let file = at(&place, "store").join(format!("{id}.snapshot"));
    let whole = fs::read(&file).unwrap();
    // A page of the first block.
    let mut damaged = whole.clone();
    damaged[130] ^= 1;
    fs::write(&file, &damaged).unwrap();
    let index = index_of(&images).unwrap().unwrap();
    let source = Arc::new(Packed::open(index.clone(), &shelf).unwrap());
    let tree = Tree::packed(&images, source).unwrap();
    let (mut page, mut buffer) = ([0; PAGE_SIZE], Buffer::default());
    let why = tree.read_into(3, &mut page, &mut buffer).unwrap_err().0;
    assert!(
        why.contains("page 3 of pages-1.img") && why.contains("damaged"),
        "{why}"
    );
    tree.read_into(20, &mut page, &mut buffer).unwrap();
    assert_eq!(page[0], 21);
    let error = pack(&images, &shelf, true, &|_| {}).unwrap_err();
    assert!(
        matches!(&error, PackError::Lost(why) if why.contains("page 0 of")),
        "{error}"
    );
    assert!(images.join("pages-1.img").exists());
    // All of it.
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let why = Packed::open(index.clone(), &shelf).unwrap_err().0;
    assert!(why.contains(&id.to_string()), "{why}");
    let said = std::cell::RefCell::new(Vec::new());
    let say = |text: &str| said.borrow_mut().push(text.to_owned());
    assert_eq!(pack(&images, &shelf, false, &say).unwrap().new_pages, 100);
    assert!(said.borrow()[0].contains("put again"), "{said:?}");
    assert_eq!(contents(&images, &shelf), bytes);
    fs::remove_file(&file).unwrap();
    let why = Packed::open(index, &shelf).unwrap_err().0;
    assert!(
        why.contains("is not at file:") && why.contains("--store"),
        "{why}"
    );
}

#[test]
fn files_of_pages_are_whole_pages() {
    let place = tempfile::tempdir().unwrap();
    let images = at(&place, "images");
    dumped(&images, &[1, 2]);
    let path = images.join("pages-1.img");
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(PAGE_SIZE as u64 + 5).unwrap();
    let why = pack(&images, &shelf(&place), false, &|_| {}).unwrap_err();
    assert!(
        why.to_string().contains("its last page has 5 bytes"),
        "{why}"
    );
}
