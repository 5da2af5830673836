//! The page for people, at `/ui`. It shows and does what `/api/v1` does, which it calls within the
//! process, as HTML. It works without a script; with one it updates itself.
//!
//! `access` checks access, `views` renders, `live` updates views, `action_forms` has the actions,
//! and `history` the data of the charts. `docs/decisions/operators.md#api-and-page` has the
//! reasons.

mod access;
mod action_forms;
mod charts;
mod forms;
mod frame;
mod history;
mod live;
mod sessions;
mod text;
mod views;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use self::access::{Access, Viewer};
use self::action_forms::{FormValues, is_form};
use self::frame::{PageFrame, PipelineLink, SignedInUser, sign_in_for};
use self::history::{PipelineHistories, SAMPLE_INTERVAL};
use self::live::LiveViews;
use self::views::{Roster, ViewKind, ViewRequest, ViewSource};
use super::PipelineStates;
use super::api::{Api, ApiProblem};
use config::Admin;

/// Prefix of all paths.
pub const PREFIX: &str = "/ui";
/// Maximum lifetime of a streaming connection; the browser reconnects.
pub const MAX_STREAM_LIFE: Duration = Duration::from_secs(600);
/// Time limit for rendering a page.
const RENDER_TIMEOUT: Duration = Duration::from_secs(9);
/// Maximum number of pages rendered at once. Further requests wait for a turn within their time
/// limit.
const MAX_CONCURRENT_PAGES: usize = 8;
/// Maximum size of a form in bytes.
const MAX_FORM_BYTES: usize = 16 * 1024;

const STYLE: &str = include_str!("assets/page.css");
const SCRIPT: &str = include_str!("assets/page.js");

/// Content security policy: nothing from other sites, and no inline scripts or styles.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // A browser with no-referrer would send forms with `Origin: null`, which looks like another
    // site's form.
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Whether a connection is streaming. The server closes other connections soon.
#[derive(Clone, Default)]
pub struct StreamFlag(Arc<AtomicBool>);

impl StreamFlag {
    /// Returns true if the connection is streaming.
    pub fn is_streaming(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Everything that pages are rendered from.
struct Site {
    states: Arc<PipelineStates>,
    api: Arc<Api>,
    access: Access,
    live: LiveViews,
    history: PipelineHistories,
    roster: Mutex<Roster>,
}

impl Site {
    fn source(&self) -> ViewSource<'_> {
        let mut names = self.pipelines();
        ViewSource {
            api: &self.api,
            history: &self.history,
            only: names.pop().filter(|_| names.is_empty()),
            roster: &self.roster,
        }
    }

    fn pipelines(&self) -> Vec<String> {
        let all = self.states.pipelines().into_iter();
        all.map(|(name, _)| name).collect()
    }
}

/// The page.
pub struct Page {
    site: Arc<Site>,
    permits: Semaphore,
}

/// The parts of a request that all handlers need.
struct Visit<'a> {
    parts: &'a Parts,
    peer: SocketAddr,
}

impl Page {
    /// Creates the page for `states` and `api`, until `stop`.
    pub fn new(
        admin: &Admin,
        listen: SocketAddr,
        (states, api): (&Arc<PipelineStates>, &Arc<Api>),
        stop: CancellationToken,
    ) -> Self {
        let site = Site {
            states: Arc::clone(states),
            api: Arc::clone(api),
            access: Access::new(admin, listen, Arc::clone(api)),
            live: LiveViews::new(stop),
            history: PipelineHistories::default(),
            roster: Mutex::default(),
        };
        Self {
            site: Arc::new(site),
            permits: Semaphore::new(MAX_CONCURRENT_PAGES),
        }
    }

