//! Sessions of visitors who signed in. They exist in this process only, in a bounded number.

use std::time::Duration;

use subtle::ConstantTimeEq;

/// Maximum number of sessions. A further one replaces the oldest.
const MAX_SESSIONS: usize = 64;

/// Role of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// May look: `admin.token`.
    Reader,
    /// May also change something: `admin.operator-token`.
    Operator,
}

impl Role {
    /// Returns the role's word in the cookie's name.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Operator => "operator",
        }
    }

    /// Returns how long a session lasts.
    pub fn lasts(self) -> Duration {
        match self {
            Self::Reader => Duration::from_secs(12 * 3_600),
            Self::Operator => Duration::from_secs(3_600),
        }
    }
}

/// A session.
#[derive(Clone)]
pub struct Session {
    /// Value of the cookie: 256 random bits.
    pub id: String,
    /// Role.
    pub role: Role,
    /// Name that the visitor gave; may be empty.
    pub name: String,
    /// Token that the session's forms contain: another random number.
    pub form_token: String,
    ends: Duration,
    /// Message for the session's next page.
    flash: Option<String>,
}

/// All sessions, oldest first.
#[derive(Default)]
pub struct Sessions(Vec<Session>);

fn random() -> String {
    let bytes: [u8; 32] = rand::random();
    operator::letters::hex(&bytes)
}

/// Returns true if the texts are equal. The time that it takes reveals at most their length.
pub fn same(one: &str, two: &str) -> bool {
    one.as_bytes().ct_eq(two.as_bytes()).into()
}

impl Sessions {
    /// Starts a session at `now`.
    pub fn begin(&mut self, now: Duration, role: Role, name: String) -> Session {
        self.0.retain(|session| session.ends > now);
        if self.0.len() >= MAX_SESSIONS {
            self.0.remove(0);
        }
        let session = Session {
            id: random(),
            role,
            name,
            form_token: random(),
            ends: now + role.lasts(),
            flash: None,
        };
        self.0.push(session.clone());
        session
    }

    fn index(&self, now: Duration, role: Role, id: &str) -> Option<usize> {
        let mut found = None;
        // All are compared, so that the time does not reveal which one matched.
        for (index, session) in self.0.iter().enumerate() {
            if same(&session.id, id) && session.role == role && session.ends > now {
                found = Some(index);
            }
        }
        found
    }

    /// Returns the session with this cookie at `now`.
    pub fn find(&self, now: Duration, role: Role, id: &str) -> Option<Session> {
        self.index(now, role, id).map(|index| self.0[index].clone())
    }

    /// Ends a session.
    pub fn end(&mut self, id: &str) {
        self.0.retain(|session| !same(&session.id, id));
    }

    /// Stores a message for the session's next page.
    pub fn set_flash(&mut self, now: Duration, id: &str, what: String) {
        if let Some(index) = self.index(now, Role::Operator, id) {
            self.0[index].flash = Some(what);
        }
    }

    /// Takes the message, so that it is shown once.
    pub fn flash(&mut self, now: Duration, id: &str) -> Option<String> {
        let index = self.index(now, Role::Operator, id)?;
        self.0[index].flash.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_session_expires_and_has_one_role() {
        let mut all = Sessions::default();
        let operator = all.begin(Duration::ZERO, Role::Operator, "anna".to_owned());
        let reader = all.begin(Duration::ZERO, Role::Reader, String::new());
        assert_eq!((operator.id.len(), reader.form_token.len()), (64, 64));
        assert!(operator.id != reader.id && operator.id != operator.form_token);
        let is = |all: &Sessions, now, role, id: &str| all.find(now, role, id).is_some();
        assert!(is(&all, Duration::ZERO, Role::Operator, &operator.id));
        assert!(!is(&all, Duration::ZERO, Role::Operator, &reader.id));
        assert!(!is(&all, Duration::ZERO, Role::Reader, &operator.id));
        assert!(!is(&all, Duration::ZERO, Role::Reader, ""));
        assert!(!is(&all, HOUR, Role::Operator, &operator.id), "it is over");
        assert!(is(&all, HOUR, Role::Reader, &reader.id));
        all.set_flash(Duration::ZERO, &operator.id, "done".to_owned());
        assert_eq!(
            all.flash(Duration::ZERO, &operator.id).as_deref(),
            Some("done")
        );
        assert_eq!(all.flash(Duration::ZERO, &operator.id), None);
        all.end(&reader.id);
        assert!(!is(&all, Duration::ZERO, Role::Reader, &reader.id));
    }

    #[test]
    fn the_number_of_sessions_is_bounded() {
        let mut all = Sessions::default();
        let first = all.begin(Duration::ZERO, Role::Reader, String::new());
        for _ in 0..MAX_SESSIONS {
            all.begin(Duration::ZERO, Role::Reader, String::new());
        }
        assert_eq!(all.0.len(), MAX_SESSIONS);
        assert!(all.find(Duration::ZERO, Role::Reader, &first.id).is_none());
    }
}
