use super::*;
use nodewise_engine::MappingKind;

fn mapping(start: u64, end: u64) -> Mapping {
    Mapping { range: PageRange::new(start, end), writable: true, kind: MappingKind::Anonymous }
}

fn note(known: &mut KnownHomes, pages: std::ops::Range<u64>, home: u8) {
    known.note(pages.map(|page| (PageNumber(page), Some(NodeIndex(home)))));
}

#[test]
fn pages_first_seen_after_many_moves_of_the_kernels_lay_anywhere_at_first() {
    let mut known = KnownHomes::default();
    let first = |known: &KnownHomes, page| known.first(PageNumber(page)).map(|node| node.0);
    // Other processes' pages were moved before.
    known.note_kernels_moves(5000, 1000);
    note(&mut known, 0..10, 1);
    known.note_kernels_moves(5050, 1000);
    note(&mut known, 10..20, 1);
    known.note_kernels_moves(5051, 1000);
    note(&mut known, 0..30, 2);
    let seen = [5, 15, 25].map(|page| first(&known, page));
    assert_eq!(seen, [Some(1), Some(1), None]);
    assert_eq!(known.first_of_new(PageNumber(40), Some(NodeIndex(2))), None);
    assert_eq!(known.get(PageNumber(25)), Some(NodeIndex(2)));
    // The process may be small by then.
    known.note_kernels_moves(5051, 1 << 30);
    assert_eq!(known.first_of_new(PageNumber(40), Some(NodeIndex(2))), None);
}

#[test]
fn remembers_where_pages_were() {
    let mut known = KnownHomes::default();
    assert_eq!(known.get(PageNumber(7)), None);
    note(&mut known, 0..700, 1);
    note(&mut known, 600..1100, 2);
    for page in 0..1200 {
        let home =
            [(600, Some(1)), (1100, Some(2)), (1200, None)].iter().find(|(end, _)| page < *end).unwrap().1;
        assert_eq!(known.get(PageNumber(page)), home.map(NodeIndex), "{page}");
    }
    known.note([(PageNumber(3), None)].into_iter());
    assert_eq!(known.get(PageNumber(3)), None);
    known.note_huge(PageNumber(5), NodeIndex(3));
    assert_eq!(known.get(PageNumber(3)), Some(NodeIndex(3)));
}

#[test]
fn takes_no_more_than_it_may() {
    let mut known = KnownHomes::default();
    known.limit(100_000);
    for block in 0..10_000 {
        let page = PageNumber(block * 512 + block % 512);
        known.note([(page, Some(NodeIndex(1)))].into_iter());
        known.note_used(page, 1);
        known.note_moved(page, Placed::Interleaved);
    }
    assert!(known.bytes() <= 100_000 && known.bytes() > 98_000 && known.is_full(), "{}", known.bytes());
    assert_eq!(known.get(PageNumber(512 + 1)), Some(NodeIndex(1)));
    assert_eq!(known.get(PageNumber(9_999 * 512 + 9_999 % 512)), None);
    let before = known.bytes();
    known.keep_mapped(&[mapping(0, 1 << 40)]);
    // Notes on pages of which nothing else is known go.
    assert!(known.bytes() <= before && known.bytes() > before - 1000, "{} of {before}", known.bytes());
    known.keep_mapped(&[]);
    assert_eq!(known.bytes(), 0);
}