    /// Samples the worker for the charts as long as it runs. This is the only work while no one
    /// visits the page.
    pub async fn keep_history(&self) -> Infallible {
        let began = Instant::now();
        let mut ticks = interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let all = self.site.states.pipelines();
            let all = all
                .iter()
                .map(|(name, seen)| (name.as_str(), &*seen.metrics));
            self.site.history.sample(began.elapsed(), all);
        }
    }

    /// Answers `request` from `peer`.
    pub async fn answer(&self, request: Request, peer: SocketAddr) -> Response {
        let (parts, body) = request.into_parts();
        let visit = Visit {
            parts: &parts,
            peer,
        };
        let mut response = timeout(RENDER_TIMEOUT, self.answered(&visit, body))
            .await
            .unwrap_or_else(|_| {
                let words = "too many requests at the same time, or Redis or RabbitMQ does not \
                answer: try again\n";
                (StatusCode::GATEWAY_TIMEOUT, words).into_response()
            });
        let headers = response.headers_mut();
        for (name, value) in HEADERS {
            headers
                .entry(name)
                .or_insert(HeaderValue::from_static(value));
        }
        response
    }

    async fn answered(&self, visit: &Visit<'_>, body: Body) -> Response {
        let Parts { uri, method, .. } = visit.parts;
        let path = uri.path().strip_prefix(PREFIX).unwrap_or_default();
        let reads = matches!(*method, Method::GET | Method::HEAD);
        match (path, reads) {
            ("/page.css", true) => asset("text/css; charset=utf-8", STYLE),
            ("/page.js", true) => asset("text/javascript; charset=utf-8", SCRIPT),
            ("/sign-in", true) => self.signing_in(visit),
            ("/act", true) => self.asked_back(visit),
            (_, true) => self.view(visit, path).await,
            ("/sign-in" | "/sign-out" | "/act", false) if method == Method::POST => {
                if !is_form(&visit.parts.headers) {
                    let words = "a form is required\n";
                    return (StatusCode::UNSUPPORTED_MEDIA_TYPE, words).into_response();
                }
                let Ok(bytes) = to_bytes(body, MAX_FORM_BYTES).await else {
                    let words = format!(
                        "the form is too large; the maximum is {MAX_FORM_BYTES} \
                        bytes\n"
                    );
                    return (StatusCode::PAYLOAD_TOO_LARGE, words).into_response();
                };
                let values = FormValues::of(&bytes);
                match path {
                    "/sign-in" => self.sign_in(visit, &values),
                    "/sign-out" => self.sign_out(visit, &values),
                    _ => self.act(visit, &values).await,
                }
            }
            _ => {
                let allow = [(header::ALLOW, "GET, HEAD, POST")];
                (
                    StatusCode::METHOD_NOT_ALLOWED,
                    allow,
                    "this path does not support the method\n",
                )
                    .into_response()
            }
        }
    }

    /// Answers with a view, as a page or as a stream of its updates.
    async fn view(&self, visit: &Visit<'_>, path: &str) -> Response {
        let site = &self.site;
        let headers = &visit.parts.headers;
        let query = visit.parts.uri.query().unwrap_or_default();
        let asked = match ViewRequest::of(path, query, &site.pipelines()) {
            Some(asked) => asked,
            None => Err(ApiProblem::new(
                StatusCode::NOT_FOUND,
                "there is no such page",
            )),
        };
        let fleet = forms::fleet(&FormValues::of(query.as_bytes()));
        let wants_stream = accepts_stream(headers);
        let viewer = match site.access.may_view(headers, visit.peer) {
            Ok(viewer) => viewer,
            Err(_) if is_link_from_elsewhere(headers) => return frame::reload_page(&target(visit)),
            Err(problem) if wants_stream => return words(&problem),
            Err(problem) if problem.status() == StatusCode::UNAUTHORIZED => {
                return see_other(&sign_in_for(&target(visit), false), []);
            }
            Err(problem) => {
                return frame::wrong(self.around(&Viewer::default(), "Refused", &fleet), &problem);
            }
        };
        let asked = match asked {
            Ok(asked) => asked,
            Err(problem) => {
                return frame::wrong(self.around(&viewer, "Not found", &fleet), &problem);
            }
        };
        if wants_stream && asked.is_live() {
            return self.stream(visit, asked, &viewer);
        }
        // Renderings that wait for an unavailable server can make this one wait. Files and forms
        // need no turn and are answered at once.
        let _turn = self.permits.acquire().await;
        let made = match asked.is_live() {
            true => site.live.view(site, &asked).await,
            false => {
                let html = site.source().html(&asked).await;
                Arc::new(html.map(|html| live::parts(&html)))
            }
        };
        let (title, here) = (asked.title(), asked.address());
        let mut around = self.around(&viewer, &title, &here);
        around.place = match asked.kind {
            ViewKind::Fleet => "fleet",
            ViewKind::Tenants | ViewKind::Tenant => "tenants",
            ViewKind::DeadLetters | ViewKind::DeadLetter => "dead",
            ViewKind::Audit => "audit",
        };
        if let Some(pipeline) = asked.pipeline.as_deref() {
            around.pipelines = (site.pipelines().into_iter())
                .map(|name| PipelineLink {
                    link: text::query([("pipeline", name.as_str())]),
                    is_this: name == pipeline,
                    name,
                })
                .collect();
        }
        around.flash = site.access.flash(&viewer);
        frame::view(around, asked.is_live(), &made)
    }

    fn stream(&self, visit: &Visit<'_>, asked: ViewRequest, viewer: &Viewer) -> Response {
        let session = viewer.session().cloned();
        let Some(body) = self
            .site
            .live
            .stream(Arc::clone(&self.site), asked, session)
        else {
            let words = format!(
                "{} pages already show this worker live: close some, or reload this page by hand\n",
                live::MAX_WATCHERS
            );
            let again = [(header::RETRY_AFTER, "10")];
            return (StatusCode::SERVICE_UNAVAILABLE, again, words).into_response();
        };
        if let Some(lasting) = visit.parts.extensions.get::<StreamFlag>() {
            lasting.set();
        }
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream"),
            // Tells proxies not to buffer the stream.
            (HeaderName::from_static("x-accel-buffering"), "no"),
        ];
        (headers, body).into_response()
    }

    /// Returns the frame of a page. Its links lead to the address `here` and its pipeline.
    fn around<'a>(&self, viewer: &Viewer, title: &'a str, here: &str) -> PageFrame<'a> {
        let values = here.split_once('?').map_or("", |(_, values)| values);
        let values = FormValues::of(values.as_bytes());
        PageFrame {
            title,
            place: "",
            pipelines: Vec::new(),
            pipeline: text::query([("pipeline", values.get("pipeline"))]),
            who: SignedInUser::of(viewer),
            has_operators: self.site.access.has_operators(),
            here: here.to_owned(),
            flash: None,
        }
    }

    /// Returns the visitor; one without access is the default viewer.
    fn viewer(&self, visit: &Visit<'_>) -> Viewer {
        let found = self.site.access.may_view(&visit.parts.headers, visit.peer);
        found.unwrap_or_default()
    }
}

