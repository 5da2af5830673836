//! What an operator asks of all workers while they run: to hold still, to take no new jobs, and what is to become of single jobs and of
//! tenants. Each such *instruction* has a name and a text in Redis (`lua/steer.lua`), and ends by itself. What is in force is [`Steering`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::rules::limit::{Limits, MAX_REQUESTS, is_name};
use crate::rules::tenant::{Tenant, encode};

/// Instructions that there may be at once.
pub const MAX_INSTRUCTIONS: usize = 1_000;
/// Of a job's id, in bytes: that of an AMQP short string.
pub const MAX_ID_BYTES: usize = 255;
/// What a worker says of a job is kept for so long, in milliseconds.
pub const SIGHTING_KEPT_MS: u64 = 86_400_000;

/// An instruction to ask anew is in force for so long, in milliseconds: for longer than any job is in a delay queue.
pub const WAKE_KEPT_MS: u64 = 900_000;
/// With so many tenants' jobs to wake, those of all tenants are.
pub const MAX_WAKES: usize = 100;

/// Why a cancelled job is a dead letter.
pub const CANCELLED: &str = "cancelled by an operator";
/// The same of one in the queue of a diverted tenant.
pub const DIVERTED: &str = "diverted by an operator";

/// What all workers are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Call nobody, and take no jobs.
    Paused,
    /// Take no new jobs, and finish the others.
    Draining,
}

impl Hold {
    /// Its text.
    pub fn word(self) -> &'static str {
        match self {
            Self::Paused => "pause",
            Self::Draining => "drain",
        }
    }
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// To all workers.
    All(Hold),
    /// A job is to be called no more. The number is the request's: what is said of the job names it.
    Cancel(Tenant, String, u64),
    /// Whoever has this job, or sees it next, says how it stands.
    Show(Tenant, String, u64),
    /// A tenant's jobs go to this queue instead of being called.
    Divert(Tenant, Arc<str>),
    /// Another `max` of a tenant's limit of this name is tried: it counts as a shadow, and denies nothing.
    Try(Tenant, String, u32),
    /// Jobs that wait for their turns ask anew, once, those of all tenants where none is named. The number is greater than that of each
    /// one before: of two the greater one counts.
    Wake(Option<Tenant>, u64),
}

/// The name of what concerns all.
pub const ALL: &str = "all";
/// The name of what wakes all.
const WAKE: &str = "wake";

impl Instruction {
    /// Under this name it replaces the one before it.
    pub fn name(&self) -> String {
        match self {
            Self::All(_) => ALL.to_owned(),
            Self::Cancel(tenant, id, _) => of_job("cancel", tenant, id),
            Self::Show(tenant, id, _) => of_job("show", tenant, id),
            Self::Divert(tenant, _) => format!("divert:{}", tenant.key()),
            Self::Try(tenant, limit, _) => format!("try:{}:{limit}", tenant.key()),
            Self::Wake(None, _) => WAKE.to_owned(),
            Self::Wake(Some(tenant), _) => format!("{WAKE}:{}", tenant.key()),
        }
    }

    /// What it says beside its name.
    pub fn text(&self) -> String {
        match self {
            Self::All(hold) => hold.word().to_owned(),
            Self::Cancel(_, _, number) | Self::Show(_, _, number) | Self::Wake(_, number) => {
                number.to_string()
            }
            Self::Divert(_, queue) => queue.to_string(),
            Self::Try(_, _, max) => max.to_string(),
        }
    }

