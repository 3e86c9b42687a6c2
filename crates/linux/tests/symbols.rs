//! Names for code that the kernel has mapped. In a process of its own: it maps files.

use nodewise_linux::{NamedMapping, Symbols};
use std::path::Path;

/// This test's own code is found by where it lies.
#[test]
fn a_function_of_this_program_has_its_name_and_line() {
    #[inline(never)]
    fn a_name_to_be_found() -> usize {
        std::hint::black_box(a_name_to_be_found as *const () as usize)
    }
    let address = a_name_to_be_found() as u64;
    let mappings = NamedMapping::all_of(nodewise_engine::Pid(std::process::id())).unwrap();
    let code = mappings.into_iter().find(|mapping| mapping.range.contains(&address)).unwrap();
    assert!(code.is_code, "{code:?}");
    let mut symbols = Symbols::default();
    let frames = symbols.frames(Path::new(&code.name), address - code.range.start + code.offset);
    let frame = frames.last().unwrap();
    assert!(frame.function.as_ref().unwrap().ends_with("a_name_to_be_found"), "{frames:?}");
    assert!(frame.file.as_ref().unwrap().ends_with("symbols.rs"), "{frames:?}");
    assert!(frame.line.is_some(), "{frames:?}");
    assert_eq!(symbols.frames(Path::new("/no/such/file"), 5)[0].function, None);
}
