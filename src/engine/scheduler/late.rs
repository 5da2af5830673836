//! Calls that came later than the guard covers count from when the worker hears of them.

use std::time::Duration;

use super::{Scheduler, Started};
use crate::engine::action::Key;
use crate::gate::End;
use crate::rules::lateness::{Call, Heard, Look, Verdict};
use crate::rules::limit::{Limit, Limits};

impl Started {
    /// Its way, where a limit can be corrected by it.
    fn call(&self) -> Option<Call> {
        let window = shortest_window(&self.limits)?;
        Some(Call {
            asked_at: self.asked_at,
            guard: Duration::from_millis(self.limits.guard_ms()),
            window,
            covered: self.covered,
        })
    }
}

/// Of the limits that count a start where it arrived: windows with a guard.
fn shortest_window(limits: &Limits) -> Option<Duration> {
    let corrects =
        |limit: &&Limit| limit.algorithm().rules().counts_arrivals() && limit.guard_ms() > 0;
    let windows = limits.iter().filter(corrects).map(Limit::window_ms);
    windows.min().map(Duration::from_millis)
}

impl Scheduler {
    /// When to look at a call that starts now.
    pub(super) fn look(&mut self, now: Duration, started: &Started) -> Option<Look> {
        let call = started.call()?;
        Some(self.lateness.look(now, &call))
    }

    /// What was heard of a call on its way, which may have ended meanwhile.
    pub fn heard_of(&mut self, now: Duration, key: Key, heard: Heard) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let Some(started) = &mut entry.started else {
            return;
        };
        let Some(call) = started.call() else {
            return;
        };
        let budget = self.settings.guard_budget;
        let verdict = self.lateness.judge(now, &call, heard, budget);
        self.metrics.set_way_base(self.lateness.base());
        let late = match verdict {
            Verdict::InTime => return,
            Verdict::Unpaid => return self.metrics.late_call_not_counted(),
            Verdict::Late(late) => late,
        };
        self.metrics.late_call(heard, late);
        started.covered += late + call.guard;
        self.ledger
            .add_start(&entry.claims.tenant, started, End::Late);
    }
}
