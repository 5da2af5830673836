//! Random numbers with the distributions of loads and latencies.

use std::f64::consts::TAU;

use rand::Rng;
use rand::rngs::SmallRng;

/// Returns a number from 0 (excluded) to 1.
fn part(random: &mut SmallRng) -> f64 {
    1.0 - random.random::<f64>()
}

/// Returns the time to the next event if one comes per unit of time on average.
pub fn exponential(random: &mut SmallRng) -> f64 {
    -part(random).ln()
}

/// Returns a lognormal number. `sigma` is the standard deviation of its logarithm.
pub fn lognormal(random: &mut SmallRng, median: f64, sigma: f64) -> f64 {
    let (one, two) = (part(random), part(random));
    let normal = (-2.0 * one.ln()).sqrt() * (TAU * two).cos();
    median * (sigma * normal).exp()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn distributions_match_their_names() {
        let mut random = SmallRng::seed_from_u64(1);
        let mean = (0..20_000).map(|_| exponential(&mut random)).sum::<f64>() / 20_000.0;
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
        let mut drawn: Vec<f64> = (0..20_001)
            .map(|_| lognormal(&mut random, 80.0, 0.5))
            .collect();
        drawn.sort_by(f64::total_cmp);
        assert!((drawn[10_000] - 80.0).abs() < 3.0, "{}", drawn[10_000]);
        // One standard deviation above the median is the 84th percentile.
        let above = drawn[16_827] / (80.0 * 0.5_f64.exp());
        assert!((above - 1.0).abs() < 0.05, "{above}");
    }
}
