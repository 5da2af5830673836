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
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::actions::Asker;
use self::guard::Guard;
pub use self::guard::shows;
use self::input::Input;
use self::part::PartsOfAll;
use self::problem::Problem;
pub use self::problem::challenge;
use self::routes::{Does, ROUTES, Route};
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
            Err(_) => {
                let words = format!(
                    "not done within {ANSWER_WITHIN:?}; an action may be done all the same: /audit says what was begun"
                );
                Problem::new(StatusCode::GATEWAY_TIMEOUT, words).into_response()
            }
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
        let found = ROUTES
            .iter()
            .find_map(|route| Some((route, route.fits(path)?)));
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
            true => self.guard.may_act(&parts.headers)?,
            false => self.guard.may_read(&parts.headers, peer)?,
        }
        let Some((route, values)) = found else {
            let words = "there is nothing here; /api/v1/openapi.json says what there is";
            return Err(Problem::new(StatusCode::NOT_FOUND, words));
        };
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
        let json = answering.await.map_err(|why| {
            let words = format!("it has ended by an error: {why}");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, words)
        })??;
        Ok(shown(&json))
    }
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
