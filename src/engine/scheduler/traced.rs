//! What is known of a job's trace, as long as the job is in the worker's memory.

use std::time::Duration;

use crate::rules::limit::Limits;
use crate::rules::trace::{About, Context, Told};

/// So often it is told in one span that its job must wait; of more it is told how often.
const MOST_TOLD: usize = 16;

/// What is known of a job's trace.
#[derive(Debug)]
pub(super) struct Trace {
    /// What the present span belongs to; `None`: it is the root.
    pub(super) parent: Option<Context>,
    /// What the later ones belong to.
    pub(super) root: Context,
    /// The present one: a wait, or a call.
    pub(super) span: Context,
    pub(super) since: Duration,
    pub(super) before: Duration,
    pub(super) told: Vec<Told>,
    pub(super) more: u32,
    pub(super) first_call: Option<u64>,
}

impl Trace {
    /// The job must wait.
    pub(super) fn told(&mut self, now: Duration, limits: &Limits, limit: usize, ttl_ms: u64) {
        if !self.span.sampled {
            return;
        }
        if self.told.len() == MOST_TOLD {
            self.more = self.more.saturating_add(1);
            return;
        }
        self.told.push(Told {
            at: now,
            limits: limits.clone(),
            limit,
            ttl_ms,
        });
    }

    /// Another span begins.
    pub(super) fn next(&mut self, now: Duration, id: u64) {
        self.parent = Some(self.root);
        self.span = self.root.beside(id);
        self.since = now;
        self.before = Duration::ZERO;
        self.told = Vec::new();
        self.more = 0;
    }

    /// What its wait told.
    pub(super) fn wait(&mut self) -> About {
        About::Wait {
            told: std::mem::take(&mut self.told),
            more: self.more,
        }
    }
}
