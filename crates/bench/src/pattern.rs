//! Patterns of accesses: which thread touches which pages, and how.

/// The access patterns that the workload program knows. Threads are numbered; thread `t` runs on node `t mod
/// nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pattern {
    /// Each thread reads and writes a contiguous slice of its own; the first thread touched everything.
    Private,
    /// As private, but each thread touched its own slice first: well placed from the start.
    Local,
    /// As private, but each thread touched every other page of its slice first: half well placed.
    Half,
    /// All threads write all pages.
    SharedWrite,
    /// All threads read all pages, which were written once by the first thread.
    SharedRead,
    /// All threads load words of all pages, in a random order of each, and store them.
    SharedUpdate,
    /// Huge pages, each cut in as many parts as there are threads: thread `t` uses part `t` of every one.
    FalseShare,
    /// Touched once, then never again.
    Idle,
}

/// The access of a thread to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Loads a word.
    Read,
    /// Adds to a word, in one instruction.
    Write,
    /// Loads a word, computes and stores it.
    Update,
    /// Loads a word of each cache line.
    Stream,
}

/// Base pages of a huge page.
const HUGE: usize = 512;

impl Pattern {
    /// The pages that thread `t` of `threads` uses, in order, of `pages` in all. A multiple of 512 pages for
    /// [`Pattern::FalseShare`].
    #[must_use]
    pub fn pages_of(self, t: usize, threads: usize, pages: usize) -> Vec<usize> {
        let slice = |of: usize| of * t / threads..of * (t + 1) / threads;
        match self {
            Self::Private | Self::Local | Self::Half => slice(pages).collect(),
            Self::SharedWrite | Self::SharedRead => {
                // Each thread begins elsewhere, as threads that share work do; otherwise the fastest would
                // always be first.
                let begin = slice(pages).start;
                (begin..pages).chain(0..begin).collect()
            }
            Self::SharedUpdate => {
                let mut all: Vec<usize> = (0..pages).collect();
                let mut random = t as u64 + 1;
                for place in (1..pages).rev() {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    all.swap(place, (random >> 33) as usize % (place + 1));
                }
                all
            }
            Self::FalseShare => (0..pages).filter(|page| slice(HUGE).contains(&(page % HUGE))).collect(),
            Self::Idle => Vec::new(),
        }
    }

    /// The access of threads to their pages.
    #[must_use]
    pub const fn touch(self) -> Touch {
        match self {
            Self::SharedRead => Touch::Read,
            Self::SharedUpdate => Touch::Update,
            _ => Touch::Write,
        }
    }

    /// Which thread touches the page first.
    #[must_use]
    pub fn first_toucher(self, page: usize, threads: usize, pages: usize) -> usize {
        match self {
            Self::Half if page % 2 == 0 => 0,
            Self::Local | Self::Half => (0..threads).find(|&t| page < pages * (t + 1) / threads).unwrap_or(0),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_slices_partition_the_pages() {
        for pattern in [Pattern::Private, Pattern::FalseShare] {
            let mut seen = vec![0; 1024];
            for t in 0..3 {
                pattern.pages_of(t, 3, 1024).into_iter().for_each(|page| seen[page] += 1);
            }
            assert!(seen.iter().all(|&times| times == 1), "{pattern:?}");
        }
    }

    #[test]
    fn shared_pages_are_everybodys() {
        for t in 0..4 {
            for pattern in [Pattern::SharedWrite, Pattern::SharedUpdate] {
                let mut pages = pattern.pages_of(t, 4, 1000);
                pages.sort_unstable();
                assert!(pages.into_iter().eq(0..1000), "{pattern:?}");
            }
        }
    }

    #[test]
    fn local_pages_are_touched_first_by_their_user() {
        for t in 0..4 {
            for page in Pattern::Local.pages_of(t, 4, 1001) {
                assert_eq!(Pattern::Local.first_toucher(page, 4, 1001), t);
            }
        }
    }
}
