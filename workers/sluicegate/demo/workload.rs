//! The demo's workload: its arguments, checked.

use std::time::Duration;

use clap::{Args, ValueEnum};
use config::{parse_duration, show_duration};
use rules::limit::{Algorithm, Limit, Unit, ceil_ms};

use super::check;
use super::pipelines::PipelineRole;
use super::scenario::{JobCost, Scenario};

/// `sluicegate demo`
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  sluicegate demo
  sluicegate demo --scenario limits                     several limits at once, in 45 s
  sluicegate demo --scenario costs --tenants 2          calls and tokens, like LLM APIs
  sluicegate demo --scenario throttling --json          an API that throttles tenants (429)
  sluicegate demo --scenario results                    each publisher gets the API's answer
  sluicegate demo --scenario pipelines                  a flood and an outage next to normal traffic, in 40 s
  sluicegate demo --algo fixed-window-algo --seconds 60
  sluicegate demo --tenants 1 --jobs 2000 --limit 20")]
pub struct DemoArgs {
    /// What the API limits
    #[arg(long, value_enum, default_value_t = Scenario::Limit)]
    pub scenario: Scenario,
    /// Number of tenants, which all publish at once [default: 5; with --scenario pipelines 2 in
    /// each]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub tenants: Option<u32>,
    /// Jobs per tenant [default: 200; with --scenario limits 16 times --limit, with pipelines 10
    /// times]; the flood of --scenario pipelines has three times as many
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with = "seconds")]
    pub jobs: Option<u32>,
    /// Use as many jobs as the limit admits in this many seconds, instead of --jobs; only with
    /// --scenario limit
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: Option<u32>,
    /// Calls per tenant and window that the API admits; the other limits of a scenario are
    /// multiples
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Window, or the shortest of several windows: 1s, 500ms, 1m; a bare number is in seconds
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub window: Duration,
    /// Guard, as in the configuration
    #[arg(long, default_value = "50ms", value_parser = duration)]
    pub guard: Duration,
    /// Algorithm of the limit; the fixed window only with --scenario limit
    #[arg(long, value_enum, default_value_t = Algo::Sliding)]
    pub algo: Algo,
    /// Worker processes that share the queue
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub workers: u32,
    /// Print the figures as JSON, and progress to standard error
    #[arg(long)]
    pub json: bool,
}

/// The values of `rate-limiter.use-algo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Algo {
    /// At most the limit in any window
    #[value(name = "sliding-window-algo")]
    Sliding,
    /// At most the limit in each window aligned to the clock
    #[value(name = "fixed-window-algo")]
    Fixed,
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text)
        .ok_or("not a whole number of seconds, or one with the unit ms, s, m, h or d")
}

/// The workload. Jobs are identified by tenant and number, both from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Number of tenants.
    pub tenants: usize,
    /// Number of jobs per tenant.
    pub jobs: usize,
    /// The limits of each tenant. `--limit` and `--window` set the first one.
    pub limits: Vec<Limit>,
    /// Number of worker processes.
    pub workers: usize,
    /// Further behavior of the API.
    pub scenario: Scenario,
    /// The pipeline of this workload, if the scenario has several.
    pub pipeline: Option<PipelineRole>,
}

impl Workload {
    /// Creates the workload for `args`.
    ///
    /// # Errors
    /// A sentence about the argument that does not fit.
    pub fn new(args: &DemoArgs) -> Result<Self, String> {
        let scenario = args.scenario;
        let algorithm = match args.algo {
            Algo::Sliding => Algorithm::SlidingWindow,
            Algo::Fixed => Algorithm::FixedWindow,
        };
        if scenario != Scenario::Limit && args.algo != Algo::Sliding {
            return Err("--algo fixed-window-algo requires --scenario limit".to_owned());
        }
        if scenario != Scenario::Limit && args.seconds.is_some() {
            return Err("--seconds requires --scenario limit; use --jobs".to_owned());
        }
        let limits = scenario.limits(algorithm, args.limit, args.window, args.guard);
        let limits = limits.map_err(|error| error.to_string())?;
        let jobs = args.jobs.unwrap_or_else(|| scenario.jobs(args.limit));
        let mut plan = Self {
            tenants: args.tenants.unwrap_or_else(|| scenario.tenants()) as usize,
            jobs: jobs as usize,
            limits,
            workers: args.workers as usize,
            scenario,
            pipeline: None,
        };
        if let Some(seconds) = args.seconds {
            let limit = plan.limit();
            let periods = ceil_ms(Duration::from_secs(seconds.into())).div_ceil(limit.span());
            let jobs = periods.saturating_mul(limit.max());
            plan.jobs = usize::try_from(jobs).unwrap_or(usize::MAX);
        }
        if scenario == Scenario::Pipelines && jobs < args.limit.saturating_mul(2) {
            return Err(
                "--scenario pipelines requires --jobs to be at least twice --limit".to_owned(),
            );
        }
        let total: usize = plan.parts().iter().map(Self::total).sum();
        if total > 5_000_000 {
            return Err(format!(
                "{total} jobs are too many for a demo; the maximum is 5000000"
            ));
        }
        Ok(plan)
    }

