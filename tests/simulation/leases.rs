//! `max-concurrent` with calls of any duration: no lease is idle for long while jobs wait, and no
//! job is overtaken forever. How long a call takes is a guess, so announced turns play no part here
//! (`lua/limits.lua`, `limits_overtake`).

use std::sync::Arc;
use std::time::Duration;

use config::Config;
use simulator::api::ApiModel;
use simulator::figures::Figures;
use simulator::forms::{CostDistribution, Skew};
use simulator::history::RecordedCall;
use simulator::load::LoadProfile;
use simulator::run::{RunSetup, simulate};

const JOBS: usize = 600;
const TENANTS: usize = 5;
const MAX: usize = 5;
/// Minimum used fraction of the leases' time, compared with calls that follow each other at once.
/// The two network delays between an end and the next start are missing.
const USED: f64 = 0.96;

/// Returns the used fraction, and the maximum number of later jobs that overtook a job. Each of
/// several workers asks for as many jobs as it holds, so jobs of one overtake those of another.
fn played(latency: &str, scope: &str, workers: usize) -> (f64, usize) {
    let limit = format!("{{name: running, max-concurrent: {MAX}, scope: {scope}}}");
    let text = format!("rate-limiter: {{limits: [{limit}]}}");
    let config = Config::parse("a.yaml", &text, std::iter::empty()).expect("valid");
    let load = LoadProfile {
        tenants: if scope == "global" { TENANTS } else { 1 },
        skew: Skew(0.0),
        rate: None,
        lasts: None,
        count: Some(JOBS),
        bursts: vec![JOBS.to_string().parse().expect("a burst")],
        cost: CostDistribution::ONE,
    };
    let jobs = Arc::new(load.jobs(1).expect("a load"));
    let setup = RunSetup {
        config: &config,
        workers,
        api: ApiModel {
            latency: latency.parse().expect("a latency"),
            ..ApiModel::default()
        },
        redis: Duration::from_millis(1),
        seed: 1,
        work: u64::MAX,
        max: Duration::from_secs(86_400),
    };
    let history = simulate(&setup, &jobs, &Default::default());
    let figures = Figures::of(&config.rate_limiter.policy, &jobs, &history);
    assert_eq!((figures.calls, figures.unfinished), (JOBS, 0));
    let order: Vec<usize> = history.calls.iter().map(|call| call.job).collect();
    let passed = |(place, job): (usize, &usize)| {
        let before = &order[..place];
        before.iter().filter(|other| *other > job).count()
    };
    let passed = order.iter().enumerate().map(passed).max();
    let made = |ends: &[u64]| *ends.iter().max().expect("calls") as f64;
    let ends: Vec<u64> = history.calls.iter().map(|call| call.until_us).collect();
    (best(&history.calls) / made(&ends), passed.unwrap_or(0))
}

/// Returns when the last of these calls ends, in microseconds, if each starts as soon as an earlier
/// one ends.
fn best(calls: &[RecordedCall]) -> f64 {
    let mut leases = [0; MAX];
    for call in calls {
        let first = leases.iter_mut().min().expect("some");
        *first += call.until_us - call.at_us;
    }
    leases.into_iter().max().unwrap_or(0) as f64
}

#[test]
fn no_lease_is_idle_while_jobs_wait() {
    let mut wrong = Vec::new();
    for scope in ["tenant", "global"] {
        for latency in ["200ms", "lognormal:200ms,0.5", "lognormal:200ms,1", "2s"] {
            for workers in [1, 3] {
                let (used, passed) = played(latency, scope, workers);
                let result = format!(
                    "{scope}, {latency}, {workers} workers: {used:.3} used, passed by {passed}"
                );
                println!("{result}");
                if used < USED {
                    wrong.push(result);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