#[test]
fn counts_what_was_never_moved() {
    let mut known = KnownHomes::default();
    note(&mut known, 100..1024, 0);
    note(&mut known, 1024..2048, 1);
    known.note_huge(PageNumber(2048), NodeIndex(2));
    let even = |page: PageNumber, _| page.0 % 2 == 0;
    let range = PageRange::new(50, 2 << 30);
    let shares = |known: &KnownHomes| known.unmoved(range, 1024, 4, |_| false, even);
    assert_eq!(shares(&known), (2460, vec![924.0, 1024.0, 512.0, 0.0], vec![462.0, 512.0, 256.0, 0.0]));
    for page in 100..110 {
        known.note_moved(PageNumber(page), Placed::Interleaved);
    }
    // The first page of a huge page stands for all.
    known.note_moved(PageNumber(2048), Placed::Interleaved);
    let left = (2460, vec![914.0, 1024.0, 0.0, 0.0], vec![457.0, 512.0, 0.0, 0.0]);
    assert_eq!(shares(&known), left);
    // Collocated memory may turn out to be shared after a while, and the kernel may have taken pages away.
    known.begin_interval(100);
    known.note_moved(PageNumber(110), Placed::At(NodeIndex(0)));
    known.note_moved(PageNumber(111), Placed::At(NodeIndex(1)));
    let mut left_after = |interval| {
        known.begin_interval(interval);
        let at = [100, 110, 111, 112].map(PageNumber);
        (shares(&known).1[0] as u32, at.map(|page| known.may_be_interleaved(page)))
    };
    assert_eq!(left_after(159), (922, [true, false, false, true]));
    assert_eq!(left_after(160), (924, [true; 4]));
    // One moves again, and rests alone.
    known.note_moved(PageNumber(100), Placed::Interleaved);
    let at = [100, 110].map(PageNumber);
    assert_eq!(
        (shares(&known).1[0] as u32, at.map(|page| known.may_be_interleaved(page))),
        (923, [false, true])
    );
    assert_eq!(known.unmoved(PageRange::new(1020, 1030), 1024, 4, |_| false, even).1, [4.0, 6.0, 0.0, 0.0]);
    // A huge page waits or not, as its first page does. Its neighbour is in base pages.
    let mut known = KnownHomes::default();
    known.note_huge(PageNumber(512), NodeIndex(2));
    note(&mut known, 1024..1536, 2);
    let (is_huge, range) = (|page: PageNumber| page.0 == 512, PageRange::new(512, 1536));
    let waiting =
        |which: &dyn Fn(PageNumber, u64) -> bool| known.unmoved(range, 1024, 4, is_huge, which).2[2];
    assert_eq!((waiting(&even), waiting(&|page, pages| !even(page, pages))), (512.0 + 256.0, 256.0));
    // As a folio of four pages does, once one was seen there.
    let mut known = KnownHomes::default();
    note(&mut known, 1024..1536, 2);
    for page in 1028..1032 {
        known.note_moved(PageNumber(page), Placed::Interleaved);
    }
    let third = |page: PageNumber, pages: u64| page.0 / pages * pages % 4 == 3;
    let waiting = |known: &KnownHomes| known.unmoved(range, 1024, 4, |_| false, third).2[2] as u64;
    assert_eq!(waiting(&known), 127);
    known.note_folio(PageNumber(1028), 4);
    assert_eq!(waiting(&known), 0);
    assert_eq!(known.folio_pages(PageNumber(1101)), 4);
    known.note_folio(PageNumber(1028), 300);
    assert_eq!(known.folio_pages(PageNumber(1101)), 4, "300 pages are a part");
    assert_eq!(known.folio_pages(PageNumber(7)), 1);
    // Half of the blocks of 4 GiB are looked at.
    note(&mut known, 0..4 << 18, 3);
    let (pages, all, _) = known.unmoved(PageRange::new(0, 8 << 18), 1024, 4, |_| false, even);
    assert_eq!((pages, all.len()), (1 << 19, 4));
}

#[test]
fn remembers_what_was_moved() {
    let mut known = KnownHomes::default();
    note(&mut known, 0..1024, 0);
    let (page, to) = (PageNumber(700), Placed::At(NodeIndex(2)));
    assert_eq!(known.placed(page), None);
    assert!(!known.note_moved(page, to));
    assert_eq!(known.placed(page), Some(to));
    assert!(known.note_moved(page, Placed::Interleaved));
    assert_eq!(known.placed(page), Some(Placed::Interleaved));
    assert_eq!(known.placed(PageNumber(701)), None);
    let given_back = PageNumber(513);
    known.note_moved(given_back, Placed::Interleaved);
    known.note([(given_back, None)].into_iter());
    assert_eq!(known.placed(given_back), Some(Placed::Interleaved), "on its way, maybe");
    known.note([(given_back, None)].into_iter());
    assert_eq!(known.placed(given_back), None);
    known.note_huge(PageNumber(1024), NodeIndex(1));
    known.note_moved(PageNumber(1024), Placed::Interleaved);
    for _ in 0..2 {
        known.note([(PageNumber(1100), None)].into_iter());
    }
    assert_eq!(known.placed(PageNumber(1024)), None, "a huge page is given back as a whole");
    known.note_moved(PageNumber(600), Placed::Interleaved);
    known.keep_mapped(&[mapping(0, 650)]);
    let placed = [600, 700].map(|page| known.placed(PageNumber(page)));
    assert_eq!(placed, [Some(Placed::Interleaved), None], "unmapped since");
}

