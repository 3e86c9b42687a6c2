//! Programs whose memory was touched on one node and is used on another (or on all), most of them written by
//! nobody here: how long until their memory has followed, by the kernel's balancing alone and under Nodewise.

use crate::report::Placement;
use crate::scenario::{Finished, Place, Programs};
use crate::table;
use anyhow::Context as _;
use nodewise_rig::Guest;
use serde::{Deserialize, Serialize};

/// Where a program's anonymous pages were at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Since the program was told to run elsewhere, in seconds; the first moment is the one before.
    pub seconds: f64,
    /// The share of its own resident anonymous pages that are on the node that uses them, in percent; the
    /// worst process's (or thread's), if there are several.
    pub local_percent: f64,
    /// Resident anonymous pages.
    pub pages: u64,
    /// Kernel CPU time that the program has used since, in seconds: what faults and the kernel's balancing
    /// cost it.
    pub system_seconds: f64,
}

/// One program, placed by one placer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Followed {
    /// Which program.
    pub program: String,
    /// `kernel` (its balancing alone) or `nodewise`.
    pub placer: String,
    /// When the share first was 95 % or more.
    pub seconds_to_95: Option<f64>,
    /// Every moment looked at.
    pub moments: Vec<Moment>,
    /// The local accesses that the summary of Nodewise gives, before and after, in percent.
    pub said: Option<[Option<f64>; 2]>,
    /// CPU time of Nodewise itself, user and kernel.
    pub nodewise_cpu_seconds: Option<f64>,
    /// The decision log, one JSON value a line.
    #[serde(skip)]
    pub log: String,
}

impl Followed {
    /// The share at the end.
    #[must_use]
    pub fn last_percent(&self) -> f64 {
        self.moments.last().map_or(0.0, |moment| moment.local_percent)
    }

    fn of(
        finished: &Finished,
        program: &str,
        placer: &str,
        moments: impl Fn(&str) -> anyhow::Result<Vec<Moment>>,
    ) -> anyhow::Result<Self> {
        let moments = moments(&format!("{placer}.moments"))?;
        let reached = moments.iter().find(|moment| moment.local_percent >= 95.0);
        let summary = (placer == "nodewise").then(|| finished.json("json")).transpose()?;
        Ok(Self {
            program: program.to_owned(),
            placer: placer.to_owned(),
            seconds_to_95: reached.map(|moment| moment.seconds),
            said: summary.as_ref().map(|json| {
                let local = &json["local_access_percent"];
                [local["before"].as_f64(), local["after"].as_f64()]
            }),
            nodewise_cpu_seconds: summary.and_then(|json| json["own_cost"]["cpu_seconds"].as_f64()),
            log: finished.files.get("log").cloned().unwrap_or_default(),
            moments,
        })
    }
}

/// Mappings of which other processes map pages, too, as after a fork, do not count: these pages are not one
/// node's, and neither the kernel's balancing (`change_pte_range`, `mm/mprotect.c`) nor Nodewise moves them.
///
/// `from_here FILE "PID NODE"...` looks once, before the processes are told to run elsewhere, and starts the
/// clock; `watch_pages FILE SECONDS "PID NODE"...` looks twice a second then, until 95 % have been local for
/// some time or the time is over.
const FUNCTIONS: &str = r#"
within() { tenths=$(($1 * 10)); shift; until "$@"; do
    tenths=$((tenths - 1)); [ $tenths -gt 0 ] || { echo "in vain: $*" >&2; return 1; }; sleep 0.1; done; }
