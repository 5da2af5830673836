//! Which of a tenant's jobs are meant, where limits tell them apart (`scope: header:NAME` or `routing-key`).

use clap::Args;
use serde_json::{Map, Value};
use sluicegate::rules::limit::Limit;
use sluicegate::rules::scope::{Labels, MAX_VALUE_BYTES, Scope};

use super::{Failure, headers};

/// What a job has, as the user says.
#[derive(Debug, Args)]
pub struct LabelArgs {
    /// What the jobs have in a header by which limits tell them apart; NAME= for jobs without it
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The routing key that the jobs are published with, where limits tell them apart by it
    #[arg(long, value_name = "KEY", value_parser = value)]
    routing_key: Option<String>,
}

/// What was said, for the limits that need it.
#[derive(Debug)]
pub struct Given {
    /// What was said.
    pub told: Labels,
    /// The same, with the empty value where nothing was said: the tenant's quotas are those of any of its jobs.
    pub labels: Labels,
    /// The scopes of which nothing was said.
    pub missing: Vec<Scope>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, text) = headers::pair(text)?;
    Ok((name, value(&text)?))
}

fn value(text: &str) -> Result<String, String> {
    if text.len() > MAX_VALUE_BYTES || text.contains(char::is_control) {
        return Err(format!(
            "no job has such a value: it has at most {MAX_VALUE_BYTES} bytes, and no control characters"
        ));
    }
    Ok(text.to_owned())
}

impl LabelArgs {
    /// For jobs with `limits`; it is an error to say what none of them asks for.
    pub fn given(self, limits: &[Limit]) -> Result<Given, Failure> {
        let headers = self.headers.into_iter();
        let mut said: Vec<(Scope, String)> = headers
            .map(|(name, value)| (Scope::Header(name), value))
            .chain(self.routing_key.map(|key| (Scope::RoutingKey, key)))
            .collect();
        said.sort_unstable();
        if let Some(twice) = said.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Failure::Usage(format!(
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
        if let Some((other, value)) = said.iter().find(|(scope, _)| !scopes.contains(scope)) {
            let there = match scopes.as_slice() {
                [] => "no limit tells this tenant's jobs apart".to_owned(),
                scopes => format!("there are {}", listed(scopes)),
            };
            return Err(Failure::Usage(format!(
                "{}: no effective limit has the scope {other}; {there}",
                option(other, value)
            )));
        }
        let find = |scope: &Scope| said.iter().find(|(known, _)| known == scope);
        let known = |limit: &&Limit| find(limit.scope()).is_some();
        let told: Vec<Limit> = limits.iter().filter(known).cloned().collect();
        let text = |scope: &Scope| find(scope).map_or_else(String::new, |(_, text)| text.clone());
        Ok(Given {
            told: Labels::of(&told, text),
            labels: Labels::of(limits, text),
            missing: scopes.into_iter().filter(|s| find(s).is_none()).collect(),
        })
    }
}

impl Given {
    /// What `limit` counts is not known: nothing was said of its scope.
    pub fn lacks(&self, limit: &Limit) -> bool {
        self.missing.contains(limit.scope())
    }

    /// What to give to see more: `--header x-endpoint=…`; `None`: nothing is missing.
    pub fn hint(&self) -> Option<String> {
        let options = self.missing.iter().map(|scope| option(scope, "…"));
        let options: Vec<String> = options.collect();
        (!options.is_empty()).then(|| options.join(" "))
    }

    /// The scopes of which nothing was said: `header:x-endpoint and routing-key`.
    pub fn lacking(&self) -> String {
        listed(&self.missing)
    }

    /// What was said, as JSON.
    pub fn as_json(&self) -> Value {
        let labels = self.told.iter();
        let labels: Map<String, Value> = labels
            .map(|(scope, value)| (scope.to_string(), value.into()))
            .collect();
        labels.into()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(scopes: &[Scope]) -> Vec<Limit> {
        let limit = |(at, scope): (usize, &Scope)| {
            let limit = Limit::concurrent(&format!("l{at}"), 1).expect("in range");
            limit.with_scope(scope.clone())
        };
        scopes.iter().enumerate().map(limit).collect()
    }

    fn given(headers: &[&str], key: Option<&str>, limits: &[Limit]) -> Result<Given, String> {
        let headers = headers.iter().map(|text| header(text));
        let args = LabelArgs {
            headers: headers.collect::<Result<_, _>>()?,
            routing_key: key.map(str::to_owned),
        };
        args.given(limits).map_err(|failure| match failure {
            Failure::Usage(why) => why,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn what_is_not_said_is_missing_and_what_nobody_needs_is_refused() {
        let path = || Scope::Header("x-path".to_owned());
        let limits = limits(&[path(), Scope::RoutingKey, Scope::Tenant, path()]);
        let found = given(&[], None, &limits).expect("fine");
        assert!(found.told.is_empty() && found.lacks(&limits[3]) && !found.lacks(&limits[2]));
        assert_eq!(
            found.hint().as_deref(),
            Some("--header x-path=… --routing-key …")
        );
        assert_eq!(found.lacking(), "header:x-path and routing-key");

        let found = given(&["x-path=/a=b"], None, &limits).expect("fine");
        assert_eq!(found.told.to_string(), "header:x-path=\"/a=b\"");
        let path_and_key = "header:x-path=\"/a=b\", routing-key=\"\"";
        assert_eq!(found.labels.to_string(), path_and_key);
        assert_eq!(found.missing, [Scope::RoutingKey]);
        let found = given(&["x-path="], Some("k"), &limits).expect("fine");
        assert_eq!(found.hint(), None);
        assert_eq!(
            found.as_json().to_string(),
            r#"{"header:x-path":"","routing-key":"k"}"#
        );

        let why = |headers: &[&str], limits| given(headers, Some("k"), limits).map(drop);
        for (found, expected) in [
            (
                why(&["x=1"], &limits),
                "--header x=1: no effective limit has the scope header:x; there are header:x-path and routing-key",
            ),
            (
                why(&[], &limits[2..3]),
                "--routing-key k: no effective limit has the scope routing-key; no limit tells this tenant's jobs apart",
            ),
            (
                why(&["x-path=1", "x-path=2"], &limits),
                "--header x-path=… is given twice",
            ),
            (
                why(&["=1"], &limits),
                "it must be NAME=VALUE, such as x-endpoint=/v1",
            ),
            (
                why(&["x-path=\n"], &limits),
                "no job has such a value: it has at most 255 bytes, and no control characters",
            ),
        ] {
            assert_eq!(found, Err(expected.to_owned()));
        }
    }
}
