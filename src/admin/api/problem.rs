//! Errors in the format of RFC 9457.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use operator::NotDone;
use operator::text::plain;

/// Maximum length of the detail, in characters.
const MAX_DETAIL_CHARS: usize = 2_000;

/// The reason why a request was not answered.
#[derive(Debug)]
pub struct ApiProblem {
    status: StatusCode,
    detail: String,
    header: Option<(&'static str, &'static str)>,
    pipelines: Option<Value>,
}

impl ApiProblem {
    /// Creates a problem.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            header: None,
            pipelines: None,
        }
    }

    /// Creates the problem of an invalid request.
    pub fn wrong(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Creates the problem of too many simultaneous requests.
    pub fn busy() -> Self {
        let words = "too many requests at the same time: try again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, words).with("retry-after", "1")
    }

    /// Creates the problem of a request whose `headers` do not show the token of this configuration
    /// key.
    pub fn unauthorized(headers: &HeaderMap, key: &str) -> Self {
        let words = format!("the header `Authorization: Bearer` with {key} is required");
        Self::new(StatusCode::UNAUTHORIZED, words).with("www-authenticate", challenge(headers))
    }

    /// Creates the problem of a wrong token after many other wrong ones.
    pub fn too_many_wrong() -> Self {
        let words = "wrong token; after many wrong tokens within a minute, further ones are \
            refused slowly";
        Self::new(StatusCode::TOO_MANY_REQUESTS, words)
    }

    /// Creates the problem of a method that the path does not have. `methods` are its methods.
    pub fn method(methods: &'static str) -> Self {
        let words = "this path supports other methods: see the header Allow";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, words).with("allow", methods)
    }

    /// Returns the status of the answer.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the detail, for people.
    pub fn words(&self) -> String {
        plain(&self.detail, MAX_DETAIL_CHARS)
    }

    /// Adds the result of each pipeline.
    pub fn with_pipelines(mut self, pipelines: Value) -> Self {
        self.pipelines = Some(pipelines);
        self
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.header = Some((name, value));
        self
    }
}

/// Returns the value of `WWW-Authenticate` for a missing or wrong token (RFC 6750, 3). A client
/// that showed no token gets the scheme alone.
pub fn challenge(headers: &HeaderMap) -> &'static str {
    match headers.contains_key(header::AUTHORIZATION) {
        true => "Bearer realm=\"sluicegate\", error=\"invalid_token\"",
        false => "Bearer realm=\"sluicegate\"",
    }
}

impl From<NotDone> for ApiProblem {
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

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let mut json = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": plain(&self.detail, MAX_DETAIL_CHARS),
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
