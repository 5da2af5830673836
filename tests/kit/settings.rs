//! Settings of a scheduler for tests with another subject.

use std::time::Duration;

use config::{Config, Http, SecretUrl};
use engine::action::{EngineSettings, LiveSettings};
use rules::answers::ThrottleScope;
use rules::broker::holding::Holding;
use rules::delays::{DelayLevels, QueueNames};
use rules::failures::retry::RetryPolicy;
use rules::job::{Fields, TenantField, ValueField};
use rules::limit::Algorithm;

use crate::gate::guarded_limit;

/// Returns the default settings for calls of `url`, which may be invalid.
pub fn http(url: impl Into<String>) -> Http {
    let text = "dispatch: {http: {url: 'http://h/'}}";
    let config = Config::parse("c.yaml", text, std::iter::empty()).expect("valid");
    Http {
        url: SecretUrl::new(url),
        ..config.dispatch.http.expect("a url")
    }
}

/// Returns settings of a scheduler whose limits admit everything, for `jobs` concurrent calls.
pub fn open(jobs: usize) -> EngineSettings {
    let second = Duration::from_secs(1);
    let limit = guarded_limit("default", Algorithm::SlidingWindow, (1000, 1000, 50));
    let levels = DelayLevels::new(300 * second);
    EngineSettings {
        policy: limit.into(),
        fields: Fields {
            tenant: TenantField::Header("x-tenant".into()),
            cost: ValueField::Header("x-cost".into()),
            deadline: None,
            max_delayed_start_ms: 30 * 86_400_000,
            dedupe_for_ms: 600_000,
            priorities: Default::default(),
            call: Default::default(),
        },
        live: LiveSettings {
            concurrency: jobs,
            max_in_memory: second / 2,
            retry: RetryPolicy {
                max_attempts: 3,
                initial_interval: second,
                max_interval: second,
                give_up_after: Duration::from_secs(7 * 86_400),
                max_crashes: 5,
            },
            breaker: None,
            max_throttle: second,
            guard_budget: 0.01,
        },
        prefetch: 8 * jobs,
        names: QueueNames::new("jobs", &levels),
        levels,
        throttle_scope: ThrottleScope::Tenant,
        answers_stop_all: false,
        results: None,
        holding: Holding::new(1_800 * second, 10 * second),
    }
}
