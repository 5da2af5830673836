//! Who has signed in, and how often strangers may try. All of it is in this process alone, and has a bound.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use subtle::ConstantTimeEq;

/// So many are signed in at once; one more takes the place of who signed in first.
const MOST_SESSIONS: usize = 64;
/// Wrong tokens that an address may show in a minute,
const MOST_WRONG: u32 = 10;
/// and all together.
const MOST_WRONG_OF_ALL: u32 = 200;
const MINUTE: Duration = Duration::from_secs(60);
/// So many addresses are told apart.
const MOST_ADDRESSES: usize = 1_024;

/// What somebody may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Look: `admin.token`.
    Reader,
    /// Change something, too: `admin.operator-token`.
    Operator,
}

impl Role {
    /// For the name of its cookie.
    pub fn word(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Operator => "operator",
        }
    }

    /// So long it lasts.
    pub fn lasts(self) -> Duration {
        match self {
            Self::Reader => Duration::from_secs(12 * 3_600),
            Self::Operator => Duration::from_secs(3_600),
        }
    }
}

/// Somebody who has signed in.
#[derive(Clone)]
pub struct Session {
    /// What the cookie has: 256 random bits.
    pub id: String,
    /// What they may.
    pub role: Role,
    /// As they say; empty: they don't.
    pub name: String,
    /// What a form of theirs has: another random number.
    pub form_token: String,
    ends: Duration,
    /// What the next page tells them.
    told: Option<String>,
}

/// All of them.
#[derive(Default)]
pub struct Sessions(Vec<Session>);

fn random() -> String {
    let bytes: [u8; 32] = rand::random();
    crate::operator::letters::hex(&bytes)
}

/// The texts are the same; how long it takes tells their length at most.
pub fn same(one: &str, two: &str) -> bool {
    one.as_bytes().ct_eq(two.as_bytes()).into()
}

impl Sessions {
    /// Somebody signs in `now`.
    pub fn begin(&mut self, now: Duration, role: Role, name: String) -> Session {
        self.0.retain(|session| session.ends > now);
        if self.0.len() >= MOST_SESSIONS {
            self.0.remove(0);
        }
        let session = Session {
            id: random(),
            role,
            name,
            form_token: random(),
            ends: now + role.lasts(),
            told: None,
        };
        self.0.push(session.clone());
        session
    }

    fn place(&self, now: Duration, role: Role, id: &str) -> Option<usize> {
        let mut found = None;
        // Each is compared, whichever it is.
        for (place, session) in self.0.iter().enumerate() {
            if same(&session.id, id) && session.role == role && session.ends > now {
                found = Some(place);
            }
        }
        found
    }

    /// Who has this cookie `now`.
    pub fn find(&self, now: Duration, role: Role, id: &str) -> Option<Session> {
        self.place(now, role, id).map(|place| self.0[place].clone())
    }

    /// They sign out.
    pub fn end(&mut self, id: &str) {
        self.0.retain(|session| !same(&session.id, id));
    }

    /// Their next page says this.
    pub fn tell(&mut self, now: Duration, id: &str, what: String) {
        if let Some(place) = self.place(now, Role::Operator, id) {
            self.0[place].told = Some(what);
        }
    }

    /// What their page says, once.
    pub fn told(&mut self, now: Duration, id: &str) -> Option<String> {
        let place = self.place(now, Role::Operator, id)?;
        self.0[place].told.take()
    }
}

/// Wrong tokens of the last minute.
#[derive(Default)]
pub struct Attempts {
    wrong: HashMap<IpAddr, (Duration, u32)>,
    all: (Duration, u32),
}

/// Whoever has one address of these has all of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let bits = u128::from(address) >> 64 << 64;
            IpAddr::V6(bits.into())
        }
    }
}

impl Attempts {
    /// Who comes from `address` may try `now`.
    ///
    /// # Errors
    /// Not before so long.
    pub fn may_try(&self, now: Duration, address: IpAddr) -> Result<(), Duration> {
        let of_it = self.wrong.get(&network(address));
        let of_it = of_it.map(|wrong| (*wrong, MOST_WRONG));
        for ((since, number), most) in of_it.into_iter().chain([(self.all, MOST_WRONG_OF_ALL)]) {
            let left = (since + MINUTE).saturating_sub(now);
            if number >= most && !left.is_zero() {
                return Err(left);
            }
        }
        Ok(())
    }

    /// They showed a wrong token.
    pub fn was_wrong(&mut self, now: Duration, address: IpAddr) {
        let count = |of: &mut (Duration, u32)| match now < of.0 + MINUTE {
            true => of.1 += 1,
            false => *of = (now, 1),
        };
        count(&mut self.all);
        self.wrong.retain(|_, (since, _)| now < *since + MINUTE);
        if self.wrong.len() < MOST_ADDRESSES {
            count(self.wrong.entry(network(address)).or_insert((now, 0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_session_has_an_end_and_is_of_one_role() {
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
        all.tell(Duration::ZERO, &operator.id, "done".to_owned());
        assert_eq!(
            all.told(Duration::ZERO, &operator.id).as_deref(),
            Some("done")
        );
        assert_eq!(all.told(Duration::ZERO, &operator.id), None);
        all.end(&reader.id);
        assert!(!is(&all, Duration::ZERO, Role::Reader, &reader.id));
    }

    #[test]
    fn sessions_have_a_bound() {
        let mut all = Sessions::default();
        let first = all.begin(Duration::ZERO, Role::Reader, String::new());
        for _ in 0..MOST_SESSIONS {
            all.begin(Duration::ZERO, Role::Reader, String::new());
        }
        assert_eq!(all.0.len(), MOST_SESSIONS);
        assert!(all.find(Duration::ZERO, Role::Reader, &first.id).is_none());
    }

    #[test]
    fn who_shows_wrong_tokens_waits_and_keeps_few_others_out() {
        let mut attempts = Attempts::default();
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let (one, other) = (address("10.0.0.1"), address("10.0.0.2"));
        for _ in 0..MOST_WRONG {
            assert_eq!(attempts.may_try(Duration::ZERO, one), Ok(()));
            attempts.was_wrong(Duration::ZERO, one);
        }
        assert_eq!(attempts.may_try(Duration::ZERO, one), Err(MINUTE));
        assert_eq!(
            attempts.may_try(Duration::ZERO, address("::ffff:10.0.0.1")),
            Err(MINUTE)
        );
        assert_eq!(attempts.may_try(Duration::ZERO, other), Ok(()));
        assert_eq!(attempts.may_try(MINUTE, one), Ok(()));
        // All of a network are one.
        for number in 0..MOST_WRONG {
            attempts.was_wrong(Duration::ZERO, address(&format!("2001:db8::{number}")));
        }
        assert!(
            attempts
                .may_try(Duration::ZERO, address("2001:db8::ffff:1"))
                .is_err()
        );
        for number in 0..u32::from(u16::MAX) {
            attempts.was_wrong(Duration::ZERO, IpAddr::V4(number.into()));
        }
        assert!(attempts.wrong.len() <= MOST_ADDRESSES);
        assert!(
            attempts
                .may_try(Duration::ZERO, address("9.9.9.9"))
                .is_err()
        );
    }
}
