//! The specification of `lua/forecast.lua`: when the units of a waitlist have their turns.

use super::Scopes;
use crate::decision::Change;
use crate::gate::forecast::{ForecastRequest, OpeningTime, Schedule, Turn, points};
use crate::gate::model::call::Call;
use crate::gate::usage::Clock;

impl Scopes<'_> {
    /// Returns when the units of the waitlist would have their turns under the limits in `asked`.
    /// Changes nothing.
    pub fn schedule(&self, asked: &ForecastRequest, clock: Clock) -> Schedule {
        let now = clock.now_ms;
        let limits = self.in_force_ignoring(&asked.limits, &asked.ignores_override, now);
        let next = self.next_limits(&asked.limits, &asked.ignores_override, now);
        let set =
            (asked.limits.iter().zip(&asked.ignores_override)).map(|(limit, ignores_override)| {
                match ignores_override {
                    true => limit.max(),
                    false => self.set(limit, now).max(),
                }
            });
        let set = set.collect();
        let mut states = self.loaded_copy(&limits, clock);
        states.forget_reset_waitlist(now);
        let control = &mut states.states[self.layout.control];
        control.pull_back(now);
        match asked.opens {
            OpeningTime::AsItIs => {}
            OpeningTime::Now => _ = control.change(now, &Change::Resume),
            OpeningTime::In(duration_ms) => {
                _ = control.change(now, &Change::Pause { duration_ms });
            }
        }
        let opens_ms = now.max(asked.not_before_ms).max(control.closed_until(now));
        let charged = (&limits[..], &next);
        let call = Call::new(&mut states.states, self.layout, charged, clock, opens_ms, 0);
        let mut call = call.foreseeing();
        let (units, own) = call.up_to(asked.target);
        let turn = |unit| Turn {
            unit,
            at: call.turn_by_limit(unit, if unit == units { own } else { 1 }),
        };
        let turns = points(units).map(turn).collect();
        let waitlist = &states.states[0].waitlist;
        Schedule {
            now_ms: now,
            opens_ms,
            waiting: waitlist.waiting(),
            units,
            jobs: match units {
                0 => 0,
                units => waitlist.jobs_in(units, own),
            },
            turns,
            max: limits.iter().map(|limit| limit.max()).collect(),
            set,
        }
    }
}

#[cfg(test)]
mod tests;
