//! What the downstream says of its own limits: what of it is worth telling the gate, and the operator.

use std::collections::HashMap;
use std::time::Duration;

use crate::rules::answers::Quotas;
use crate::rules::tenant::Tenant;

/// What changes for one tenant is told this often at most.
const PAUSE: Duration = Duration::from_secs(60);
/// What stays the same is told anew after this: the gate forgets it after an hour.
const AGAIN: Duration = Duration::from_secs(600);
/// The same warning, of whichever tenant, is given this often at most.
const WARN_AGAIN: Duration = Duration::from_secs(3600);
/// Tenants that are remembered; of more, nothing is told until others are forgotten.
const MOST_TENANTS: usize = 10_000;
/// Different warnings that are remembered; beyond them, none is given.
const MOST_WARNINGS: usize = 256;
/// Tenants in one call.
const MOST: usize = 256;

/// What is known, to be told, and being told.
#[derive(Debug, Default)]
pub struct Advertised {
    known: HashMap<Tenant, Known>,
    swept: Duration,
    open: Vec<(Tenant, Quotas)>,
    sent: Option<Vec<Tenant>>,
    /// Until when each warning is not given again.
    warned: HashMap<String, Duration>,
}

#[derive(Debug)]
struct Known {
    quotas: Quotas,
    /// When something else may be told, and when the same.
    other_at: Duration,
    same_at: Duration,
}

impl Advertised {
    /// An answer to a job of `tenant` said this. `None`: it is not told now; else whether it is news.
    pub fn hear(&mut self, now: Duration, tenant: &Tenant, quotas: Quotas) -> Option<bool> {
        if quotas.is_empty() || self.open.len() >= MOST {
            return None;
        }
        let known = self.known.get(tenant);
        let is_news = known.is_none_or(|known| known.quotas != quotas);
        let at = known.map(|known| {
            if is_news {
                known.other_at
            } else {
                known.same_at
            }
        });
        if at.is_some_and(|at| now < at) || (at.is_none() && !self.has_room(now)) {
            return None;
        }
        let known = Known {
            quotas,
            other_at: now + PAUSE,
            same_at: now + AGAIN,
        };
        self.known.insert(tenant.clone(), known);
        self.open.push((tenant.clone(), quotas));
        Some(is_news)
    }

    /// For one more tenant. Looks over all of them once a minute at most.
    fn has_room(&mut self, now: Duration) -> bool {
        if self.known.len() >= MOST_TENANTS && now >= self.swept + PAUSE {
            self.swept = now;
            self.known.retain(|_, known| now < known.same_at);
        }
        self.known.len() < MOST_TENANTS
    }

    /// Whether `warning` was not given lately; it counts as given now.
    pub fn is_new_warning(&mut self, now: Duration, warning: &str) -> bool {
        if self.warned.get(warning).is_some_and(|until| now < *until) {
            return false;
        }
        if self.warned.len() >= MOST_WARNINGS {
            self.warned.retain(|_, until| now < *until);
        }
        if self.warned.len() >= MOST_WARNINGS {
            return false;
        }
        self.warned.insert(warning.to_owned(), now + WARN_AGAIN);
        true
    }

    /// What is to be told now: nothing while something is being told.
    pub fn send(&mut self) -> Option<Vec<(Tenant, Quotas)>> {
        if self.sent.is_some() || self.open.is_empty() {
            return None;
        }
        let batch = std::mem::take(&mut self.open);
        self.sent = Some(batch.iter().map(|(tenant, _)| tenant.clone()).collect());
        Some(batch)
    }

    /// What was sent last was heard, or not: then the next answer after a pause tells it anew.
    pub fn told(&mut self, now: Duration, ok: bool) {
        for tenant in self.sent.take().unwrap_or_default() {
            if let Some(known) = self.known.get_mut(&tenant).filter(|_| !ok) {
                known.same_at = now + PAUSE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn tenant(number: usize) -> Tenant {
        Tenant::parse(&number.to_string()).expect("a tenant")
    }

    #[test]
    fn a_tenant_is_told_when_it_changes_and_seldom_when_not() {
        let (mut heard, a) = (Advertised::default(), tenant(1));
        let (ten, five) = (Quotas::read("10/1"), Quotas::read("5/1"));
        assert_eq!(heard.hear(SECOND, &a, Quotas::default()), None);
        assert_eq!(heard.hear(SECOND, &a, ten), Some(true));
        assert_eq!(heard.send(), Some(vec![(a.clone(), ten)]));
        let early = heard.hear(2 * SECOND, &a, five);
        assert_eq!(early, None, "not within the pause");
        assert_eq!(heard.hear(PAUSE + SECOND, &a, five), Some(true));
        assert_eq!(heard.send(), None, "one at a time");
        heard.told(PAUSE + SECOND, true);
        assert_eq!(heard.send(), Some(vec![(a.clone(), five)]));
        heard.told(PAUSE + SECOND, true);
        assert_eq!(heard.hear(AGAIN, &a, five), None);
        assert_eq!(heard.send(), None);
        // No news, but the gate is to remember it.
        let again = heard.hear(AGAIN + PAUSE + SECOND, &a, five);
        assert_eq!(again, Some(false));
        assert_eq!(heard.send(), Some(vec![(a, five)]));
    }

    #[test]
    fn what_was_not_heard_is_told_again_after_a_pause() {
        let (mut heard, a, ten) = (Advertised::default(), tenant(1), Quotas::read("10/1"));
        heard.hear(SECOND, &a, ten);
        heard.send();
        heard.told(2 * SECOND, false);
        heard.hear(PAUSE, &a, ten);
        assert_eq!(heard.send(), None);
        heard.hear(PAUSE + 2 * SECOND, &a, ten);
        assert!(heard.send().is_some());
    }

    #[test]
    fn memory_is_bounded() {
        let (mut heard, ten) = (Advertised::default(), Quotas::read("10/1"));
        for number in 0..2 * MOST {
            heard.hear(SECOND, &tenant(number), ten);
        }
        assert_eq!(heard.send().map(|batch| batch.len()), Some(MOST));
        for number in 0..2 * MOST_TENANTS {
            heard.told(SECOND, true);
            heard.hear(SECOND, &tenant(number), ten);
            heard.send();
        }
        assert_eq!(heard.known.len(), MOST_TENANTS);
        // Those that are silent make room for others.
        heard.told(SECOND, true);
        let one_more = heard.hear(AGAIN + SECOND, &tenant(MOST_TENANTS), ten);
        assert_eq!(one_more, Some(true));
        for number in 0..2 * MOST_WARNINGS {
            heard.is_new_warning(SECOND, &number.to_string());
        }
        assert_eq!(heard.warned.len(), MOST_WARNINGS);
        assert!(!heard.is_new_warning(SECOND, "0"));
        assert!(heard.is_new_warning(SECOND + WARN_AGAIN, "0"));
    }
}
