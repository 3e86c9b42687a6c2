//! How a PMU's sysfs directory says to encode its events: `format/ldlat` holds `config1:0-15`,
//! `events/mem-loads` holds `event=0xcd,umask=0x1,ldlat=3`
//! (`Documentation/ABI/testing/sysfs-bus-event_source-devices-format`).

use crate::Error;
use nodewise_sys::perf::Attr;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// A PMU's directory below `sys/bus/event_source/devices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PmuDirectory {
    path: PathBuf,
    /// The number that `perf_event_open` knows the PMU by.
    kind: u32,
}

/// The bits of one format field, lowest first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    /// 0 for `config`, 1 to 3 for `config1` to `config3`.
    config: u8,
    ranges: Vec<RangeInclusive<u32>>,
}

impl PmuDirectory {
    /// The PMU's directory; `None` when there is none of that name.
    pub(super) fn open(devices: &Path, name: &str) -> Result<Option<Self>, Error> {
        let path = devices.join(name);
        let kind_path = path.join("type");
        let text = match fs::read_to_string(&kind_path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::file(&kind_path, "read", e)),
        };
        let kind = text.trim().parse().map_err(|_| Error::malformed(&kind_path, 1, "a PMU's number"))?;
        Ok(Some(Self { path, kind }))
    }

    /// An event of the PMU without anything set.
    pub(super) fn attr(&self) -> Attr {
        Attr::new(self.kind, 0)
    }

    /// Whether the PMU has a format field.
    pub(super) fn has_field(&self, name: &str) -> bool {
        self.path.join("format").join(name).exists()
    }

    /// A number in `caps/`, or `None`.
    pub(super) fn capability(&self, name: &str) -> Option<u64> {
        fs::read_to_string(self.path.join("caps").join(name)).ok()?.trim().parse().ok()
    }

    /// Sets a format field; values too large for it lose their upper bits.
    pub(super) fn set(&self, attr: &mut Attr, name: &str, value: u64) -> Result<(), Error> {
        let path = self.path.join("format").join(name);
        let text = fs::read_to_string(&path).map_err(|e| Error::file(&path, "read", e))?;
        let field = Field::parse(text.trim())
            .ok_or_else(|| Error::malformed(&path, 1, "bits such as config:0-7,32-35"))?;
        field.place(attr, value);
        Ok(())
    }

    /// An event that the kernel names, `None` when it does not.
    pub(super) fn event(&self, name: &str) -> Result<Option<Attr>, Error> {
        let path = self.path.join("events").join(name);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::file(&path, "read", e)),
        };
        let mut attr = self.attr();
        for term in text.trim().split(',') {
            let (field, value) = term.split_once('=').unwrap_or((term, "1"));
            let value = number(value)
                .ok_or_else(|| Error::malformed(&path, 1, "terms such as event=0xcd,umask=0x1"))?;
            self.set(&mut attr, field, value)?;
        }
        Ok(Some(attr))
    }
}

impl Field {
    fn parse(text: &str) -> Option<Self> {
        let (config, ranges) = text.split_once(':')?;
        let config = match config {
            "config" => 0,
            "config1" => 1,
            "config2" => 2,
            "config3" => 3,
            _ => return None,
        };
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last && last < 64).then_some(first..=last)
        };
        Some(Self { config, ranges: ranges.split(',').map(range).collect::<Option<_>>()? })
    }

    fn place(&self, attr: &mut Attr, mut value: u64) {
        let word = match self.config {
            0 => &mut attr.config,
            1 => &mut attr.config1,
            2 => &mut attr.config2,
            _ => &mut attr.config3,
        };
        for bit in self.ranges.iter().cloned().flatten() {
            *word = *word & !(1 << bit) | (value & 1) << bit;
            value >>= 1;
        }
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_where_the_format_says() {
        let mut attr = Attr::new(4, 0);
        Field::parse("config:0-7,32-35").unwrap().place(&mut attr, 0xabc);
        assert_eq!(attr.config, 0xa_0000_00bc);
        Field::parse("config1:0-15").unwrap().place(&mut attr, 0x1_0040);
        assert_eq!(attr.config1, 0x40);
        Field::parse("config2:3").unwrap().place(&mut attr, 1);
        Field::parse("config3:63").unwrap().place(&mut attr, 1);
        assert_eq!((attr.config2, attr.config3), (8, 1 << 63));
        // A second value replaces the first.
        Field::parse("config:0-7").unwrap().place(&mut attr, 0x01);
        assert_eq!(attr.config, 0xa_0000_0001);
    }

    #[test]
    fn malformed_fields_are_refused() {
        for text in ["", "config", "config4:0", "config:7-0", "config:64", "config:0-", "config:a"] {
            assert_eq!(Field::parse(text), None, "{text}");
        }
    }
}
