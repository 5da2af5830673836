//! A worker's metrics, for Prometheus. No label names a tenant: with 100,000 tenants each metric
//! would have 100,000 series. `sluicegate inspect TENANT` reports on a single tenant.
//!
//! Counters are incremented, and single gauges set, where their events occur; functions here set
//! gauges that belong together.

mod fleet_report;
mod labels;
mod limits;
mod load;
mod merge;
mod series;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;

pub use self::merge::merge;
pub use self::series::Metrics;
use broker::MessageKind;
use gate::Primaries;
use rules::report::load::{Census, TenantLoads};
use rules::steering::Hold;

impl Metrics {
    /// Sets the number of messages of each kind that wait because their target takes none.
    pub fn set_stuck(&self, messages: [usize; MessageKind::NAMES.len()]) {
        for ((_, kind), messages) in MessageKind::NAMES.into_iter().zip(messages) {
            set(&self.stuck_messages.of(kind), messages);
        }
    }

    /// Records whether the server `rabbitmq` or `redis` answers.
    pub fn set_up(&self, server: &'static str, up: bool) {
        let was = self.up.of(server).set(i64::from(up));
        if was == 1 && !up {
            self.disconnects.count(server);
        }
    }

    /// Sets the operator's instruction to all workers: paused, draining or neither.
    pub fn set_held(&self, hold: Option<Hold>) {
        self.paused.set(i64::from(hold == Some(Hold::Paused)));
        self.draining.set(i64::from(hold == Some(Hold::Draining)));
    }

    /// Returns the calls in flight, the jobs in memory and the total number of deliveries, for
    /// operators.
    pub fn loads(&self) -> [u64; 3] {
        let deliveries = series::QUEUES.map(|queue| self.deliveries.of(queue).get());
        [
            number(&self.calls_in_flight),
            number(&self.in_memory),
            deliveries.into_iter().sum(),
        ]
    }

    /// Returns one line for each problem of a worker that is ready anyway: primaries that admit no
    /// jobs, a drain, or stuck messages.
    pub fn partly(&self) -> Vec<String> {
        let [admitting, recovering, away] =
            ["admitting", "recovering", "away"].map(|of| number(&self.redis_primaries.of(of)));
        let all = admitting + recovering + away;
        let line = |number: u64, what| {
            (number > 0 && admitting > 0).then(|| {
                format!(
                    "{number} of {all} Redis primaries {what}: their tenants' jobs are not admitted"
                )
            })
        };
        let lines = [
            line(recovering, "may have lost data"),
            line(away, "does not answer"),
        ];
        let draining = (self.draining.get() > 0).then(|| {
            "an operator is draining all workers: no new job is taken; sluicegate resume --all \
            ends it"
                .to_owned()
        });
        let stuck = MessageKind::NAMES.into_iter().filter_map(|(_, kind)| {
            let number = self.stuck_messages.of(kind).get();
            (number > 0).then(|| {
                format!(
                    "stuck: RabbitMQ does not accept {number} messages ({kind}); the log \
                    names a queue"
                )
            })
        });
        lines
            .into_iter()
            .flatten()
            .chain(draining)
            .chain(stuck)
            .collect()
    }

    /// Sets the number of primaries in each state.
    pub fn set_primaries(&self, now: Primaries) {
        for (state, number) in [
            ("admitting", now.admitting),
            ("recovering", now.recovering),
            ("away", now.unavailable),
        ] {
            set(&self.redis_primaries.of(state), number);
        }
    }

    /// Counts a configuration reload, applied or refused.
    pub fn reloaded(&self, applied: bool) {
        let result = if applied { "applied" } else { "refused" };
        self.config_reloads.count(result);
        self.config_refused.set(i64::from(!applied));
    }

    /// Resets the gauges of a pipeline that no longer runs: no server answers, no job is in memory.
    /// Its next engine reports only what differs from this.
    pub fn set_stopped(&self) {
        self.set_held(None);
        self.set_stuck([0; MessageKind::NAMES.len()]);
        self.limits_lowered.each(|lowered| _ = lowered.set(0));
        for server in ["rabbitmq", "redis"] {
            // The worker ends these connections itself.
            self.up.of(server).set(0);
        }
        self.agreed.set(0);
        self.breaker_open.set(0);
        self.set_memory(0, 0, 0);
        self.set_abandoned(0);
        self.set_backlog(None);
        self.set_census(&Census::default());
        self.saturation.set(0.0);
        self.set_tenants(TenantLoads::default());
    }

