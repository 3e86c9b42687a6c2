//! News of several rings, in the order in which they happened.

/// News of rings that are read one after the other. One may tell what a process did, and a later one of its
/// parent's fork.
pub(crate) struct InOrder<T> {
    /// With their times.
    news: Vec<(u64, T)>,
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        Self { news: Vec::new() }
    }
}

impl<T> InOrder<T> {
    pub(crate) fn add(&mut self, time_ns: u64, news: T) {
        self.news.push((time_ns, news));
    }

    /// Takes out, in order, all that happened until then: when the last reading of all rings began. A ring
    /// that was read before another may have older news by now.
    pub(crate) fn until(&mut self, until_ns: u64) -> impl Iterator<Item = T> {
        self.news.sort_by_key(|&(time_ns, _)| time_ns);
        let end = self.news.partition_point(|&(time_ns, _)| time_ns <= until_ns);
        self.news.drain(..end).map(|(_, news)| news)
    }
}
