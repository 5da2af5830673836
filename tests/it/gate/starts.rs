//! Jobs that always wait, and their starts by the clock of the store that admits them: neither how
//! full a window is nor how soon it is full depends on the machine's speed.

use std::time::Duration;

use gate::{Answer, Question};
use kit::counts::sliding;
use kit::gate::{FRESH, started};
use rules::limit::{Algorithm, Limit, Limits};

pub const MAX: usize = 4;
pub const WINDOW: Duration = Duration::from_millis(1_500);
pub const GUARD: Duration = Duration::from_millis(500);
/// How long Redis may take to answer.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the limit of [`MAX`] starts per [`WINDOW`].
pub fn short() -> Limits {
    let algorithm = Algorithm::SlidingWindow;
    Limit::new("default", algorithm, MAX as u64, WINDOW, GUARD)
        .expect("in range")
        .into()
}

/// The jobs of one worker: as many as a window admits, so that one question can use it up.
pub struct Jobs(pub Vec<Question>);

impl Jobs {
    pub fn new() -> Self {
        Self(vec![FRESH; MAX])
    }

    /// Takes the answers, and replaces the jobs that start. Returns their number.
    pub fn take(&mut self, answers: &[Answer]) -> usize {
        for (job, answer) in self.0.iter_mut().zip(answers) {
            match answer {
                Answer::Start { .. } => *job = FRESH,
                Answer::Wait { ticket, .. } => job.ticket = Some(*ticket),
                Answer::Capacity => {}
            }
        }
        started(answers)
    }
}

/// The times of starts, in milliseconds by the store's clock.
#[derive(Debug, Clone, Default)]
pub struct Starts(Vec<u64>);

impl Starts {
    pub fn add(&mut self, now_ms: u64, count: usize) {
        self.0.extend(vec![now_ms; count]);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the starts that are not in `before`, an earlier state.
    pub fn since(&self, before: &Self) -> Self {
        Self(self.0[before.len()..].to_vec())
    }

    /// Returns the starts in the fullest window. For the store a window includes the guard, which
    /// allows for the latency to the API.
    pub fn fullest(&self) -> usize {
        let mut times: Vec<_> = self.0.iter().map(|ms| (*ms, 1)).collect();
        times.sort_unstable();
        let window = u64::try_from((WINDOW + GUARD).as_millis()).expect("short");
        let fullest = sliding(&times, window).into_iter().max().unwrap_or(0);
        usize::try_from(fullest).expect("no more than there are")
    }
}

impl FromIterator<Starts> for Starts {
    fn from_iter<T: IntoIterator<Item = Starts>>(all: T) -> Self {
        Self(all.into_iter().flat_map(|starts| starts.0).collect())
    }
}