    /// Returns the workload of each pipeline. If the scenario has only one, this is the whole
    /// workload.
    pub fn parts(&self) -> Vec<Self> {
        let part = |pipeline: PipelineRole| Self {
            jobs: pipeline.jobs(self.jobs),
            pipeline: Some(pipeline),
            ..self.clone()
        };
        match self.scenario {
            Scenario::Pipelines => PipelineRole::ALL.map(part).into(),
            _ => vec![self.clone()],
        }
    }

    /// Returns the first limit.
    pub fn limit(&self) -> &Limit {
        // A scenario has at least one limit.
        &self.limits[0]
    }

    /// Describes the limits, such as `20 calls per 1s and 2000 tokens per 1s`.
    pub fn describe_limits(&self) -> String {
        let words = |limit: &Limit| {
            let what = match limit.unit() {
                Unit::Calls => "calls",
                Unit::Cost => "tokens",
            };
            let window = show_duration(Duration::from_millis(limit.window_ms()));
            format!("{} {what} per {window}", limit.max())
        };
        let all: Vec<String> = self.limits.iter().map(words).collect();
        all.join(" and ")
    }

    /// Returns a job's cost.
    pub fn cost(&self, job: DemoJob) -> JobCost {
        self.scenario.cost(self.limit().max(), job.number)
    }

    /// Returns a call for `job` for the checker's ideal. If `corrected`, units reserved beyond the
    /// actual use are returned.
    pub fn call(&self, job: DemoJob, corrected: bool) -> check::IdealCall {
        let JobCost { asked, actual } = self.cost(job);
        let used = if corrected { actual } else { asked };
        let units = |cost: u64| {
            let of = |limit: &Limit| limit.unit().of(cost);
            self.limits.iter().map(of).collect()
        };
        check::IdealCall {
            asked: units(asked),
            used: units(used),
            closes_for: 0,
            under_way: false,
        }
    }

    /// Returns the limits for the checker's ideal: units, and nanoseconds including the guard.
    pub fn periods(&self) -> Vec<(u64, u64)> {
        let period = |limit: &Limit| (limit.max(), limit.span() * 1_000_000);
        self.limits.iter().map(period).collect()
    }

    /// Returns the minimum time for one tenant's jobs.
    pub fn ideal(&self) -> Duration {
        let call = |number| self.call(DemoJob { tenant: 0, number }, true);
        let calls = (0..self.jobs).map(call);
        let calling = Duration::from_nanos(check::ideal(calls, &self.periods()));
        calling + self.scenario.closed(self.limit().max(), self.jobs)
    }

    /// Returns when the demo stops waiting and counts the results.
    pub fn deadline(&self) -> Duration {
        let ideal: Duration = self.parts().iter().map(Self::ideal).sum();
        ideal * 2 + Duration::from_secs(60)
    }

    /// Returns the number of jobs of all tenants.
    pub fn total(&self) -> usize {
        self.tenants.saturating_mul(self.jobs)
    }

    /// Returns a tenant's ID.
    pub fn tenant(&self, tenant: usize) -> String {
        // Pipelines have different tenants, so that a job at another pipeline's API is noticed.
        let whose = self.pipeline.map_or("tenant", PipelineRole::name);
        format!("{whose}-{}", tenant + 1)
    }

    /// Returns a job's ID.
    pub fn id(&self, job: DemoJob) -> usize {
        job.tenant * self.jobs + job.number
    }

    /// Returns the job with this ID, or `None` if the demo did not create the ID.
    pub fn job(&self, id: &str) -> Option<DemoJob> {
        let id: usize = id.parse().ok().filter(|id| *id < self.total())?;
        Some(DemoJob {
            tenant: id / self.jobs,
            number: id % self.jobs,
        })
    }

    /// Returns true if the API answers this job with 422, so that it becomes a dead letter. This is
    /// each tenant's last job, which waits longest.
    pub fn rejected(&self, job: DemoJob) -> bool {
        job.number + 1 == self.jobs
    }
}