#[test]
fn remembers_where_pages_were_first() {
    let mut known = KnownHomes::default();
    note(&mut known, 0..700, 1);
    note(&mut known, 600..1100, 2);
    known.note_huge(PageNumber(1024), NodeIndex(3));
    for (page, first) in [(0, 1), (699, 1), (700, 2), (1099, 2), (1100, 3)] {
        assert_eq!(known.first(PageNumber(page)), Some(NodeIndex(first)), "{page}");
    }
    known.note([(PageNumber(3), None)].into_iter());
    assert_eq!(known.first(PageNumber(3)), Some(NodeIndex(1)), "on its way, maybe");
    known.note([(PageNumber(3), None)].into_iter());
    assert_eq!(known.first(PageNumber(3)), None, "given back");
    note(&mut known, 3..4, 2);
    assert_eq!(known.first(PageNumber(3)), Some(NodeIndex(2)), "and another one");
    known.keep_mapped(&[mapping(0, 512)]);
    assert_eq!(known.first(PageNumber(600)), None, "unmapped since");
}

#[test]
fn of_pages_that_were_there_before_only_those_asked_for_have_a_first_home() {
    let mut known = KnownHomes::default();
    let (asked, partly) = (0..512, vec![(PageRange::new(0, 2560), 5.0)]);
    known.survey(asked.map(|page| (PageNumber(page), Some(NodeIndex(0)))), partly, Some(7));
    note(&mut known, 0..1024, 1);
    known.note_huge(PageNumber(2048), NodeIndex(2));
    note(&mut known, 2560..2570, 3);
    let first = |page| known.first(PageNumber(page));
    assert_eq!((first(511), first(512), first(2048)), (Some(NodeIndex(0)), None, None));
    assert_eq!(first(2560), Some(NodeIndex(3)), "mapped since");
    assert_eq!(known.get(PageNumber(512)), Some(NodeIndex(1)));
    let stands_for = |page| known.stands_for(PageNumber(page));
    assert_eq!((stands_for(511), stands_for(512), stands_for(2569)), (Some(5.0), None, Some(1.0)));
    assert_eq!([None, Some(7), Some(9)].map(|now| known.passes(|| now)), [Some(u64::MAX), Some(0), Some(2)]);
    assert_eq!(KnownHomes::default().passes(|| Some(9)), None);
    known.keep_mapped(&[mapping(2559, 4096)]);
    assert_eq!(known.stands_for(PageNumber(2559)), None);
    known.keep_mapped(&[mapping(2560, 4096)]);
    assert_eq!(known.stands_for(PageNumber(2559)), Some(1.0), "what comes there is new");
}

#[test]
fn pages_in_use_are_counted_by_home() {
    let mut known = KnownHomes::default();
    note(&mut known, 0..512, 1);
    note(&mut known, 512..612, 2);
    note(&mut known, 1024..1536, 3);
    known.note_used(PageNumber(505), 7);
    known.note_used(PageNumber(600), 9);
    known.note_used(PageNumber(1024), 2);
    let file = |start, end, writable| Mapping { writable, kind: MappingKind::File, ..mapping(start, end) };
    let read_only = Mapping { writable: false, ..mapping(570, 600) };
    let in_use = |known: &KnownHomes, mappings: &[Mapping]| {
        let mut pages = [0.0; 4];
        known.add_used(7, mappings, &mut pages);
        pages.map(|count| count as u64)
    };
    assert_eq!(in_use(&known, &[mapping(0, 2048)]), [0, 512, 100, 0]);
    // A library's code lies on one node, whoever runs it.
    let library = [file(0, 500, false), file(500, 570, true), read_only, mapping(600, 2048)];
    assert_eq!(in_use(&known, &library), [0, 12, 100, 0]);
    // Shared memory goes by the mapping of one process. That one may only read it, where another writes.
    known.note_used(PageNumber(5), 7);
    assert_eq!(in_use(&known, &library), [0, 512, 100, 0]);
    let shared = |start, end| Mapping { kind: MappingKind::Shared, ..file(start, end, false) };
    assert_eq!(in_use(&known, &[shared(0, 400), shared(400, 512), mapping(512, 2048)]), [0, 400, 100, 0]);
}

#[test]
fn a_block_of_one_home_is_small() {
    let mut known = KnownHomes::default();
    note(&mut known, 0..300, 1);
    assert!(matches!(known.blocks[&0], Block::Each(_)));
    note(&mut known, 300..512, 1);
    assert_eq!(known.blocks[&0], Block::Same(1));
}

#[test]
fn what_was_unmapped_is_new_again() {
    let mut known = KnownHomes::default();
    note(&mut known, 0..2048, 0);
    known.keep_mapped(&[mapping(0, 512), mapping(600, 700), mapping(1024, 1536)]);
    for page in 0..2048 {
        let mapped = page < 512 || (600..700).contains(&page) || (1024..1536).contains(&page);
        assert_eq!(known.get(PageNumber(page)).is_some(), mapped, "{page}");
    }
    assert_eq!(known.blocks.len(), 3);
}
