//! A policy as text for the registry: JSON that is the same for equal policies and contains each
//! set of limits once.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use rules::calendar::{Calendar, Zone};
use rules::limit::{Algorithm, Limit, Limits, Unit};
use rules::named::Named;
use rules::policy::{EntryLimits, Pattern, Policy};
use rules::scope::Scope;

/// Number of the format. A change of what texts mean, or a change that this version would refuse,
/// needs the next number, so that this version reports that it is too old.
const FORMAT: u32 = 1;
/// Maximum size of a text, in bytes. The largest configuration file results in less.
pub const MAX_TEXT: usize = 4 << 20;

/// The reason why a text is not a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A newer version wrote it.
    #[error("it has format {0}, and this version of sluicegate reads {FORMAT}")]
    Format(u32),
    /// Another program wrote it, or it is damaged.
    #[error("it is not a policy: {0}")]
    Broken(String),
}

#[derive(Deserialize)]
struct PolicyHead {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct PolicyRecord {
    format: u32,
    /// The sets of enforced limits. The other fields refer to them by index.
    sets: Vec<Vec<LimitRecord>>,
    /// The shadow limits by set. They change no enforced limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    shadows: BTreeMap<usize, Vec<LimitRecord>>,
    common: usize,
    plans: BTreeMap<String, usize>,
    tenants: Vec<(String, Target)>,
    plan_header: Option<String>,
    /// The adaptive limits: the set, the index in it, and the minimum in percent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bands: Vec<(usize, usize, u8)>,
}

/// Name, algorithm, max, window and guard in milliseconds, burst, unit, and scope. For windows of a
/// calendar also the period, its start and the time zone.
#[derive(Serialize, Deserialize)]
struct LimitRecord(
    String,
    String,
    u64,
    u64,
    u64,
    u64,
    String,
    String,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<[String; 3]>,
);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Target {
    Set(usize),
    Plan(String),
}

/// Sets of limits without duplicates.
#[derive(Default)]
struct LimitSets<'a> {
    all: Vec<Vec<LimitRecord>>,
    bands: Vec<(usize, usize, u8)>,
    shadows: BTreeMap<usize, Vec<LimitRecord>>,
    indexes: HashMap<Vec<&'a Limit>, usize>,
}

impl<'a> LimitSets<'a> {
    fn index_of(&mut self, limits: impl Iterator<Item = &'a Limit>) -> usize {
        let (all, all_shadows, bands) = (&mut self.all, &mut self.shadows, &mut self.bands);
        let index = |set: &Vec<&Limit>| {
            let set = set.iter().copied();
            let (shadows, enforced): (Vec<_>, Vec<_>) = set.partition(|limit| limit.is_shadow());
            let learning = enforced.iter().enumerate();
            bands.extend(learning.filter_map(|(at, limit)| Some((all.len(), at, limit.band()?))));
            all.push(enforced.into_iter().map(LimitRecord::of).collect());
            if !shadows.is_empty() {
                let shadows = shadows.into_iter().map(LimitRecord::of).collect();
                all_shadows.insert(all.len() - 1, shadows);
            }
            all.len() - 1
        };
        *(self.indexes.entry(limits.collect())).or_insert_with_key(index)
    }
}

/// Writes `policy` as text.
pub fn write(policy: &Policy) -> String {
    let mut sets = LimitSets::default();
    let common = sets.index_of(policy.default_limits().all().iter());
    // Limits that all tenants share are written with the common ones, and added again by the
    // reader.
    let mut index = |limits| sets.index_of(Limits::own(limits));
    let plans = policy.plans().iter();
    let plans = plans
        .map(|(name, limits)| (name.clone(), index(limits)))
        .collect();
    let tenants = policy.tenants().iter().map(|(pattern, own)| {
        let target = match own {
            EntryLimits::Limits(limits) => Target::Set(index(limits)),
            EntryLimits::Plan(name) => Target::Plan(name.clone()),
        };
        (pattern.to_string(), target)
    });
    let tenants = tenants.collect();
    let record = PolicyRecord {
        format: FORMAT,
        sets: sets.all,
        shadows: sets.shadows,
        common,
        plans,
        tenants,
        plan_header: policy.plan_header().map(str::to_owned),
        bands: sets.bands,
    };
    serde_json::to_string(&record).expect("texts and numbers are always JSON")
}

