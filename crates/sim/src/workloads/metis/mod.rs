//! Two programs of the Metis `MapReduce` suite (as of Phoenix): PCA and word count.
//!
//! Metis' first thread reads the input, whole; then all map it.

mod pca;
mod word_count;

use super::Workload;

pub const ALL: [Workload; 2] = [
    Workload {
        name: "pca",
        about: "mean and covariance of the rows of a matrix that one thread read (Metis MapReduce)",
        build: pca::build,
    },
    Workload {
        name: "word-count",
        about: "words of a text that one thread read, counted in private tables, then merged (Metis MapReduce)",
        build: word_count::build,
    },
];
