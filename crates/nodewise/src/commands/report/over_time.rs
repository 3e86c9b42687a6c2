//! The article's metrics, from interval to interval.

use super::super::latencies::is_far_somewhere;
use nodewise_engine::{Measure, Observation, imbalance_percent};
use serde::Serialize;
use std::fmt::Write as _;

/// Fewer samples than this in an interval tell no share.
const LEAST_SAMPLES: u32 = 20;
/// The size of a chart, and the place for its scale.
const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 90.0;
const LEFT: f64 = 48.0;
const BOTTOM: f64 = 16.0;
/// A line has some width.
const TOP: f64 = 2.0;
/// A chart has no more points than this: each stands for as many intervals.
const POINTS: usize = 300;

/// The metrics of one interval; none where that is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Moment {
    /// Its end, in seconds of the recording.
    pub seconds: f64,
    pub local_access_percent: Option<f64>,
    pub controller_imbalance_percent: Option<f64>,
    pub accesses_per_us: Option<f64>,
    pub read_percent: Option<f64>,
    pub dram_latency_cycles: Option<f64>,
    pub instructions_per_cycle: Option<f64>,
    pub cache_misses_per_kinstruction: Option<f64>,
    /// Whether the first two are the machine's counts, and not shares of the samples.
    pub counted: bool,
}

impl Moment {
    pub fn of(seen: &Observation, began_ns: u64, balanced: &[bool]) -> Self {
        let nodes = balanced.len();
        let counters = &seen.counters;
        let measured = |measure: &Measure<f64>| match measure {
            Measure::Measured(value) => Some(*value).filter(|value| value.is_finite()),
            _ => None,
        };
        let ratio = |part: Option<f64>, of: Option<f64>| Some(part? / of.filter(|&of| of > 0.0)?);
        let (cycles, instructions) = (measured(&counters.cycles), measured(&counters.instructions));
        let mut moment = Self {
            seconds: seen.end_ns.saturating_sub(began_ns) as f64 / 1e9,
            read_percent: measured(&counters.read_percent),
            accesses_per_us: measured(&counters.access_rate),
            instructions_per_cycle: ratio(instructions, cycles),
            cache_misses_per_kinstruction: ratio(measured(&counters.cache_misses), instructions)
                .map(|share| 1000.0 * share),
            ..Self::default()
        };
        let loads = if let Measure::Measured(traffic) = &counters.traffic {
            moment.counted = true;
            moment.local_access_percent = traffic.local_access_percent();
            if let Measure::Measured(latencies) = &counters.latency_cycles {
                let loads = traffic.controller_loads();
                let sum: f64 = loads.iter().zip(latencies).map(|(load, latency)| load * latency).sum();
                moment.dram_latency_cycles = ratio(Some(sum), Some(loads.iter().sum()));
            }
            traffic.controller_loads()
        } else {
            let (mut samples, mut near, mut loads, mut elsewhere) = (0, 0.0, vec![0.0; nodes], 0.0);
            for sample in seen.samples.iter().filter(|sample| sample.source.is_of_memory()) {
                if is_far_somewhere(sample) {
                    samples += 1;
                    elsewhere += f64::from(sample.weight);
                }
                let Some(home) = sample.home.filter(|home| home.get() < nodes) else { continue };
                samples += 1;
                loads[home.get()] += f64::from(sample.weight);
                near += if home == sample.accessor { f64::from(sample.weight) } else { 0.0 };
            }
            if samples < LEAST_SAMPLES {
                return moment;
            }
            moment.local_access_percent = Some(100.0 * near / (loads.iter().sum::<f64>() + elsewhere));
            if elsewhere > 0.0 {
                return moment;
            }
            loads
        };
        moment.controller_imbalance_percent = imbalance_percent(&loads, balanced);
        moment
    }
}

type Metric = fn(&Moment) -> Option<f64>;

/// The charts, as part of a page.
pub fn html(out: &mut String, moments: &[Moment], samples_are: &str) {
    let counted = moments.iter().all(|moment| moment.counted);
    let shares = if counted { "of all accesses to memory, as the machine counts them" } else { samples_are };
    let charts: [(&str, &str, Metric); 7] = [
        ("local accesses, %", shares, |moment| moment.local_access_percent),
        ("imbalance of the controllers, %", shares, |moment| moment.controller_imbalance_percent),
        ("accesses to memory in a microsecond", "counted, of the machine", |moment| moment.accesses_per_us),
        ("reads, %", "counted, of the machine", |moment| moment.read_percent),
        ("latency of memory, cycles", "counted, with all waiting", |moment| moment.dram_latency_cycles),
        ("instructions a cycle", "counted, of CPUs that run", |moment| moment.instructions_per_cycle),
        ("LLC misses of 1000 instructions", "counted, of the machine", |moment| {
            moment.cache_misses_per_kinstruction
        }),
    ];
    let drawn = charts.into_iter().filter(|(.., of)| moments.iter().filter_map(of).count() > 1);
    let drawn: Vec<_> = drawn.collect();
    if drawn.is_empty() {
        return;
    }
    out.push_str("<h2>Over time</h2>\n<div class=\"charts\">\n");
    for (title, what, of) in drawn {
        chart(out, title, what, moments, of);
    }
    out.push_str("</div>\n");
}

