//! Selects a tenant's jobs if limits tell them apart (`scope: header:NAME` or `routing-key`).

use clap::Args;
use operator::NotDone;
use operator::labels::{GivenLabels, value};
use rules::limit::Limit;

use super::headers;

/// A job's labels, as the user gives them.
#[derive(Debug, Args)]
pub struct LabelArgs {
    /// Value of a header that separates a tenant's limits; NAME= for jobs without it
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Routing key of the jobs, if a limit is per routing key
    #[arg(long, value_name = "KEY", value_parser = value)]
    routing_key: Option<String>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, text) = headers::pair(text)?;
    Ok((name, value(&text)?))
}

impl LabelArgs {
    /// Returns the labels for jobs with `limits`, or an error for a value that none of them uses.
    pub fn given(self, limits: &[Limit]) -> Result<GivenLabels, NotDone> {
        GivenLabels::of(self.headers, self.routing_key, limits)
    }
}

#[cfg(test)]
mod tests {
    use rules::scope::Scope;

    use super::*;

    fn limits(scopes: &[Scope]) -> Vec<Limit> {
        let limit = |(at, scope): (usize, &Scope)| {
            let limit = Limit::concurrent(&format!("l{at}"), 1).expect("in range");
            limit.with_scope(scope.clone())
        };
        scopes.iter().enumerate().map(limit).collect()
    }

    fn given(headers: &[&str], key: Option<&str>, limits: &[Limit]) -> Result<GivenLabels, String> {
        let headers = headers.iter().map(|text| header(text));
        let args = LabelArgs {
            headers: headers.collect::<Result<_, _>>()?,
            routing_key: key.map(str::to_owned),
        };
        args.given(limits).map_err(|failure| match failure {
            NotDone::Wrong(why) => why,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn missing_labels_are_listed_and_unused_ones_refused() {
        let path = || Scope::Header("x-path".to_owned());
        let limits = limits(&[path(), Scope::RoutingKey, Scope::Tenant, path()]);
        let found = given(&[], None, &limits).expect("fine");
        assert!(found.given.is_empty() && found.lacks(&limits[3]) && !found.lacks(&limits[2]));
        assert_eq!(
            found.hint().as_deref(),
            Some("--header x-path=… --routing-key …")
        );
        assert_eq!(found.lacking(), "header:x-path and routing-key");

        let found = given(&["x-path=/a=b"], None, &limits).expect("fine");
        assert_eq!(found.given.to_string(), "header:x-path=\"/a=b\"");
        let path_and_key = "header:x-path=\"/a=b\", routing-key=\"\"";
        assert_eq!(found.labels.to_string(), path_and_key);
        assert_eq!(found.missing, [Scope::RoutingKey]);
        let found = given(&["x-path="], Some("k"), &limits).expect("fine");
        assert_eq!(found.hint(), None);
        let shown: Vec<_> = found.shown().into_iter().collect();
        let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(shown, [of("header:x-path", ""), of("routing-key", "k")]);

        let why = |headers: &[&str], limits| given(headers, Some("k"), limits).map(drop);
        for (found, expected) in [
            (
                why(&["x=1"], &limits),
                "--header x=1: no effective limit has the scope header:x; there are header:x-path and routing-key",
            ),
            (
                why(&[], &limits[2..3]),
                "--routing-key k: no effective limit has the scope routing-key; no limit of this \
                tenant is per header or routing key",
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
                "the value is invalid: it must have at most 255 bytes and no control characters",
            ),
        ] {
            assert_eq!(found, Err(expected.to_owned()));
        }
    }
}
