//! Lines that one CPU's caches have and another CPU reads.

use crate::chase::Chase;
use crate::core::nanoseconds_per_hop;
use crate::error::Error;
use crate::figure::Figure;
use crate::team::on_cpus;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The CPUs of a transfer, and the state of the lines.
#[derive(Clone, Copy, Debug)]
pub struct Between {
    /// The CPU that has the lines.
    pub owner_cpu: u32,
    /// The CPU that reads them.
    pub reader_cpu: u32,
    /// Whether the owner writes them first.
    pub modified: bool,
}

/// In turn, the owner takes all lines of a chase into its caches, and the reader walks once round it. `None`
/// if this architecture lets no program have lines unmodified.
pub fn measure(chase: Chase<'_>, between: Between, passes: usize) -> Result<Option<Figure>, Error> {
    let chase = Mutex::new(chase);
    // Even: the owner's; odd: the reader's.
    let turn = AtomicUsize::new(0);
    let roles = [(between.owner_cpu, true), (between.reader_cpu, false)];
    let sides = on_cpus(roles, |owns| {
        let mut taken = Vec::new();
        for pass in 0..passes {
            wait_for(&turn, 2 * pass + usize::from(!owns));
            // Nobody panics with it, and nobody else has it.
            let mut chase = chase.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if !owns {
                let lines = chase.lines();
                taken.push(nanoseconds_per_hop(&mut chase, lines));
            } else if between.modified {
                chase.rewrite();
            } else if !chase.reread() {
                // The reader goes on by itself, and its figures are dropped below.
                taken.push(f64::NAN);
            }
            drop(chase);
            turn.fetch_add(1, Ordering::Release);
        }
        taken
    })?;
    let [owner, reader] = <[Vec<f64>; 2]>::try_from(sides).expect("there are two sides");
    Ok(owner.is_empty().then(|| Figure::of(reader)))
}

/// Waits for the other CPU, which may be busy with something else.
fn wait_for(turn: &AtomicUsize, mine: usize) {
    let mut looked = 0_u32;
    while turn.load(Ordering::Acquire) != mine {
        looked += 1;
        if looked % 4096 == 0 {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::Slice;
    use nodewise_sys::{OwnedMemory, sched_getaffinity};

    #[test]
    fn both_sides_take_their_turns() {
        let cpus: Vec<u32> = sched_getaffinity(0).unwrap().iter().collect();
        // Also on one CPU, if there is no second.
        let (owner_cpu, reader_cpu) = (cpus[0], cpus[cpus.len() - 1]);
        for modified in [true, false] {
            let mut memory = OwnedMemory::new(1 << 14, 4096).unwrap();
            let chase = Chase::new(Slice::new(memory.as_mut_bytes()), 1 << 14);
            let figure = measure(chase, Between { owner_cpu, reader_cpu, modified }, 5).unwrap();
            assert!(figure.is_none_or(|figure| figure.passes == 5 && figure.lowest > 0.0));
            assert!(figure.is_some() || !modified);
        }
    }
}
