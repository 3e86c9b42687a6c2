//! The tables that are shown, and which row is chosen.

use super::watch::Watch;
use nodewise_engine::Pid;
use nodewise_linux::census::{Census, Overview, ProcessUse, RegionUse};
use serde::Serialize;
use std::cmp::Reverse;

/// The order of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// CPU time that is spent far at least, then CPU time
    #[default]
    Far,
    /// CPU time
    Cpu,
    /// Resident memory
    Memory,
}

/// One look and what is shown of it.
pub struct State {
    pub sort: Sort,
    /// The process whose threads and mappings are shown.
    pub process: Option<Pid>,
    /// The chosen row of the processes.
    pub chosen: usize,
    pub overview: Option<Overview>,
    /// Mappings of that process.
    pub regions: Vec<RegionUse>,
    /// Its watcher.
    pub watch: Option<Watch>,
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    overview: &'a Overview,
    #[serde(skip_serializing_if = "Option::is_none")]
    regions: Option<&'a [RegionUse]>,
}

impl State {
    pub fn new(sort: Sort, process: Option<Pid>) -> Self {
        Self { sort, process, chosen: 0, overview: None, regions: Vec::new(), watch: None }
    }

    pub fn look(&mut self, census: &mut Census) {
        // The chosen process stays chosen, wherever it goes.
        let chosen = self.chosen_process().map(|process| process.pid);
        census.follow(self.process);
        self.overview = Some(census.look());
        self.order();
        let at = chosen.and_then(|chosen| self.processes().iter().position(|process| process.pid == chosen));
        self.chosen = at.unwrap_or(self.chosen);
        self.choose(0);
        self.regions = self.process.map(|pid| census.regions(pid)).unwrap_or_default();
    }

    /// Shows this process alone, or all of them.
    pub fn show(&mut self, process: Option<Pid>) {
        (self.process, self.watch) = (process, None);
    }

    /// Begins to watch the process that is shown alone, or ends that.
    pub fn toggle_watch(&mut self) -> anyhow::Result<()> {
        self.watch = match (self.process, self.watch.take()) {
            (Some(pid), None) => Some(Watch::start(pid)?),
            _ => None,
        };
        Ok(())
    }

    /// Sorts by something else, and chooses the first.
    pub fn sort_by(&mut self, sort: Sort) {
        (self.sort, self.chosen) = (sort, 0);
        self.order();
    }

    fn order(&mut self) {
        let sort = self.sort;
        let Some(overview) = &mut self.overview else { return };
        // Both are no less than 0, and so in the order of their bits.
        let key = |process: &ProcessUse| {
            let far = if sort == Sort::Far { process.far_cpu_percent() } else { 0.0 };
            let cpu = if sort == Sort::Memory { 0.0 } else { process.cpu_percent };
            (Reverse(far.to_bits()), Reverse(cpu.to_bits()), Reverse(process.resident_bytes), process.pid.0)
        };
        overview.processes.sort_by_key(key);
    }

    pub fn processes(&self) -> &[ProcessUse] {
        self.overview.as_ref().map_or(&[], |overview| &overview.processes)
    }

    /// Goes so many rows down, or up.
    pub fn choose(&mut self, down: isize) {
        let last = self.processes().len().saturating_sub(1);
        self.chosen = self.chosen.saturating_add_signed(down).min(last);
    }

    pub fn chosen_process(&self) -> Option<&ProcessUse> {
        self.processes().get(self.chosen)
    }

    /// The process that is shown alone; none if it has ended.
    pub fn shown_process(&self) -> Option<&ProcessUse> {
        self.processes().iter().find(|process| Some(process.pid) == self.process)
    }

    pub fn json(&self) -> anyhow::Result<String> {
        let overview = self.overview.as_ref().expect("somebody has looked");
        let regions = self.process.map(|_| self.regions.as_slice());
        Ok(serde_json::to_string(&Line { overview, regions })?)
    }
}