fn chart(out: &mut String, title: &str, what: &str, moments: &[Moment], of: Metric) {
    let most = moments.iter().filter_map(of).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let length = moments.last().map_or(1.0, |moment| moment.seconds.max(1e-9));
    let _ = write!(
        out,
        "<figure>\n<figcaption><strong>{title}</strong><br>{what}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}, over time\">\n\
         <text x=\"{x}\" y=\"10\" text-anchor=\"end\">{}</text>\
         <text x=\"{x}\" y=\"{bottom}\" text-anchor=\"end\">0</text>\
         <text x=\"{LEFT}\" y=\"{HEIGHT}\" dy=\"-2\">0 s</text>\
         <text x=\"{WIDTH}\" y=\"{HEIGHT}\" dy=\"-2\" text-anchor=\"end\">{length:.1} s</text>\n\
         <path class=\"axis\" d=\"M{LEFT} 0V{bottom}H{WIDTH}\"/>\n",
        short(most),
        x = LEFT - 4.0,
        bottom = HEIGHT - BOTTOM
    );
    let mut path = String::new();
    let mut goes_on = false;
    for part in moments.chunks(moments.len().div_ceil(POINTS)) {
        let known: Vec<f64> = part.iter().filter_map(of).collect();
        let end = part.last().map_or(0.0, |moment| moment.seconds);
        if known.is_empty() {
            goes_on = false;
            continue;
        }
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        let x = LEFT + (WIDTH - LEFT) * end / length;
        let y = TOP + (HEIGHT - BOTTOM - TOP) * (1.0 - mean / most);
        let _ = write!(path, "{}{x:.1} {y:.1}", if goes_on { 'L' } else { 'M' });
        goes_on = true;
    }
    let _ = writeln!(out, "<path class=\"line\" d=\"{path}\"/>\n</svg>\n</figure>");
}

/// A figure of three digits or all before the point.
fn short(value: f64) -> String {
    let before_point = value.abs().log10().floor().max(0.0) as usize + 1;
    format!("{value:.*}", 3_usize.saturating_sub(before_point))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::{Counters, TrafficMatrix};
    use nodewise_topology::NodeIndex;

    #[test]
    fn an_intervals_metrics_are_those_that_were_counted() {
        let mut traffic = TrafficMatrix::new(2);
        traffic.add(NodeIndex(0), NodeIndex(0), 300.0);
        traffic.add(NodeIndex(1), NodeIndex(0), 100.0);
        let counters = Counters {
            traffic: Measure::Measured(traffic),
            latency_cycles: Measure::Measured(vec![250.0, 0.0]),
            cycles: Measure::Measured(2000.0),
            instructions: Measure::Measured(1000.0),
            cache_misses: Measure::Measured(4.0),
            ..Counters::unknown(Vec::new(), Vec::new())
        };
        let mut seen = Observation {
            end_ns: 3_500_000_000,
            duration_ns: 1_000_000_000,
            counters,
            samples: Vec::new(),
            samples_lost: 0,
            processes: Vec::new(),
        };
        let moment = Moment::of(&seen, 500_000_000, &[true; 2]);
        let expected = Moment {
            seconds: 3.0,
            local_access_percent: Some(75.0),
            controller_imbalance_percent: moment.controller_imbalance_percent,
            dram_latency_cycles: Some(250.0),
            instructions_per_cycle: Some(0.5),
            cache_misses_per_kinstruction: Some(4.0),
            counted: true,
            ..Moment::default()
        };
        assert_eq!(moment, expected);
        assert!((moment.controller_imbalance_percent.unwrap() - 141.4).abs() < 0.1);
        // Nothing was counted, and too little sampled.
        seen.counters = Counters::unknown(Vec::new(), Vec::new());
        assert_eq!(Moment::of(&seen, 500_000_000, &[true; 2]), Moment { seconds: 3.0, ..Moment::default() });
    }

    #[test]
    fn what_is_not_known_has_no_chart() {
        let moment = |seconds, local| Moment { seconds, local_access_percent: local, ..Moment::default() };
        let moments = [moment(1.0, Some(50.0)), moment(2.0, None), moment(3.0, Some(100.0))];
        let mut out = String::new();
        html(&mut out, &moments, "samples");
        assert_eq!(out.matches("<svg").count(), 1);
        assert!(out.contains("M138.7 38.0M320.0 2.0"), "{out}");
        out.clear();
        html(&mut out, &[moment(1.0, None), moment(2.0, None)], "samples");
        assert_eq!(out, "");
    }
}
