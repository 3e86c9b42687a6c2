//! Samples of DRAM accesses, as a PMU takes them.

use nodewise_hardware::{Access, Source, Touch};

/// Takes one DRAM access of so many of each thread.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    /// 0 when off.
    pub(crate) every: u32,
    /// When eager.
    pub(crate) accurate_every: u32,
    pub(crate) cost_ps: u64,
    left: Vec<u32>,
    pub(crate) taken: Vec<Taken>,
}

/// A sample, with the hardware's numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) time_ps: u64,
    pub(crate) thread: usize,
    pub(crate) node: usize,
    pub(crate) address: u64,
    pub(crate) write: bool,
    /// None from the node's own memory.
    pub(crate) hops: Option<u8>,
    pub(crate) latency_cycles: u32,
    pub(crate) weight: u32,
}

impl Sampler {
    pub(crate) fn off(threads: usize) -> Self {
        Self { every: 0, accurate_every: 64, cost_ps: 0, left: vec![u32::MAX; threads], taken: Vec::new() }
    }

    /// Takes one of `every` from now on.
    pub(crate) fn set(&mut self, every: u32, cost_ps: u64) {
        (self.every, self.cost_ps) = (every, cost_ps);
        // Threads do not sample in step.
        let threads = self.left.len() as u32;
        for (thread, left) in (0u32..).zip(&mut self.left) {
            *left = if every == 0 {
                u32::MAX
            } else {
                1 + (u64::from(every) * u64::from(thread) / u64::from(threads.max(1))) as u32
            };
        }
    }

    /// Counts a DRAM access; whether it is one to take.
    #[inline]
    pub(crate) fn takes(&mut self, thread: usize) -> bool {
        let left = &mut self.left[thread];
        *left = left.wrapping_sub(1);
        *left == 0 && self.every > 0
    }

    #[expect(clippy::too_many_arguments, reason = "what an access was")]
    pub(crate) fn take(
        &mut self,
        thread: usize,
        node: usize,
        time_ps: u64,
        touch: Touch,
        address: u64,
        access: Access,
        cycle_ps: f64,
    ) {
        let hops = match access.source {
            Source::RemoteDram { hops } => Some(hops),
            _ => None,
        };
        // Not a multiple of anything that a program does in its loops.
        let jitter = (time_ps / 1000) as u32 % (self.every / 4 + 1);
        self.left[thread] = self.every - self.every / 8 + jitter;
        self.taken.push(Taken {
            time_ps,
            thread,
            node,
            address,
            write: touch.writes(),
            hops,
            latency_cycles: (access.latency_ps as f64 / cycle_ps) as u32,
            weight: self.every,
        });
    }
}
