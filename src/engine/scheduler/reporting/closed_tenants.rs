//! Tracks for the log which tenants are closed. A denied job closes its tenant, which opens again
//! one minute after its last wait. So a tenant at its limit, which is denied in each window, closes
//! only once.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::facts::{ClosedBy, TenantFact};
use crate::scheduler::Scheduler;
use crate::scheduler::asking::questions::GateQuestion;
use gate::{Answer, TenantReply};
use rules::tenant::Tenant;

/// Maximum number of closed tenants that are tracked. Further tenants are not reported.
const MAX_TENANTS: usize = 10_000;
/// Time after a tenant's last wait until it counts as open.
const OPEN_AFTER: Duration = Duration::from_secs(60);
/// Minimum interval between checks for open tenants. Each check looks at all closed tenants.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A closed tenant.
#[derive(Debug)]
struct ClosedTenant {
    since: Duration,
    /// The end of its last wait.
    until: Duration,
    /// Number of its jobs that were denied.
    denied: u64,
    /// Whether it was suspended at the last answer.
    suspended: bool,
    /// Whether the suspension was reported.
    is_reported: bool,
}

/// The closed tenants.
#[derive(Debug, Default)]
pub struct ClosedTenants {
    closed: HashMap<Tenant, ClosedTenant, RandomState>,
    /// When a tenant may be open again.
    next_check: Duration,
}

impl ClosedTenants {
    /// Records the gate's answer about jobs of a tenant. Adds a fact if the tenant closes or opens.
    fn record(
        &mut self,
        now: Duration,
        question: &GateQuestion,
        reply: &TenantReply,
        facts: &mut impl Extend<TenantFact>,
    ) {
        let left_ms = reply.blocked_until_ms.saturating_sub(reply.now_ms);
        let is_suspended = left_ms > 0;
        let waits = reply.answers.iter().filter_map(|answer| match *answer {
            Answer::Wait { ttl_ms, limit, .. } => Some((ttl_ms, limit)),
            _ => None,
        });
        let (mut denied, mut longest) = (0, None);
        for wait in waits {
            denied += 1;
            longest = longest.max(Some(wait));
        }
        if self.closed.is_empty() && !is_suspended && denied == 0 {
            return;
        }
        let tenant = &question.tenant;
        let is_resumed =
            |closed: &ClosedTenant| !is_suspended && closed.suspended && now < closed.until;
        if self.closed.get(tenant).is_some_and(is_resumed) {
            facts.extend(self.opened(now, tenant));
        }
        let last = question.limits.len().saturating_sub(1);
        let (by, wait_ms) = match longest {
            _ if is_suspended => (ClosedBy::Suspension, left_ms),
            None => return,
            Some((ttl_ms, limit)) => {
                let limits = question.limits.clone();
                (ClosedBy::Limit(limits, limit.min(last)), ttl_ms)
            }
        };
        if self.closed.len() >= MAX_TENANTS && !self.closed.contains_key(tenant) {
            return;
        }
        let wait = Duration::from_millis(wait_ms);
        let until = now.saturating_add(wait);
        let is_first = self.closed.is_empty();
        let mut is_news = false;
        let closed = self.closed.entry(tenant.clone()).or_insert_with(|| {
            is_news = true;
            ClosedTenant {
                since: now,
                until,
                denied: 0,
                suspended: false,
                is_reported: false,
            }
        });
        is_news |= is_suspended && !closed.is_reported;
        // A new suspension by an operator or the API replaces the previous one, even if it ends
        // earlier.
        closed.until = match closed.suspended && is_suspended {
            true => until,
            false => closed.until.max(until),
        };
        closed.denied += denied;
        closed.suspended = is_suspended;
        closed.is_reported |= is_suspended;
        let next_check = closed.until.saturating_add(OPEN_AFTER);
        self.next_check = match is_first {
            true => next_check,
            false => self.next_check.min(next_check),
        };
        if is_news {
            let tenant = tenant.clone();
            facts.extend([TenantFact::Closed { tenant, by, wait }]);
        }
    }

    fn opened(&mut self, now: Duration, tenant: &Tenant) -> Option<TenantFact> {
        let closed = self.closed.remove(tenant)?;
        Some(TenantFact::Opened {
            tenant: tenant.clone(),
            after: now.saturating_sub(closed.since),
            denied: closed.denied,
        })
    }

