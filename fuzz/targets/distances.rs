//! Tables of distances and sizes of memory, as users write them: a table is square, and its rows written out
//! mean the same table.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_rig::{Distances, parse_size};

fuzz_target!(|input: (u8, &str)| {
    let (nodes, text) = input;
    let nodes = usize::from(nodes % 65);
    if let Ok(table) = Distances::parse(text, nodes) {
        let rows = table.rows();
        assert!(rows.len() == nodes && rows.iter().all(|row| row.len() == nodes));
        let row = |row: &Vec<u8>| row.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
        let written = rows.iter().map(row).collect::<Vec<_>>().join(";");
        if nodes > 1 {
            assert_eq!(Distances::parse(&written, nodes).unwrap(), table);
        }
    }
    let _ = parse_size(text);
});