    /// The instruction of this name and text; `None`: it is none that this version knows.
    pub fn read(name: &str, text: &str) -> Option<Self> {
        if name == ALL {
            let holds = [Hold::Paused, Hold::Draining];
            return holds
                .into_iter()
                .find(|hold| hold.word() == text)
                .map(Self::All);
        }
        if name == WAKE {
            return Some(Self::Wake(None, text.parse().ok()?));
        }
        let (what, rest) = name.split_once(':')?;
        let (tenant, id) = match rest.split_once(':') {
            Some((tenant, id)) => (tenant, Some(id)),
            None => (rest, None),
        };
        let tenant = Tenant::parse(&decode(tenant)?).ok()?;
        match (what, id) {
            ("cancel", Some(id)) => Some(Self::Cancel(tenant, decode(id)?, text.parse().ok()?)),
            ("show", Some(id)) => Some(Self::Show(tenant, decode(id)?, text.parse().ok()?)),
            ("try", Some(limit)) if is_name(limit) => {
                let max = text.parse().ok();
                let max = max.filter(|max| (1..=MAX_REQUESTS).contains(max))?;
                Some(Self::Try(tenant, limit.to_owned(), max))
            }
            (WAKE, None) => Some(Self::Wake(Some(tenant), text.parse().ok()?)),
            ("divert", None) if !text.is_empty() => Some(Self::Divert(tenant, text.into())),
            _ => None,
        }
    }
}

fn of_job(what: &str, tenant: &Tenant, id: &str) -> String {
    format!("{what}:{}:{}", tenant.key(), encode(id))
}

/// What [`encode`] made of a text.
fn decode(key: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

/// What is asked of one job, by the numbers of the requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// It is to be called no more.
    pub cancel: Option<u64>,
    /// Somebody wants to know how it stands.
    pub show: Option<u64>,
}

/// All that is in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Steering {
    /// To all workers.
    pub hold: Option<Hold>,
    jobs: HashMap<Tenant, HashMap<String, Wish>>,
    diverted: HashMap<Tenant, Arc<str>>,
    /// By the limit's name.
    tried: HashMap<Tenant, BTreeMap<String, u32>>,
    /// Of tenants, and of all of them.
    wakes: HashMap<Tenant, u64>,
    wakes_all: u64,
}

impl Steering {
    /// `instructions` together. Of two to all workers the one that stops more counts.
    pub fn of(instructions: impl IntoIterator<Item = Instruction>) -> Self {
        let mut all = Self::default();
        for instruction in instructions {
            match instruction {
                Instruction::All(Hold::Draining) => {
                    all.hold.get_or_insert(Hold::Draining);
                }
                Instruction::All(Hold::Paused) => all.hold = Some(Hold::Paused),
                Instruction::Cancel(tenant, id, number) => {
                    all.wish(tenant, id).cancel = Some(number);
                }
                Instruction::Show(tenant, id, number) => all.wish(tenant, id).show = Some(number),
                Instruction::Divert(tenant, queue) => {
                    all.diverted.insert(tenant, queue);
                }
                Instruction::Try(tenant, limit, max) => {
                    all.tried.entry(tenant).or_default().insert(limit, max);
                }
                Instruction::Wake(None, number) => all.wakes_all = all.wakes_all.max(number),
                Instruction::Wake(Some(tenant), number) => {
                    let wake = all.wakes.entry(tenant).or_default();
                    *wake = number.max(*wake);
                }
            }
        }
        all
    }

    fn wish(&mut self, tenant: Tenant, id: String) -> &mut Wish {
        self.jobs.entry(tenant).or_default().entry(id).or_default()
    }

    /// Nothing is asked of any job.
    pub fn leaves_jobs_alone(&self) -> bool {
        self.jobs.is_empty() && self.diverted.is_empty()
    }

    /// What is asked of a job.
    pub fn of_job(&self, tenant: &Tenant, id: &str) -> Option<Wish> {
        self.jobs.get(tenant)?.get(id).copied()
    }

    /// Nobody is to ask anew.
    pub fn lets_sleep(&self) -> bool {
        self.wakes_all == 0 && self.wakes.is_empty()
    }

    /// Jobs of `tenant` that wait ask anew, if they have followed none as new as this; 0: there is none.
    pub fn wakes(&self, tenant: &Tenant) -> u64 {
        let own = self.wakes.get(tenant).copied().unwrap_or(0);
        own.max(self.wakes_all)
    }

    /// Where jobs of `tenant` are to go instead of being called.
    pub fn diverts(&self, tenant: &Tenant) -> Option<&Arc<str>> {
        self.diverted.get(tenant)
    }