    /// Returns a fact for each tenant that is open again.
    fn take_opened(&mut self, now: Duration) -> Vec<TenantFact> {
        if self.closed.is_empty() || now < self.next_check {
            return Vec::new();
        }
        let mut open = Vec::new();
        let mut next = Duration::MAX;
        for (tenant, closed) in &self.closed {
            match closed.until.saturating_add(OPEN_AFTER) {
                at if at <= now => open.push(tenant.clone()),
                at => next = next.min(at),
            }
        }
        self.next_check = next.max(now + CHECK_INTERVAL);
        // Sorted, because the map has no stable order, and equal events must have equal results.
        open.sort_unstable();
        let opened = open.iter().filter_map(|tenant| self.opened(now, tenant));
        opened.collect()
    }

    /// Returns when [`ClosedTenants::take_opened`] may find something.
    pub fn next(&self) -> Option<Duration> {
        (!self.closed.is_empty()).then_some(self.next_check)
    }
}

impl Scheduler {
    /// Updates whether the tenant is closed, according to the gate's answer.
    pub(in crate::scheduler) fn record_closed_tenant(
        &mut self,
        now: Duration,
        question: &GateQuestion,
        reply: &TenantReply,
    ) {
        self.closed_tenants
            .record(now, question, reply, &mut self.facts);
    }

