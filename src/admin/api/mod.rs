//! `/api/v1`: what the commands show and do, as JSON, implemented by the same code
//! (`src/operator`).
//!
//! `guard` checks access, `routes` lists the paths, `input` parses a request, and `reads` and
//! `actions` answer it. The time of each request and the number of simultaneous requests are
//! bounded, so an unavailable server can't affect the rest of the worker.

mod actions;
pub mod answers;
mod guard;
mod input;
mod openapi;
mod pipelines;
mod problem;
mod reads;
mod routes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio::time::timeout;

pub use self::actions::ActionClient;
use self::guard::Guard;
pub use self::guard::{Right, one, own_site};
use self::input::RequestInput;
use self::pipelines::PipelineContexts;
pub use self::problem::{ApiProblem, challenge};
pub use self::routes::{ApiRoute, Param, ParamKind, ParamLocation};
use self::routes::{Effect, ROUTES};
use super::PipelineStates;
use config::Admin;
use operator::audit::name_of;

/// Prefix of all paths.
pub const PREFIX: &str = "/api/v1";
/// Time limit for an answer. It is shorter than the time limit of a connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum number of simultaneous reads, and of simultaneous actions: readers can't keep operators
/// from acting.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Header with the operator's name. It is not verified.
const OPERATOR: &str = "x-sluicegate-operator";

/// The API.
pub struct Api {
    states: Arc<PipelineStates>,
    guard: Guard,
    contexts: Arc<PipelineContexts>,
    reads: Arc<Semaphore>,
    actions: Arc<Semaphore>,
}

impl Api {
    /// Creates the API for the pipelines of `states`.
    pub fn new(admin: &Admin, states: &Arc<PipelineStates>) -> Self {
        Self {
            states: Arc::clone(states),
            guard: Guard::of(admin),
            contexts: Arc::new(PipelineContexts::new(Arc::clone(states))),
            reads: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
            actions: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
        }
    }

    /// Answers `request` from `peer`.
    pub async fn answer(&self, request: Request, peer: SocketAddr) -> Response {
        let (parts, body) = request.into_parts();
        let answered = timeout(ANSWER_TIMEOUT, self.answered(parts, body, peer)).await;
        let mut response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(problem)) => problem.into_response(),
            Err(_) => too_late().into_response(),
        };
        for (name, value) in [
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        response
    }

    async fn answered(
        &self,
        parts: Parts,
        body: Body,
        peer: SocketAddr,
    ) -> Result<Response, ApiProblem> {
        let path = parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
        let found = found(path);
        let acts = matches!(
            found,
            Some((
                ApiRoute {
                    effect: Effect::Acts(_),
                    ..
                },
                _
            ))
        );
        match acts && parts.method == Method::POST {
            true => self.guard.may_act(&parts.headers, peer)?,
            false => self.guard.may_read(&parts.headers, peer)?,
        }
        let (route, values) = found.ok_or_else(nothing_here)?;
        let methods = match route.effect {
            Effect::Reads(_) => "GET, HEAD, OPTIONS",
            Effect::Acts(_) => "POST, OPTIONS",
        };
        if parts.method == Method::OPTIONS {
            return Ok((StatusCode::NO_CONTENT, [(header::ALLOW, methods)]).into_response());
        }
        let is_asked = match route.effect {
            Effect::Reads(_) => matches!(parts.method, Method::GET | Method::HEAD),
            Effect::Acts(_) => parts.method == Method::POST,
        };
        if !is_asked {
            return Err(ApiProblem::method(methods));
        }
        let permits = match route.effect {
            Effect::Reads(_) => &self.reads,
            Effect::Acts(_) => &self.actions,
        };
        let one = Arc::clone(permits).try_acquire_owned();
        let one = one.map_err(|_| ApiProblem::busy())?;
        let query = parts.uri.query().unwrap_or_default();
        let mut input = RequestInput::of(route, &values, query)?;
        let pipelines = Arc::clone(&self.contexts);
        // A started request is finished even if the client no longer waits for the answer.
        let answering = match route.effect {
            Effect::Reads(read) => {
                let states = Arc::clone(&self.states);
                tokio::spawn(async move {
                    let _one = one;
                    reads::answer(read, (&states, &pipelines), &input).await
                })
            }
            Effect::Acts(act) => {
                input.read(route, &parts, body).await?;
                let asker = asker(&parts.headers, peer);
                tokio::spawn(async move {
                    let _one = one;
                    actions::act(act, pipelines, input, asker).await
                })
            }
        };
        Ok(shown(&answering.await.map_err(ended)??))
    }

    /// Returns the access control.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Returns the answer to a GET of `path` below `/api/v1`. It is used by the page, which checks
    /// access and the number of simultaneous requests itself.
    ///
    /// # Errors
    /// The errors of the API.
    pub async fn read(&self, path: &str, query: &str) -> Result<Value, ApiProblem> {
        let (route, values) = found(path).ok_or_else(nothing_here)?;
        let Effect::Reads(read) = route.effect else {
            return Err(ApiProblem::method("POST, OPTIONS"));
        };
        let input = RequestInput::of(route, &values, query)?;
        let reading = reads::answer(read, (&self.states, &self.contexts), &input);
        match timeout(ANSWER_TIMEOUT, reading).await {
            Ok(answer) => answer,
            Err(_) => Err(too_late()),
        }
    }

    /// Performs a POST of `path` with these fields, for the page. A started action is finished even
    /// if the client no longer waits for the answer.
    ///
    /// # Errors
    /// The errors of the API.
    pub async fn act(
        &self,
        path: &str,
        query: &str,
        fields: Map<String, Value>,
        asker: ActionClient,
    ) -> Result<Value, ApiProblem> {
        let (route, values) = found(path).ok_or_else(nothing_here)?;
        let Effect::Acts(act) = route.effect else {
            return Err(ApiProblem::method("GET, HEAD, OPTIONS"));
        };
        let one = Arc::clone(&self.actions).try_acquire_owned();
        let one = one.map_err(|_| ApiProblem::busy())?;
        let mut input = RequestInput::of(route, &values, query)?;
        input.take_fields(route, fields)?;
        let pipelines = Arc::clone(&self.contexts);
        let acting = tokio::spawn(async move {
            let _one = one;
            actions::act(act, pipelines, input, asker).await
        });
        match timeout(ANSWER_TIMEOUT, acting).await {
            Ok(done) => done.map_err(ended)?,
            Err(_) => Err(too_late()),
        }
    }
}

