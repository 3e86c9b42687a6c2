//! Arbitrary text as a tracepoint's format: never a panic, and fields that are found have eight bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_linux::sampler::fields_of_format;

fuzz_target!(|input: (u64, u8, u8, u8, &str)| {
    let (offset, size, from, to, text) = input;
    // Text alone would hardly ever be a format: it also replaces a piece of one.
    let format = format!(
        "name: page_fault_user\nID: 115\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:unsigned long address;\toffset:{offset};\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long error_code;\toffset:24;\tsize:{size};\tsigned:0;\n"
    );
    let at = |place: u8| usize::from(place).min(format.len());
    let mended = [&format[..at(from.min(to))], text, &format[at(from.max(to))..]].concat();
    for text in [text, &format, &mended] {
        for field in fields_of_format(text).into_iter().flatten() {
            assert_eq!(field.len(), 8);
        }
    }
});
