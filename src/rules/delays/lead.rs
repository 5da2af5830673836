//! How early a job asks, and how late it may ask.

/// A job asks at least this long before its turn, in milliseconds.
const LEAD_MS: u64 = 100;
/// A job asks earlier by a random part of its wait, too: at most the wait divided by this.
const LEAD_SHARE: u64 = 12;

/// Returns how long before the end of its wait a job in a worker's memory asks for its turn, in
/// milliseconds. To ask early costs a question but no delivery. A job that is early starts in place
/// of a late or vanished job, so limits are used up even if jobs vanish, and a raised limit is
/// noticed. `spread`, a random number in [0, 1), separates jobs that entered a delay queue
/// together. Short waits have no lead, so that no job asks without a pause.
pub fn lead_ms(wait_ms: u64, spread: f64) -> u64 {
    if wait_ms <= 2 * LEAD_MS {
        return 0;
    }
    let share = ((wait_ms - LEAD_MS) / LEAD_SHARE) as f64 * spread.clamp(0.0, 1.0);
    // A cast from float to integer saturates.
    LEAD_MS + share as u64
}

/// Returns how long after the end of its trip a job may still be in the worker's memory, in
/// milliseconds, because its turn is a little later than the gate announced.
pub fn stay_ms(wait_ms: u64) -> u64 {
    wait_ms / LEAD_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_asks_at_most_a_twelfth_of_its_wait_early() {
        assert_eq!((lead_ms(200, 1.0), lead_ms(201, 0.0)), (0, 100));
        assert_eq!((lead_ms(1_300, 0.0), lead_ms(1_300, 1.0)), (100, 200));
        assert_eq!(lead_ms(600_000, 1.0), 100 + 49_991);
        assert_eq!(stay_ms(600_000), 50_000);
    }
}
