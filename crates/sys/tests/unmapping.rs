//! Alone in its process, so that no other test's mapping takes the freed addresses.

use nodewise_sys::{Mapping, MappingOptions, page_bytes, query_pages};
use std::sync::atomic::Ordering;

#[test]
fn a_mapping_is_unmapped_when_dropped() {
    let options = MappingOptions { align_bytes: 2 << 20, ..MappingOptions::default() };
    let mapping = Mapping::new(page_bytes(), options).unwrap();
    mapping.as_atomics()[0].store(1, Ordering::Relaxed);
    let address = mapping.address();
    let mut status = [0];
    query_pages(0, &[address], &mut status).unwrap();
    assert!(status[0] >= 0, "{status:?}");
    drop(mapping);
    query_pages(0, &[address], &mut status).unwrap();
    assert!(status[0] < 0, "{status:?}");
}
