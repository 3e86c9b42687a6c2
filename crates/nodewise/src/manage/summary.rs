//! The summary of all that was done, added up over the rounds: printed as `perf stat` prints its counts, or
//! as JSON.

use nodewise_engine::{
    Action, Decision, Finding, HUGE_PAGE_PAGES, Outcome, PAGE_BYTES, Provenance, Round, RuleStatus,
};
use nodewise_linux::placement::{self, BeforeAndAfter, Unknown};
use nodewise_linux::sampler::Counted;
use nodewise_linux::{Bound, NodeShare, Totals, UnseenFiles};
use nodewise_sys::Usage;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Files that fit in caches are not worth a word.
pub const LARGE_BYTES: u64 = 16 << 20;

/// A figure of the same accesses to the same memory: as it lay at first, and as it lies at the end. In
/// percent, null where it is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BeforeAfter {
    /// As if each page still lay where it was first seen.
    pub before: Option<f64>,
    /// With each page where it was seen last.
    pub after: Option<f64>,
}

/// How memory in use was and is placed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PlacementSummary {
    /// Memory in use whose placement is known; null where samples say how often it is accessed, and not
    /// which of it.
    pub bytes: Option<u64>,
    /// Why there is no figure, or none from before; null where there is one.
    pub unknown: Option<String>,
}

/// Decisions by kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Actions {
    /// Ranges moved to the one node that uses them.
    pub collocated: u64,
    /// Ranges interleaved over the nodes.
    pub interleaved: u64,
    /// Huge pages split, as their parts are used by different nodes.
    pub huge_pages_split: u64,
    /// Huge pages made again of base pages, as one node uses them all by now.
    pub huge_pages_collapsed: u64,
    /// Distinct pages that every node could have a copy of: read by several nodes, with no write seen.
    pub replication_candidate_pages: u64,
}

/// The cost of Nodewise itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OwnCost {
    /// CPU time while processes were managed, user and kernel, in seconds.
    pub cpu_seconds: f64,
    /// That as a share of one CPU, in percent.
    pub cpu_percent: f64,
    /// CPU time before, in seconds: to learn what the machine is like, and to open the sampler.
    pub startup_cpu_seconds: f64,
    /// Greatest resident memory.
    pub resident_max_bytes: u64,
}

impl OwnCost {
    /// The cost at the end, from all that was `used`. `startup_cpu_seconds` of it were used when managing
    /// began, `elapsed_seconds` ago.
    pub fn of(startup_cpu_seconds: f64, used: &Usage, elapsed_seconds: f64) -> Self {
        let cpu_seconds = (cpu_seconds(used) - startup_cpu_seconds).max(0.0);
        Self {
            cpu_seconds,
            cpu_percent: 100.0 * cpu_seconds / elapsed_seconds,
            startup_cpu_seconds,
            resident_max_bytes: used.resident_max_bytes,
        }
    }
}

/// CPU time, user and kernel.
pub fn cpu_seconds(used: &Usage) -> f64 {
    (used.user_ns + used.system_ns) as f64 / 1e9
}

/// Everything that is reported at the end.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Which policy decided.
    pub policy: &'static str,
    /// Which sampler was used.
    pub sampler: &'static str,
    /// How it sampled.
    pub sampler_description: String,
    /// How long processes were managed.
    pub elapsed_seconds: f64,
    /// Whether nothing was to be moved.
    pub dry_run: bool,
    /// Rounds of decisions.
    pub rounds: u64,
    /// Samples of managed processes.
    pub samples: u64,
    /// Samples lost on the way.
    pub samples_lost: u64,
    /// Decisions by kind.
    pub actions: Actions,
    /// Base pages that arrived at their target.
    pub pages_moved: u64,
    /// The outcome of all decisions, in base pages.
    pub outcome: Outcome,
    /// Base pages that the kernel's own balancing moved meanwhile, machine-wide.
    pub pages_moved_by_kernel: u64,
    /// Share of the accesses that come from the page's own node. Samples tell who uses which memory, and the
    /// kernel tells where it lies.
    pub local_access_percent: BeforeAfter,
    /// The share at the end, if every node also had a copy of the pages that could be replicated; null where
    /// no memory in use could be.
    pub local_access_percent_with_copies: Option<f64>,
    /// By how many points more accesses would have been local, as memory lay at first, if each page had lain
    /// with the node that uses it most. Only of pages whose users are clear.
    pub collocation_adds_percent: Option<f64>,
    /// Share of the accesses that each node's memory serves at the end, in the order of the nodes; none where
    /// that is unknown.
    pub served_by: Option<Vec<f64>>,
    /// Imbalance of the accesses that the nodes' memory serves.
    pub controller_imbalance_percent: BeforeAfter,
    /// The memory that these two figures are about.
    pub memory_in_use: PlacementSummary,
    /// Files that the programs only read, of which hint faults do not tell; null where there are none.
    pub unseen_files: Option<UnseenFiles>,
    /// Huge pages by reservation, of which hint faults do not tell either: bytes of the process with most.
    pub unseen_huge_bytes: u64,
    /// The machine's own counts meanwhile, of all programs; null where it counts nothing.
    pub counted: Option<Counted>,
    /// How each rule of the policy stood at the end: measured, estimated, replaced by a proxy or off.
    pub rules: Vec<RuleStatus>,
    /// Huge pages whose parts are used by different nodes.
    pub falsely_shared_huge_pages: u64,
    /// Bounds on what is looked at of programs that were met: beyond them, memory was left alone.
    pub bounds_met: BTreeSet<Bound>,
    /// The machine's counts: losses, and the cost of reading `/proc` and `/sys`.
    pub totals: Totals,
    /// The cost of Nodewise itself.
    pub own_cost: OwnCost,
}