    /// Reports the tenants that are open again.
    pub(in crate::scheduler) fn report_open_tenants(&mut self, now: Duration) {
        let opened = self.closed_tenants.take_opened(now);
        self.facts.extend(opened);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gate::Ticket;
    use kit::SECOND;
    use rules::limit::{Algorithm, Limit, Limits};
    use rules::scope::Labels;

    const STORE_MS: u64 = 1_700_000_000_000;
    const MINUTE: Duration = Duration::from_secs(60);

    fn question(tenant: &str) -> GateQuestion {
        let limit =
            |name, max| Limit::new(name, Algorithm::SlidingWindow, max, SECOND, SECOND / 20);
        let limits = [limit("burst", 5), limit("hourly", 9)].map(|limit| limit.expect("a limit"));
        let tenant = Tenant::parse(tenant).expect("a tenant");
        let limits = Limits::new(limits.into()).expect("two names");
        GateQuestion::new(tenant, Labels::default(), limits, String::new())
    }

    fn wait(limit: usize, ttl_ms: u64) -> Answer {
        Answer::Wait {
            limit,
            count: 5,
            ttl_ms,
            ticket: Ticket {
                generation: 1,
                number: 1,
            },
        }
    }

    fn start() -> Answer {
        Answer::Start {
            sequences: Default::default(),
        }
    }

    fn reply(left_ms: u64, answers: Vec<Answer>) -> TenantReply {
        TenantReply {
            now_ms: STORE_MS,
            blocked_until_ms: if left_ms > 0 { STORE_MS + left_ms } else { 0 },
            has_failures: false,
            shadows: Vec::new(),
            answers,
        }
    }

    /// Describes facts in words.
    fn words(facts: impl IntoIterator<Item = TenantFact>) -> Vec<String> {
        let described = facts.into_iter().map(|fact| match fact {
            TenantFact::Closed { tenant, by, wait } => match by {
                ClosedBy::Limit(limits, at) => format!("{tenant}: {} {wait:?}", limits[at].name()),
                ClosedBy::Suspension => format!("{tenant}: suspended {wait:?}"),
            },
            TenantFact::Opened {
                tenant,
                after,
                denied,
            } => format!("{tenant}: open {after:?} {denied}"),
            other => panic!("{other:?}"),
        });
        described.collect()
    }

    fn record(
        tenants: &mut ClosedTenants,
        at: u32,
        tenant: &str,
        reply: TenantReply,
    ) -> Vec<String> {
        let mut facts = Vec::new();
        tenants.record(at * SECOND, &question(tenant), &reply, &mut facts);
        words(facts)
    }

    #[test]
    fn a_tenant_denied_in_each_window_closes_once() {
        let mut tenants = ClosedTenants::default();
        let (nobody, none) = (Vec::<String>::new(), None);
        assert_eq!(
            record(&mut tenants, 1, "a", reply(0, vec![start()])),
            nobody
        );
        assert_eq!(tenants.next(), none);
        let both = vec![start(), wait(1, 2_000), wait(0, 900)];
        assert_eq!(
            record(&mut tenants, 1, "a", reply(0, both)),
            ["a: hourly 2s"]
        );
        for at in 2..100 {
            let repeated = reply(0, vec![wait(0, 1_000)]);
            assert_eq!(record(&mut tenants, at, "a", repeated), nobody);
            assert_eq!(
                record(&mut tenants, at, "a", reply(0, vec![start()])),
                nobody
            );
            assert_eq!(words(tenants.take_opened(at * SECOND)), nobody);
        }
        let open_at = 100 * SECOND + OPEN_AFTER;
        assert_eq!(words(tenants.take_opened(open_at - SECOND / 9)), nobody);
        let looked =
            words(tenants.take_opened(tenants.next().expect("one is closed").max(open_at)));
        assert_eq!(looked.len(), 1, "{looked:?}");
        assert!(looked[0].starts_with("a: open ") && looked[0].ends_with(" 100"));
        assert_eq!(tenants.next(), none);
    }

    #[test]
    fn a_suspension_is_reported_once_and_ends_when_an_operator_resumes() {
        let mut tenants = ClosedTenants::default();
        let none = Vec::<String>::new();
        let limited = || reply(0, vec![wait(0, 500)]);
        let suspended = |left_ms| reply(left_ms, vec![wait(0, left_ms)]);
        assert_eq!(record(&mut tenants, 1, "a", limited()), ["a: burst 500ms"]);
        assert_eq!(
            record(&mut tenants, 2, "a", suspended(9_000)),
            ["a: suspended 9s"]
        );
        assert_eq!(record(&mut tenants, 3, "a", suspended(8_000)), none);
        let resumed = record(&mut tenants, 4, "a", limited());
        assert_eq!(
            resumed,
            ["a: open 3s 3", "a: burst 500ms"],
            "before its time"
        );
        let repeated = record(&mut tenants, 5, "a", suspended(3_600_000));
        assert_eq!(repeated, ["a: suspended 3600s"]);
        let resumed = record(&mut tenants, 6, "a", reply(0, vec![start()]));
        assert_eq!(resumed, ["a: open 2s 2"]);
        assert_eq!(
            record(&mut tenants, 7, "a", suspended(1_000)),
            ["a: suspended 1s"]
        );
        assert_eq!(record(&mut tenants, 9, "a", reply(0, vec![start()])), none);
        assert_eq!(
            words(tenants.take_opened(8 * SECOND + MINUTE)),
            ["a: open 61s 1"]
        );
        // A suspension without an end.
        assert_eq!(
            record(&mut tenants, 99, "b", suspended(u64::MAX - STORE_MS)).len(),
            1
        );
        assert!(tenants.take_opened(1_000 * MINUTE).is_empty());
    }

    #[test]
    fn short_waits_are_checked_before_long_ones_and_rarely() {
        let mut tenants = ClosedTenants::default();
        record(&mut tenants, 0, "long", reply(0, vec![wait(0, 3_600_000)]));
        for number in 0..50 {
            record(
                &mut tenants,
                0,
                &number.to_string(),
                reply(0, vec![wait(0, 1_000 + 10 * number)]),
            );
        }
        let (mut looks, mut open) = (0, 0);
        while let Some(at) = tenants.next().filter(|at| *at < 5 * MINUTE) {
            open += tenants.take_opened(at).len();
            looks += 1;
        }
        assert_eq!((looks, open), (2, 50));
    }

    #[test]
    fn the_number_of_closed_tenants_is_bounded() {
        let mut tenants = ClosedTenants::default();
        let denied = || reply(0, vec![wait(0, 1_000)]);
        for number in 0..MAX_TENANTS {
            assert_eq!(
                record(&mut tenants, 0, &number.to_string(), denied()).len(),
                1
            );
        }
        assert!(record(&mut tenants, 0, "one more", denied()).is_empty());
        assert!(
            record(&mut tenants, 0, "7", denied()).is_empty(),
            "it is known"
        );
        assert_eq!(tenants.take_opened(2 * MINUTE).len(), MAX_TENANTS);
    }
}
