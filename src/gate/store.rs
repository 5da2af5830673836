//! What the gate's client code needs of a store: that it answers commands, one round trip at a time. Redis does; so does whatever stands
//! in its place where time, losses and delays are to be decided by whoever runs it ([`memory::store`](crate::gate::memory::store)).

use std::time::Duration;

use ::redis::{Cmd, Value};
use futures_util::future::BoxFuture;

use crate::gate::{
    BreakerEvent, BreakerScope, Candidate, Change, GateError, LimitEvidence, Rule, Suspected,
    TenantAsk, TenantSettled,
};
use crate::rules::answers::Quotas;
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// A store without servers.
pub trait Store: Send + Sync + 'static {
    /// One round trip: runs all of them in their order. One value for each, as Redis has it.
    ///
    /// # Errors
    /// [`GateError`]: it may have run them, or not.
    fn run<'a>(
        &'a self,
        commands: Vec<Command<'a>>,
    ) -> BoxFuture<'a, Result<Vec<Value>, GateError>>;
}

/// A command, and what it is about.
#[derive(Clone, Copy)]
pub struct Command<'a> {
    /// As Redis gets it.
    pub command: &'a Cmd,
    /// What it asks for.
    pub meaning: Meaning<'a>,
}

impl<'a> Command<'a> {
    /// One that says itself what it asks for.
    pub fn plain(command: &'a Cmd) -> Self {
        Self {
            command,
            meaning: Meaning::Itself,
        }
    }
}

/// What a script call asks for, before it was put into words for Redis.
#[derive(Clone, Copy)]
pub enum Meaning<'a> {
    /// The command says all of it: it is no script, or one of those of the epoch and the registry.
    Itself,
    /// `acquire`
    Ask(&'a TenantAsk),
    /// `settle`
    Settle(&'a TenantSettled),
    /// `block`
    Block(&'a BreakerScope, Duration, &'a str),
    /// `report`
    Report(&'a Rule, &'a (BreakerScope, BreakerEvent)),
    /// `crash`
    Suspect(&'a Suspected),
    /// `dedupe`
    Dedupe(&'a Candidate),
    /// `quota`
    Advertised(&'a Tenant, Quotas),
    /// `learn`
    Learn(&'a LimitEvidence),
    /// `change`
    Change(&'a BreakerScope, &'a Change),
    /// `inspect`
    Inspect(&'a Tenant, &'a Labels, &'a Limits),
}
