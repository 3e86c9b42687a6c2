//! Tables that people read.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table in Markdown: a name and figures in each row.
#[must_use]
pub fn markdown<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    of(presets::ASCII_MARKDOWN, header, rows)
}

/// The same for a terminal.
#[must_use]
pub fn terminal<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    of(presets::UTF8_HORIZONTAL_ONLY, header, rows)
}

fn of<const N: usize>(
    preset: &str,
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_preset(preset).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
