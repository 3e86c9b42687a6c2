//! The sensitivity factors of Bolosky, Fitzgerald and Scott, *Simple But Effective Techniques for NUMA Memory
//! Management* (SOSP 1989), from three user times.

use serde::{Deserialize, Serialize};

/// How many times longer an access to far memory takes than one to near memory, and who says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FarCost {
    /// The paper's G/L.
    pub ratio: f64,
    /// Its source.
    pub source: String,
}

/// The factors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ace {
    /// User time with all memory far away, in seconds.
    pub global_seconds: f64,
    /// User time as the kernel places the program, in seconds.
    pub numa_seconds: f64,
    /// User time on one node, memory included, in seconds.
    pub local_seconds: f64,
    /// The share of accesses to memory that are near, as the kernel places the program; none where memory
    /// does not matter to it. Noise may take it out of 0 to 1.
    pub alpha: Option<f64>,
    /// The share of user time that would go to memory if all of it were near.
    pub beta: f64,
    /// How many times longer the program takes than with all memory near.
    pub gamma: f64,
    /// The cost of far memory that beta rests on.
    pub far: FarCost,
}

/// Below this share of user time, memory does not matter: alpha would be the quotient of two errors.
const BETA_LEAST: f64 = 0.01;

impl Ace {
    /// Equations 4, 5 and 1 of the paper.
    #[must_use]
    pub fn of(global_seconds: f64, numa_seconds: f64, local_seconds: f64, far: FarCost) -> Self {
        let beta = (global_seconds / local_seconds - 1.0) / (far.ratio - 1.0);
        let alpha =
            (beta >= BETA_LEAST).then(|| (global_seconds - numa_seconds) / (global_seconds - local_seconds));
        let (beta, gamma) = (beta.max(0.0), numa_seconds / local_seconds);
        Self { global_seconds, numa_seconds, local_seconds, alpha, beta, gamma, far }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 3 of the paper: times in seconds, G/L, alpha, beta, gamma, as exact as they are printed. It
    /// prints a beta of 0.26 for `IMatMult`, which its equation 5 does not give.
    #[test]
    fn the_papers_table_comes_out() {
        for (name, [global, numa, local], ratio, alpha, beta, gamma) in [
            ("ParMult", [67.4, 67.4, 67.3], 2.0, None, 0.00, 1.00),
            ("Gfetch", [60.2, 60.2, 26.5], 2.3, Some(0.0), 1.0, 2.27),
            ("IMatMult", [82.1, 69.0, 68.2], 2.3, Some(0.94), 0.16, 1.01),
            ("Primes1", [18502.2, 17413.9, 17413.3], 2.0, Some(1.0), 0.06, 1.00),
            ("Primes2", [5754.3, 4972.9, 4968.9], 2.0, Some(0.99), 0.16, 1.00),
            ("Primes3", [39.1, 37.4, 28.8], 2.0, Some(0.17), 0.36, 1.30),
            ("FFT", [687.4, 449.0, 438.4], 2.0, Some(0.96), 0.56, 1.02),
            ("PlyTrace", [56.9, 38.8, 38.0], 2.0, Some(0.96), 0.50, 1.02),
        ] {
            let far = FarCost { ratio, source: "section 2.2".to_owned() };
            let ace = Ace::of(global, numa, local, far);
            // Gfetch's beta has one decimal.
            let exact = if name == "Gfetch" { 0.05 } else { 0.0101 };
            let near = |a: f64, b: f64| assert!((a - b).abs() < exact, "{name}: {a}, not {b}");
            assert_eq!(ace.alpha.is_some(), alpha.is_some(), "{name}");
            ace.alpha.zip(alpha).into_iter().for_each(|(a, b)| near(a, b));
            near(ace.beta, beta);
            near(ace.gamma, gamma);
        }
    }
}
