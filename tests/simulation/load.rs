//! A load as `sluicegate simulate` plays it: all jobs are done, no limit is exceeded, and no quota
//! is idle. `SIMULATED_JOBS=1000000 cargo test --test simulation load:: -- --nocapture` measures
//! how long that number of jobs takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Config;
use simulator::api::ApiModel;
use simulator::figures::Figures;
use simulator::forms::{CostDistribution, Skew};
use simulator::history::RunHistory;
use simulator::load::LoadProfile;
use simulator::run::{RunSetup, simulate};

const TENANTS: usize = 50;
/// Number of jobs in a usual test run.
const FEW: usize = 3_000;

fn played(name: &str, limits: &str, burst: bool) -> (Figures, RunHistory) {
    let count = std::env::var("SIMULATED_JOBS").map_or(FEW, |count| count.parse().expect("jobs"));
    let text = format!("rate-limiter: {{{limits}}}");
    let config = Config::parse("a.yaml", &text, std::iter::empty()).expect("valid");
    let bursts = burst.then(|| format!("{count}").parse().expect("a burst"));
    let load = LoadProfile {
        tenants: TENANTS,
        skew: Skew(0.0),
        rate: (!burst).then(|| "poisson:1000/s".parse().expect("a rate")),
        lasts: None,
        count: Some(count),
        bursts: bursts.into_iter().collect(),
        cost: CostDistribution::ONE,
    };
    let jobs = Arc::new(load.jobs(1).expect("a load"));
    let setup = RunSetup {
        config: &config,
        workers: 4,
        api: ApiModel::default(),
        redis: Duration::ZERO,
        seed: 1,
        work: u64::MAX,
        max: Duration::from_secs(30 * 86_400),
    };
    let began = Instant::now();
    let history = simulate(&setup, &jobs, &Default::default());
    let took = began.elapsed();
    let figures = Figures::of(&config.rate_limiter.policy, &jobs, &history);
    println!(
        "{name}: {count} jobs in {took:.1?}, {:.2} deliveries a job; {:.0} s of simulated time",
        figures.deliveries, figures.makespan
    );
    assert_eq!((figures.calls, figures.unfinished), (count, 0));
    assert!(figures.dead.is_empty(), "{:?}", figures.dead);
    for limit in &figures.limits {
        assert!(limit.fullest <= limit.allowance, "{limit:?}");
    }
    (figures, history)
}

#[test]
fn a_backlog_of_many_tenants_uses_all_quota_and_no_more() {
    let backlog = || {
        played(
            "a backlog",
            "max-requests: 20, window-size: 1s, guard: 0ms",
            true,
        )
    };
    let (figures, history) = backlog();
    // The last window is not full.
    assert!(figures.used > 0.9, "{}", figures.used);
    if std::env::var_os("SIMULATED_JOBS").is_none() {
        assert!(history == backlog().1, "the same twice");
    }
}

#[test]
fn undenied_jobs_do_not_wait() {
    let (figures, _) = played("a flow", "max-requests: 1000, window-size: 1s", false);
    assert!(figures.waits.p99 < 0.1, "{:?}", figures.waits);
}
