//! The attributes of jobs besides their tenant: the earliest start and the dedupe key. A seed
//! decides. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapin::types::{AMQPValue, FieldTable, ShortString};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::history::JobId;

/// The value of `job.dedupe-for`, in days: longer than any run.
pub const DEDUPE_DAYS: u64 = 7;
/// How long a short key counts: it ends within a run.
const SHORT_KEY_LASTS: Duration = Duration::from_secs(2);
/// Maximum delay in milliseconds: above `delay.max-delay`, so that some jobs take two trips.
const MAX_DELAY_MS: u64 = 7_000;
/// Number of consecutive jobs that share a dedupe key, if they have one.
const JOBS_PER_KEY: u32 = 25;

/// The attributes of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobAttributes {
    pub start: Option<EarliestStart>,
    pub key: Option<DedupeKey>,
}

/// The earliest start of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarliestStart {
    /// Starts this long after its publication. `dated`: the message contains the time of
    /// publication.
    Delay { after: Duration, dated: bool },
    /// Starts at a time that is this far ahead.
    NotBefore { after: Duration },
}

/// A dedupe key, unique within its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DedupeKey {
    pub number: u32,
    pub is_short: bool,
    /// Whether the job is published twice, as by a publisher that lost a confirm.
    pub twice: bool,
}

impl DedupeKey {
    /// Returns how long the key counts.
    pub fn lasts(self) -> Duration {
        match self.is_short {
            true => SHORT_KEY_LASTS,
            false => Duration::from_secs(DEDUPE_DAYS * 86_400),
        }
    }
}

impl EarliestStart {
    /// Returns how far ahead the start is.
    pub fn after(self) -> Duration {
        match self {
            Self::Delay { after, .. } | Self::NotBefore { after } => after,
        }
    }
}

impl JobAttributes {
    /// Returns the attributes that `seed` gives to `job`.
    pub fn of(seed: u64, job: JobId) -> Self {
        let stream = |number: u32, salt: u64| {
            let of_job = u64::from(job.tenant) << 32 | u64::from(number);
            StdRng::seed_from_u64(seed.rotate_left(23) ^ of_job ^ salt)
        };
        let mut random = stream(job.number, 0x5a_75);
        let after = Duration::from_millis(random.random_range(1..=MAX_DELAY_MS));
        let start = match random.random_range(0..100) {
            0..4 => Some(EarliestStart::Delay { after, dated: true }),
            4..8 => Some(EarliestStart::Delay {
                after,
                dated: false,
            }),
            8..12 => Some(EarliestStart::NotBefore { after }),
            _ => None,
        };
        let number = job.number / JOBS_PER_KEY;
        // The attributes of a key are the same for all of its jobs.
        let is_short = stream(number, 0xd0_ed).random_ratio(1, 3);
        let (has_key, twice) = (random.random_ratio(1, 5), random.random_ratio(1, 4));
        let key = has_key.then_some(DedupeKey {
            number,
            is_short,
            // A short key may have expired before the second message is checked.
            twice: twice && !is_short,
        });
        Self { start, key }
    }

    /// Adds the attributes to the headers of a message that is published at `now`. Times are
    /// rounded up, so that no call can come before its job's start.
    pub fn add_to(&self, headers: &mut FieldTable, now: SystemTime) {
        let mut number = |name: &str, ms: u128| {
            let value = AMQPValue::LongLongInt(i64::try_from(ms).unwrap_or(i64::MAX));
            headers.insert(ShortString::from(name), value);
        };
        let epoch = |time: SystemTime| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            since.as_nanos().div_ceil(1_000_000)
        };
        match self.start {
            Some(EarliestStart::Delay { after, dated }) => {
                number("x-delay", after.as_millis());
                if dated {
                    number("timestamp_in_ms", epoch(now));
                }
            }
            Some(EarliestStart::NotBefore { after }) => number("x-not-before", epoch(now + after)),
            None => {}
        }
        let Some(key) = self.key else { return };
        if key.is_short {
            number("x-dedupe-for", key.lasts().as_millis());
        }
        let text = AMQPValue::LongString(format!("key {}", key.number).into());
        headers.insert("x-dedupe-key".into(), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(seed: u64) -> Vec<JobAttributes> {
        let job = |number| JobId::new(1, number);
        (0..4000)
            .map(|number| JobAttributes::of(seed, job(number)))
            .collect()
    }

    #[test]
    fn a_seed_gives_some_jobs_attributes_and_each_key_one_time() {
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        let of = |which: fn(&JobAttributes) -> bool| {
            all(1).iter().filter(|attributes| which(attributes)).count()
        };
        let whiches: [fn(&JobAttributes) -> bool; 6] = [
            |attributes| {
                matches!(
                    attributes.start,
                    Some(EarliestStart::Delay { dated: true, .. })
                )
            },
            |attributes| {
                matches!(
                    attributes.start,
                    Some(EarliestStart::Delay { dated: false, .. })
                )
            },
            |attributes| matches!(attributes.start, Some(EarliestStart::NotBefore { .. })),
            |attributes| attributes.key.is_some_and(|key| key.is_short),
            |attributes| attributes.key.is_some_and(|key| key.twice),
            |attributes| attributes.start.is_some() && attributes.key.is_some(),
        ];
        for (number, which) in whiches.into_iter().enumerate() {
            assert!((40..800).contains(&of(which)), "{number}: {}", of(which));
        }
        assert!(of(|attributes| *attributes == JobAttributes::default()) > 2500);
        let mut times = std::collections::HashMap::new();
        for key in all(1).iter().filter_map(|attributes| attributes.key) {
            let lasts = *times.entry(key.number).or_insert(key.lasts());
            assert_eq!(lasts, key.lasts());
            assert!(!(key.twice && key.is_short));
        }
    }

    #[test]
    fn times_are_rounded_up() {
        let attributes = |start| JobAttributes {
            start: Some(start),
            key: None,
        };
        let after = Duration::from_millis(5);
        let now = UNIX_EPOCH + Duration::from_nanos(2_000_001);
        let header = |start, name: &str| {
            let mut headers = FieldTable::default();
            attributes(start).add_to(&mut headers, now);
            headers.inner().get(name).cloned()
        };
        let number = |ms| Some(AMQPValue::LongLongInt(ms));
        let dated = EarliestStart::Delay { after, dated: true };
        assert_eq!(header(dated, "x-delay"), number(5));
        assert_eq!(header(dated, "timestamp_in_ms"), number(3));
        let not_before = EarliestStart::NotBefore { after };
        assert_eq!(header(not_before, "x-not-before"), number(8));
    }
}
