//! Converts a user's input to messages that the worker can use.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::{Message, Outgoing};
use bytes::Bytes;
use config::{Config, TenantField, ValueField};
use lapin::BasicProperties;
use rules::headers::HeaderValue;
use rules::job::{self, ALL_TENANTS};
use rules::text;
use serde::Deserialize;
use serde_json::Value;
use simulator::jobs::in_line;

use super::headers;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// A job as a line of JSON:
/// `{"tenant":"a","id":"1","body":…,"cost":1,"plan":"pro","headers":{"x-endpoint":"/v1"}}`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct JobLine {
    /// The tenant whose quota it uses.
    #[serde(default, deserialize_with = "text::name_if_any")]
    pub tenant: Option<String>,
    /// Its message ID. Generated if missing.
    #[serde(default, deserialize_with = "text::name_if_any")]
    pub id: Option<String>,
    /// A string is sent as it is, any other value as JSON.
    #[serde(default)]
    pub body: Value,
    /// The content type of the body. Inferred from the body if missing.
    pub content_type: Option<String>,
    /// The units of the limit that it uses.
    pub cost: Option<u64>,
    /// Its tenant's plan.
    #[serde(default, deserialize_with = "text::name_if_any")]
    pub plan: Option<String>,
    /// Strings and integers by name.
    #[serde(default)]
    pub headers: BTreeMap<String, Value>,
}

/// Returns the body for the argument `BODY`: text, which may be JSON.
pub fn body_of(text: &str) -> (Bytes, &'static str) {
    let begin = text.trim_ascii_start();
    let structured = begin.starts_with(['{', '[']) && serde_json::from_str::<Value>(text).is_ok();
    let kind = if structured { JSON } else { TEXT };
    (Bytes::copy_from_slice(text.as_bytes()), kind)
}

/// Creates messages for the work queue.
pub struct JobMaker<'a> {
    config: &'a Config,
    queue: Arc<str>,
}

impl<'a> JobMaker<'a> {
    /// Creates a maker for the work queue `queue` of `config`.
    ///
    /// # Errors
    /// Jobs of this configuration can't be published directly to the queue.
    pub fn new(config: &'a Config, queue: &Arc<str>) -> Result<Self, String> {
        if config.job.tenant == TenantField::RoutingKey {
            return Err(
                "job.tenant is routing-key: publish to the exchange that the queue is bound to; \
                this command publishes directly to the queue"
                    .to_owned(),
            );
        }
        Ok(Self {
            config,
            queue: Arc::clone(queue),
        })
    }

    /// Parses the job in a line of JSON.
    ///
    /// # Errors
    /// The problem, as a text for the user.
    pub fn parse_line(&self, text: &str) -> Result<Outgoing, String> {
        let mut line: JobLine = serde_json::from_str(text).map_err(|error| {
            let why = in_line(text, &error);
            format!("is not a job such as {{\"tenant\":\"a\",\"body\":1}}: {why}")
        })?;
        let (body, kind) = match line.body.take() {
            // A missing body and `null` are empty.
            Value::Null => (Bytes::new(), TEXT),
            Value::String(text) => body_of(&text),
            value => (Bytes::from(value.to_string()), JSON),
        };
        self.make(line, body, kind)
    }

