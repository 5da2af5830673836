//! Errors, as RFC 9457 writes them.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::operator::NotDone;
use crate::operator::words::plain;

/// Of what is said, in characters.
const LONGEST: usize = 2_000;

/// Why something was not answered.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    detail: String,
    header: Option<(&'static str, &'static str)>,
    pipelines: Option<Value>,
}

impl Problem {
    /// This is wrong.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            header: None,
            pipelines: None,
        }
    }

    /// What is asked for makes no sense.
    pub fn wrong(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Too many ask at once.
    pub fn busy() -> Self {
        let words = "too many others ask at the same time: try it again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, words).with("retry-after", "1")
    }

    /// `headers` do not show the token of this key.
    pub fn unauthorized(headers: &HeaderMap, key: &str) -> Self {
        let words = format!("this needs the header `Authorization: Bearer` with {key}");
        Self::new(StatusCode::UNAUTHORIZED, words).with("www-authenticate", challenge(headers))
    }

    /// The token is wrong, as many others were lately.
    pub fn too_many_wrong() -> Self {
        let words = "this token is wrong, as many others were within the last minute: wrong ones are refused slowly";
        Self::new(StatusCode::TOO_MANY_REQUESTS, words)
    }

    /// Only `methods` are for this path.
    pub fn method(methods: &'static str) -> Self {
        let words = "this path has other methods: see the header Allow";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, words).with("allow", methods)
    }

    /// The answer's status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What is wrong, for people.
    pub fn words(&self) -> String {
        plain(&self.detail, LONGEST)
    }

    /// What was done in each pipeline.
    pub fn with_pipelines(mut self, pipelines: Value) -> Self {
        self.pipelines = Some(pipelines);
        self
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.header = Some((name, value));
        self
    }
}

/// What is told to those who do not show a token (RFC 6750, 3): who showed nothing is told the scheme alone.
pub fn challenge(headers: &HeaderMap) -> &'static str {
    match headers.contains_key(header::AUTHORIZATION) {
        true => "Bearer realm=\"sluicegate\", error=\"invalid_token\"",
        false => "Bearer realm=\"sluicegate\"",
    }
}

impl From<NotDone> for Problem {
    fn from(why: NotDone) -> Self {
        let status = match &why {
            NotDone::Wrong(_) => StatusCode::BAD_REQUEST,
            NotDone::Missing(_) => StatusCode::NOT_FOUND,
            NotDone::Failed(_) | NotDone::Redis(_) | NotDone::RabbitMq(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        Self::new(status, why.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut json = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": plain(&self.detail, LONGEST),
        });
        if let Some(pipelines) = self.pipelines {
            json["pipelines"] = pipelines;
        }
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, kind, json.to_string()).into_response();
        if let Some((name, value)) = self.header {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        response
    }
}
