//! Tasks that call the gate. Each ends with a report. Tasks that may log inherit the span of the
//! engine's pipeline.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::EngineLoop;
use crate::action::Block;
use crate::reports::TaskReport;
use broker::Broker;
use gate::{
    BreakerEvent, BreakerScope, Candidate, Gate, LimitEvidence, Rule, ShardId, SuspectNote,
    TenantAsk, TenantSettlements,
};
use handler::PreparingHandler;
use rules::answers::Quotas;
use rules::steering::JobSighting;
use rules::tenant::Tenant;

impl<B: Broker, G: Gate, H: PreparingHandler> EngineLoop<B, G, H> {
    /// Asks about jobs of one shard in one round trip.
    pub(super) fn ask_gate(&mut self, shard: ShardId, batch: Vec<TenantAsk>) {
        self.call_gate(|gate| {
            // Boxed first: each later step copies the future, which is kilobytes large.
            let asks = async move { TaskReport::Answered(shard, gate.ask(&batch).await) };
            Box::pin(asks).in_current_span()
        });
    }

    /// Settles starts of one shard.
    pub(super) fn settle(&mut self, shard: ShardId, batch: Vec<TenantSettlements>) {
        self.call_gate(|gate| {
            let settles = async move { TaskReport::Settled(shard, gate.settle(&batch).await) };
            settles.in_current_span()
        });
    }

    /// Stores notes on calls of suspects in one shard.
    pub(super) fn store_notes(&mut self, shard: ShardId, batch: Vec<SuspectNote>) {
        self.call_gate(|gate| {
            let notes = async move { TaskReport::Suspected(shard, gate.suspect(&batch).await) };
            notes.in_current_span()
        });
    }

    /// Asks whether jobs of one shard are the first with their dedupe keys.
    pub(super) fn dedupe(&mut self, shard: ShardId, batch: Vec<Candidate>) {
        self.call_gate(|gate| async move { TaskReport::Deduped(shard, gate.dedupe(&batch).await) });
    }

    /// Throttles a tenant, or all tenants, for `duration`.
    pub(super) fn block(&mut self, block: Block, duration: Duration) {
        self.call_gate(|gate| async move {
            let result = gate.block(&block.scope, duration, &block.reason).await;
            TaskReport::Blocked(block, result)
        });
    }

    /// Stores the limits that the API advertises.
    pub(super) fn store_advertised(&mut self, batch: Vec<(Tenant, Quotas)>) {
        self.call_gate(|gate| async move { TaskReport::Advertised(gate.advertised(&batch).await) });
    }

    /// Stores lessons for adaptive limits.
    pub(super) fn learn(&mut self, batch: Vec<LimitEvidence>) {
        self.call_gate(|gate| async move { TaskReport::Learned(gate.learn(&batch).await) });
    }

    /// Reports to the breakers how calls ended.
    pub(super) fn report_ends(&mut self, rule: Rule, batch: Vec<(BreakerScope, BreakerEvent)>) {
        self.call_gate(
            |gate| async move { TaskReport::Reported(gate.report(&rule, &batch).await) },
        );
    }

    /// Stores the states of jobs about which an operator asked.
    pub(super) fn store_sightings(&mut self, batch: Vec<JobSighting>) {
        self.call_gate(|gate| async move { TaskReport::Sighted(gate.sighted(&batch).await) });
    }

    fn call_gate<F>(&mut self, call: impl FnOnce(Arc<G>) -> F)
    where
        F: Future<Output = TaskReport<H::Ready>> + Send + 'static,
    {
        let gate = Arc::clone(&self.engine.gate);
        self.tasks.spawn(call(gate));
    }
}
