//! Controllers and links: what lies between the caches and the memories.

use crate::{Counters, Preset, banks::Banks, queue::Queue};
use std::ops::Range;

/// The queues of a machine, and the ways through them.
#[derive(Clone, Debug)]
pub(crate) struct Fabric {
    nodes: usize,
    line_bytes: u64,
    controllers: Vec<Controller>,
    links: Vec<Link>,
    /// `[from * nodes + to]`: the links in between, and their latencies' sum.
    routes: Vec<(Vec<usize>, u64)>,
    probe_bytes: u64,
    /// The link whose turn it is to carry a miss's probes.
    probed: usize,
    /// Whether messages without data take bandwidth.
    messages: bool,
}

/// The controller of a node's memory.
#[derive(Clone, Debug)]
struct Controller {
    idle_ps: u64,
    /// Its time for a line that is read, and for one that is written.
    read_ps: u64,
    write_ps: u64,
    queue: Queue,
    banks: Banks,
    /// Lines that it has written.
    written: u64,
}

impl Controller {
    fn new(preset: &crate::Controller) -> Self {
        Self {
            idle_ps: ps(preset.idle_latency_ns),
            read_ps: ps(preset.service_ns).max(1),
            write_ps: ps(preset.write_service_ns.unwrap_or(preset.service_ns)).max(1),
            queue: Queue::default(),
            banks: Banks::new(preset),
            written: 0,
        }
    }
}

#[derive(Clone, Debug)]
struct Link {
    queue: Queue,
    /// The link's time for a line.
    service_ps: u64,
    /// The link's time for a miss's probes.
    probe_ps: u64,
    probes: u64,
    /// The link's time for a message without data.
    message_ps: u64,
    message_bytes: u64,
    messages: u64,
    hop_ps: u64,
}

pub(crate) fn ps(ns: f64) -> u64 {
    (ns * 1000.0).round() as u64
}

impl Fabric {
    pub fn new(preset: &Preset) -> Self {
        let links: Vec<_> = preset
            .links
            .iter()
            .map(|link| Link {
                queue: Queue::default(),
                service_ps: ps(preset.line_bytes as f64 / link.gb_per_s).max(1),
                probe_ps: ps(preset.controller.probe_bytes as f64 / link.gb_per_s),
                probes: 0,
                message_ps: ps(link.message_bytes as f64 / link.gb_per_s),
                message_bytes: link.message_bytes,
                messages: 0,
                hop_ps: ps(link.hop_latency_ns),
            })
            .collect();
        let routes = preset
            .routes
            .iter()
            .flatten()
            .map(|route| (route.clone(), route.iter().map(|&link| links[link].hop_ps).sum()))
            .collect();
        Self {
            nodes: preset.nodes.len(),
            line_bytes: preset.line_bytes,
            controllers: (0..preset.nodes.len())
                .map(|node| Controller::new(preset.controller_of(node)))
                .collect(),
            messages: preset.links.iter().any(|link| link.message_bytes > 0),
            links,
            routes,
            probe_bytes: preset.controller.probe_bytes,
            probed: 0,
        }
    }

    /// Requests may be told of so much later than others after them.
    pub fn allow(&mut self, run_ahead_ps: u64) {
        for controller in &mut self.controllers {
            controller.queue.allow(run_ahead_ps);
            controller.banks.allow(run_ahead_ps);
        }
        self.links.iter_mut().for_each(|link| link.queue.allow(run_ahead_ps));
    }

    /// Links between two nodes.
    #[inline]
    pub fn hops(&self, from: usize, to: usize) -> usize {
        self.routes[from * self.nodes + to].0.len()
    }

    /// From a node's miss to its data, from its own memory when nothing else goes on.
    #[inline]
    pub fn idle_ps(&self, node: usize) -> u64 {
        self.controllers[node].idle_ps
    }

    /// How long a message without data takes: it does not wait, being small and first in line.
    #[inline]
    pub fn way_ps(&self, from: usize, to: usize) -> u64 {
        self.routes[from * self.nodes + to].1
    }

    /// When messages without data that leave a node at `at_ps` are at another: they do not wait, but data
    /// wait behind them.
    #[inline]
    pub fn send(
        &mut self,
        now_ps: u64,
        at_ps: u64,
        from: usize,
        to: usize,
        messages: u64,
        counters: &mut Counters,
    ) -> u64 {
        if self.messages {
            for &index in &self.routes[from * self.nodes + to].0 {
                let link = &mut self.links[index];
                if link.message_bytes == 0 {
                    continue;
                }
                let load = &mut counters.links[index];
                load.bytes += messages * link.message_bytes;
                link.messages += messages;
                link.queue.serve(now_ps, at_ps, messages * link.message_ps, load);
            }
        }
        at_ps + self.way_ps(from, to)
    }

