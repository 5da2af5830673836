//! What publishers say of their jobs, beside the tenant: when a job starts at the earliest, and which jobs are one. A seed decides. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapin::types::{AMQPValue, FieldTable, ShortString};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::history::Job;

/// `job.dedupe-for`, in days: longer than any run.
pub const DEDUPE_DAYS: u64 = 7;
/// For so long a key counts whose time is over within a run.
const SHORT: Duration = Duration::from_secs(2);
/// The longest delay: beyond `delay.max-delay`, so that some take two trips.
const LONGEST_MS: u64 = 7_000;
/// So many jobs that follow each other have one dedupe key, as far as they have one.
const GROUP: u32 = 25;

/// What is said of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Says {
    pub start: Option<Start>,
    pub key: Option<Key>,
}

/// When it starts at the earliest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// So long after its publication; `dated`: which it names.
    Delay { after: Duration, dated: bool },
    /// At a time that is so far ahead.
    NotBefore { after: Duration },
}

/// Its dedupe key, among its tenant's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub number: u32,
    pub is_short: bool,
    /// It is published twice, as by somebody who lost a confirm.
    pub twice: bool,
}

impl Key {
    /// For how long it counts.
    pub fn lasts(self) -> Duration {
        match self.is_short {
            true => SHORT,
            false => Duration::from_secs(DEDUPE_DAYS * 86_400),
        }
    }
}

impl Start {
    /// How far ahead its time is.
    pub fn after(self) -> Duration {
        match self {
            Self::Delay { after, .. } | Self::NotBefore { after } => after,
        }
    }
}

impl Says {
    /// What `seed` says of `job`.
    pub fn of(seed: u64, job: Job) -> Self {
        let stream = |number: u32, salt: u64| {
            let of_job = u64::from(job.tenant) << 32 | u64::from(number);
            StdRng::seed_from_u64(seed.rotate_left(23) ^ of_job ^ salt)
        };
        let mut random = stream(job.number, 0x5a_75);
        let after = Duration::from_millis(random.random_range(1..=LONGEST_MS));
        let start = match random.random_range(0..100) {
            0..4 => Some(Start::Delay { after, dated: true }),
            4..8 => Some(Start::Delay {
                after,
                dated: false,
            }),
            8..12 => Some(Start::NotBefore { after }),
            _ => None,
        };
        let number = job.number / GROUP;
        // What is the key's is the same for all jobs that have it.
        let is_short = stream(number, 0xd0_ed).random_ratio(1, 3);
        let (has_key, twice) = (random.random_ratio(1, 5), random.random_ratio(1, 4));
        let key = has_key.then_some(Key {
            number,
            is_short,
            // A short time may be over before the second one is looked at.
            twice: twice && !is_short,
        });
        Self { start, key }
    }

    /// Writes it into a message's headers, which is published at `now`. Times are rounded up: a job is never called before its time.
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
            Some(Start::Delay { after, dated }) => {
                number("x-delay", after.as_millis());
                if dated {
                    number("timestamp_in_ms", epoch(now));
                }
            }
            Some(Start::NotBefore { after }) => number("x-not-before", epoch(now + after)),
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

    fn all(seed: u64) -> Vec<Says> {
        let job = |number| Job { tenant: 1, number };
        (0..4000)
            .map(|number| Says::of(seed, job(number)))
            .collect()
    }

    #[test]
    fn a_seed_says_something_of_some_jobs_and_of_each_key_one_time() {
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        let of = |which: fn(&Says) -> bool| all(1).iter().filter(|says| which(says)).count();
        let whiches: [fn(&Says) -> bool; 6] = [
            |says| matches!(says.start, Some(Start::Delay { dated: true, .. })),
            |says| matches!(says.start, Some(Start::Delay { dated: false, .. })),
            |says| matches!(says.start, Some(Start::NotBefore { .. })),
            |says| says.key.is_some_and(|key| key.is_short),
            |says| says.key.is_some_and(|key| key.twice),
            |says| says.start.is_some() && says.key.is_some(),
        ];
        for (number, which) in whiches.into_iter().enumerate() {
            assert!((40..800).contains(&of(which)), "{number}: {}", of(which));
        }
        assert!(of(|says| *says == Says::default()) > 2500);
        let mut times = std::collections::HashMap::new();
        for key in all(1).iter().filter_map(|says| says.key) {
            let lasts = *times.entry(key.number).or_insert(key.lasts());
            assert_eq!(lasts, key.lasts());
            assert!(!(key.twice && key.is_short));
        }
    }

    #[test]
    fn times_are_rounded_up() {
        let says = |start| Says {
            start: Some(start),
            key: None,
        };
        let after = Duration::from_millis(5);
        let now = UNIX_EPOCH + Duration::from_nanos(2_000_001);
        let header = |start, name: &str| {
            let mut headers = FieldTable::default();
            says(start).add_to(&mut headers, now);
            headers.inner().get(name).cloned()
        };
        let number = |ms| Some(AMQPValue::LongLongInt(ms));
        let dated = Start::Delay { after, dated: true };
        assert_eq!(header(dated, "x-delay"), number(5));
        assert_eq!(header(dated, "timestamp_in_ms"), number(3));
        let not_before = Start::NotBefore { after };
        assert_eq!(header(not_before, "x-not-before"), number(8));
    }
}
