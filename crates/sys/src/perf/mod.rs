//! Perf events.