    /// `limits` of `tenant`, and beside them what is tried.
    pub fn with_tried(&self, tenant: &Tenant, limits: Limits) -> Limits {
        match self.tried.get(tenant) {
            None => limits,
            Some(tried) => limits.trying(tried.iter().map(|(name, max)| (name.as_str(), *max))),
        }
    }
}

/// How a job stood when a worker saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It waits in a worker's memory for its turn.
    Waiting,
    /// It asks for its permit, or its call is prepared.
    Asking,
    /// It is being called.
    Running,
    /// It was called, and is done.
    Done,
    /// It is a dead letter since it was cancelled, and is not called.
    Cancelled,
    /// It went to another queue, since its tenant is diverted.
    Diverted,
}

impl State {
    /// Workers have it no more.
    pub fn is_end(self) -> bool {
        match self {
            Self::Waiting | Self::Asking | Self::Running => false,
            Self::Done | Self::Cancelled | Self::Diverted => true,
        }
    }
}

/// What a worker says of a job that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// The number of the request to cancel it, and of the one to show it.
    pub cancel: Option<u64>,
    /// Which see.
    pub show: Option<u64>,
    /// How it stands,
    pub state: State,
    /// by the store's clock in milliseconds; 0: not known.
    pub at_ms: u64,
    /// Its next attempt, or that which runs.
    pub attempt: u32,
    /// Its units.
    pub cost: u32,
    /// The queue that has it.
    pub queue: String,
    /// For so long this worker has it, in milliseconds.
    pub here_ms: u64,
    /// For so long it waits, in milliseconds, where that is known.
    pub wait_ms: Option<u64>,
    /// Its ticket in the waitlist.
    pub ticket: Option<u64>,
    /// The limit that denied it last.
    pub limit: Option<String>,
    /// For what it waits, and where; `None`: it does not, or its worker is of a version that does not say it.
    #[serde(default)]
    pub waits: Option<Waits>,
}

/// For what a job waits, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// For what, as far as its worker knows.
    pub what: WaitsFor,
    /// The plan that it names.
    pub plan: Option<String>,
    /// By what it is told apart from its tenant's other jobs: the scope and its value.
    pub labels: BTreeMap<String, String>,
    /// Of its ticket.
    pub generation: Option<u64>,
    /// The first turn that it was told, by the store's clock in milliseconds.
    pub promised_ms: Option<u64>,
}

/// For what a job waits, as far as its worker knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitsFor {
    /// Its turn: the gate denied it.
    Turn,
    /// The time that its publisher said.
    DelayedStart,
    /// Its next attempt.
    Retry,
    /// A time before which it is not to ask again.
    Later,
    /// The breaker, which has stopped all calls.
    Breaker,
    /// That the workers agree on the limits, or that an operator lets them go on.
    Agreement,
    /// A worker slot.
    Slot,
    /// An answer of Redis.
    Redis,
    /// A connection to the API.
    Connection,
    /// Nothing: it is about to start.
    Nothing,
    /// What a later version says.
    #[serde(other)]
    Other,
}

impl WaitsFor {
    /// It waits until a time that the worker knows.
    pub fn is_time(self) -> bool {
        matches!(self, Self::DelayedStart | Self::Retry | Self::Later)
    }
}

