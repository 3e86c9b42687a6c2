//! `/proc/PID/stat`, of a process or of one of its threads (proc(5)).

use super::read_cost::lossy;
use std::fs;

/// The fields that are of use here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Field 1.
    pub(crate) id: u32,
    /// Field 2, without its parentheses; it may hold any characters.
    pub(crate) name: String,
    /// Field 3 says that it has ended and waits for its parent.
    pub(crate) zombie: bool,
    /// Field 9 has `PF_KTHREAD`.
    pub(crate) of_the_kernel: bool,
    /// Fields 14 and 15: CPU time, in clock ticks.
    pub(crate) ticks: u64,
    /// Field 20.
    pub(crate) thread_count: u64,
    /// Field 22: clock ticks after boot. Changes when the number is given to another.
    pub(crate) start_time: u64,
    /// Field 23.
    pub(crate) mapped_bytes: u64,
    /// Field 24.
    pub(crate) resident_pages: u64,
    /// Field 28: where the stack begins, random for each `execve`. 0 when we may not know.
    pub(crate) start_stack: u64,
    /// Field 39: the CPU on which it ran last.
    pub(crate) cpu: u32,
}

impl Stat {
    pub(crate) fn read(path: &str) -> Option<Self> {
        Self::parse(&lossy(fs::read(path).ok()?))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        const PF_KTHREAD: u64 = 0x0020_0000;
        let (id, rest) = text.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            id: id.parse().ok()?,
            name: name.to_owned(),
            zombie: matches!(fields.first(), Some(&("Z" | "X"))),
            of_the_kernel: field(9)? & PF_KTHREAD != 0,
            ticks: field(14)?.saturating_add(field(15)?),
            thread_count: field(20)?,
            start_time: field(22)?,
            mapped_bytes: field(23)?,
            resident_pages: field(24)?,
            start_stack: field(28)?,
            cpu: u32::try_from(field(39)?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let rest = "S 1 42 42 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 3 0 7777 1000000 250 \
                    1 1 1 140000 0 0 0 0 0 0 0 0 0 17 6 0 0 0 0 0";
        let stat = Stat::parse(&format!("42 (a) b (c) {rest}\n")).unwrap();
        let expected = Stat {
            id: 42,
            name: "a) b (c".to_owned(),
            zombie: false,
            of_the_kernel: false,
            ticks: 200,
            thread_count: 3,
            start_time: 7777,
            mapped_bytes: 1_000_000,
            resident_pages: 250,
            start_stack: 140_000,
            cpu: 6,
        };
        assert_eq!(stat, expected);
        assert_eq!(Stat::parse("42 (cut) S 1"), None);
        assert_eq!(Stat::parse("42 (a"), None);
        assert_eq!(Stat::parse(""), None);
    }
}
