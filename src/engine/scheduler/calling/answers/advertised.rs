//! The limits that the API advertises. Selects those that are worth storing in the gate, or a
//! warning to the operator.

use std::collections::HashMap;
use std::time::Duration;

use crate::scheduler::outbox::Outbox;
use rules::answers::Quotas;
use rules::tenant::Tenant;

/// Minimum interval at which changed limits of one tenant are stored.
const MIN_CHANGE_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which unchanged limits are stored again. The gate forgets them after an hour.
const RESTORE_INTERVAL: Duration = Duration::from_secs(600);
/// Minimum interval between equal warnings, for all tenants together.
const WARN_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum number of remembered tenants. Limits of further tenants are not stored until others are
/// forgotten.
const MAX_TENANTS: usize = 10_000;
/// Maximum number of remembered warnings. Beyond it, no new warning is given.
const MAX_WARNINGS: usize = 256;
/// Maximum number of tenants per request.
const MAX_TENANTS_PER_REQUEST: usize = 256;

/// The advertised limits: known, queued, and being stored.
#[derive(Debug, Default)]
pub struct AdvertisedLimits {
    known: HashMap<Tenant, KnownQuotas>,
    swept: Duration,
    outbox: Outbox<(Tenant, Quotas)>,
    /// When each warning may be given again.
    warned: HashMap<String, Duration>,
}

#[derive(Debug)]
struct KnownQuotas {
    quotas: Quotas,
    /// When different limits may be stored.
    other_at: Duration,
    /// When the same limits may be stored again.
    same_at: Duration,
}

impl AdvertisedLimits {
    /// Records the limits in an answer to a job of `tenant`. Returns whether they are news, or
    /// `None` if they are not stored now.
    pub fn record(&mut self, now: Duration, tenant: &Tenant, quotas: Quotas) -> Option<bool> {
        if quotas.is_empty() || self.outbox.waiting().len() >= MAX_TENANTS_PER_REQUEST {
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
        let known = KnownQuotas {
            quotas,
            other_at: now + MIN_CHANGE_INTERVAL,
            same_at: now + RESTORE_INTERVAL,
        };
        self.known.insert(tenant.clone(), known);
        self.outbox.push((tenant.clone(), quotas));
        Some(is_news)
    }

    /// Returns true if another tenant can be remembered. Removes old tenants at most once a minute.
    fn has_room(&mut self, now: Duration) -> bool {
        if self.known.len() >= MAX_TENANTS && now >= self.swept + MIN_CHANGE_INTERVAL {
            self.swept = now;
            self.known.retain(|_, known| now < known.same_at);
        }
        self.known.len() < MAX_TENANTS
    }

    /// Returns true if `warning` was not given lately, and counts it as given now.
    pub fn is_new_warning(&mut self, now: Duration, warning: &str) -> bool {
        if self.warned.get(warning).is_some_and(|until| now < *until) {
            return false;
        }
        if self.warned.len() >= MAX_WARNINGS {
            self.warned.retain(|_, until| now < *until);
        }
        if self.warned.len() >= MAX_WARNINGS {
            return false;
        }
        self.warned.insert(warning.to_owned(), now + WARN_INTERVAL);
        true
    }

    /// Returns the limits to store now: none while a request is in flight.
    pub fn send(&mut self, now: Duration) -> Option<Vec<(Tenant, Quotas)>> {
        let batch = self.outbox.send(now, MAX_TENANTS_PER_REQUEST)?;
        Some(batch.to_vec())
    }

    /// Records the outcome of the last request. If it failed, the next answer after a pause stores
    /// the limits again.
    pub fn advertised_result(&mut self, now: Duration, ok: bool) {
        for (tenant, _) in self.outbox.take_sent() {
            if let Some(known) = self.known.get_mut(&tenant).filter(|_| !ok) {
                known.same_at = now + MIN_CHANGE_INTERVAL;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;
    use kit::gate::tenant;

    #[test]
    fn a_changed_quota_is_written_soon_and_an_unchanged_one_rarely() {
        let (mut quotas, a) = (AdvertisedLimits::default(), tenant(1));
        let (ten, five) = (Quotas::read("10/1"), Quotas::read("5/1"));
        assert_eq!(quotas.record(SECOND, &a, Quotas::default()), None);
        assert_eq!(quotas.record(SECOND, &a, ten), Some(true));
        assert_eq!(quotas.send(SECOND), Some(vec![(a.clone(), ten)]));
        let early = quotas.record(2 * SECOND, &a, five);
        assert_eq!(early, None, "not within the pause");
        assert_eq!(
            quotas.record(MIN_CHANGE_INTERVAL + SECOND, &a, five),
            Some(true)
        );
        assert_eq!(quotas.send(SECOND), None, "one at a time");
        quotas.advertised_result(MIN_CHANGE_INTERVAL + SECOND, true);
        assert_eq!(quotas.send(SECOND), Some(vec![(a.clone(), five)]));
        quotas.advertised_result(MIN_CHANGE_INTERVAL + SECOND, true);
        assert_eq!(quotas.record(RESTORE_INTERVAL, &a, five), None);
        assert_eq!(quotas.send(SECOND), None);
        // This is no news, but the gate must remember it.
        let repeated = quotas.record(RESTORE_INTERVAL + MIN_CHANGE_INTERVAL + SECOND, &a, five);
        assert_eq!(repeated, Some(false));
        assert_eq!(quotas.send(SECOND), Some(vec![(a, five)]));
    }

    #[test]
    fn a_failed_write_is_retried_after_a_pause() {
        let (mut quotas, a, ten) = (AdvertisedLimits::default(), tenant(1), Quotas::read("10/1"));
        quotas.record(SECOND, &a, ten);
        quotas.send(SECOND);
        quotas.advertised_result(2 * SECOND, false);
        quotas.record(MIN_CHANGE_INTERVAL, &a, ten);
        assert_eq!(quotas.send(SECOND), None);
        quotas.record(MIN_CHANGE_INTERVAL + 2 * SECOND, &a, ten);
        assert!(quotas.send(SECOND).is_some());
    }

    #[test]
    fn memory_is_bounded() {
        let (mut quotas, ten) = (AdvertisedLimits::default(), Quotas::read("10/1"));
        for number in 0..2 * MAX_TENANTS_PER_REQUEST {
            quotas.record(SECOND, &tenant(number), ten);
        }
        assert_eq!(
            quotas.send(SECOND).map(|batch| batch.len()),
            Some(MAX_TENANTS_PER_REQUEST)
        );
        for number in 0..2 * MAX_TENANTS {
            quotas.advertised_result(SECOND, true);
            quotas.record(SECOND, &tenant(number), ten);
            quotas.send(SECOND);
        }
        assert_eq!(quotas.known.len(), MAX_TENANTS);
        // Tenants without answers make room for others.
        quotas.advertised_result(SECOND, true);
        let one_more = quotas.record(RESTORE_INTERVAL + SECOND, &tenant(MAX_TENANTS), ten);
        assert_eq!(one_more, Some(true));
        for number in 0..2 * MAX_WARNINGS {
            quotas.is_new_warning(SECOND, &number.to_string());
        }
        assert_eq!(quotas.warned.len(), MAX_WARNINGS);
        assert!(!quotas.is_new_warning(SECOND, "0"));
        assert!(quotas.is_new_warning(SECOND + WARN_INTERVAL, "0"));
    }
}
