//! Access control of the page: as for `/api/v1`, and in addition by sessions, since a browser that
//! follows a link sends no token.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::time::Instant;

use super::PREFIX;
use super::sessions::{Role, Session, Sessions, same};
use crate::api::{Api, ApiProblem, Right, own_site};
use config::Admin;
use operator::audit::name_of;

/// Maximum number of cookies of one name that are checked.
const MAX_COOKIES: usize = 8;

/// Access control and sessions.
pub struct Access {
    api: Arc<Api>,
    /// Whether an operator can sign in here.
    has_operators: bool,
    /// Part of the cookies' names. Workers on one machine have different ports, and a browser sends
    /// each of them the cookies of all.
    port: u16,
    began: Instant,
    sessions: Mutex<Sessions>,
}

/// The visitor of a page.
#[derive(Clone, Default)]
pub struct Viewer {
    /// Session of a reader, if the visitor has one.
    pub reader: Option<Session>,
    /// Session of an operator, if the visitor has one.
    pub operator: Option<Session>,
}

impl Viewer {
    /// Returns the session that lets the visitor look, if one is needed.
    pub fn session(&self) -> Option<&Session> {
        self.operator.as_ref().or(self.reader.as_ref())
    }
}

impl Access {
    /// Creates the access control by `admin`, for the port of `listen`.
    pub fn new(admin: &Admin, listen: SocketAddr, api: Arc<Api>) -> Self {
        Self {
            api,
            has_operators: admin.operator_token.is_some(),
            port: listen.port(),
            began: Instant::now(),
            sessions: Mutex::default(),
        }
    }

    /// Returns true if an operator can sign in here.
    pub fn has_operators(&self) -> bool {
        self.has_operators
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cookie(&self, role: Role) -> String {
        format!("sluicegate-{}-{}", self.port, role.keyword())
    }

    fn session(&self, headers: &HeaderMap, role: Role) -> Option<Session> {
        let name = self.cookie(role);
        let lines = headers.get_all(header::COOKIE).iter();
        let pairs = lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        let mut ids = pairs.filter(|(known, _)| *known == name).take(MAX_COOKIES);
        let (sessions, now) = (self.sessions(), self.now());
        ids.find_map(|(_, id)| sessions.find(now, role, id))
    }

    /// Returns the visitor who sends `headers` from `peer` if the page may be shown.
    ///
    /// # Errors
    /// The page may not be shown; the problem is the same as for `/api/v1`.
    pub fn may_view(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<Viewer, ApiProblem> {
        own_site(headers)?;
        let viewer = Viewer {
            reader: self.session(headers, Role::Reader),
            operator: self.session(headers, Role::Operator),
        };
        if viewer.session().is_some() {
            return Ok(viewer);
        }
        self.api
            .guard()
            .may_read(headers, peer)
            .map(|()| Viewer::default())
    }

    /// Returns true if the session has not ended.
    pub fn is_open(&self, session: &Session) -> bool {
        let found = self.sessions().find(self.now(), session.role, &session.id);
        found.is_some()
    }

    /// Returns the session of the operator who sends `headers`, provided that the form has the
    /// session's `form_token`.
    ///
    /// # Errors
    /// There is no such session, or the form has another token.
    pub fn may_act(&self, headers: &HeaderMap, form_token: &str) -> Result<Session, ApiProblem> {
        own_site(headers)?;
        let refused = |words| ApiProblem::new(StatusCode::FORBIDDEN, words);
        let operator = self.session(headers, Role::Operator);
        let operator = operator.ok_or_else(|| {
            refused(
                "this requires an operator's session, which ends after an hour: sign in with \
                admin.operator-token",
            )
        })?;
        match same(&operator.form_token, form_token) {
            true => Ok(operator),
            false => Err(refused(
                "this form belongs to another session: reload its page",
            )),
        }
    }

    /// Starts a session for a visitor who shows `token`.
    ///
    /// # Errors
    /// The token is wrong.
    pub fn sign_in(
        &self,
        (headers, peer): (&HeaderMap, SocketAddr),
        token: &str,
        name: &str,
    ) -> Result<Session, ApiProblem> {
        own_site(headers)?;
        let role = match self.api.guard().right_of_token(token.as_bytes(), peer)? {
            Some(Right::Act) => Role::Operator,
            Some(Right::Read) => Role::Reader,
            None => {
                let words = "this is neither admin.token nor admin.operator-token of this worker";
                return Err(ApiProblem::new(StatusCode::UNAUTHORIZED, words));
            }
        };
        let name = name_of(name).unwrap_or_default();
        Ok(self.sessions().begin(self.now(), role, name))
    }

    /// Returns the `Set-Cookie` header for `session`.
    pub fn set_cookie(&self, session: &Session, headers: &HeaderMap) -> HeaderValue {
        let (name, id) = (self.cookie(session.role), &session.id);
        let seconds = session.role.lasts().as_secs();
        self.header(&format!("{name}={id}; Max-Age={seconds}"), headers)
    }

    /// Ends the visitor's sessions and returns the headers that delete their cookies.
    pub fn sign_out(&self, viewer: &Viewer, headers: &HeaderMap) -> Vec<HeaderValue> {
        let all = [&viewer.reader, &viewer.operator];
        let mut gone = Vec::new();
        for session in all.into_iter().flatten() {
            self.sessions().end(&session.id);
            let name = self.cookie(session.role);
            gone.push(self.header(&format!("{name}=; Max-Age=0"), headers));
        }
        gone
    }

    fn header(&self, pair: &str, headers: &HeaderMap) -> HeaderValue {
        // The worker itself speaks no TLS; a proxy with TLS sets this header.
        let is_secure = headers
            .get("x-forwarded-proto")
            .is_some_and(|scheme| scheme == "https");
        let secure = if is_secure { "; Secure" } else { "" };
        let text = format!("{pair}; Path={PREFIX}; HttpOnly; SameSite=Strict{secure}");
        HeaderValue::from_str(&text).expect("names and numbers are plain")
    }

    /// Stores a message for the session's next page.
    pub fn set_flash(&self, session: &Session, what: String) {
        self.sessions().set_flash(self.now(), &session.id, what);
    }

    /// Takes the message for this page.
    pub fn flash(&self, viewer: &Viewer) -> Option<String> {
        let operator = viewer.operator.as_ref()?;
        self.sessions().flash(self.now(), &operator.id)
    }
}
