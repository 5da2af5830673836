//! How early a job asks, and how late it may.

/// A job asks so long before its turn, in milliseconds, and up to 1 / [`LEAD_SHARE`] of its wait before that.
const LEAD_MS: u64 = 100;
const LEAD_SHARE: u64 = 12;

/// How long before the end of its wait a job in a worker's memory asks for its turn, in milliseconds. To ask early costs a
/// question and no delivery, and who is there early starts in the place of one that is late or gone: limits are used up
/// though jobs vanish, and a limit that was raised is noticed. `spread`, a random number in [0, 1), keeps those apart that
/// entered a delay queue together. Short waits have none, so that nobody asks without a pause.
pub fn lead_ms(wait_ms: u64, spread: f64) -> u64 {
    if wait_ms <= 2 * LEAD_MS {
        return 0;
    }
    let share = ((wait_ms - LEAD_MS) / LEAD_SHARE) as f64 * spread.clamp(0.0, 1.0);
    // A float to integer cast saturates.
    LEAD_MS + share as u64
}

/// How long after the end of its trip a job may still be in the worker's memory, in milliseconds, since its turn is a
/// little later than it was told.
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