impl Summary {
    /// Nothing yet.
    pub fn new(
        policy: &'static str,
        sampler: &'static str,
        sampler_description: String,
        dry_run: bool,
    ) -> Self {
        Self {
            policy,
            sampler,
            sampler_description,
            elapsed_seconds: 0.0,
            dry_run,
            rounds: 0,
            samples: 0,
            samples_lost: 0,
            actions: Actions::default(),
            pages_moved: 0,
            outcome: Outcome::default(),
            pages_moved_by_kernel: 0,
            local_access_percent: BeforeAfter::default(),
            local_access_percent_with_copies: None,
            collocation_adds_percent: None,
            served_by: None,
            controller_imbalance_percent: BeforeAfter::default(),
            memory_in_use: PlacementSummary::default(),
            unseen_files: None,
            unseen_huge_bytes: 0,
            counted: None,
            rules: Vec::new(),
            falsely_shared_huge_pages: 0,
            bounds_met: BTreeSet::new(),
            totals: Totals::default(),
            own_cost: OwnCost::default(),
        }
    }

    /// Adds a round. The engine tells of the same pages once.
    pub fn add(&mut self, round: &Round) {
        self.rounds += 1;
        self.rules.clone_from(&round.rules);
        let mut candidates = BTreeSet::new();
        for (decision, outcome) in &round.decisions {
            self.add_decision(decision, outcome);
            if decision.action == Action::Replicate {
                candidates.insert((decision.pid.0, decision.range.start.0, decision.range.end.0));
            }
        }
        self.actions.replication_candidate_pages += distinct_pages(&candidates);
        let is_page = |finding: &&Finding| matches!(finding, Finding::FalselySharedHugePage { .. });
        self.falsely_shared_huge_pages += round.findings.iter().filter(is_page).count() as u64;
    }

    /// Takes over how memory in use was and is placed.
    pub fn set_placement(&mut self, placement: &BeforeAndAfter<Result<placement::Figures, Unknown>>) {
        let [before, after] = [&placement.before, &placement.after].map(|figures| figures.as_ref().ok());
        let local = |figures: &placement::Figures| figures.local_access_percent;
        self.local_access_percent = BeforeAfter { before: before.map(local), after: after.map(local) };
        self.local_access_percent_with_copies = after.and_then(|figures| figures.local_with_copies_percent);
        self.collocation_adds_percent = before.and_then(|figures| figures.collocation_adds_percent);
        self.served_by = after.map(|figures| figures.served_by.clone());
        let imbalance = |figures: &placement::Figures| figures.controller_imbalance_percent;
        self.controller_imbalance_percent =
            BeforeAfter { before: before.and_then(imbalance), after: after.and_then(imbalance) };
        self.memory_in_use.bytes = after.and_then(|figures| Some(figures.pages? * PAGE_BYTES));
        let why = placement.before.as_ref().err().or(placement.after.as_ref().err());
        self.memory_in_use.unknown = why.map(|why| match why {
            Unknown::Samples(samples) => format!("only {samples} samples tell who uses the memory"),
            Unknown::Pace(samples) => format!(
                "only {samples} samples tell who uses the memory, since the kernel's balancing was on before \
                 and has its old pace until it has gone through all of it"
            ),
            Unknown::FirstHomes => "where much of the memory lay at first was not seen".to_owned(),
            Unknown::Scan => "not all of the memory that is used has shown yet".to_owned(),
            Unknown::Moved => "the kernel was still moving it when the program ended".to_owned(),
        });
    }