    /// Sets the number of policies enforced together.
    pub fn set_policies(&self, number: usize) {
        set(&self.active_policies, number);
    }

    /// Sets the number of calls in flight, of jobs delayed in memory, and of all jobs in memory.
    pub fn set_memory(&self, in_flight: usize, delayed: usize, in_memory: usize) {
        set(&self.calls_in_flight, in_flight);
        set(&self.delayed_in_memory, delayed);
        set(&self.in_memory, in_memory);
    }

    /// Sets the number of calls that timed out and still hold their leases.
    pub fn set_abandoned(&self, calls: usize) {
        set(&self.abandoned_calls, calls);
    }

    /// Returns all metrics in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn set(gauge: &Gauge, number: usize) {
    gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
}

/// Returns the value of a gauge that counts something.
fn number(gauge: &Gauge) -> u64 {
    u64::try_from(gauge.get()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(text: &str, line: &str) {
        let is_there = text.lines().any(|shown| shown == line);
        assert!(is_there, "{line} is missing in\n{text}");
    }

    #[test]
    fn counts_are_shown() {
        let metrics = Metrics::new();
        metrics.deliveries.count("due");
        metrics.decisions.count("start");
        metrics.gate_seconds.observe(0.002);
        metrics.set_up("redis", true);
        metrics.set_up("redis", false);
        metrics.set_up("redis", false);
        metrics.set_memory(3, 2, 5);
        let text = metrics.encode();
        for line in [
            "sluicegate_deliveries_total{queue=\"due\"} 1",
            "sluicegate_deliveries_total{queue=\"new\"} 0",
            "sluicegate_decisions_total{answer=\"start\"} 1",
            "sluicegate_gate_seconds_count 1",
            "sluicegate_up{server=\"redis\"} 0",
            "sluicegate_disconnects_total{server=\"redis\"} 1",
            "sluicegate_calls_in_flight 3",
            "sluicegate_in_memory 5",
        ] {
            shows(&text, line);
        }
    }

    #[test]
    fn a_stopped_pipeline_shows_nothing_of_its_last_engine() {
        let metrics = Metrics::new();
        metrics.set_held(Some(Hold::Paused));
        metrics.set_stuck([1; MessageKind::NAMES.len()]);
        metrics.limit_lowered("minute", 3);
        metrics.set_stopped();
        let text = metrics.encode();
        for line in [
            "sluicegate_paused 0",
            "sluicegate_draining 0",
            "sluicegate_stuck_messages{kind=\"dead-letter\"} 0",
            "sluicegate_limits_lowered{limit=\"minute\"} 0",
            "sluicegate_limit_decreases_total{limit=\"minute\"} 1",
        ] {
            shows(&text, line);
        }
    }

    #[test]
    fn a_pipeline_that_stops_loses_no_connection() {
        let metrics = Metrics::new();
        metrics.set_up("rabbitmq", true);
        metrics.set_up("redis", true);
        metrics.set_stopped();
        let text = metrics.encode();
        for server in ["rabbitmq", "redis"] {
            for name in ["up", "disconnects_total"] {
                let line = format!("sluicegate_{name}{{server=\"{server}\"}} 0");
                shows(&text, &line);
            }
        }
    }

    #[test]
    fn every_series_exists_from_the_start() {
        let text = Metrics::new().encode();
        for line in [
            "sluicegate_deliveries_total{queue=\"recheck\"} 0",
            "sluicegate_decisions_total{answer=\"capacity\"} 0",
            "sluicegate_dispatches_total{outcome=\"throttled\"} 0",
            "sluicegate_delays_total{where=\"memory\"} 0",
            "sluicegate_dead_letters_total{reason=\"bad-message\"} 0",
            "sluicegate_publish_failures_total{kind=\"nacked\"} 0",
            "sluicegate_disconnects_total{server=\"rabbitmq\"} 0",
            "sluicegate_up{server=\"redis\"} 0",
            "sluicegate_expired_permits_total 0",
            "sluicegate_delayed_starts_total 0",
            "sluicegate_duplicates_total 0",
            "sluicegate_exec_restarts_total 0",
            "sluicegate_late_calls_total{detected_by=\"nothing\"} 0",
            "sluicegate_late_calls_not_counted_total 0",
            "sluicegate_gate_base_seconds 0.0",
            concat!(
                "sluicegate_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"} 1"
            ),
        ] {
            shows(&text, line);
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
