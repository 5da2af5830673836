//! Reports the scheduler's facts to the log, the metrics and the traces once a turn, and updates
//! the gauges.

use std::time::Duration;

use crate::facts::{Fact, Gauges};
use crate::line_limiter::{LineBudget, LineLimiter};
use crate::load::SlotLoad;
use crate::scheduler::Scheduler;
use telemetry::metrics::Metrics;
use telemetry::traces;

/// The state of the log and of the load measurement.
#[derive(Default)]
pub(super) struct Observer {
    lines: LineLimiter,
    load: SlotLoad,
    /// A reused buffer.
    facts: Vec<Fact>,
}

impl Observer {
    /// Reports the facts since the last turn, and updates the gauges.
    pub(super) fn turn(&mut self, metrics: &Metrics, scheduler: &mut Scheduler, now: Duration) {
        scheduler.take_facts(&mut self.facts);
        for fact in &self.facts {
            fact.count(metrics);
            let limiter = &mut self.lines;
            fact.log(&mut LineBudget { limiter, now });
        }
        for span in scheduler.take_spans() {
            metrics.spans_lost.inc_by(traces::record(now, span));
        }
        self.lines.log_summaries(now);
        let gauges = scheduler.gauges();
        show(metrics, &gauges);
        metrics.set_stuck(scheduler.stuck(now));
        let (taken, lasted) = self.load.turn(now, gauges.slots);
        metrics.used_slots((taken, gauges.all_slots), lasted);
        let next = self.load.next(gauges.in_memory);
        if next.is_some_and(|at| at <= now) {
            let share = (self.load).counted(now, gauges.all_slots, gauges.in_memory);
            metrics.saturation.set(share);
            metrics.set_census(&scheduler.census(now));
            metrics.set_tenants(scheduler.tenants(now));
        }
    }

    /// Returns when the next report is due even without events, given the number of jobs in memory.
    pub(super) fn next(&self, in_memory: usize) -> Option<Duration> {
        let both = [self.load.next(in_memory), self.lines.next()];
        both.into_iter().flatten().min()
    }

    /// Reports the remaining facts before the engine ends.
    pub(super) fn close(&mut self, now: Duration) {
        self.lines.close(now);
    }
}

fn show(metrics: &Metrics, now: &Gauges) {
    metrics.set_memory(now.running, now.held, now.in_memory);
    metrics.set_abandoned(now.abandoned);
    metrics.breaker_open.set(i64::from(now.breaker_is_open));
    metrics
        .latency_base_seconds
        .set(now.latency_base.as_secs_f64());
}
