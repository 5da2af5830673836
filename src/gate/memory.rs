//! The gate in memory: the model behind the gate's trait, for tests and for trying a worker without Redis.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::gate::{Gate, GateError, Inspection, TenantAsk, TenantReply};
use crate::rules::limit::{Limit, ceil_ms};
use crate::rules::model::State;
use crate::rules::tenant::Tenant;
use crate::rules::window::Clock;

/// Tenants that are kept before those with nothing left are looked for.
const SWEEP_AT: usize = 1024;

/// A gate that is shared by nobody outside this process and forgets all when it ends.
pub struct MemoryGate<C> {
    limit: Limit,
    clock: C,
    tenants: Mutex<Tenants>,
}

struct Tenants {
    states: HashMap<Tenant, State>,
    /// How many tenants there may be before the next sweep.
    sweep_at: usize,
}

impl<C: Fn() -> u64 + Send + Sync + 'static> MemoryGate<C> {
    /// An empty gate that enforces `limit` for each tenant. `clock` gives microseconds since the epoch.
    pub fn new(limit: Limit, clock: C) -> Self {
        Self {
            limit,
            clock,
            tenants: Mutex::new(Tenants {
                states: HashMap::new(),
                sweep_at: SWEEP_AT,
            }),
        }
    }

    fn limit(&self, _tenant: &Tenant) -> &Limit {
        &self.limit
    }

    fn read(&self) -> (MutexGuard<'_, Tenants>, Clock) {
        // No code panics while it holds the lock, so a poisoned one can only be whole.
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        (tenants, Clock::from_micros((self.clock)()))
    }

    /// Runs `decide` on the tenant's state, as the store would have it now.
    fn with<T>(&self, tenant: &Tenant, decide: impl FnOnce(&mut State, &Limit, Clock) -> T) -> T {
        let (mut tenants, clock) = self.read();
        if tenants.states.len() >= tenants.sweep_at {
            tenants
                .states
                .retain(|tenant, state| !state.expire(self.limit(tenant), clock.now_ms));
            tenants.sweep_at = SWEEP_AT.max(tenants.states.len() * 2);
        }
        let limit = self.limit(tenant);
        let state = tenants
            .states
            .entry(tenant.clone())
            .or_insert_with(|| State::new(limit.algorithm()));
        state.expire(limit, clock.now_ms);
        decide(state, limit, clock)
    }
}

impl<C: Fn() -> u64 + Send + Sync + 'static> Gate for MemoryGate<C> {
    async fn ask(&self, batch: &[TenantAsk]) -> Result<Vec<TenantReply>, GateError> {
        Ok(batch
            .iter()
            .map(|ask| {
                self.with(&ask.tenant, |state, limit, clock| {
                    let (answers, blocked_until_ms) =
                        state.ask(limit, clock, ask.budget, &ask.asks);
                    TenantReply {
                        now_ms: clock.now_ms,
                        blocked_until_ms,
                        answers,
                    }
                })
            })
            .collect())
    }

    async fn block(&self, tenant: &Tenant, duration: Duration, by: &str) -> Result<(), GateError> {
        self.with(tenant, |state, _, clock| {
            state.block(clock.now_ms, ceil_ms(duration), by);
        });
        Ok(())
    }

    async fn inspect(&self, tenant: &Tenant) -> Result<Inspection, GateError> {
        Ok(self.with(tenant, |state, limit, clock| state.inspect(limit, clock)))
    }
}