    /// Creates the job of `line` with another body. The worker's own rules check it, so a published
    /// job is never invalid on arrival.
    ///
    /// # Errors
    /// The problem, as a text for the user.
    pub fn make(&self, line: JobLine, body: Bytes, kind: &str) -> Result<Outgoing, String> {
        let id = line.id.unwrap_or_else(|| ulid::Ulid::new().to_string());
        if id.is_empty() || id.len() > 255 {
            return Err(format!(
                "the id has {} bytes; it must have 1 to 255",
                id.len()
            ));
        }
        let kind = line.content_type.as_deref().unwrap_or(kind);
        let fits = (1..=255).contains(&kind.len()) && kind.trim() == kind;
        if !fits || hyper::header::HeaderValue::from_str(kind).is_err() {
            return Err("the content type must be one of HTTP, such as text/xml".to_owned());
        }
        let mut headers = headers::checked(&line.headers, &self.taken())?;
        match (&self.config.job.tenant, line.tenant) {
            (TenantField::Header(name), Some(tenant)) => {
                headers.push((name, HeaderValue::Text(tenant)));
            }
            (TenantField::Header(_), None) => {
                return Err("has no tenant".to_owned());
            }
            (TenantField::All, Some(_)) => {
                return Err(format!(
                    "names a tenant, but job.tenant is all: every job belongs to the tenant \
                    {ALL_TENANTS}"
                ));
            }
            (place, Some(_)) => {
                return Err(format!(
                    "names a tenant, but job.tenant is {place}: put the tenant there"
                ));
            }
            (_, None) => {}
        }
        match (&self.config.job.cost, line.cost) {
            (ValueField::Header(name), Some(cost)) => {
                // A cost too large for the header is too large for every limit.
                let cost = i64::try_from(cost).unwrap_or(i64::MAX);
                headers.push((name, HeaderValue::Int(cost)));
            }
            (place, Some(_)) => {
                return Err(format!(
                    "names a cost, but job.cost is {place}: put the cost there"
                ));
            }
            (_, None) => {}
        }
        match (self.config.rate_limiter.policy.plan_header(), line.plan) {
            (Some(name), Some(plan)) => headers.push((name, HeaderValue::Text(plan))),
            (None, Some(_)) => {
                return Err("names a plan, but rate-limiter.plan-header is not set".to_owned());
            }
            (_, None) => {}
        }
        let message = Message {
            routing_key: self.queue.to_string(),
            properties: BasicProperties::default()
                .with_message_id(id.as_str().into())
                .with_content_type(kind.into())
                .with_delivery_mode(2),
            body,
        }
        .with_headers(&headers, &[]);
        let policy = &self.config.rate_limiter.policy;
        job::read(&message, false, &self.config.job, policy).map_err(|error| error.to_string())?;
        Ok(Outgoing {
            queue: Arc::clone(&self.queue),
            message,
        })
    }

    /// Returns the headers that a line sets through its other fields.
    fn taken(&self) -> Vec<(&str, &'static str)> {
        let Config {
            job, rate_limiter, ..
        } = self.config;
        let mut taken = Vec::new();
        if let TenantField::Header(name) = &job.tenant {
            taken.push((name.as_str(), "tenant"));
        }
        if let ValueField::Header(name) = &job.cost {
            taken.push((name.as_str(), "cost"));
        }
        taken.extend((rate_limiter.policy.plan_header()).map(|name| (name, "plan")));
        taken
    }
}

#[cfg(test)]
mod tests {
    use rules::job::Field;

    use super::*;

    fn make(yaml: &str, line: &str) -> Result<Outgoing, String> {
        let config = Config::parse("c.yaml", yaml, std::iter::empty()).expect("valid");
        JobMaker::new(&config, &"jobs".into())?.parse_line(line)
    }

