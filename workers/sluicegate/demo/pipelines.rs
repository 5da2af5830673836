//! The three pipelines of `--scenario pipelines`: their workloads and their schedule.

use std::ops::Range;
use std::time::Duration;

use super::workload::Workload;

/// A pipeline of each worker, with its own queue, limit and API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelineRole {
    /// Its jobs arrive at the rate of its limit. The others must not affect it.
    Steady,
    /// All of its jobs arrive at once, many times its limit.
    Flooded,
    /// Its API goes away and comes back.
    Away,
}

impl PipelineRole {
    /// All pipelines.
    pub const ALL: [Self; 3] = [Self::Steady, Self::Flooded, Self::Away];

    /// Returns its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Flooded => "flooded",
            Self::Away => "away",
        }
    }

    /// Describes its events.
    pub fn describe(self) -> String {
        match self {
            Self::Steady => "; its jobs arrive at that rate",
            Self::Flooded => "; its jobs arrive all at once",
            Self::Away => ", and is down for a while",
        }
        .to_owned()
    }

    /// Returns the number of jobs per tenant for `--jobs`. The flood must last longer than the jobs
    /// it might disturb.
    pub fn jobs(self, jobs: usize) -> usize {
        match self {
            Self::Flooded => jobs.saturating_mul(3),
            Self::Steady | Self::Away => jobs,
        }
    }
}

/// A tenant's jobs that are published together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portion {
    /// The numbers of the jobs.
    pub jobs: Range<usize>,
    /// Whether to wait until the API has gone away.
    pub waits: bool,
    /// The delay after that, or after the demo's start.
    pub at: Duration,
}

impl Workload {
    /// Returns how a tenant's jobs are published.
    pub fn portions(&self) -> Vec<Portion> {
        let at_once = |jobs, waits| Portion {
            jobs,
            waits,
            at: Duration::ZERO,
        };
        match self.pipeline {
            None | Some(PipelineRole::Flooded) => vec![at_once(0..self.jobs, false)],
            // Ensures that some jobs meet the outage, however many are admitted at once.
            Some(PipelineRole::Away) => {
                let early = self.jobs / 2;
                vec![at_once(0..early, false), at_once(early..self.jobs, true)]
            }
            Some(PipelineRole::Steady) => {
                let max = self.limit().max() as usize;
                let period = Duration::from_millis(self.limit().span());
                let portion = |(number, from): (u32, usize)| Portion {
                    jobs: from..(from + max).min(self.jobs),
                    waits: true,
                    at: period * number,
                };
                (0..)
                    .zip((0..self.jobs).step_by(max))
                    .map(portion)
                    .collect()
            }
        }
    }
}

/// The stages of the scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScenarioStage {
    /// The flood is published, and the API that will go away still answers.
    Flooding,
    /// That API refuses connections, and the steady jobs are published.
    Outage,
    /// That API answers again.
    Over,
}

impl ScenarioStage {
    /// Returns the next stage if it is time, given the `settled` and `confirmed` jobs of `plans`.
    /// It does not depend on a clock.
    pub fn next(self, plans: &[Workload], settled: &[usize], confirmed: &[usize]) -> Self {
        let of = |pipeline, counts: &[usize]| {
            let at = plans
                .iter()
                .position(|plan| plan.pipeline == Some(pipeline));
            // A scenario without pipelines has no stages.
            at.map_or((0, usize::MAX), |at| (counts[at], plans[at].total()))
        };
        match self {
            Self::Flooding => {
                let (flood, whole_flood) = of(PipelineRole::Flooded, confirmed);
                let (called, all) = of(PipelineRole::Away, settled);
                match flood == whole_flood && called >= (all / 10).max(1) {
                    true => Self::Outage,
                    false => self,
                }
            }
            Self::Outage => match of(PipelineRole::Steady, settled) {
                (called, all) if called == all => Self::Over,
                _ => self,
            },
            Self::Over => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use rules::limit::Algorithm;

    use super::*;
    use crate::demo::scenario::Scenario;

    fn plans() -> Vec<Workload> {
        let (second, guard) = (Duration::from_secs(1), Duration::from_millis(50));
        let limits = Scenario::Pipelines.limits(Algorithm::SlidingWindow, 4, second, guard);
        let plan = Workload {
            tenants: 2,
            jobs: 10,
            limits: limits.expect("limits"),
            workers: 1,
            scenario: Scenario::Pipelines,
            pipeline: None,
        };
        plan.parts()
    }

    #[test]
    fn every_job_is_in_one_portion_and_steady_ones_come_as_they_are_admitted() {
        for plan in plans() {
            let jobs: Vec<usize> = plan.portions().into_iter().flat_map(|p| p.jobs).collect();
            assert_eq!(jobs, (0..plan.jobs).collect::<Vec<_>>());
        }
        let steady: Vec<_> = plans()[0]
            .portions()
            .into_iter()
            .map(|portion| (portion.jobs, portion.at.as_millis(), portion.waits))
            .collect();
        let expected = [(0..4, 0, true), (4..8, 1050, true), (8..10, 2100, true)];
        assert_eq!(steady, expected);
    }

    #[test]
    fn stages_follow_from_observed_events() {
        let plans = plans();
        let next =
            |stage: ScenarioStage, settled, confirmed| stage.next(&plans, settled, confirmed);
        for (settled, confirmed) in [
            (&[0, 9, 1], &[0, 60, 10]),
            (&[0, 9, 2], &[0, 59, 10]), // the flood is not published yet
        ] {
            assert_eq!(
                next(ScenarioStage::Flooding, settled, confirmed),
                ScenarioStage::Flooding
            );
        }
        assert_eq!(
            next(ScenarioStage::Flooding, &[0, 9, 2], &[0, 60, 10]),
            ScenarioStage::Outage
        );
        assert_eq!(
            next(ScenarioStage::Outage, &[19, 30, 2], &[20, 60, 20]),
            ScenarioStage::Outage
        );
        assert_eq!(
            next(ScenarioStage::Outage, &[20, 30, 2], &[20, 60, 20]),
            ScenarioStage::Over
        );
    }
}
