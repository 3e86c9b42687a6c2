//! The runtime beside rayon and std.

fn main() {}