    fn add_decision(&mut self, decision: &Decision, outcome: &Outcome) {
        match &decision.action {
            Action::Split { .. } => {
                self.actions.huge_pages_split += outcome.moved / HUGE_PAGE_PAGES;
                return;
            }
            Action::Collapse { .. } => {
                self.actions.huge_pages_collapsed += outcome.moved / HUGE_PAGE_PAGES;
                return;
            }
            Action::Collocate { .. } | Action::CollocateEach { .. } => self.actions.collocated += 1,
            Action::Interleave(_) => self.actions.interleaved += 1,
            Action::Replicate => {}
        }
        let sum = &mut self.outcome;
        sum.planned += outcome.planned;
        sum.moved += outcome.moved;
        sum.moved_again += outcome.moved_again;
        sum.deferred += outcome.deferred;
        sum.busy += outcome.busy;
        sum.node_full += outcome.node_full;
        sum.vanished += outcome.vanished;
        sum.not_permitted += outcome.not_permitted;
        sum.calls += outcome.calls;
        sum.blocked_ns += outcome.blocked_ns;
        sum.longest_call_ns = sum.longest_call_ns.max(outcome.longest_call_ns);
        self.pages_moved = sum.moved;
    }

    /// The pages that could be replicated, and the use of it.
    fn replication(&self) -> String {
        let bytes = mebibytes(self.actions.replication_candidate_pages);
        let what = format!("pages could be replicated: read by several nodes, with no write seen ({bytes})");
        match self.local_access_percent_with_copies {
            Some(local) => format!("{what}; copies would make {local:.1}% of accesses local"),
            None => what,
        }
    }

    /// The lines about memory of which hint faults do not tell.
    fn unseen(&self) -> impl Iterator<Item = (String, String)> {
        self.unseen_files.iter().filter_map(unseen_line).chain(huge_line(self.unseen_huge_bytes))
    }

    /// The text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |value: String, what: &str| {
            let _ = writeln!(text, "{value:>16}  {what}");
        };
        let arrow = |pair: &BeforeAfter| format!("{} -> {}", percent(pair.before), percent(pair.after));
        let memory = &self.memory_in_use;
        let why = memory.unknown.as_ref().map_or(String::new(), |why| format!("; {why}"));
        if self.local_access_percent.before.or(self.local_access_percent.after).is_some() {
            let bytes = memory.bytes.map(|bytes| format!(" to {} in use", mebibytes(bytes / PAGE_BYTES)));
            let bytes = bytes.unwrap_or_default();
            let local = format!("local accesses{bytes}, as memory lay at first and as it lies now{why}");
            line(arrow(&self.local_access_percent), &local);
            line(arrow(&self.controller_imbalance_percent), "imbalance of the nodes that these go to");
        } else {
            line("unknown".to_owned(), &format!("local accesses and imbalance of the nodes{why}"));
        }
        for (value, what) in self.unseen().chain(self.counted.iter().flat_map(counted_lines)) {
            line(value, &what);
        }
        line(count(self.pages_moved), &format!("pages moved ({})", mebibytes(self.pages_moved)));
        line(
            count(self.pages_moved_by_kernel),
            "pages moved meanwhile by the kernel's balancing, machine-wide",
        );
        if self.totals.thread_moves > 0 {
            line(
                count(self.totals.thread_moves),
                "times that a thread had gone to another node (OMP_PROC_BIND=true and the like keep them)",
            );
        }
        line(count(self.actions.collocated), "decisions to collocate");
        line(count(self.actions.interleaved), "decisions to interleave");
        if self.actions.replication_candidate_pages > 0 {
            line(count(self.actions.replication_candidate_pages), &self.replication());
        }
        if self.falsely_shared_huge_pages > 0 {
            line(
                count(self.falsely_shared_huge_pages),
                "huge pages whose parts different nodes use (see the log)",
            );
        }
        for (pages, what) in [
            (self.actions.huge_pages_split, "huge pages split, to place their parts one by one"),
            (self.actions.huge_pages_collapsed, "huge pages made again, as one node uses all of each by now"),
        ] {
            if pages > 0 {
                line(count(pages), what);
            }
        }
        let o = &self.outcome;
        for (pages, what) in [
            (o.busy, "pages stayed: busy"),
            (o.node_full, "pages stayed: their node is full"),
            (o.vanished, "pages vanished before they could be moved"),
            (
                o.not_permitted,
                "pages stayed: not permitted (shared with other processes, or outside the cpuset)",
            ),
        ] {
            if pages > 0 {
                line(count(pages), what);
            }
        }
        let ms = |ns: u64| format!("{:.1} ms", ns as f64 / 1e6);
        if o.blocked_ns > 0 {
            line(
                ms(o.blocked_ns),
                &format!("in {} calls that move pages, the longest {}", o.calls, ms(o.longest_call_ns)),
            );
        }
        line(count(self.samples), &format!("samples by {} ({})", self.sampler, self.sampler_description));
        for (number, what) in [
            (self.samples_lost, "samples lost"),
            (self.totals.throttled, "times that the kernel paused sampling, for taking too much time"),
            (self.totals.aux_gaps, "stretches of samples with gaps"),
        ] {
            if number > 0 {
                line(count(number), what);
            }
        }
        let own = format!(
            "of a CPU used by nodewise ({:.2} s, after {:.2} s to start; {} files read of /proc and /sys, {} KiB, {})",
            self.own_cost.cpu_seconds,
            self.own_cost.startup_cpu_seconds,
            self.totals.read.files,
            self.totals.read.bytes / 1024,
            ms(self.totals.read.time_ns)
        );
        line(format!("{:.2}%", self.own_cost.cpu_percent), &own);
        for rule in &self.rules {
            let _ = writeln!(text, "{:>16}  {}", "rule", describe(rule));
        }
        let dry = if self.dry_run { ", dry run: nothing was moved" } else { "" };
        let _ = writeln!(
            text,
            "\n{:>16.3}  seconds managed by policy {}{dry}",
            self.elapsed_seconds, self.policy
        );
        text
    }
}