/// A [`Sighting`], and of which job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighted {
    /// Whose it is.
    pub tenant: Tenant,
    /// Its id.
    pub job: String,
    /// How it stands.
    pub sighting: Sighting,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::parse(name).expect("a tenant")
    }

    #[test]
    fn instructions_survive_their_way_through_redis() {
        for instruction in [
            Instruction::All(Hold::Paused),
            Instruction::All(Hold::Draining),
            Instruction::Cancel(tenant("a:{b}%*"), "7:ä%".to_owned(), 12),
            Instruction::Show(tenant("acme"), "order-7".to_owned(), u64::MAX),
            Instruction::Divert(tenant("ü"), "jobs.diverted".into()),
            Instruction::Try(tenant("a:{b}%*"), "per-hour".to_owned(), MAX_REQUESTS),
            Instruction::Wake(None, 12),
            Instruction::Wake(Some(tenant("wake:all")), 13),
        ] {
            let (name, text) = (instruction.name(), instruction.text());
            assert_eq!(Instruction::read(&name, &text), Some(instruction), "{name}");
        }
        for (name, text) in [
            ("", ""),
            ("all", "explode"),
            ("cancel:a", "1"),
            ("cancel:a:b", "x"),
            ("cancel::b", "1"),
            ("cancel:%4:b", "1"),
            ("cancel:%ff:b", "1"),
            ("divert:a", ""),
            ("divert:a:b", "q"),
            ("try:a:hour", "0"),
            ("try:a:hour", "1000001"),
            ("try:a:hour", "-1"),
            ("try:a:hour.tried", "1"),
            ("try:a", "1"),
            ("fly:a", "1"),
            ("wake", "soon"),
            ("wake:a", ""),
            ("wake:a:b", "1"),
        ] {
            assert_eq!(Instruction::read(name, text), None, "{name}");
        }
    }

    #[test]
    fn what_other_versions_say_of_a_job_is_read_as_far_as_it_is_known() {
        let old = r#"{"cancel":null,"show":1,"state":"waiting","at_ms":2,"attempt":1,"cost":1,"queue":"q","here_ms":0,"wait_ms":null,"ticket":null,"limit":null}"#;
        let seen: Sighting = serde_json::from_str(old).expect("an older worker's");
        assert_eq!(seen.waits, None);
        let waits = r#"{"what":"moon","plan":null,"labels":{},"generation":null,"promised_ms":null,"more":1}"#;
        let new = old.replace('}', &format!(",\"waits\":{waits}}}"));
        let seen: Sighting = serde_json::from_str(&new).expect("a newer worker's");
        let waits = seen.waits.expect("it waits");
        assert_eq!((waits.what, waits.what.is_time()), (WaitsFor::Other, false));
    }

    #[test]
    fn the_newest_call_to_ask_anew_counts() {
        let none = Steering::of([]);
        assert!(none.lets_sleep());
        assert_eq!(none.wakes(&tenant("a")), 0);
        let wake = |tenant, number| Instruction::Wake(tenant, number);
        let a = Some(tenant("a"));
        for order in [[3, 5, 4], [5, 3, 4]] {
            let [first, second, all] = order;
            let all = Steering::of([
                wake(a.clone(), first),
                wake(a.clone(), second),
                wake(None, all),
            ]);
            assert!(!all.lets_sleep());
            assert!(all.leaves_jobs_alone());
            assert_eq!(all.wakes(&tenant("a")), 5);
            assert_eq!(all.wakes(&tenant("b")), 4);
        }
    }

    #[test]
    fn what_stops_more_counts_and_each_job_has_its_own_wishes() {
        let job = |number| Instruction::Cancel(tenant("a"), "1".to_owned(), number);
        for order in [
            [Hold::Paused, Hold::Draining],
            [Hold::Draining, Hold::Paused],
        ] {
            let all = Steering::of(order.map(Instruction::All));
            assert_eq!(all.hold, Some(Hold::Paused));
            assert!(all.leaves_jobs_alone());
        }
        let show = Instruction::Show(tenant("a"), "1".to_owned(), 9);
        let all = Steering::of([job(7), show]);
        let wish = Wish {
            cancel: Some(7),
            show: Some(9),
        };
        assert_eq!(all.of_job(&tenant("a"), "1"), Some(wish));
        assert_eq!(all.of_job(&tenant("b"), "1"), None);
        assert_eq!(all.of_job(&tenant("a"), "2"), None);
        assert!(!all.leaves_jobs_alone());
        let all = Steering::of([Instruction::Divert(tenant("a"), "q".into())]);
        assert_eq!(all.diverts(&tenant("a")).map(|queue| &**queue), Some("q"));
        assert_eq!(all.diverts(&tenant("b")), None);
        assert!(!all.leaves_jobs_alone());
    }
}