/// Parses a policy.
///
/// # Errors
/// [`TextError`] if `text` is not a policy.
pub fn read(text: &str) -> Result<Policy, TextError> {
    let broken = |why: &dyn std::fmt::Display| TextError::Broken(why.to_string());
    let head: PolicyHead = serde_json::from_str(text).map_err(|why| broken(&why))?;
    if head.format != FORMAT {
        return Err(TextError::Format(head.format));
    }
    let record: PolicyRecord = serde_json::from_str(text).map_err(|why| broken(&why))?;
    let mut sets = Vec::with_capacity(record.sets.len());
    for (index, set) in record.sets.iter().enumerate() {
        let shadows = record.shadows.get(&index).into_iter().flatten();
        let shadows = shadows.map(|one| one.limit()?.in_shadow().ok());
        let limits: Option<Vec<Limit>> =
            set.iter().map(LimitRecord::limit).chain(shadows).collect();
        let mut limits = limits.ok_or_else(|| broken(&"a limit is out of range"))?;
        for &(_, at, percent) in record.bands.iter().filter(|(set, ..)| *set == index) {
            if let Some(limit) = limits.get_mut(at) {
                *limit = limit.clone().with_band(percent);
            }
        }
        sets.push(Limits::new(limits).map_err(|why| broken(&why))?);
    }
    let set = |at: usize| {
        let found: Option<&Limits> = sets.get(at);
        found
            .cloned()
            .ok_or_else(|| broken(&"a set of limits is missing"))
    };
    // Limits that all tenants share are only among the common ones, since they apply to every
    // tenant.
    let own = |at: usize| match set(at)? {
        limits if limits.global().next().is_none() => Ok(limits),
        _ => Err(broken(&"a global limit is not among the common limits")),
    };
    let plans: Result<BTreeMap<_, _>, TextError> = (record.plans.into_iter())
        .map(|(name, at)| Ok((name, own(at)?)))
        .collect();
    let mut tenants = Vec::with_capacity(record.tenants.len());
    for (pattern, target) in record.tenants {
        let own = match target {
            Target::Set(at) => EntryLimits::Limits(own(at)?),
            Target::Plan(name) => EntryLimits::Plan(name),
        };
        tenants.push((Pattern::parse(&pattern), own));
    }
    let policy = Policy::common(set(record.common)?)
        .with_plans(plans?)
        .with_tenants(tenants);
    Ok(match record.plan_header {
        Some(header) => policy.with_plan_header(header),
        None => policy,
    })
}

impl LimitRecord {
    fn of(limit: &Limit) -> Self {
        Self(
            limit.name().to_owned(),
            limit.algorithm().name().to_owned(),
            limit.max(),
            limit.window_ms(),
            limit.guard_ms(),
            limit.burst(),
            limit.unit().name().to_owned(),
            limit.scope().to_string(),
            limit.calendar().map(|calendar| {
                let [period, zone] = [calendar.period.name(), calendar.zone.name()];
                [period.to_owned(), calendar.starts(), zone.to_owned()]
            }),
        )
    }

