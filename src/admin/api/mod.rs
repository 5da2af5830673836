//! `/api/v1`: what the commands show and do, as JSON, by the same code (`src/operator`).
//!
//! `guard` says who may ask, `routes` what there is, `input` reads a request, `reads` and `actions` answer it. Each request is bounded in time, and
//! so are those that are answered at once: a server that is away costs the worker nothing else.

mod actions;
mod guard;
mod input;
mod openapi;
mod part;
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

pub use self::actions::Asker;
use self::guard::Guard;
pub use self::guard::{Right, one, own_site};
use self::input::Input;
use self::part::PartsOfAll;
pub use self::problem::{Problem, challenge};
use self::routes::{Does, ROUTES};
pub use self::routes::{Kind, Param, Place, Route};
use super::Board;
use crate::config::Admin;
use crate::operator::audit::name_of;

/// What all paths begin with.
pub const PREFIX: &str = "/api/v1";
/// An answer comes within this, or is given up; it is shorter than a connection lasts.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// So many requests are answered at once.
const MOST_AT_ONCE: usize = 16;
/// Who acts is named in this header; it says what its sender likes.
const OPERATOR: &str = "x-sluicegate-operator";

/// What answers.
pub struct Api {
    board: Arc<Board>,
    guard: Guard,
    parts: Arc<PartsOfAll>,
    at_once: Arc<Semaphore>,
}

impl Api {
    /// Of what `board` shows.
    pub fn new(admin: &Admin, board: &Arc<Board>) -> Self {
        Self {
            board: Arc::clone(board),
            guard: Guard::of(admin),
            parts: Arc::new(PartsOfAll::new(Arc::clone(board))),
            at_once: Arc::new(Semaphore::new(MOST_AT_ONCE)),
        }
    }

    /// Answers `request`, which came from `peer`.
    pub async fn answer(&self, request: Request, peer: SocketAddr) -> Response {
        let (parts, body) = request.into_parts();
        let answered = timeout(ANSWER_WITHIN, self.answered(parts, body, peer)).await;
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
    ) -> Result<Response, Problem> {
        let path = parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
        let found = found(path);
        let acts = matches!(
            found,
            Some((
                Route {
                    does: Does::Acts(_),
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
        let methods = match route.does {
            Does::Reads(_) => "GET, HEAD, OPTIONS",
            Does::Acts(_) => "POST, OPTIONS",
        };
        if parts.method == Method::OPTIONS {
            return Ok((StatusCode::NO_CONTENT, [(header::ALLOW, methods)]).into_response());
        }
        let is_asked = match route.does {
            Does::Reads(_) => matches!(parts.method, Method::GET | Method::HEAD),
            Does::Acts(_) => parts.method == Method::POST,
        };
        if !is_asked {
            return Err(Problem::method(methods));
        }
        let one = Arc::clone(&self.at_once).try_acquire_owned();
        let one = one.map_err(|_| Problem::busy())?;
        let query = parts.uri.query().unwrap_or_default();
        let mut input = Input::of(route, &values, query)?;
        let pipelines = Arc::clone(&self.parts);
        // What was begun is finished, also where nobody waits for the answer any more.
        let answering = match route.does {
            Does::Reads(read) => {
                let board = Arc::clone(&self.board);
                tokio::spawn(async move {
                    let _one = one;
                    reads::answer(read, (&board, &pipelines), &input).await
                })
            }
            Does::Acts(act) => {
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

    /// Who may ask.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// What a GET of `path`, below `/api/v1`, shows: for the page, which has looked at who asks, and how many do.
    ///
    /// # Errors
    /// As there.
    pub async fn read(&self, path: &str, query: &str) -> Result<Value, Problem> {
        let (route, values) = found(path).ok_or_else(nothing_here)?;
        let Does::Reads(read) = route.does else {
            return Err(Problem::method("POST, OPTIONS"));
        };
        let input = Input::of(route, &values, query)?;
        let reading = reads::answer(read, (&self.board, &self.parts), &input);
        match timeout(ANSWER_WITHIN, reading).await {
            Ok(answer) => answer,
            Err(_) => Err(too_late()),
        }
    }

    /// What a POST of `path` with these fields does, for the page. It is finished also where nobody waits for it any more.
    ///
    /// # Errors
    /// As there.
    pub async fn act(
        &self,
        path: &str,
        query: &str,
        fields: Map<String, Value>,
        asker: Asker,
    ) -> Result<Value, Problem> {
        let (route, values) = found(path).ok_or_else(nothing_here)?;
        let Does::Acts(act) = route.does else {
            return Err(Problem::method("GET, HEAD, OPTIONS"));
        };
        let one = Arc::clone(&self.at_once).try_acquire_owned();
        let one = one.map_err(|_| Problem::busy())?;
        let mut input = Input::of(route, &values, query)?;
        input.take_fields(route, fields)?;
        let pipelines = Arc::clone(&self.parts);
        let acting = tokio::spawn(async move {
            let _one = one;
            actions::act(act, pipelines, input, asker).await
        });
        match timeout(ANSWER_WITHIN, acting).await {
            Ok(done) => done.map_err(ended)?,
            Err(_) => Err(too_late()),
        }
    }
}

/// The route that `path` fits, and the values in it.
fn found(path: &str) -> Option<(&'static Route, Vec<&str>)> {
    (ROUTES.iter()).find_map(|route| Some((route, route.fits(path)?)))
}

/// What is asked where: `path` as the table has it.
pub fn route(path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.path == path)
}

/// The paths of all actions.
#[cfg(test)]
pub fn actions() -> impl Iterator<Item = &'static str> {
    let acts = (ROUTES.iter()).filter(|route| matches!(route.does, Does::Acts(_)));
    acts.map(|route| route.path)
}

fn nothing_here() -> Problem {
    let words = "there is nothing here; /api/v1/openapi.json says what there is";
    Problem::new(StatusCode::NOT_FOUND, words)
}

fn too_late() -> Problem {
    let words = format!(
        "not done within {ANSWER_WITHIN:?}; an action may be done all the same: /audit says what was begun"
    );
    Problem::new(StatusCode::GATEWAY_TIMEOUT, words)
}

// As map_err gives it.
#[expect(clippy::needless_pass_by_value)]
fn ended(why: JoinError) -> Problem {
    let words = format!("it has ended by an error: {why}");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, words)
}

fn shown(json: &Value) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, json.to_string()).into_response()
}

/// Who asks, as far as it is known.
fn asker(headers: &HeaderMap, peer: SocketAddr) -> Asker {
    let said = headers.get(OPERATOR).map(HeaderValue::as_bytes);
    let name = said.and_then(|said| name_of(&String::from_utf8_lossy(said)));
    Asker {
        name: name.unwrap_or_else(|| "operator".to_owned()),
        peer: peer.to_string(),
    }
}
