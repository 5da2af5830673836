//! Selects a tenant's jobs where limits distinguish them (`scope: header:NAME` or `routing-key`).

use std::collections::BTreeMap;

use super::NotDone;
use rules::limit::Limit;
use rules::scope::{Labels, MAX_VALUE_BYTES, Scope};

/// The labels given for the limits that need them.
#[derive(Debug)]
pub struct GivenLabels {
    /// Labels that were given.
    pub given: Labels,
    /// The same labels with the empty value for each missing one. This does not affect quotas of
    /// the whole tenant.
    pub labels: Labels,
    /// Scopes without a given label.
    pub missing: Vec<Scope>,
}

/// Checks that a job can have this value as a label.
///
/// # Errors
/// The mistake in the value, for people.
pub fn value(text: &str) -> Result<String, String> {
    if text.len() > MAX_VALUE_BYTES || text.contains(char::is_control) {
        return Err(format!(
            "the value is invalid: it must have at most {MAX_VALUE_BYTES} bytes and no control \
            characters"
        ));
    }
    Ok(text.to_owned())
}

impl GivenLabels {
    /// Creates labels from `headers` and a routing key for jobs with `limits`.
    ///
    /// # Errors
    /// [`NotDone::Wrong`] if a label is given twice, or if no limit uses it.
    pub fn of(
        headers: Vec<(String, String)>,
        routing_key: Option<String>,
        limits: &[Limit],
    ) -> Result<Self, NotDone> {
        let headers = headers.into_iter();
        let mut keys: Vec<(Scope, String)> = headers
            .map(|(name, value)| (Scope::Header(name), value))
            .chain(routing_key.map(|key| (Scope::RoutingKey, key)))
            .collect();
        keys.sort_unstable();
        if let Some(twice) = keys.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(NotDone::Wrong(format!(
                "{} is given twice",
                option(&twice[0].0, "…")
            )));
        }
        let parts = |limit: &&Limit| limit.scope().is_part();
        let mut scopes: Vec<Scope> = (limits.iter().filter(parts))
            .map(|limit| limit.scope().clone())
            .collect();
        scopes.sort_unstable();
        scopes.dedup();
        if let Some((other, value)) = keys.iter().find(|(scope, _)| !scopes.contains(scope)) {
            let there = match scopes.as_slice() {
                [] => "no limit of this tenant is per header or routing key".to_owned(),
                scopes => format!("there are {}", listed(scopes)),
            };
            return Err(NotDone::Wrong(format!(
                "{}: no effective limit has the scope {other}; {there}",
                option(other, value)
            )));
        }
        let enforced = limits.iter().filter(|limit| !limit.is_shadow());
        let enforced: Vec<&Scope> = enforced.map(Limit::scope).collect();
        let find = |scope: &Scope| keys.iter().find(|(known, _)| known == scope);
        let known = |limit: &&Limit| find(limit.scope()).is_some();
        let known: Vec<Limit> = limits.iter().filter(known).cloned().collect();
        let text = |scope: &Scope| find(scope).map_or_else(String::new, |(_, text)| text.clone());
        Ok(Self {
            given: Labels::of(&known, text),
            labels: Labels::of(limits, text),
            // Jobs that only shadow limits distinguish share one waitlist.
            missing: (scopes.into_iter())
                .filter(|scope| find(scope).is_none() && enforced.contains(&scope))
                .collect(),
        })
    }

    /// Returns true if the usage of `limit` is unknown because no label was given for its scope.
    pub fn lacks(&self, limit: &Limit) -> bool {
        let scope = limit.scope();
        self.missing.contains(scope)
            || limit.is_shadow() && scope.is_part() && !self.given.has_value(scope)
    }

    /// Returns the options to add, such as `--header x-endpoint=…`, or `None` if nothing is
    /// missing.
    pub fn hint(&self) -> Option<String> {
        let options = self.missing.iter().map(|scope| option(scope, "…"));
        let options: Vec<String> = options.collect();
        (!options.is_empty()).then(|| options.join(" "))
    }

    /// Returns the scopes without a label: `header:x-endpoint and routing-key`.
    pub fn lacking(&self) -> String {
        listed(&self.missing)
    }

    /// Returns the given labels by the names of their scopes.
    pub fn shown(&self) -> BTreeMap<String, String> {
        let labels = self.given.iter();
        let labels = labels.map(|(scope, value)| (scope.to_string(), value.to_owned()));
        labels.collect()
    }
}

fn listed(scopes: &[Scope]) -> String {
    let names: Vec<String> = scopes.iter().map(Scope::to_string).collect();
    names.join(" and ")
}

fn option(scope: &Scope, value: &str) -> String {
    match scope {
        Scope::Header(name) => format!("--header {name}={value}"),
        _ => format!("--routing-key {value}"),
    }
}
