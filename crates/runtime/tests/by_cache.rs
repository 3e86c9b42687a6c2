//! Pools whose workers are grouped by cache. They run on this machine, and on an invented one with two caches
//! on each of its two nodes. Workers of the invented one are not confined.

mod watchdog;

use nodewise_runtime::{Allowance, Allowed, Block, CpuSet, NodeId, NodePool, Topology};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

/// Nodes of four CPUs, each two of which share an L3.
fn allowance() -> Allowance {
    let tree = tempfile::tempdir().unwrap();
    let write = |file: String, content: &str| {
        let file = tree.path().join("sys/devices/system").join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    };
    write("cpu/online".into(), "0-7");
    for (node, cpus) in ["0-3", "4-7"].into_iter().enumerate() {
        write(format!("node/node{node}/cpulist"), cpus);
        write(format!("node/node{node}/distance"), ["10 20", "20 10"][node]);
        let meminfo = format!("Node {node} MemTotal: 1048576 kB\nNode {node} MemFree: 1048576 kB\n");
        write(format!("node/node{node}/meminfo"), &meminfo);
    }
    for cpu in 0..8 {
        for (index, level, cpus) in [(0, 1, cpu..=cpu), (3, 3, cpu / 2 * 2..=cpu / 2 * 2 + 1)] {
            let dir = format!("cpu/cpu{cpu}/cache/index{index}");
            write(format!("{dir}/level"), &format!("{level}"));
            write(format!("{dir}/type"), "Unified");
            write(format!("{dir}/shared_cpu_list"), &format!("{}-{}", cpus.start(), cpus.end()));
        }
    }
    let topology = Topology::from_root(tree.path()).unwrap();
    Allowance::new(&topology, &Allowed::everything(&topology), None)
}

fn machine() -> NodePool {
    NodePool::builder().allowance(allowance()).confined(false).by_cache(true).build().unwrap()
}

fn cpus(set: &CpuSet) -> Vec<u32> {
    set.iter().map(|cpu| cpu.0).collect()
}

#[test]
fn a_node_has_the_caches_that_its_cpus_share() {
    let all = allowance();
    let caches: Vec<_> = all.nodes().iter().flat_map(|node| &node.caches).map(cpus).collect();
    assert_eq!(caches, [[0, 1], [2, 3], [4, 5], [6, 7]]);
    let without = Topology::synthetic(1, 3, 1 << 30);
    let without = Allowance::new(&without, &Allowed::everything(&without), None);
    assert_eq!(cpus(&without.nodes()[0].caches[0]), [0, 1, 2]);
}

#[test]
fn workers_run_on_the_cpus_of_one_cache() {
    watchdog::start();
    let allowance = Allowance::of_this_thread().unwrap();
    let caches: Vec<_> = allowance.nodes().iter().flat_map(|node| &node.caches).map(cpus).collect();
    let pool = NodePool::builder().by_cache(true).build().unwrap();
    for node in pool.nodes() {
        for _ in 0..20 {
            let affinity = || nodewise_sys::sched_getaffinity(0).unwrap().iter().collect::<Vec<u32>>();
            let own = pool.spawn_on(node, affinity).unwrap().join();
            assert!(caches.contains(&own), "{own:?} of {caches:?}");
        }
    }
}

/// Each of the first node's four workers is kept busy. The first of either cache has spawned tasks. Then the
/// second of one is let go and does them all.
#[test]
fn a_worker_takes_from_its_cache_first() {
    const EACH: usize = 40;
    watchdog::start();
    let pool = &machine();
    for turn in 0..10 {
        // A worker of the second node, of those that `others` counts, would take from this one.
        let [here, have_spawned, others, over] = [(); 4].map(|()| AtomicUsize::new(0));
        // Whose tasks were done, one after the other.
        let (taken, count) = ([(); 2 * EACH].map(|()| AtomicUsize::new(0)), AtomicUsize::new(0));
        let free = turn % 2 * 2 + 1;
        pool.scope(|scope| {
            let (here, have_spawned, others, over) = (&here, &have_spawned, &others, &over);
            let (taken, count) = (&taken, &count);
            for _ in 0..4 {
                let is_over = |_: &_| {
                    others.fetch_add(1, Ordering::Relaxed);
                    wait_until(|| over.load(Ordering::Acquire) == 1);
                };
                scope.spawn_on(NodeId(1), is_over).unwrap();
                let kept_busy = scope.spawn_on(NodeId(0), move |scope| {
                    let index = pool.worker_index().unwrap();
                    here.fetch_add(1, Ordering::Relaxed);
                    wait_until(|| here.load(Ordering::Relaxed) == 4 && others.load(Ordering::Relaxed) == 4);
                    if index % 2 == 0 {
                        (0..EACH).for_each(|_| {
                            scope.spawn(move |_| {
                                taken[count.fetch_add(1, Ordering::AcqRel)].store(index, Ordering::Relaxed);
                            });
                        });
                        have_spawned.fetch_add(1, Ordering::Release);
                    } else if index == free {
                        wait_until(|| have_spawned.load(Ordering::Acquire) == 2);
                        return;
                    }
                    wait_until(|| count.load(Ordering::Acquire) == 2 * EACH);
                    over.store(1, Ordering::Release);
                });
                kept_busy.unwrap();
            }
        });
        let taken = taken.map(AtomicUsize::into_inner);
        assert_eq!(taken[..], [[free - 1; EACH], [3 - free; EACH]].concat(), "by worker {free}");
    }
}

/// As where they are not: tasks and blocks of a node go to all of its workers, whichever cache is theirs.
#[test]
fn all_else_goes_by_node() {
    watchdog::start();
    let pool = machine();
    assert_eq!(pool.nodes().map(|node| node.0).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(pool.statistics().iter().map(|node| node.workers).collect::<Vec<_>>(), [4, 4]);
    for node in pool.nodes() {
        let here = AtomicUsize::new(0);
        let all_four = || {
            assert_eq!(pool.worker_node(), Some(node));
            here.fetch_add(1, Ordering::Relaxed);
            wait_until(|| here.load(Ordering::Relaxed) >= 4);
        };
        pool.scope(|scope| {
            for _ in 0..4 {
                scope.spawn_on(node, |_| all_four()).unwrap();
            }
        });
        here.store(0, Ordering::Relaxed);
        pool.for_each_block([Block { node, elements: 0..1000 }], |_| all_four());
    }
    let sum = pool.parallel_reduce(0..10_000, || 0, |sum, i| sum + i, |a, b| a + b);
    assert_eq!(sum, 9999 * 5000);
    let few = NodePool::builder().allowance(allowance()).confined(false).by_cache(true).workers(3);
    let few = few.build().unwrap();
    assert_eq!(few.statistics().iter().map(|node| node.workers).sum::<usize>(), 3);
    assert_eq!(few.spawn_on(NodeId(1), || 7).unwrap().join(), 7);
}
