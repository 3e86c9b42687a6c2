//! Which CPUs there are.

use crate::error::Error;
use crate::ids::CpuId;
use crate::root::{Root, Text};
use crate::set::CpuSet;

/// Every Linux with sysfs has this directory.
pub(crate) const DIR: &str = "sys/devices/system/cpu";

/// The online CPUs, and those present but not online.
pub(crate) fn read(root: &Root) -> Result<(CpuSet, CpuSet), Error> {
    let listed: CpuSet = root.numbered(DIR, "cpu")?.into_iter().map(CpuId).collect();
    let online = match list(root, &format!("{DIR}/online"))? {
        Some(online) => online,
        None => switched_on(root, &listed)?,
    };
    let present = list(root, &format!("{DIR}/present"))?.unwrap_or(listed);
    let offline = &present - &online;
    Ok((online, offline))
}

/// Linux before 2.6.26 has no lists; a CPU that can be switched off says itself whether it is.
fn switched_on(root: &Root, listed: &CpuSet) -> Result<CpuSet, Error> {
    let mut online = CpuSet::new();
    for cpu in listed.iter() {
        let switch = root.text(&format!("{DIR}/cpu{cpu}/online"))?;
        if switch.as_ref().map_or(Ok(1), Text::number)? != 0 {
            online.insert(cpu);
        }
    }
    Ok(online)
}

/// A set in the kernel's list format; `None` where the file is missing.
pub(crate) fn list(root: &Root, path: &str) -> Result<Option<CpuSet>, Error> {
    root.text(path)?.map(|text| text.parse(str::parse)).transpose()
}
