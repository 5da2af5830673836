//! Writes a job as one line of JSON, for programs that handle jobs.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Job, Value};

impl Job {
    /// Returns the job as one line of JSON, with the newline. It begins with the number of the
    /// call, so that a shell can read it.
    #[doc(hidden)]
    pub fn line(&self, call: u64) -> Vec<u8> {
        // Numbers and texts can always be written as JSON, so this does not fail.
        let mut line = serde_json::to_vec(&JobObject(self, call)).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

struct JobObject<'a>(&'a Job, u64);

impl Serialize for JobObject<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self(job, call) = self;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("call", call)?;
        map.serialize_entry("id", &job.id)?;
        map.serialize_entry("tenant", job.tenant.as_str())?;
        map.serialize_entry("cost", &job.cost)?;
        map.serialize_entry("attempt", &job.attempt)?;
        map.serialize_entry("routing_key", job.routing_key())?;
        map.serialize_entry("headers", &Value::Table(job.headers()))?;
        map.serialize_entry("properties", &job.properties())?;
        let kinds = [
            ("content_type", &job.content_type),
            ("content_encoding", &job.content_encoding),
        ];
        for (name, kind) in kinds {
            if let Some(kind) = kind {
                map.serialize_entry(name, kind)?;
            }
        }
        if let Some(context) = job.traceparent() {
            map.serialize_entry("traceparent", &context)?;
        }
        match std::str::from_utf8(&job.body) {
            Ok(text) => map.serialize_entry("body", text)?,
            Err(_) => map.serialize_entry("body_base64", &BASE64_STANDARD.encode(&job.body))?,
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tenant::Tenant;
    use crate::trace::Context;

    fn read(job: &Job) -> serde_json::Value {
        let line = job.line(17);
        assert!(line.starts_with(br#"{"call":17,"id":"#));
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        serde_json::from_slice(&line).expect("JSON")
    }

    #[test]
    fn a_job_is_one_line() {
        let tenant = Tenant::parse("acme").expect("a name");
        let mut job = Job::new("7", tenant, "one\ntwo");
        job.content_type = Some("text/plain".to_owned());
        let job = job.published_with("orders", [("a", "x\ny"), ("retry-after", "1")]);
        let line = json!({
            "call": 17, "id": "7", "tenant": "acme", "cost": 1, "attempt": 1, "routing_key": "orders",
            "headers": {"a": "x\ny"}, "properties": {}, "content_type": "text/plain", "body": "one\ntwo",
        });
        assert_eq!(read(&job), line);
        let context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = Context::parse(context);
        assert_eq!(read(&Job { trace, ..job })["traceparent"], context);
    }

    #[test]
    fn binary_bytes_are_base64() {
        let tenant = Tenant::parse("acme").expect("a name");
        let line = read(&Job::new("7", tenant, &[0xff][..]));
        assert_eq!(line["body_base64"], "/w==");
        assert_eq!(line.get("body"), None);
        let values = [
            ("bytes", Value::Bytes(&[0xff])),
            ("nan", Value::Float(f64::NAN)),
            (
                "list",
                Value::List(vec![Value::Nothing, Value::Bool(true), Value::Time(7)]),
            ),
            ("table", Value::Table(vec![("a", Value::Int(-1))])),
        ];
        let headers = serde_json::to_value(Value::Table(values.to_vec())).expect("JSON");
        let expected = json!({
            "bytes": {"base64": "/w=="}, "nan": null, "list": [null, true, 7], "table": {"a": -1},
        });
        assert_eq!(headers, expected);
    }
}
