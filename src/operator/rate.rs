//! Rate of a command: a number of steps per second, minute or hour.

use std::str::FromStr;
use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of batches per second.
const MAX_BATCHES_PER_SECOND: f64 = 4.0;
/// Maximum rate per second.
const MAX_PER_SECOND: u32 = 100_000;

/// A rate, written as `10/s`, `100/m` or `5/h`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    per_second: f64,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "not a number from 1 to {MAX_PER_SECOND} for each second, minute or hour, such as 10/s, 100/m or 5/h"
            )
        };
        let (number, unit) = text.split_once('/').ok_or_else(wrong)?;
        let seconds = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let number: u32 = number.parse().map_err(|_| wrong())?;
        match number {
            1..=MAX_PER_SECOND => Ok(Self {
                per_second: f64::from(number) / seconds,
            }),
            _ => Err(wrong()),
        }
    }
}

impl Rate {
    /// Returns the number of steps in a batch.
    pub fn batch(self) -> usize {
        // A small number, at least 1.
        (self.per_second / MAX_BATCHES_PER_SECOND).ceil().max(1.0) as usize
    }

    /// Returns when the next batch is due after one of `steps` that was due at `due` and began at
    /// `began`. A late batch is not made up for, so any period has at most the steps that the rate
    /// allows, plus one batch.
    pub fn next(self, due: Instant, began: Instant, steps: u64) -> Instant {
        due.max(began) + self.lasts(steps)
    }

    /// Returns how long `steps` take.
    pub fn lasts(self, steps: u64) -> Duration {
        // A batch is small, and the lowest rate is one per hour.
        Duration::from_secs_f64(steps as f64 / self.per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_for_a_unit() {
        let rate: Rate = "10/s".parse().expect("a rate");
        assert_eq!((rate.batch(), rate.lasts(20)), (3, Duration::from_secs(2)));
        let rate: Rate = "6/m".parse().expect("a rate");
        assert_eq!((rate.batch(), rate.lasts(1)), (1, Duration::from_secs(10)));
        for wrong in [
            "", "10", "0/s", "-1/s", "1/d", "x/s", "100001/s", "1.5/s", "/s",
        ] {
            let why = wrong.parse::<Rate>().expect_err(wrong);
            assert!(why.contains("such as 10/s"), "{why}");
        }
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let rate: Rate = "10/s".parse().expect("a rate");
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(rate.next(start, start, 3), after(300));
        // RabbitMQ confirmed the second batch late, or few messages matched a filter.
        assert_eq!(rate.next(after(300), after(60_000), 3), after(60_300));
    }
}
