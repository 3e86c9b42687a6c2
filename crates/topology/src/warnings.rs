//! Warnings about parts of a machine that could not be read: each part is unknown, and the rest stands.

use crate::error::Error;
use std::cell::RefCell;
use std::error::Error as _;

/// Sentences about a machine, in the order in which they came up, each once.
#[derive(Debug, Default)]
pub(crate) struct Warnings(RefCell<Vec<String>>);

impl Warnings {
    pub(crate) fn add(&self, sentence: String) {
        let mut sentences = self.0.borrow_mut();
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    }

    /// The value that was read. Where it could not be, it is the type's word for unknown (`None`, or nothing
    /// at all), with a warning.
    pub(crate) fn known<T: Default>(&self, read: Result<T, Error>) -> T {
        self.known_or(read, "unknown therefore")
    }

    /// The same, with words on what stands in for the unknown.
    pub(crate) fn known_or<T: Default>(&self, read: Result<T, Error>, instead: &str) -> T {
        read.unwrap_or_else(|error| {
            let source = error.source().map_or_else(String::new, |source| format!(": {source}"));
            self.add(format!("{error}{source}; {instead}"));
            T::default()
        })
    }

    pub(crate) fn into_sentences(self) -> Vec<String> {
        self.0.into_inner()
    }
}
