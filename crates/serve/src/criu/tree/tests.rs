//! Dumps made here, read as one image.
use pagetide_kernel::PageRange;

use super::super::dumped::Dump;
use super::super::entries::{LAZY, PARENT, PRESENT, PagemapEntry, PagemapHead};
use super::super::image::written::{add, image};
use super::*;

fn area(start: u64, pages: u64, first: u64) -> Area {
    let range = PageRange::of(PageNumber(start), pages);
    Area {
        range,
        first,
        unit: 1,
    }
}

/// The first byte of each page.
fn contents(tree: &Tree) -> Vec<u8> {
    let mut all = vec![0xee; tree.pages() as usize * PAGE_SIZE];
    tree.read_into(0, &mut all, &mut Buffer::default()).unwrap();
    all.iter().step_by(PAGE_SIZE).copied().collect()
}

const HERE: u32 = LAZY | PRESENT;

#[test]
fn tasks_have_their_lazy_pages_one_after_the_other() {
    let place = tempfile::tempdir().unwrap();
    let dump = Dump {
        place: place.path(),
    };
    // The last one had ended.
    dump.tasks(&[7, 9, 11]);
    dump.mappings(7, &[(0x10, 0x18), (0x18, 0x20), (0x40, 0x50)]);
    dump.pagemap(
        7,
        1,
        &[
            (0x11, 2, HERE),
            (0x13, 1, PRESENT),
            (0x14, 6, HERE),
            (0x41, 1, HERE),
            (0x42, 2, HERE),
        ],
    );
    dump.pages(1, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    dump.mappings(9, &[(0x10, 0x20)]);
    dump.pagemap(9, 2, &[(0x12, 2, HERE)]);
    dump.pages(2, &[21, 22]);
    let tree = Tree::open(place.path(), None).unwrap();
    // What is in two mappings is two areas, what adjoins in one mapping is one.
    let areas = [
        area(0x11, 2, 0),
        area(0x14, 4, 2),
        area(0x18, 2, 6),
        area(0x41, 3, 8),
    ];
    assert_eq!(tree.areas(7), Some(&areas[..]));
    assert_eq!(tree.areas(9), Some(&[area(0x12, 2, 11)][..]));
    assert_eq!((tree.areas(11), tree.tasks(), tree.pages()), (None, 2, 13));
    assert_eq!(
        contents(&tree),
        [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 21, 22]
    );
    let mut buffer = Buffer::default();
    for (first, pages) in [(0, 2), (2, 4), (6, 2), (9, 2), (11, 2)] {
        match tree.read(first, 100, &mut buffer).unwrap() {
            Piece::Bytes(bytes) => assert_eq!(bytes.pages(), pages, "{first}"),
            Piece::Zeros(_) => panic!("zeros at {first}"),
        }
    }
    assert!(matches!(tree.read(13, 4, &mut buffer), Ok(Piece::Zeros(_))));
}

#[test]
fn pages_are_found_in_the_images_that_a_dump_builds_on() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let (oldest, middle, newest) = (at("1"), at("2"), at("3"));
    let dump = Dump { place: &oldest };
    dump.pagemap(7, 5, &[(0x10, 3, HERE), (0x13, 5, PRESENT)]);
    dump.pages(5, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let dump = Dump { place: &middle };
    dump.pagemap(
        7,
        1,
        &[(0x10, 2, PARENT), (0x12, 2, HERE), (0x14, 4, PARENT)],
    );
    dump.pages(1, &[13, 14]);
    let dump = Dump { place: &newest };
    dump.tasks(&[7]);
    dump.mappings(7, &[(0x10, 0x20)]);
    dump.pagemap(7, 1, &[(0x10, 1, HERE), (0x11, 7, LAZY | PARENT)]);
    dump.pages(1, &[21]);
    for (of, to) in [(&newest, "../2"), (&middle, "../1")] {
        std::os::unix::fs::symlink(to, of.join("parent")).unwrap();
    }
    let tree = Tree::open(&newest, None).unwrap();
    assert_eq!(tree.areas(7), Some(&[area(0x10, 8, 0)][..]));
    assert_eq!(contents(&tree), [21, 2, 13, 14, 5, 6, 7, 8]);
    // One that is in none.
    Dump { place: &newest }.pagemap(7, 1, &[(0x10, 1, HERE), (0x11, 8, LAZY | PARENT)]);
    let why = Tree::open(&newest, None).unwrap_err().to_string();
    assert!(
        why.contains("2/pagemap-7.img: it does not have the page at 0x18000"),
        "{why}"
    );
    std::fs::remove_file(middle.join("parent")).unwrap();
    let why = Tree::open(&newest, None).unwrap_err().to_string();
    assert!(
        why.contains("2/parent: the images that this dump builds on"),
        "{why}"
    );
    // A dump that builds on itself ends somewhere.
    std::os::unix::fs::symlink(".", middle.join("parent")).unwrap();
    Dump { place: &middle }.pagemap(7, 1, &[(0x10, 9, PARENT)]);
    let why = Tree::open(&newest, None).unwrap_err().to_string();
    assert!(why.contains("build on each other"), "{why}");
}

#[test]
fn what_is_missing_is_said_with_the_name_of_its_file() {
    let place = tempfile::tempdir().unwrap();
    let dump = Dump {
        place: place.path(),
    };
    let why = || Tree::open(place.path(), None).unwrap_err().to_string();
    assert!(why().contains("pstree.img: "), "{}", why());
    dump.tasks(&[7]);
    dump.pagemap(7, 1, &[(0x10, 3, HERE)]);
    assert!(why().contains("mm-7.img: "), "{}", why());
    dump.mappings(7, &[(0x10, 0x20)]);
    assert!(why().contains("pages-1.img: "), "{}", why());
    dump.pages(1, &[1, 2]);
    assert!(why().contains("pages-1.img: it has 2 whole pages; its page map tells of 3"));
    // A page map whose last entry is cut off.
    dump.pages(1, &[1, 2, 3, 4]);
    assert!(why().contains("pages-1.img: it has 4 whole pages; its page map tells of 3"));
    dump.pagemap(7, 1, &[(0x10, 3, LAZY)]);
    assert!(why().contains("pagemap-7.img: the pages at 0x10000 are in no image"));
    assert!(why().contains("--page-server"));
    // A server has what is in no image.
    let remote = Remote {
        address: ("127.0.0.1".to_owned(), 1),
        counting: None,
    };
    let tree = Tree::open(place.path(), Some(remote)).unwrap();
    assert_eq!(tree.pages(), 3);
    let place = Place::Remote {
        pid: 7,
        page: PageNumber(0x12),
    };
    assert_eq!(tree.find(2), Some((place, 1)));
    assert!(
        tree.connect()
            .unwrap_err()
            .0
            .contains("127.0.0.1:1 cannot be reached")
    );
}

#[test]
fn the_way_of_counting_is_that_of_the_images() {
    let place = tempfile::tempdir().unwrap();
    let dump = Dump {
        place: place.path(),
    };
    dump.tasks(&[7]);
    dump.mappings(7, &[(0x10, 0x20)]);
    dump.pagemap(7, 1, &[(0x10, 1, HERE)]);
    dump.pages(1, &[1]);
    let narrow = Tree::open(place.path(), None).unwrap();
    let mut bytes = image(Kind::Pagemap, &[PagemapHead { pages_id: Some(1) }]);
    let wide = PagemapEntry {
        vaddr: Some(0x10000),
        compat_nr_pages: Some(0),
        flags: Some(HERE),
        nr_pages: Some(1),
        ..PagemapEntry::default()
    };
    add(&mut bytes, &wide);
    dump.write("pagemap-7.img", &bytes);
    let other = Tree::open(place.path(), None).unwrap();
    assert_eq!(
        (narrow.counting, other.counting),
        (Counting::Bits32, Counting::Bits64)
    );
    assert_ne!(narrow.id(), other.id());
}
