//! Who may look, and who may act: as for `/api/v1`, and by sessions, since a browser that follows a link sends no token by itself.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::time::Instant;

use super::PREFIX;
use super::sessions::{Role, Session, Sessions, same};
use crate::admin::api::{Api, Problem, Right, own_site};
use crate::config::Admin;
use crate::operator::audit::name_of;

/// So many cookies of one name are looked at.
const MOST_COOKIES: usize = 8;

/// Who may what.
pub struct Door {
    api: Arc<Api>,
    /// Whether somebody can act here.
    has_operators: bool,
    /// Workers of one machine differ in it: a browser sends each the cookies of all.
    port: u16,
    began: Instant,
    sessions: Mutex<Sessions>,
}

/// Who looks.
#[derive(Clone, Default)]
pub struct Viewer {
    /// They have signed in, as one or as the other.
    pub reader: Option<Session>,
    /// They may act.
    pub operator: Option<Session>,
}

impl Viewer {
    /// Their session, where they need one to look.
    pub fn session(&self) -> Option<&Session> {
        self.operator.as_ref().or(self.reader.as_ref())
    }
}

impl Door {
    /// Of what `admin` says, at the port that it got.
    pub fn new(admin: &Admin, listen: SocketAddr, api: Arc<Api>) -> Self {
        Self {
            api,
            has_operators: admin.operator_token.is_some(),
            port: listen.port(),
            began: Instant::now(),
            sessions: Mutex::default(),
        }
    }

    /// Somebody can act here.
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
        format!("sluicegate-{}-{}", self.port, role.word())
    }

    fn session(&self, headers: &HeaderMap, role: Role) -> Option<Session> {
        let name = self.cookie(role);
        let lines = headers.get_all(header::COOKIE).iter();
        let pairs = lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        let mut ids = pairs.filter(|(known, _)| *known == name).take(MOST_COOKIES);
        let (sessions, now) = (self.sessions(), self.now());
        ids.find_map(|(_, id)| sessions.find(now, role, id))
    }

    /// Who sends `headers` from `peer`, if they may look.
    ///
    /// # Errors
    /// What is missing, as `/api/v1` says it.
    pub fn may_look(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<Viewer, Problem> {
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

    /// It is still in force.
    pub fn is_open(&self, session: &Session) -> bool {
        let found = self.sessions().find(self.now(), session.role, &session.id);
        found.is_some()
    }

    /// The operator who sends `headers`, if the form has `form_token`, which their pages have.
    ///
    /// # Errors
    /// What is missing.
    pub fn may_act(&self, headers: &HeaderMap, form_token: &str) -> Result<Session, Problem> {
        own_site(headers)?;
        let refused = |words| Problem::new(StatusCode::FORBIDDEN, words);
        let operator = self.session(headers, Role::Operator);
        let operator = operator.ok_or_else(|| {
            refused("this takes an operator's session, which is over after an hour: sign in with admin.operator-token")
        })?;
        match same(&operator.form_token, form_token) {
            true => Ok(operator),
            false => Err(refused(
                "this form is not of your session: load its page again",
            )),
        }
    }

    /// Signs in who shows `token`.
    ///
    /// # Errors
    /// It is wrong.
    pub fn sign_in(
        &self,
        (headers, peer): (&HeaderMap, SocketAddr),
        token: &str,
        name: &str,
    ) -> Result<Session, Problem> {
        own_site(headers)?;
        let role = match self.api.guard().right_of(token.as_bytes(), peer)? {
            Some(Right::Act) => Role::Operator,
            Some(Right::Read) => Role::Reader,
            None => {
                let words = "this is neither admin.token nor admin.operator-token of this worker";
                return Err(Problem::new(StatusCode::UNAUTHORIZED, words));
            }
        };
        let name = name_of(name).unwrap_or_default();
        Ok(self.sessions().begin(self.now(), role, name))
    }

    /// The header by which a browser keeps `session`.
    pub fn set_cookie(&self, session: &Session, headers: &HeaderMap) -> HeaderValue {
        let (name, id) = (self.cookie(session.role), &session.id);
        let seconds = session.role.lasts().as_secs();
        self.header(&format!("{name}={id}; Max-Age={seconds}"), headers)
    }

    /// Ends what they have: the headers by which a browser forgets it.
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
        // A proxy with TLS says so; here there is none.
        let is_secure = headers
            .get("x-forwarded-proto")
            .is_some_and(|scheme| scheme == "https");
        let secure = if is_secure { "; Secure" } else { "" };
        let text = format!("{pair}; Path={PREFIX}; HttpOnly; SameSite=Strict{secure}");
        HeaderValue::from_str(&text).expect("names and numbers are plain")
    }

    /// Their next page says this.
    pub fn tell(&self, session: &Session, what: String) {
        self.sessions().tell(self.now(), &session.id, what);
    }

    /// What this page says.
    pub fn told(&self, viewer: &Viewer) -> Option<String> {
        let operator = viewer.operator.as_ref()?;
        self.sessions().told(self.now(), &operator.id)
    }
}
