//! Kernel settings that matter to memory placement.

use crate::error::ParseError;
use crate::root::Root;
use crate::warnings::Warnings;
use serde::Serialize;

const HUGE_PAGES: &str = "sys/kernel/mm/transparent_hugepage";

/// Transparent huge page settings (Documentation/admin-guide/mm/transhuge.rst, Linux 6.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TransparentHugePages {
    /// The programs that get huge pages: `always`, `madvise` or `never`.
    pub enabled: String,
    /// The allocations that stall to make a huge page: `always`, `defer`, `defer+madvise`, `madvise` or
    /// `never`.
    pub defrag: Option<String>,
    /// The setting like `enabled` for shared memory and tmpfs.
    pub shmem_enabled: Option<String>,
    /// Size of a huge page.
    pub page_bytes: Option<u64>,
}

/// Automatic NUMA balancing (`kernel.numa_balancing`, Documentation/admin-guide/sysctl/kernel.rst, Linux
/// 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NumaBalancing {
    /// Pages move to the nodes that use them (1).
    pub normal: bool,
    /// Hot pages are promoted from slow memory tiers (2).
    pub memory_tiering: bool,
}

/// `None` on kernels without transparent huge pages.
pub(crate) fn transparent_huge_pages(root: &Root, warnings: &Warnings) -> Option<TransparentHugePages> {
    let choice = |file: &str| warnings.known(root.parsed(&format!("{HUGE_PAGES}/{file}"), chosen));
    Some(TransparentHugePages {
        enabled: choice("enabled")?,
        defrag: choice("defrag"),
        shmem_enabled: choice("shmem_enabled"),
        page_bytes: warnings.known(root.number(&format!("{HUGE_PAGES}/hpage_pmd_size"))),
    })
}

/// `None` on kernels without NUMA balancing.
pub(crate) fn numa_balancing(root: &Root, warnings: &Warnings) -> Option<NumaBalancing> {
    let mode = warnings.known(root.number("proc/sys/kernel/numa_balancing"))?;
    Some(NumaBalancing { normal: mode & 1 != 0, memory_tiering: mode & 2 != 0 })
}

/// The choice in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Result<String, ParseError> {
    text.split_ascii_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
        .map(str::to_owned)
        .ok_or_else(|| ParseError::new("a choice in brackets like 'always [madvise] never'", text))
}
