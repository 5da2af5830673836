//! The gate in memory: the model behind the gate's trait, for tests and for trying a worker without Redis.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::gate::{
    Change, Gate, GateError, Inspection, Replies, TenantAsk, TenantReply, TenantSettled,
};
use crate::rules::limit::{Limit, Limits, ceil_ms};
use crate::rules::log::Clock;
use crate::rules::model::State;
use crate::rules::quota::Quotas;
use crate::rules::tenant::Tenant;

/// Tenants that are kept before those with nothing left are looked for.
const SWEEP_AT: usize = 1024;

/// A gate that is shared by nobody outside this process and forgets all when it ends.
pub struct MemoryGate<C> {
    clock: C,
    tenants: Mutex<Tenants>,
}

struct Tenants {
    /// Each with the limits that were last in force, by which it is known when all of it is over.
    states: HashMap<Tenant, (State, Option<Limits>)>,
    /// How many tenants there may be before the next sweep.
    sweep_at: usize,
}

impl<C: Fn() -> u64 + Send + Sync + 'static> MemoryGate<C> {
    /// An empty gate. `clock` gives microseconds since the epoch.
    pub fn new(clock: C) -> Self {
        Self {
            clock,
            tenants: Mutex::new(Tenants {
                states: HashMap::new(),
                sweep_at: SWEEP_AT,
            }),
        }
    }

    /// Runs `decide` on the tenant's state, as the store would have it now.
    fn with<T>(
        &self,
        tenant: &Tenant,
        limits: Option<&Limits>,
        decide: impl FnOnce(&mut State, Clock) -> T,
    ) -> T {
        // No code panics while it holds the lock, so a poisoned one can only be whole.
        let mut tenants: MutexGuard<'_, Tenants> =
            self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = Clock::from_micros((self.clock)());
        if tenants.states.len() >= tenants.sweep_at {
            tenants
                .states
                .retain(|_, (state, limits)| !state.expire(in_force(limits), clock.now_ms));
            tenants.sweep_at = SWEEP_AT.max(tenants.states.len() * 2);
        }
        let (state, known) = tenants.states.entry(tenant.clone()).or_default();
        if limits.is_some() && limits != known.as_ref() {
            *known = limits.cloned();
        }
        state.expire(in_force(known), clock.now_ms);
        decide(state, clock)
    }
}

fn in_force(limits: &Option<Limits>) -> &[Limit] {
    limits.as_deref().unwrap_or_default()
}

impl<C: Fn() -> u64 + Send + Sync + 'static> Gate for MemoryGate<C> {
    async fn ask(&self, batch: &[TenantAsk]) -> Result<Replies, GateError> {
        let decide = |ask: &TenantAsk| {
            self.with(&ask.tenant, Some(&ask.limits), |state, clock| {
                let (answers, blocked_until_ms) =
                    state.ask(&ask.limits, clock, ask.budget, &ask.permits, &ask.asks);
                Ok(TenantReply {
                    now_ms: clock.now_ms,
                    blocked_until_ms,
                    answers,
                })
            })
        };
        Ok(batch.iter().map(decide).collect())
    }

    async fn settle(&self, batch: &[TenantSettled]) -> Result<(), GateError> {
        for TenantSettled {
            tenant,
            limits,
            call,
            settled,
        } in batch
        {
            self.with(tenant, Some(limits), |state, clock| {
                state.settle(limits, clock, call, settled);
            });
        }
        Ok(())
    }

    async fn block(&self, tenant: &Tenant, duration: Duration, by: &str) -> Result<(), GateError> {
        self.with(tenant, None, |state, clock| {
            state.block(clock.now_ms, ceil_ms(duration), by);
        });
        Ok(())
    }

    async fn advertised(&self, batch: &[(Tenant, Quotas)]) -> Result<(), GateError> {
        for (tenant, quotas) in batch {
            self.with(tenant, None, |state, clock| {
                state.advertised(clock.now_ms, *quotas);
            });
        }
        Ok(())
    }

    async fn change(&self, tenant: &Tenant, change: &Change) -> Result<u64, GateError> {
        Ok(self.with(tenant, None, |state, clock| {
            state.change(clock.now_ms, change)
        }))
    }

    async fn inspect(&self, tenant: &Tenant, limits: &Limits) -> Result<Inspection, GateError> {
        Ok(self.with(tenant, Some(limits), |state, clock| {
            state.inspect(limits, clock)
        }))
    }
}
