//! The limits that the API advertises. Selects those that are worth storing in the gate, or a
//! warning to the operator.

use std::collections::HashMap;
use std::time::Duration;

use crate::rules::answers::Quotas;
use crate::rules::tenant::Tenant;

/// Minimum interval at which changed limits of one tenant are stored.
const PAUSE: Duration = Duration::from_secs(60);
/// Interval at which unchanged limits are stored again. The gate forgets them after an hour.
const AGAIN: Duration = Duration::from_secs(600);
/// Minimum interval between equal warnings, for all tenants together.
const WARN_AGAIN: Duration = Duration::from_secs(3600);
/// Maximum number of remembered tenants. Limits of further tenants are not stored until others are
/// forgotten.
const MOST_TENANTS: usize = 10_000;
/// Maximum number of remembered warnings. Beyond it, no new warning is given.
const MOST_WARNINGS: usize = 256;
/// Maximum number of tenants per request.
const MOST: usize = 256;

/// The advertised limits: known, queued, and being stored.
#[derive(Debug, Default)]
pub struct Advertised {
    known: HashMap<Tenant, Known>,
    swept: Duration,
    open: Vec<(Tenant, Quotas)>,
    sent: Option<Vec<Tenant>>,
    /// When each warning may be given again.
    warned: HashMap<String, Duration>,
}

#[derive(Debug)]
struct Known {
    quotas: Quotas,
    /// When different limits may be stored, and when the same ones.
    other_at: Duration,
    same_at: Duration,
}

impl Advertised {
    /// Records the limits in an answer to a job of `tenant`. Returns whether they are news, or
    /// `None` if they are not stored now.
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

    /// Returns true if another tenant can be remembered. Removes old tenants at most once a minute.
    fn has_room(&mut self, now: Duration) -> bool {
        if self.known.len() >= MOST_TENANTS && now >= self.swept + PAUSE {
            self.swept = now;
            self.known.retain(|_, known| now < known.same_at);
        }
        self.known.len() < MOST_TENANTS
    }

    /// Returns true if `warning` was not given lately, and counts it as given now.
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

    /// Returns the limits to store now: none while a request is in flight.
    pub fn send(&mut self) -> Option<Vec<(Tenant, Quotas)>> {
        if self.sent.is_some() || self.open.is_empty() {
            return None;
        }
        let batch = std::mem::take(&mut self.open);
        self.sent = Some(batch.iter().map(|(tenant, _)| tenant.clone()).collect());
        Some(batch)
    }

    /// Records the outcome of the last request. If it failed, the next answer after a pause stores
    /// the limits again.
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
        // This is no news, but the gate must remember it.
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
        // Tenants without answers make room for others.
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