now() { cut -d' ' -f1 /proc/uptime; }
moment() {
    began=$1; used=$2; shift 2
    for process; do
        set -- $process
        awk -v node=$2 '/ anon=/ && !/ mapmax=/ { for (i = 3; i <= NF; i++) if ($i ~ /^N[0-9]+=/) {
            split($i, n, "="); all += n[2]; if (n[1] == "N" node) here += n[2] } } END { print all + 0, here + 0 }' /proc/$1/numa_maps
    done | awk -v seconds=$(now) -v began=$began -v used=$used '{ all += $1; p = $1 ? 100 * $2 / $1 : 0; if (NR == 1 || p < least) least = p }
        END { printf "{\"seconds\":%.2f,\"local_percent\":%.2f,\"pages\":%d,\"system_seconds\":%.2f}\n", seconds - began, least, all, used / 100 }'
}
ticks() { sum=0; for process; do set -- $process; sum=$((sum + $(cut -d' ' -f15 /proc/$1/stat))); done; echo $sum; }
from_here() {
    file=$1; shift
    moment $(now) 0 "$@" >$file
    start=$(now); before=$(ticks "$@")
}
watch_pages() {
    file=$1; limit=$2; shift 2; whole=0
    while [ $whole -lt 6 ]; do
        moment $start $(($(ticks "$@") - before)) "$@" >>$file
        tail -n 1 $file | grep -q -e '"local_percent":100' -e '"local_percent":9[5-9]' && whole=$((whole + 1))
        awk -v start=$start -v now=$(now) -v limit=$limit 'BEGIN { exit now - start < limit }' && break
        sleep 0.5
    done
}
nodewise() { $NODEWISE attach $1 --json json --log log 2>err & nodewise=$!; }
figures_are_known() { grep '"event":"placement"' log | tail -n 1 | grep -q -v '"local_access_percent":null'; }
end_nodewise() { kill $nodewise; wait $nodewise || cat err >&2; }
"#;

/// redis-server, loaded with some 70 MB on node 0, then bound to node 3's CPU and read at random by
/// redis-benchmark.
const REDIS: &str = r#"
measure() {
    placer=$1
    taskset 1 redis-server --save '' --appendonly no --port 6379 --logfile /dev/null & redis=$!
    ready() { redis-cli ping 2>/dev/null | grep -q PONG; }
    within 60 ready
    redis-cli eval "for i = 0, 59999 do redis.call('set', string.format('key:%012d', i), string.rep('x', 1000)) end" 0 >/dev/null
    from_here $placer.moments "$redis 3"
    taskset -ap 8 $redis >/dev/null
    taskset 6 redis-benchmark -q -t get -r 60000 -n 100000000 -c 8 -P 16 >/dev/null 2>&1 & load=$!
    [ $placer = nodewise ] && nodewise $redis
    watch_pages $placer.moments 60 "$redis 3"
    [ $placer = nodewise ] && { within 60 figures_are_known; end_nodewise; }
    kill $load $redis; wait $load $redis
}
"#;