/// Files of which hint faults do not tell, if they are large.
fn unseen_line(files: &UnseenFiles) -> Option<(String, String)> {
    let NodeShare { node, percent } = files.most().filter(|_| files.bytes >= LARGE_BYTES)?;
    let remedy = if files.are_uneven { "; --interleave-files spreads them" } else { "" };
    let what = "of files that are only read: hint faults do not tell who uses them";
    let value = mebibytes(files.bytes / PAGE_BYTES);
    Some((value, format!("{what}; {percent:.0}% of them on node {node}{remedy}")))
}

/// Huge pages of which hint faults do not tell.
fn huge_line(bytes: u64) -> Option<(String, String)> {
    let what = "of huge pages by reservation: hint faults do not tell who uses them";
    (bytes >= LARGE_BYTES).then(|| (mebibytes(bytes / PAGE_BYTES), what.to_owned()))
}

/// The machine's own counts, as figures and their meaning.
fn counted_lines(counted: &Counted) -> [(String, String); 3] {
    let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
    [
        (
            percent(counted.local_access_percent),
            format!(
                "local DRAM accesses of all programs, as the machine counts them; {:.1} in a microsecond",
                counted.accesses_per_us
            ),
        ),
        (
            percent(counted.controller_imbalance_percent),
            format!(
                "imbalance of the controllers; one was busy for {:.0}% of the time, one link for {:.0}%",
                most(&counted.controller_use_percent),
                most(&counted.link_use_percent)
            ),
        ),
        (
            percent(counted.read_percent),
            format!("reads among them; {:.0} cycles of latency on average", counted.dram_latency_cycles),
        ),
    ]
}

/// How a rule stood at the end, by which figure, and from where on it acts.
fn describe(rule: &RuleStatus) -> String {
    let RuleStatus { name, provenance, threshold, .. } = rule;
    let state = if rule.enabled { "on" } else { "off" };
    let (unit, acts) = match name.as_str() {
        "enable" => (" DRAM accesses in a microsecond", format!("from {threshold:.1} on")),
        "collocate" => ("% local accesses", format!("below {threshold:.1}%")),
        "interleave" => ("% imbalance", format!("above {threshold:.1}%")),
        "replicate" => ("% reads", format!("from {threshold:.1}% on")),
        _ => ("", format!("by its threshold, {threshold:.1}")),
    };
    let figure = match (provenance, rule.value) {
        (Provenance::Off(why), _) => return format!("{name}: off, {why}"),
        (Provenance::Proxy(what), Some(value)) => format!("{value:.1} {what}"),
        (Provenance::Proxy(what), None) => return format!("{name}: {state} at the end; {what}"),
        (Provenance::Measured, value) => format!("{:.1}{unit}", value.unwrap_or_default()),
        (Provenance::Estimated, value) => {
            format!("{:.1}{unit}, estimated from samples", value.unwrap_or_default())
        }
    };
    let idle = rule.idle.as_ref().map_or(String::new(), |why| format!("; nothing is left to do: {why}"));
    format!("{name}: {state} at the end, with {figure}; it acts {acts}{idle}")
}