    #[test]
    fn a_string_is_the_body_and_anything_else_is_json() {
        for (line, body, kind) in [
            (r#"{"tenant":"a"}"#, "", TEXT),
            (r#"{"tenant":"a","body":null}"#, "", TEXT),
            (r#"{"tenant":"a","body":"x \"y\""}"#, "x \"y\"", TEXT),
            (r#"{"tenant":"a","body":" {\"b\":1}"}"#, r#" {"b":1}"#, JSON),
            (
                r#"{"tenant":"a","body":"a=b","content_type":"application/x-www-form-urlencoded"}"#,
                "a=b",
                "application/x-www-form-urlencoded",
            ),
            (
                r#"{"tenant":"a","body":{},"content_type":"a/b"}"#,
                "{}",
                "a/b",
            ),
            (r#"{"tenant":"a","body":{"b":[1]}}"#, r#"{"b":[1]}"#, JSON),
            (
                r#"{"tenant":"a","body":12345678901234567890}"#,
                "12345678901234567890",
                JSON,
            ),
        ] {
            let made = make("", line).expect(line);
            assert_eq!(made.message.body, body, "{line}");
            let properties = &made.message.properties;
            assert_eq!(
                properties.content_type().as_ref().map(|t| t.as_str()),
                Some(kind)
            );
            assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
            assert_eq!(made.message.header("x-tenant"), Field::Text("a"));
            assert!(made.message.id().is_some(), "one without gets an id");
        }
        assert_eq!(body_of("{\"a\":1}").1, JSON);
        assert_eq!(body_of("{a").1, TEXT);
    }

    #[test]
    fn names_may_be_whole_numbers() {
        let yaml = "rate-limiter: {plan-header: x-plan, plans: {'7': {max-requests: 5}}}";
        let line = r#"{"tenant":42,"id":18446744073709551615,"plan":7}"#;
        let made = make(yaml, line).expect("valid");
        assert_eq!(made.message.header("x-tenant"), Field::Text("42"));
        assert_eq!(made.message.header("x-plan"), Field::Text("7"));
        assert_eq!(made.message.id(), Some("18446744073709551615"));
    }

    #[test]
    fn jobs_that_workers_would_refuse_are_not_published() {
        let long = format!(r#"{{"tenant":"a","id":"{}"}}"#, "i".repeat(256));
        for (line, why) in [
            ("", "is not a job such as"),
            ("[]", "is not a job such as"),
            (r#"{"tenant":"a","bdy":1}"#, "unknown key `bdy`"),
            (
                r#"{"tenant":"a","bdy":1}"#,
                "(at byte 19); did you mean body?",
            ),
            (
                r#"{"tenant":"a","cost":"3"}"#,
                "cost: invalid type: string \"3\", expected a whole number from 0 (at byte 24)",
            ),
            (r#"{"tenant":7.5}"#, "expected a string or a 64-bit integer"),
            (
                r#"{"tenant":true}"#,
                "expected a string or a 64-bit integer",
            ),
            (
                r#"{"tenant":"a","id":7.5}"#,
                "expected a string or a 64-bit",
            ),
            (r#"{"body":1}"#, "has no tenant"),
            (r#"{"tenant":""}"#, "the tenant is empty"),
            (r#"{"tenant":"a\nb"}"#, "control character"),
            (r#"{"tenant":"a","cost":0}"#, "cost"),
            (r#"{"tenant":"a","cost":6}"#, "cost"),
            (r#"{"tenant":"a","cost":18446744073709551615}"#, "cost"),
            (r#"{"tenant":"a","cost":-1}"#, "is not a job such as"),
            (long.as_str(), "the id has 256 bytes"),
            (r#"{"tenant":"a","id":""}"#, "the id has 0 bytes"),
            (
                r#"{"tenant":"a","content_type":""}"#,
                "the content type must",
            ),
            (
                r#"{"tenant":"a","content_type":"a\nb"}"#,
                "the content type must",
            ),
        ] {
            let error = make("", line).expect_err(line);
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn the_cost_is_checked_against_the_limits_of_the_jobs_tenant() {
        let yaml = "
rate-limiter:
  max-requests: 5
  plans: {pro: {max-requests: 50}}
  tenants: {acme: {max-requests: 10}, 'pro-*': {plan: pro}}
  plan-header: x-plan
";
        for (line, why) in [
            (r#"{"tenant":"other","cost":6}"#, "limit of 5:"),
            (r#"{"tenant":"acme","cost":10}"#, ""),
            (r#"{"tenant":"acme","cost":11}"#, "limit of 10:"),
            (
                r#"{"tenant":"acme","cost":11,"plan":"pro"}"#,
                "limit of 10:",
            ),
            (r#"{"tenant":"pro-1","cost":51}"#, "limit of 50:"),
            (r#"{"tenant":"other","cost":50,"plan":"pro"}"#, ""),
            (r#"{"tenant":"other","plan":"por"}"#, "no such plan"),
        ] {
            match make(yaml, line) {
                Ok(_) => assert_eq!(why, "", "{line}"),
                Err(error) => assert!(!why.is_empty() && error.contains(why), "{line}: {error}"),
            }
        }
        let error = make("", r#"{"tenant":"a","plan":"pro"}"#).expect_err("no header for it");
        assert!(error.contains("rate-limiter.plan-header"), "{error}");
    }

    #[test]
    fn the_cost_goes_into_the_configured_field() {
        let header = "job: {cost: 'header:x-tokens'}";
        let made = make(header, r#"{"tenant":"a","cost":3}"#).expect("valid");
        assert_eq!(made.message.header("x-tokens"), Field::Int(3));
        let json = "job: {cost: 'json:/n'}";
        let error = make(json, r#"{"tenant":"a","cost":3,"body":{"n":3}}"#).expect_err("both");
        assert_eq!(
            error,
            "names a cost, but job.cost is json:/n: put the cost there"
        );
        assert!(make(json, r#"{"tenant":"a","body":{"n":3}}"#).is_ok());
        assert!(make(json, r#"{"tenant":"a","body":{"n":6}}"#).is_err());
    }

    #[test]
    fn headers_are_texts_and_whole_numbers() {
        let yaml = "rate-limiter: {scope: 'header:x-endpoint', plan-header: x-plan}";
        let line = |headers: &str| format!(r#"{{"tenant":"a","headers":{headers}}}"#);
        let made = make(yaml, &line(r#"{"x-endpoint":"/v1","n":-7,"e":""}"#)).expect("valid");
        for (name, value) in [
            ("x-endpoint", Field::Text("/v1")),
            ("n", Field::Int(-7)),
            ("e", Field::Text("")),
            ("x-tenant", Field::Text("a")),
        ] {
            assert_eq!(made.message.header(name), value);
        }
        let long = format!(r#"{{"x":"{}"}}"#, "v".repeat(1 << 16));
        for (headers, why) in [
            (r#"["x"]"#, "is not a job such as"),
            (
                r#"{"x":1.5}"#,
                "the header x must be a string or a 64-bit integer",
            ),
            (
                r#"{"x":9223372036854775808}"#,
                "the header x must be a string or a 64-bit integer",
            ),
            (r#"{"x":null}"#, "the header x must be a string"),
            (r#"{"":"v"}"#, "\"\" is not a valid header name"),
            (r#"{"x ":"v"}"#, "\"x \" is not a valid header name"),
            (
                r#"{"x-sluicegate-ticket":"1:1"}"#,
                "the header x-sluicegate-ticket is reserved: Sluicegate or RabbitMQ sets it",
            ),
            (
                r#"{"x-death":"1"}"#,
                "the header x-death is reserved: Sluicegate or RabbitMQ sets it",
            ),
            (
                r#"{"x-tenant":"b"}"#,
                "the header x-tenant is the job's tenant; set it there",
            ),
            (r#"{"x-cost":2}"#, "the header x-cost is the job's cost"),
            (r#"{"x-plan":"pro"}"#, "the header x-plan is the job's plan"),
            (r#"{"x-endpoint":"a\u0001"}"#, "control character"),
            (
                long.as_str(),
                "the headers have 65543 bytes; the maximum is 65536",
            ),
        ] {
            let error = make(yaml, &line(headers)).expect_err(headers);
            assert!(error.contains(why), "{headers}: {error}");
        }
    }

    #[test]
    fn the_tenant_goes_into_the_configured_field() {
        let made = make("job: {tenant: 'header:who'}", r#"{"tenant":"a"}"#).expect("valid");
        assert_eq!(made.message.header("who"), Field::Text("a"));
        let json = "job: {tenant: 'json:/t'}";
        assert!(make(json, r#"{"body":{"t":"a"}}"#).is_ok());
        let error = make(json, r#"{"tenant":"a","body":{}}"#).expect_err("in the wrong place");
        assert_eq!(
            error,
            "names a tenant, but job.tenant is json:/t: put the tenant there"
        );
        assert!(make(json, r#"{"body":{}}"#).is_err());
        assert!(make("job: {tenant: routing-key}", "{}").is_err());
    }
}