    fn limit(&self) -> Option<Limit> {
        let Self(name, algorithm, max, window, guard, burst, unit, scope, calendar) = self;
        let mut algorithms = Algorithm::EVERY.into_iter();
        let algorithm = algorithms.find(|known| known.name() == algorithm)?;
        let unit = [Unit::Calls, Unit::Cost]
            .into_iter()
            .find(|known| known.name() == unit)?;
        let max = *max;
        let limit = match algorithm {
            Algorithm::Concurrency => Limit::concurrent(name, max),
            Algorithm::CalendarWindow => {
                let [period, starts, zone] = calendar.as_ref()?;
                let calendar = Calendar::parse(period, Zone::find(zone)?, Some(starts))?;
                Limit::calendar(name, max, calendar, Duration::from_millis(*guard))
            }
            _ => {
                let [window, guard] = [*window, *guard].map(Duration::from_millis);
                Limit::new(name, algorithm, max, window, guard)
            }
        };
        let limit = limit.ok()?.with_unit(unit);
        let limit = limit.with_scope(Scope::parse(scope)?);
        if algorithm.has_burst() {
            return limit.with_burst(*burst).ok();
        }
        Some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(name: &str, algorithm: Algorithm) -> Limits {
        let (window, guard) = (Duration::from_secs(60), Duration::from_millis(50));
        let limit = Limit::new(name, algorithm, 7, window, guard).expect("in range");
        let limit = match algorithm.has_burst() {
            true => limit.with_burst(3).expect("in range"),
            false => limit.with_unit(Unit::Calls),
        };
        let running = Limit::concurrent("running", 9).expect("in range");
        Limits::new(vec![limit, running]).expect("two names")
    }

    fn policy() -> Policy {
        let [one, two] = [Algorithm::TokenBucket, Algorithm::Strict].map(|a| limits("a", a));
        let plans = [("free".to_owned(), one.clone()), ("pro".to_owned(), two)];
        Policy::common(one.clone())
            .with_plans(plans.into())
            .with_tenants(vec![
                (
                    Pattern::parse("trial-*"),
                    EntryLimits::Plan("free".to_owned()),
                ),
                (
                    Pattern::parse("acme"),
                    EntryLimits::Limits(limits("b", Algorithm::LeakyBucket)),
                ),
                (Pattern::parse("a*"), EntryLimits::Limits(one)),
            ])
            .with_plan_header("x-plan".to_owned())
    }

    #[test]
    fn a_policy_survives_a_round_trip() {
        for algorithm in Algorithm::ALL {
            let policy = Policy::common(limits("default", algorithm));
            assert_eq!(read(&write(&policy)), Ok(policy));
        }
        let text = write(&policy());
        assert_eq!(read(&text), Ok(policy()));
        assert_eq!(
            text.matches("max-concurrent").count(),
            3,
            "each set once: {text}"
        );
    }

    #[test]
    fn a_scope_survives() {
        let limit = |name: &str, scope| {
            let limit = Limit::concurrent(name, 9).expect("in range");
            limit.with_scope(scope)
        };
        let common = Limits::new(vec![
            limit("all", Scope::Global),
            limit("path", Scope::Header("x-päth: 1".to_owned())),
            limit("key", Scope::RoutingKey),
            limit("tenant", Scope::Tenant),
        ]);
        let plan = Limits::from(limit("only", Scope::RoutingKey));
        let policy = Policy::common(common.expect("four names"))
            .with_plans([("pro".to_owned(), plan.clone())].into())
            .with_tenants(vec![(Pattern::parse("a*"), EntryLimits::Limits(plan))]);
        let text = write(&policy);
        assert_eq!(read(&text), Ok(policy));
        assert_eq!(text.matches("global").count(), 1, "{text}");
    }

    #[test]
    fn a_band_survives_a_round_trip_and_is_written_only_if_set() {
        let of = |name, percent: Option<u8>| {
            let limits = limits(name, Algorithm::SlidingWindow).to_vec();
            let learns = |limit: Limit| match percent {
                Some(percent) if limit.name() == name => limit.with_band(percent),
                _ => limit,
            };
            Limits::new(limits.into_iter().map(learns).collect()).expect("two names")
        };
        let with = |percent| {
            Policy::common(of("a", None)).with_plans([("pro".to_owned(), of("b", percent))].into())
        };
        let text = write(&with(Some(50)));
        assert_eq!(read(&text), Ok(with(Some(50))));
        let plain = write(&with(None));
        assert!(!plain.contains("bands"), "{plain}");
        assert_eq!(text.replace(r#","bands":[[1,0,50]]"#, ""), plain);
    }

    #[test]
    fn shadows_survive_a_round_trip_and_are_written_only_if_set() {
        let shadow = |name: &str, scope| {
            let limit = limits(name, Algorithm::FixedWindow)[0].clone();
            let limit = limit.with_scope(scope).in_shadow();
            limit.expect("it holds no leases")
        };
        let enforced = limits("a", Algorithm::TokenBucket);
        let with = |shadows: Vec<Limit>| {
            Limits::new([enforced.to_vec(), shadows].concat()).expect("names of their own")
        };
        let policy = |common, plan: Limits| {
            Policy::common(common).with_plans([("pro".to_owned(), plan)].into())
        };
        let [global, own] = [Scope::Global, Scope::RoutingKey];
        let common = with(vec![shadow("all", global), shadow("own", own.clone())]);
        let policy_with = policy(common, with(vec![shadow("own", own)]));
        let text = write(&policy_with);
        assert_eq!(read(&text), Ok(policy_with.clone()));
        assert_eq!(
            policy_with.plans()["pro"].shadows().len(),
            2,
            "the global one, too"
        );

        let plain = write(&policy(enforced.clone(), enforced.clone()));
        assert!(!plain.contains("shadow"), "{plain}");
    }

    #[test]
    fn a_policy_of_a_newer_version_is_refused_as_such() {
        let newer = format!("{{\"format\":{},\"sets\":[[[\"default\"]]]}}", FORMAT + 1);
        let why = read(&newer).expect_err("it can't be read");
        assert_eq!(why, TextError::Format(FORMAT + 1));
        assert_eq!(
            why.to_string(),
            "it has format 2, and this version of sluicegate reads 1"
        );
    }

    #[test]
    fn invalid_policies_are_refused() {
        let text = write(&policy());
        let global = |index: &str| {
            let set = r#"[["all","max-concurrent",5,0,0,5,"calls","global"]]"#;
            let plan = r#""plans":{},"tenants":[],"plan_header":null"#;
            let plan = plan.replace("{}", index);
            format!(
                r#"{{"format":{FORMAT},"sets":[{set},{}],"common":0,{plan}}}"#,
                set.replace("global", "tenant")
            )
        };
        assert!(read(&global(r#"{"free":1}"#)).is_ok());
        for wrong in [
            "",
            "{}",
            "[1]",
            &text[..text.len() - 1],
            &text.replace("\"common\":0", "\"common\":9"),
            &text.replace("60000", "60"),
            &text.replace("token-bucket-algo", "no-algo"),
            &text.replace("\"tenant\"", "\"team\""),
            &global(r#"{"free":0}"#),
            &global("{}").replace("[]", r#"[["a",0]]"#),
        ] {
            assert!(matches!(read(wrong), Err(TextError::Broken(_))), "{wrong}");
        }
    }
}
