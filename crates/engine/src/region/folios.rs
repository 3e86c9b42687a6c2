//! How large the folios are that an interval's samples met.

use crate::{PageRange, PageSize, Sample};

/// Folios of several base pages but smaller than a huge page, by their first page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Folios(Vec<(u64, u16)>);

impl Folios {
    /// The folios of an interval's samples.
    pub fn of(samples: &[Sample]) -> Self {
        let folios = samples.iter().filter_map(|sample| match sample.page_size {
            PageSize::Folio(pages) => Some((first_page(sample), pages)),
            PageSize::Base | PageSize::Huge => None,
        });
        let mut folios: Vec<_> = folios.collect();
        folios.sort_unstable();
        // Its size changed meanwhile: the larger one moves at once no more.
        folios.dedup_by_key(|&mut (page, _)| page);
        Self(folios)
    }

    /// How many base pages move at once with this one, which is the first of them.
    pub fn pages(&self, page: u64) -> u64 {
        let at = self.0.binary_search_by_key(&page, |&(page, _)| page);
        at.map_or(1, |at| self.0[at].1.into())
    }
}

/// The page by which a sample is known: all pages of a folio smaller than a huge page go by its first.
pub(crate) fn first_page(sample: &Sample) -> u64 {
    let page = sample.address.page();
    match sample.page_size {
        PageSize::Folio(pages) => PageRange::around(page, pages.into()).start.0,
        PageSize::Base | PageSize::Huge => page.0,
    }
}