/// stress-ng's memory stressor: four workers that filled their memory on node 0, then one bound to each node.
const STRESS: &str = r#"
workers() { # those with memory, by process id
    for pid in $(pidof stress-ng-vm); do
        awk -v pid=$pid '$2 > 6000 { print pid }' /proc/$pid/statm
    done | sort -n
}
all_full() { [ $(workers | wc -l) = 4 ]; }
measure() {
    placer=$1
    taskset 1 stress-ng --vm 4 --vm-bytes 128m --vm-keep --vm-method write64 --timeout 600 >stress.out 2>&1 & stress=$!
    within 120 all_full || cat stress.out >&2
    sleep 2
    set --
    for pid in $(workers); do set -- "$@" "$pid $#"; done
    from_here $placer.moments "$@"
    for worker; do taskset -p $(printf %x $((1 << ${worker#* }))) ${worker% *} >/dev/null; done
    [ $placer = nodewise ] && nodewise $stress
    watch_pages $placer.moments 60 "$@"
    [ $placer = nodewise ] && end_nodewise
    kill $stress; wait $stress
}
"#;

/// The program of this crate, whose first thread touched everything and whose four threads each use a
/// quarter.
const PRIVATE: &str = "
program=\"private $options --mebibytes 64 --seconds 30\"
$WORKLOAD $program --report kernel.moments
$NODEWISE run --json json --log log -- $WORKLOAD $program --report nodewise.moments 2>err || cat err >&2
";

/// The placers: the kernel's balancing alone, and with it Nodewise.
pub const PLACERS: [&str; 2] = ["kernel", "nodewise"];

fn run(programs: &Programs, script: &str, needs: &[&str]) -> anyhow::Result<Finished> {
    let mut guest = Guest::uniform(4, 1, 512 << 20).copy("/usr/bin/taskset");
    for name in needs {
        guest = guest.copy(format!("/usr/bin/{name}"));
    }
    let script = format!("{FUNCTIONS}{script}");
    Place::guest(guest).run(programs, &script, &["kernel.moments", "nodewise.moments", "json", "log"])
}

/// `script` has a function `measure PLACER`.
fn follow(
    programs: &Programs,
    placers: &[&str],
    program: &str,
    script: &str,
    needs: &[&str],
) -> anyhow::Result<Vec<Followed>> {
    let placed = placers.join(" ");
    let finished =
        run(programs, &format!("{script}for each in {placed}; do measure $each; done; true"), needs)?;
    let each = placers.iter().map(|placer| {
        Followed::of(&finished, program, placer, |file| finished.lines(file))
            .with_context(|| format!("{program}, {placer}: {}", finished.stderr))
    });
    each.collect()
}

/// 64 MiB that one thread touched and four use, by the kernel's balancing, then under Nodewise; bound to the
/// first thread's node or not. Bound, the kernel moves none of it. Kernel CPU time is counted from the
/// program's start.
pub fn private(programs: &Programs, bound: bool) -> anyhow::Result<Vec<Followed>> {
    let options = if bound { "--bound" } else { "" };
    let finished = run(programs, &format!("options={options}\n{PRIVATE}"), &[])?;
    let program = format!("workload private {options}");
    let moment = |p: Placement| Moment {
        seconds: p.seconds,
        local_percent: p.local_percent_min,
        pages: p.pages_by_node.iter().sum(),
        system_seconds: p.system_seconds,
    };
    let moments = |file: &str| Ok(finished.placements(file)?.into_iter().map(moment).collect());
    let each = PLACERS.map(|placer| {
        Followed::of(&finished, program.trim_end(), placer, moments)
            .with_context(|| format!("{program}, {placer}: {}", finished.stderr))
    });
    each.into_iter().collect()
}

/// redis-server loaded on node 0 follows to node 3, by each of these placers in turn.
pub fn redis(programs: &Programs, placers: &[&str]) -> anyhow::Result<Vec<Followed>> {
    follow(programs, placers, "redis-server", REDIS, &["redis-server", "redis-cli", "redis-benchmark"])
}

/// stress-ng's four memory workers, loaded on node 0, follow to their nodes, by each of these placers in
/// turn.
pub fn stress_ng(programs: &Programs, placers: &[&str]) -> anyhow::Result<Vec<Followed>> {
    follow(programs, placers, "stress-ng --vm 4", STRESS, &["stress-ng"])
}

/// The table that people read.
#[must_use]
pub fn table(followed: &[Followed]) -> String {
    let header = [
        "program",
        "placed by",
        "s to 95 %",
        "% at the end",
        "kernel CPU s of the program",
        "nodewise CPU s",
    ];
    let row = |f: &Followed| {
        let seconds = |value: Option<f64>| value.map_or("-".to_owned(), |s| format!("{s:.1}"));
        let system = f.moments.last().map(|moment| moment.system_seconds);
        [
            f.program.clone(),
            f.placer.clone(),
            seconds(f.seconds_to_95),
            format!("{:.1}", f.last_percent()),
            seconds(system),
            seconds(f.nodewise_cpu_seconds),
        ]
    };
    table::markdown(header, followed.iter().map(row))
}