/// Returns the route that matches `path`, and the values in the path.
fn found(path: &str) -> Option<(&'static ApiRoute, Vec<&str>)> {
    (ROUTES.iter()).find_map(|route| Some((route, route.fits(path)?)))
}

/// Returns the route whose path in the table is `path`.
pub fn route(path: &str) -> Option<&'static ApiRoute> {
    ROUTES.iter().find(|route| route.path == path)
}

/// Iterates over the paths of all actions.
#[cfg(test)]
pub fn actions() -> impl Iterator<Item = &'static str> {
    let acts = (ROUTES.iter()).filter(|route| matches!(route.effect, Effect::Acts(_)));
    acts.map(|route| route.path)
}

fn nothing_here() -> ApiProblem {
    let words = "this path does not exist; /api/v1/openapi.json lists all paths";
    ApiProblem::new(StatusCode::NOT_FOUND, words)
}

fn too_late() -> ApiProblem {
    let words = format!(
        "not finished within {ANSWER_TIMEOUT:?}; an action may still complete: /audit lists \
        started actions"
    );
    ApiProblem::new(StatusCode::GATEWAY_TIMEOUT, words)
}

// The signature that `map_err` needs.
#[expect(clippy::needless_pass_by_value)]
fn ended(why: JoinError) -> ApiProblem {
    let words = format!("internal error: {why}");
    ApiProblem::new(StatusCode::INTERNAL_SERVER_ERROR, words)
}

fn shown(json: &Value) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, json.to_string()).into_response()
}

/// Returns the client's name and address, as far as they are known.
fn asker(headers: &HeaderMap, peer: SocketAddr) -> ActionClient {
    let header = headers.get(OPERATOR).map(HeaderValue::as_bytes);
    let name = header.and_then(|header| name_of(&String::from_utf8_lossy(header)));
    ActionClient {
        name: name.unwrap_or_else(|| "operator".to_owned()),
        peer: peer.to_string(),
    }
}