fn distinct_pages(ranges: &BTreeSet<(u32, u64, u64)>) -> u64 {
    let (mut pages, mut pid_before, mut end_before) = (0, None, 0);
    for &(pid, start, end) in ranges {
        if pid_before != Some(pid) {
            (pid_before, end_before) = (Some(pid), 0);
        }
        pages += end.saturating_sub(start.max(end_before));
        end_before = end_before.max(end);
    }
    pages
}

fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn percent(value: Option<f64>) -> String {
    value.map_or("unknown".to_owned(), |value| format!("{value:.1}%"))
}

fn mebibytes(pages: u64) -> String {
    format!("{:.1} MiB", pages as f64 / 256.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::PageRange;

    #[test]
    fn overlapping_candidates_count_once() {
        let ranges = BTreeSet::from([(1, 0, 10), (1, 5, 20), (1, 30, 31), (2, 0, 10)]);
        assert_eq!(distinct_pages(&ranges), 31);
    }

    /// A program may name other memory in each round, as long as it runs.
    #[test]
    fn candidates_are_a_sum_and_no_list() {
        let (rounds, _) = crate::manage::tests::recorded_rounds("hint-faults");
        let (some, _) = rounds.iter().find_map(|round| round.decisions.first()).unwrap();
        let mut round = Round { decisions: Vec::new(), ..rounds[0].clone() };
        let mut summary = Summary::new("carrefour", "hint-faults", String::new(), false);
        for at in 0_u64..200 {
            let range = |i| PageRange::new((at * 1022 + i) * 2, (at * 1022 + i) * 2 + 1);
            let candidate = |i| Decision { range: range(i), action: Action::Replicate, ..some.clone() };
            round.decisions = (0..1022_u64).map(|i| (candidate(i), Outcome::default())).collect();
            summary.add(&round);
        }
        assert_eq!(summary.actions.replication_candidate_pages, 200 * 1022);
    }

    #[test]
    fn scripts_and_people_are_told_the_same() {
        let (rounds, _) = crate::manage::tests::recorded_rounds("hint-faults");
        let mut summary = Summary::new("carrefour", "hint-faults", "page-faults".to_owned(), false);
        for round in &rounds {
            summary.add(round);
        }
        (summary.samples, summary.samples_lost) = (12_345, 678);
        (summary.totals.throttled, summary.totals.aux_gaps) = (9, 3);
        summary.totals.thread_moves = 4;
        let shares = [(0, 72.4), (3, 27.6)].map(|(node, percent)| NodeShare { node, percent }).to_vec();
        summary.unseen_huge_bytes = 64 << 20;
        summary.unseen_files = Some(UnseenFiles { bytes: 159 << 20, shares, are_uneven: true });
        summary.actions.replication_candidate_pages = 512;
        summary.set_placement(&BeforeAndAfter { before: Ok(figures(25.0)), after: Ok(figures(99.94)) });
        let json = serde_json::to_value(&summary).unwrap();
        let collocated = json["actions"]["collocated"].as_u64().unwrap();
        let interleaved = json["actions"]["interleaved"].as_u64().unwrap();
        assert!(collocated > 0 && interleaved > 0, "{json}");
        assert_eq!((&json["sampler"], &json["samples"]), (&"hint-faults".into(), &12_345.into()));
        assert_eq!((&json["samples_lost"], &json["totals"]["throttled"]), (&678.into(), &9.into()));
        assert_eq!(json["pages_moved"], json["outcome"]["moved"]);
        assert_eq!(json["unseen_files"]["shares"][1]["node"], 3);
        for figure in ["local_access_percent", "controller_imbalance_percent"] {
            for when in ["before", "after"] {
                assert!(json[figure][when].is_f64(), "{figure}, {when}: {json}");
            }
        }
        let text = summary.text();
        assert_eq!(json["memory_in_use"]["bytes"], 64 << 20);
        assert!(text.contains("  25.0% -> 99.9%  local accesses to 64.0 MiB in use, "), "{text}");
        for (value, what) in [
            (count(collocated), "decisions to collocate"),
            (count(interleaved), "decisions to interleave"),
            (count(summary.pages_moved), "pages moved ("),
            (count(512), "with no write seen (2.0 MiB); copies would make 99.5% of accesses local"),
            (count(12_345), "samples by hint-faults (page-faults)"),
            (count(678), "samples lost"),
            (count(9), "times that the kernel paused sampling"),
            (count(3), "stretches of samples with gaps"),
            (count(4), "times that a thread had gone to another node"),
            ("159.0 MiB".to_owned(), "; 72% of them on node 0; --interleave-files spreads them"),
            ("64.0 MiB".to_owned(), "of huge pages by reservation: hint faults do not tell"),
        ] {
            let line =
                text.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {text}"));
            assert!(line.trim_start().starts_with(&format!("{value} ")), "{value}: {line}");
        }
        for rule in &summary.rules {
            assert!(text.contains(&format!("{}: ", rule.name)), "{text}");
        }
    }

    fn figures(local: f64) -> placement::Figures {
        placement::Figures {
            local_access_percent: local,
            served_by: vec![0.5, 0.5],
            controller_imbalance_percent: Some(10.0),
            pages: Some(16_384),
            local_with_copies_percent: Some(99.5),
            ..placement::Figures::default()
        }
    }

    #[test]
    fn what_is_not_known_is_said_with_the_reason() {
        let mut summary = Summary::new("carrefour", "hint-faults", String::new(), false);
        let few = Err(Unknown::Samples(7));
        summary.set_placement(&BeforeAndAfter { before: few.clone(), after: few });
        let text = summary.text();
        assert!(text.contains("unknown  local accesses"), "{text}");
        assert!(text.contains("only 7 samples tell"), "{text}");
        summary.set_placement(&BeforeAndAfter { before: Err(Unknown::FirstHomes), after: Ok(figures(99.0)) });
        let text = summary.text();
        assert!(text.contains("unknown -> 99.0%  local accesses to 64.0 MiB"), "{text}");
        assert!(text.contains("lay at first was not seen"), "{text}");
    }

    #[test]
    fn the_time_to_start_is_not_held_against_the_time_managed() {
        let used = Usage {
            user_ns: 300_000_000,
            system_ns: 200_000_000,
            resident_max_bytes: 1,
            minor_faults: 0,
            major_faults: 0,
            voluntary_switches: 0,
            involuntary_switches: 0,
        };
        let cost = OwnCost::of(0.45, &used, 0.5);
        assert!((cost.cpu_seconds - 0.05).abs() < 1e-9 && (cost.cpu_percent - 10.0).abs() < 1e-6, "{cost:?}");
        assert!((cost.startup_cpu_seconds - 0.45).abs() < 1e-9, "{cost:?}");
    }

    /// Measured, estimated, replaced by a stated proxy, or off: the summary says which.
    #[test]
    fn how_a_rule_stands_is_said() {
        let said = |provenance, value| {
            describe(&RuleStatus {
                idle: None,
                name: "enable".to_owned(),
                provenance,
                value,
                threshold: 5.0,
                enabled: value.is_some(),
            })
        };
        assert_eq!(
            said(Provenance::Measured, Some(7.0)),
            "enable: on at the end, with 7.0 DRAM accesses in a microsecond; it acts from 5.0 on"
        );
        assert_eq!(
            said(Provenance::Estimated, Some(7.0)),
            "enable: on at the end, with 7.0 DRAM accesses in a microsecond, estimated from samples; it acts \
             from 5.0 on"
        );
        let faults = Provenance::Proxy("hint faults in a second".to_owned());
        assert_eq!(
            said(faults, Some(7.0)),
            "enable: on at the end, with 7.0 hint faults in a second; it acts from 5.0 on"
        );
        let unknown = Provenance::Proxy("reads are not told from writes".to_owned());
        assert_eq!(said(unknown, None), "enable: off at the end; reads are not told from writes");
        assert_eq!(said(Provenance::Off("no PMU".to_owned()), None), "enable: off, no PMU");
    }

    #[test]
    fn digits_come_in_groups() {
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1 000", "1 234 567"]);
    }
}