/// Returns a file, which needs no access right.
fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        // A worker of another version may serve another file.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Bytes::from_static(text.as_bytes())).into_response()
}

fn see_other(to: &str, cookies: impl IntoIterator<Item = HeaderValue>) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let location = HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static(PREFIX));
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, location);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    response
}

/// Returns `to` if it is an address of this page, or the page's root.
fn own_path(to: &str) -> &str {
    let rest = to.strip_prefix(PREFIX);
    let is_own = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']));
    // A browser treats a backslash as a slash.
    match is_own && !to.contains('\\') {
        true => to,
        false => PREFIX,
    }
}

/// Returns the request's path and query.
fn target(visit: &Visit<'_>) -> String {
    let target = visit.parts.uri.path_and_query();
    target.map_or(PREFIX, |target| target.as_str()).to_owned()
}

fn words(problem: &ApiProblem) -> Response {
    (problem.status(), format!("{}\n", problem.words())).into_response()
}

fn accepts_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT);
    accept.is_some_and(|accept| accept == "text/event-stream")
}

/// Returns true if the visitor followed a link of another site, in which case the browser sends no
/// cookie.
fn is_link_from_elsewhere(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|header| header == value);
    let is_from_elsewhere = is("sec-fetch-site", "cross-site") || is("sec-fetch-site", "same-site");
    is_from_elsewhere && is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_below_the_prefix() {
        for own in ["/ui", "/ui/tenants?sort=denied", "/ui?pipeline=a"] {
            assert_eq!(own_path(own), own);
        }
        for other in [
            "",
            "/",
            "//example.com",
            "/uix",
            "https://example.com",
            "/ui/\\example.com",
            "javascript:alert(1)",
        ] {
            assert_eq!(own_path(other), PREFIX, "{other}");
        }
        let response = see_other("/ui/\r\nset-cookie: a=b", []);
        assert_eq!(response.headers()[header::LOCATION], PREFIX);
    }

    #[test]
    fn only_a_link_from_another_site_is_reloaded() {
        let headers = |site: &'static str, mode: &'static str| {
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("sec-fetch-site", site),
                ("sec-fetch-mode", mode),
                ("sec-fetch-dest", "document"),
            ] {
                headers.insert(name, HeaderValue::from_static(value));
            }
            headers
        };
        assert!(is_link_from_elsewhere(&headers("cross-site", "navigate")));
        assert!(!is_link_from_elsewhere(&headers("same-origin", "navigate")));
        assert!(!is_link_from_elsewhere(&headers("cross-site", "no-cors")));
    }
}
