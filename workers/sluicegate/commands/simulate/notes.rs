//! Notes for standard error on what the user of `simulate` may not have intended.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use config::{ApiProfile, Config};
use operator::limits;
use operator::text::{count, plain};
use rules::limit::Unit;
use rules::policy::Pattern;
use simulator::jobs::SimulatedJob;

/// Maximum round-trip time to Redis that workers are built for.
const FARTHEST: Duration = Duration::from_millis(500);
/// Maximum number of tenants that are named.
const NAMED: usize = 3;
/// Maximum number of characters of a tenant's name that are shown.
const NAME: usize = 40;

/// Returns a note if `config` of the file `file` (`None` without a file) has the default limits.
pub fn of_limits(file: Option<&Path>, config: &Config) -> Option<String> {
    let (own, built_in) = (
        &config.rate_limiter.policy,
        Config::default().rate_limiter.policy,
    );
    let who = match file {
        Some(file) => format!(
            "{}: has no limits; the built-in limits apply",
            file.display()
        ),
        None if *own == built_in => "no configuration: the built-in limits apply".to_owned(),
        None => {
            return Some(
                "no configuration file: the limits come from environment variables".to_owned(),
            );
        }
    };
    let each: Vec<String> = built_in.default_limits().iter().map(limits::line).collect();
    (*own == built_in).then(|| format!("{who}: {}", each.join("; ")))
}

/// Returns a note if the API of `config` counts what each call costs, for a load in which each job
/// costs 1.
pub fn of_costs(config: &Config) -> Option<String> {
    let api = config.dispatch.http.as_ref()?.api?;
    if !ApiProfile::of(api).prices_calls() {
        return None;
    }
    let mut limits = config.rate_limiter.policy.default_limits().iter();
    let limit = limits.find(|limit| limit.unit() == Unit::Cost)?;
    Some(format!(
        "each job costs 1 unit, but the limit {} of {api} counts cost; give the cost of your jobs, \
        such as --cost lognormal:50,0.7",
        limit.name()
    ))
}

/// Returns a note if Redis is farther away than workers are built for.
pub fn of_distance(redis: Duration) -> Option<String> {
    (redis > FARTHEST).then(|| {
        "workers support at most 500ms to Redis (docs/OPERATIONS.md); longer round trips can only \
        be simulated"
            .to_owned()
    })
}

/// Returns a note on the tenants in `config` without a job in the file `file`, which has `jobs`.
pub fn of_tenants(file: &Path, config: &Config, jobs: &[SimulatedJob]) -> Option<String> {
    let tenants = config.rate_limiter.policy.tenants();
    if tenants.is_empty() {
        return None;
    }
    let there: HashSet<&str> = jobs.iter().map(|job| job.tenant.as_str()).collect();
    let has_jobs = |pattern: &Pattern| match pattern {
        Pattern::Exactly(id) => there.contains(id.as_str()),
        Pattern::Prefix(begin) => there.iter().any(|id| id.starts_with(begin.as_str())),
    };
    let absent = tenants.iter().filter(|(pattern, _)| !has_jobs(pattern));
    let absent: Vec<String> = absent
        .map(|(pattern, _)| match pattern {
            Pattern::Exactly(id) => plain(id, NAME),
            Pattern::Prefix(begin) => format!("{}*", plain(begin, NAME)),
        })
        .collect();
    if absent.is_empty() {
        return None;
    }
    let more = match absent.len() > NAMED {
        true => ", …",
        false => "",
    };
    let named = absent[..absent.len().min(NAMED)].join(", ");
    Some(format!(
        "rate-limiter.tenants: {} has no job of {} of the {}: {named}{more}; recordings have \
        invented names unless made with --record-names",
        file.display(),
        absent.len(),
        count(tenants.len() as u64, "name"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_limits_have_a_note() {
        let file = Some(Path::new("a.yaml"));
        let (usual, mut own) = (Config::default(), Config::default());
        let shown = of_limits(None, &usual).expect("a note");
        assert!(
            shown.starts_with("no configuration: the built-in limits apply: default: at most 5 "),
            "{shown}"
        );
        let without = "a.yaml: has no limits; ";
        assert!(of_limits(file, &usual).is_some_and(|note| note.starts_with(without)));
        let yaml = "rate-limiter: {max-requests: 7}";
        let seven = Config::parse("a.yaml", yaml, std::iter::empty()).expect("valid");
        own.rate_limiter = seven.rate_limiter;
        assert_eq!(of_limits(file, &own), None);
        let shown = of_limits(None, &own).expect("a note");
        assert!(shown.contains("environment variables"), "{shown}");
    }

    #[test]
    fn a_limit_that_counts_cost_has_a_note() {
        let of = |api: &str, limit: &str| {
            let yaml = format!(
                "rate-limiter: {{limits: [{{name: a{limit}}}]}}\n\
                dispatch: {{http: {{url: 'http://h/'{api}}}}}\n"
            );
            let config = Config::parse("a.yaml", &yaml, std::iter::empty()).expect("valid");
            of_costs(&config)
        };
        let (shopify, cost) = (", api: shopify-graphql", ", unit: cost");
        for (api, limit) in [
            ("", cost),
            (", api: shopify", ""),
            (shopify, ", unit: calls"),
        ] {
            assert_eq!(of(api, limit), None);
        }
        let note = of(shopify, cost).expect("a note");
        let begin = "each job costs 1 unit, but the limit a of shopify-graphql counts cost; ";
        assert!(note.starts_with(begin), "{note}");
    }

    #[test]
    fn tenants_without_a_job_are_named() {
        let yaml = "rate-limiter: {tenants: {acme: {max-requests: 7}, trial-*: {max-requests: 7}, b: {max-requests: 7}}}";
        let config = Config::parse("a.yaml", yaml, std::iter::empty()).expect("valid");
        let jobs = ["acme", "trial-1"].map(|tenant| SimulatedJob::new(0.0, tenant));
        let note = of_tenants(Path::new("j.jsonl"), &config, &jobs).expect("a note");
        let begin = "rate-limiter.tenants: j.jsonl has no job of 1 of the 3 names: b; ";
        assert!(note.starts_with(begin), "{note}");
        let all = ["acme", "trial-1", "b"].map(|tenant| SimulatedJob::new(0.0, tenant));
        assert_eq!(of_tenants(Path::new("j.jsonl"), &config, &all), None);
    }
}
