use super::*;
use crate::{Counters, Metrics, TrafficMatrix};
use nodewise_topology::Topology;

#[test]
fn what_few_cpus_access_all_the_time_is_enough() {
    let topology = Topology::synthetic(2, 1, 1 << 30);
    // In a second, at 2.7 GHz.
    let enabled = |accesses_per_us: f64, cpus: f64| {
        let mut traffic = TrafficMatrix::new(2);
        traffic.add(NodeIndex(0), NodeIndex(1), accesses_per_us * 1e6);
        let counters = Counters {
            traffic: Measure::Measured(traffic),
            access_rate: Measure::Measured(accesses_per_us),
            cycles: Measure::Measured(cpus * 2.7e9),
            ..Counters::unknown(vec![1 << 29; 2], vec![1 << 30; 2])
        };
        let metrics = crate::metrics::metrics(&topology, &counters, std::iter::empty(), &[true, true]);
        let mut policy = Carrefour::new(CarrefourSettings::default());
        policy.judge(&View {
            topology: &topology,
            counters: &counters,
            metrics: &metrics,
            processes: Vec::new(),
            put_off: false,
            replicates: false,
            splits: false,
            round: 0,
            seed: 1,
        });
        policy.enabled
    };
    assert!(enabled(7.0, 1.0), "one thread that always waits");
    assert!(enabled(25.0, 4.0));
    assert!(!enabled(2.0, 1.0), "one that seldom does");
    assert!(!enabled(7.0, 16.0));
    assert!(enabled(51.0, 64.0), "the article's rule");
    assert!(!enabled(49.0, 64.0));
    assert!(!enabled(0.0, 0.0), "nobody runs");
}

#[test]
fn what_was_put_off_keeps_collocation_on() {
    let topology = Topology::synthetic(2, 1, 1 << 30);
    let counters = Counters::unknown(vec![1 << 29; 2], vec![1 << 30; 2]);
    let enabled = |rate, local, put_off_then| {
        let mut policy = Carrefour::new(CarrefourSettings::default());
        let mut decide = |rate, local, put_off| {
            let metrics = Metrics {
                access_rate: Measure::Proxy(rate),
                local_access_percent: local,
                ..crate::metrics::metrics(&topology, &counters, std::iter::empty(), &[true, true])
            };
            let (topology, counters, metrics) = (&topology, &counters, &metrics);
            let (processes, replicates, splits, round, seed) = (Vec::new(), false, false, 0, 1);
            let view =
                View { topology, counters, metrics, processes, put_off, replicates, splits, round, seed };
            policy.decide(&view);
            policy.rules().iter().find(|rule| rule.name == "collocate").is_some_and(|rule| rule.enabled)
        };
        assert!(decide(1e6, Measure::Estimated(50.0), false), "on at first");
        decide(rate, local, put_off_then)
    };
    for (rate, local) in
        [(0.0, Measure::Estimated(50.0)), (1e6, Measure::Estimated(99.9)), (1e6, Measure::Unknown)]
    {
        assert!(!enabled(rate, local.clone(), false), "{rate} {local:?}");
        assert!(enabled(rate, local.clone(), true), "{rate} {local:?}");
    }
}