    /// When lines that leave a node at `at_ps` are at another.
    pub fn carry(
        &mut self,
        now_ps: u64,
        at_ps: u64,
        from: usize,
        to: usize,
        lines: u64,
        counters: &mut Counters,
    ) -> u64 {
        let mut at_ps = at_ps;
        for &index in &self.routes[from * self.nodes + to].0 {
            let link = &mut self.links[index];
            let load = &mut counters.links[index];
            load.bytes += lines * self.line_bytes;
            let service_ps = lines * link.service_ps;
            // Cut-through: a line is passed on while it comes in; its own length is within the idle latency.
            at_ps = link.queue.serve(now_ps, at_ps, service_ps, load) - link.service_ps + link.hop_ps;
        }
        at_ps
    }

    /// Puts the probes of a miss on a link, on each in turn: they go everywhere and nobody waits for them,
    /// but data wait behind them.
    #[inline]
    pub fn probe(&mut self, at_ps: u64, counters: &mut Counters) {
        if self.probe_bytes == 0 || self.links.is_empty() {
            return;
        }
        self.probed = (self.probed + 1) % self.links.len();
        let link = &mut self.links[self.probed];
        let load = &mut counters.links[self.probed];
        load.bytes += self.probe_bytes;
        link.probes += 1;
        link.queue.serve(at_ps, at_ps, link.probe_ps, load);
    }

    /// When a controller that is asked at `at_ps` for lines begins with the last of them, and its bank with
    /// it. The line's own time on the way is not in it.
    #[inline]
    fn ask(
        &mut self,
        now_ps: u64,
        at_ps: u64,
        node: usize,
        lines: Range<u64>,
        line_ps: u64,
        counters: &mut Counters,
    ) -> u64 {
        let load = &mut counters.controllers[node];
        let count = lines.end - lines.start;
        load.bytes += count * self.line_bytes;
        let controller = &mut self.controllers[node];
        let turn_ps = controller.queue.serve(now_ps, at_ps, count * line_ps, load) - line_ps;
        // While a line waits for its bank the controller serves others.
        let banks = &mut controller.banks;
        let free_ps = lines.fold(turn_ps, |free_ps, line| free_ps.max(banks.free_for(line, now_ps, at_ps)));
        load.wait_ps += free_ps - turn_ps;
        free_ps
    }

    /// When lines that a node asks for at `at_ps` are there, from the memory of `home`. They are given by
    /// their numbers.
    #[inline]
    pub fn fetch(
        &mut self,
        now_ps: u64,
        at_ps: u64,
        node: usize,
        home: usize,
        lines: Range<u64>,
        counters: &mut Counters,
    ) -> u64 {
        let count = lines.end - lines.start;
        let Controller { idle_ps, read_ps, .. } = self.controllers[home];
        if node == home {
            return self.ask(now_ps, at_ps, home, lines, read_ps, counters) + idle_ps;
        }
        let asked_ps = self.send(now_ps, at_ps, node, home, count, counters);
        let given_ps = self.ask(now_ps, asked_ps, home, lines, read_ps, counters) + idle_ps;
        self.carry(now_ps, given_ps, home, node, count, counters)
    }

    /// Sends lines from a node to the memory of `home`, which confirms each; returns when it has taken them.
    #[inline]
    pub fn store(
        &mut self,
        now_ps: u64,
        at_ps: u64,
        node: usize,
        home: usize,
        lines: Range<u64>,
        counters: &mut Counters,
    ) -> u64 {
        let count = lines.end - lines.start;
        let there_ps = self.carry(now_ps, at_ps, node, home, count, counters);
        self.send(now_ps, there_ps, home, node, count, counters);
        let controller = &mut self.controllers[home];
        controller.written += count;
        let write_ps = controller.write_ps;
        self.ask(now_ps, there_ps, home, lines, write_ps, counters) + write_ps
    }

    /// Whatever moved a line was busy with it for its service time, and no controller for longer than it has
    /// promised to be.
    pub fn assert_sound(&self, counters: &Counters) {
        for (node, (controller, load)) in self.controllers.iter().zip(&counters.controllers).enumerate() {
            let Controller { read_ps, write_ps, written, .. } = *controller;
            let read = load.bytes / self.line_bytes - written;
            assert_eq!(load.busy_ps, read * read_ps + written * write_ps, "controller {node}");
            assert!(
                load.busy_ps <= controller.queue.end_ps(),
                "controller {node} is busy for longer than it can be"
            );
        }
        for (link, load) in self.links.iter().zip(&counters.links) {
            let small = link.probes * self.probe_bytes + link.messages * link.message_bytes;
            let small_ps = link.probes * link.probe_ps + link.messages * link.message_ps;
            let lines = (load.bytes - small) / self.line_bytes;
            assert_eq!(load.busy_ps, lines * link.service_ps + small_ps, "{link:?}");
        }
    }

    /// How long one word waits for another node's memory, on a machine without caches.
    pub fn word(&mut self, at_ps: u64, from: usize, to: usize, counters: &mut Counters) -> u64 {
        for &link in &self.routes[from * self.nodes + to].0 {
            counters.links[link].bytes += self.line_bytes;
            counters.links[link].busy_ps += self.links[link].service_ps;
        }
        let read_ps = self.controllers[to].read_ps;
        self.ask(at_ps, at_ps, to, 0..1, read_ps, counters) - at_ps
    }
}
