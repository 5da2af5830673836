//! The delay queues that earlier versions declared: one for each wait, with a TTL that RabbitMQ enforced.

use std::time::Duration;

use crate::rules::limit::ceil_ms;

/// The shortest and the longest wait of a queue, in milliseconds.
const MIN_MS: u64 = 50;
const MAX_MS: u64 = u32::MAX as u64;
/// Number of queues from one wait to its double.
const STEPS_PER_OCTAVE: u32 = 8;
/// Number of queues for waits beyond `max-delay`, starting at half of it.
const RECHECKS: u64 = 8;

/// Returns their names next to the work queue `work` for one `delay.max-delay`: each had a set of its own.
pub fn delay_queues(work: &str, max_delay: Duration) -> Vec<String> {
    let max = ceil_ms(max_delay).clamp(MIN_MS, MAX_MS);
    let set = format!("{work}.delay.{MIN_MS}-{max}x{STEPS_PER_OCTAVE}");
    let steps = (0_u32..).map(step_ms).take_while(|ms| *ms < max);
    let due = steps.chain([max]).map(|ms| format!("{set}.{ms}"));
    let half = max.div_ceil(2);
    let last = RECHECKS - 1;
    let mut rechecks: Vec<u64> = (0..=last).map(|i| half + (max - half) * i / last).collect();
    rechecks.dedup();
    let rechecks = rechecks.into_iter().map(|ms| format!("{set}.recheck-{ms}"));
    due.chain(rechecks).collect()
}

fn step_ms(step: u32) -> u64 {
    let octave = MIN_MS << (step / STEPS_PER_OCTAVE);
    let part = f64::from(step % STEPS_PER_OCTAVE) / f64::from(STEPS_PER_OCTAVE);
    (octave as f64 * part.exp2()).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_what_the_earlier_version_declared() {
        let names = delay_queues("jobs", Duration::from_secs(300));
        assert_eq!(names.len(), 102 + 8);
        for name in [
            "jobs.delay.50-300000x8.50",
            "jobs.delay.50-300000x8.59",
            "jobs.delay.50-300000x8.300000",
            "jobs.delay.50-300000x8.recheck-150000",
            "jobs.delay.50-300000x8.recheck-300000",
        ] {
            assert!(names.iter().any(|it| it == name), "{name}: {names:?}");
        }
        // The longest `max-delay`.
        let names = delay_queues("jobs", Duration::MAX);
        assert!(names.len() < 250, "{}", names.len());
    }
}
