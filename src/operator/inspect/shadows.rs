//! Describes what shadow limits recorded for a tenant, in words and as JSON.

use super::TenantInspection;
use super::description::describe_limit;
use crate::answer::answers;
use crate::fullness::Fullness;
use crate::labels::GivenLabels;
use crate::limits::LimitAnswer;
use crate::tally;
use crate::times::{at, span};
use gate::UsageOfLimit;
use rules::decision::{Tally, TrialStatus};
use rules::limit::Limit;

/// A shadow limit, its usage, and the starts and waits that it recorded.
pub(super) struct ShadowUsage<'a> {
    limit: &'a Limit,
    usage: &'a UsageOfLimit,
    tried: &'a TrialStatus,
    /// The trial's details if an operator tries this limit.
    set: Option<TrialDetails<'a>>,
}

/// A trial by an operator of another `max`.
struct TrialDetails<'a> {
    /// Name of the enforced limit.
    limit: &'a str,
    /// Usage of the enforced limit.
    used: u64,
    /// End of the trial (ms); 0 if it has just ended.
    until_ms: u64,
}

impl TenantInspection {
    pub(super) fn shadows(&self) -> impl Iterator<Item = ShadowUsage<'_>> {
        let rows = self.limits.shadows().iter().zip(&self.found.shadows);
        rows.map(|(limit, (usage, tried))| ShadowUsage {
            limit,
            usage,
            tried,
            set: limit.tried_for().map(|name| self.set(name)),
        })
    }

    /// Returns how full its limits are, followed by its shadow limits.
    pub fn fullness(&self) -> Vec<Fullness> {
        let rows = self.rows().into_iter();
        let full = rows.map(|(limit, usage)| Fullness {
            used: (!self.given.lacks(limit)).then_some(usage.count),
            ..Fullness::of(limit, usage)
        });
        let shadows = self.shadows().map(|row| row.fullness(&self.given));
        full.chain(shadows).collect()
    }

    fn set<'a>(&'a self, name: &'a str) -> TrialDetails<'a> {
        let mut rows = self.limits.iter().zip(&self.found.limits);
        let here = rows.find(|(limit, _)| limit.name() == name && !limit.is_global());
        let until_ms = self.held.as_ref().ok();
        let until_ms = until_ms.and_then(|held| held.tries(&self.tenant, name));
        TrialDetails {
            limit: name,
            used: here.map_or(0, |(_, usage)| usage.count),
            until_ms: until_ms.unwrap_or(0),
        }
    }
}

impl ShadowUsage<'_> {
    /// Returns the name that users know.
    fn name(&self) -> &str {
        let set = self.set.as_ref();
        set.map_or_else(|| self.limit.name(), |set| set.limit)
    }

    /// Returns the usage that would count if the limit were enforced.
    fn used(&self) -> u64 {
        let set = self.set.as_ref();
        set.map_or(self.usage.count, |set| set.used)
    }

    /// Returns the limit's fullness, for a screen.
    fn fullness(&self, given: &GivenLabels) -> Fullness {
        let known = !given.lacks(self.limit);
        Fullness {
            used: known.then_some(self.used()),
            ..Fullness::for_shadow(self.limit, self.usage, self.tried)
        }
    }

    /// Describes the shadow for people, in three or four lines.
    pub(super) fn describe(&self, given: &GivenLabels) -> String {
        let Self { limit, tried, .. } = self;
        let (name, what) = (self.name(), describe_limit(&(limit, self.usage)));
        let by = match &self.set {
            None => String::new(),
            Some(TrialDetails { until_ms, .. }) => format!(
                "\n  set     by an operator, until {}; tenant limit --clear --shadow ends it",
                at(*until_ms)
            ),
        };
        if given.lacks(limit) {
            let scope = limit.scope();
            return format!(
                "shadow    {name}: {what}{by}\n  tried   one per {scope}: see --header or \
                --routing-key\n"
            );
        }
        let since = match tried.since_ms {
            0 => String::new(),
            since => format!(", since {}", at(since)),
        };
        let behind = match tried.behind_ms {
            0 => String::new(),
            ms => format!(
                "\n  behind  {}: a new job would wait for the jobs ahead of it",
                span(ms)
            ),
        };
        let (used, max) = (self.used(), self.usage.max);
        let counts = tally::describe(&tried.tally) + &tally::never(&tried.tally);
        format!(
            "shadow    {name}: {what}{by}\n  tried   {counts}{since}{behind}\n  used    {used} of {max}; it denies nothing\n"
        )
    }

    /// Returns the shadow as it is answered.
    pub(super) fn answer(&self, given: &GivenLabels) -> ShadowAnswer {
        let known = !given.lacks(self.limit);
        let tried = self.tried;
        let Tally {
            starts,
            waited,
            never,
            worst_ms,
        } = tried.tally;
        let share = (starts > 0).then(|| waited as f64 / starts as f64);
        ShadowAnswer {
            base: LimitAnswer {
                name: self.name().to_owned(),
                ..LimitAnswer::from(self.limit)
            },
            used: known.then_some(self.used()),
            since_ms: known.then_some(tried.since_ms),
            starts: known.then_some(starts),
            would_have_waited: known.then_some(waited),
            would_have_waited_share: share.filter(|_| known),
            would_never_have_started: known.then_some(never),
            longest_wait_ms: known.then_some(worst_ms),
            behind_ms: known.then_some(tried.behind_ms),
            set_until_ms: self.set.as_ref().map(|set| set.until_ms),
        }
    }
}

answers! {
    /// A shadow limit, and the starts and waits that it recorded.
    pub struct ShadowAnswer: LimitAnswer {
        pub used: Option<u64>,
        pub since_ms: Option<u64>,
        pub starts: Option<u64>,
        pub would_have_waited: Option<u64>,
        pub would_have_waited_share: Option<f64>,
        pub would_never_have_started: Option<u64>,
        pub longest_wait_ms: Option<u64>,
        pub behind_ms: Option<u64>,
        pub set_until_ms: Option<u64>,
    }
}
