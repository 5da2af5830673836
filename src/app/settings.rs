//! Derives the scheduler's settings from the configuration, and logs the limits at the start.

use std::time::Duration;

use tracing::info;

use config::{self, Config};
use engine::action::{EngineSettings, LiveSettings, ResultSettings, ResultTarget};
use gate::Rule;
use rules::broker::holding::Holding;
use rules::delays::DelayLevels;
use rules::limit::{Algorithm, ceil_ms};
use rules::named::Named;
use rules::policy::Policy;

/// Returns the scheduler's settings.
pub fn settings(config: &Config) -> EngineSettings {
    let levels = DelayLevels::new(config.delay.max_delay);
    EngineSettings {
        policy: config.rate_limiter.policy.clone(),
        fields: config.job.clone(),
        live: live_settings(config),
        prefetch: usize::from(config.amqp.prefetch),
        names: config.amqp.names(&levels),
        levels,
        throttle_scope: config.rate_limiter.throttle_scope,
        answers_stop_all: (config.dispatch.http.as_ref())
            .is_some_and(|http| http.answers.may_stop_all()),
        results: results(&config.dispatch.results),
        holding: Holding::new(config.amqp.consumer_timeout, config.dispatch.call_timeout()),
    }
}

/// Returns the settings that can change at run time, except the policy.
pub fn live_settings(config: &Config) -> LiveSettings {
    LiveSettings {
        concurrency: config.dispatch.concurrency,
        max_in_memory: config.delay.max_in_memory,
        retry: config.retry,
        breaker: config.dispatch.breaker.map(|breaker| Rule {
            // The breaker opens before a job has used all of its attempts.
            failures: breaker.failures.min(config.retry.max_attempts),
            first_wait_ms: ceil_ms(breaker.initial_interval),
            longest_wait_ms: ceil_ms(breaker.max_interval),
            lease_ms: ceil_ms(probe_lease(config)),
        }),
        max_throttle: config.rate_limiter.max_throttle,
        guard_budget: config.rate_limiter.guard_budget / 100.0,
    }
}

/// Returns where results are published, or `None` if they are not.
fn results(results: &config::Results) -> Option<ResultSettings> {
    let to = match results.to {
        config::ResultsTo::None => return None,
        config::ResultsTo::ReplyTo => ResultTarget::ReplyTo,
        config::ResultsTo::Exchange => ResultTarget::Exchange {
            exchange: results.exchange.as_deref().unwrap_or_default().into(),
            routing_key: results.routing_key.as_str().into(),
        },
    };
    let max_body = results.max_body;
    Some(ResultSettings { to, max_body })
}

/// Returns how long a probe may be silent before it is given up.
fn probe_lease(config: &Config) -> Duration {
    let call = config.dispatch.call_timeout() + Duration::from_secs(10);
    call.max(Duration::from_secs(60))
}

/// Logs the common limits, and the number of plans and tenants that have others.
pub(super) fn log_policy(policy: &Policy) {
    for limit in policy.default_limits().iter() {
        let algorithm = limit.algorithm();
        let strict = algorithm == Algorithm::Strict;
        let has_window = algorithm != Algorithm::Concurrency;
        // A field without a value is omitted.
        info!(
            limit = limit.name(),
            algorithm = algorithm.use_algo().name(),
            max_requests = limit.max(),
            window_ms = has_window.then(|| limit.window_ms()),
            calendar = limit.calendar().map(ToString::to_string),
            guard = strict.then_some("strict"),
            guard_ms = (has_window && !strict).then(|| limit.guard_ms()),
            burst = algorithm.has_burst().then(|| limit.burst()),
            unit = limit.unit().name(),
            scope = %limit.scope(),
            "enforcing",
        );
    }
    let (plans, tenants) = (policy.plans().len(), policy.tenants().len());
    if plans + tenants > 0 {
        info!(plans, tenants, "enforcing limits of plans and tenants");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breaker_opens_before_a_job_has_used_its_attempts() {
        let failures = |attempts: u32| {
            let text = format!(
                "amqp: {{queue: jobs}}\nredis: {{url: 'redis://127.0.0.1'}}\n\
                 rate-limiter: {{use-algo: sliding-window-algo, max-requests: 5}}\n\
                 dispatch: {{http: {{url: 'http://127.0.0.1/'}}, breaker: {{failures: 4}}}}\n\
                 retry: {{max-attempts: {attempts}}}\n"
            );
            let config = Config::parse("c.yaml", &text, std::iter::empty()).expect("valid");
            live_settings(&config).breaker.map(|rule| rule.failures)
        };
        assert_eq!((failures(3), failures(9)), (Some(3), Some(4)));
    }
}