/// One job of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DemoJob {
    /// The tenant's number.
    pub tenant: usize,
    /// The job's number among its tenant's jobs.
    pub number: usize,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct DemoCli {
        #[command(flatten)]
        demo: DemoArgs,
    }

    fn plan(args: &[&str]) -> Result<Workload, String> {
        let cli = DemoCli::try_parse_from([&["demo"], args].concat())
            .map_err(|error| error.to_string())?;
        Workload::new(&cli.demo)
    }

    #[test]
    fn the_default_is_five_tenants_with_ten_windows_of_work() {
        let plan = plan(&[]).expect("the defaults fit");
        assert_eq!((plan.tenants, plan.jobs, plan.workers), (5, 200, 2));
        assert_eq!(plan.ideal(), Duration::from_millis(9 * 1050));
        assert_eq!(plan.limit().algorithm(), Algorithm::SlidingWindow);
    }

    #[test]
    fn seconds_become_jobs() {
        let args = [
            "--seconds",
            "60",
            "--algo",
            "fixed-window-algo",
            "--limit",
            "7",
            "--window",
            "500ms",
        ];
        assert_eq!(plan(&args).map(|plan| plan.jobs), Ok(120 * 7));
    }

    #[test]
    fn every_scenario_ends_in_a_minute() {
        for (name, limits, min, max) in [
            ("limit", 1, 9, 10),
            ("limits", 3, 35, 45),
            ("costs", 2, 10, 30),
            ("throttling", 1, 13, 20),
            ("results", 1, 9, 10),
            ("pipelines", 1, 9, 10),
        ] {
            let plan = plan(&["--scenario", name]).expect("the defaults fit");
            assert_eq!(plan.limits.len(), limits);
            let ideal = plan.ideal();
            let range = Duration::from_secs(min)..Duration::from_secs(max);
            assert!(range.contains(&ideal), "{name}: {ideal:?}");
        }
    }

    #[test]
    fn each_pipeline_has_tenants_of_its_own_and_the_flood_is_the_largest() {
        let parts = plan(&["--scenario", "pipelines"]).expect("it fits").parts();
        let parts: Vec<_> = (parts.iter())
            .map(|part| (part.tenant(0), part.jobs))
            .collect();
        let expected = [("steady-1", 200), ("flooded-1", 600), ("away-1", 200)];
        assert_eq!(parts, expected.map(|(name, jobs)| (name.to_owned(), jobs)));
        assert_eq!(plan(&[]).map(|plan| plan.parts().len()), Ok(1));
    }

    #[test]
    fn jobs_and_ids_name_each_other() {
        let plan = plan(&["--tenants", "3", "--jobs", "7"]).expect("it fits");
        for tenant in 0..3 {
            for number in 0..7 {
                let job = DemoJob { tenant, number };
                assert_eq!(plan.job(&plan.id(job).to_string()), Some(job));
            }
        }
        assert_eq!(plan.job("21"), None);
        assert_eq!(plan.job("x"), None);
    }

    #[test]
    fn invalid_workloads_are_refused() {
        for (args, message) in [
            (&["--window", "5x"][..], "the unit ms, s, m, h or d"),
            (&["--window", "fast"], "not a whole number"),
            (&["--window", "1.5s"], "not a whole number"),
            (&["--window", "10ms"], "window-size"),
            (&["--guard", "900ms"], "guard"),
            (&["--guard", "10000000000000000000"], "guard"),
            (&["--limit", "0"], "0 is not in"),
            (&["--jobs", "9", "--seconds", "9"], "cannot be used with"),
            (&["--tenants", "1000", "--jobs", "1000000"], "too many"),
            (&["--scenario", "cost"], "costs"),
            (
                &["--scenario", "costs", "--seconds", "9"],
                "--seconds requires",
            ),
            (&["--scenario", "pipelines", "--jobs", "39"], "twice"),
            (
                &["--scenario", "pipelines", "--jobs", "1000001"],
                "is not in",
            ),
            (
                &["--scenario", "pipelines", "--jobs", "500001"],
                "5000010 jobs are too many",
            ),
            (
                &["--scenario", "limits", "--algo", "fixed-window-algo"],
                "--algo fixed",
            ),
            (&["--scenario", "limits", "--window", "31d"], "window-size"),
            (&["--scenario", "limits", "--window", "720h"], "window-size"),
        ] {
            let error = plan(args).expect_err("it does not fit");
            assert!(error.contains(message), "{args:?}: {error}");
        }
    }
}
