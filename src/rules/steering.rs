//! Steering: what operators instruct running workers to do, with all jobs, with one tenant's jobs
//! or with one job. An *instruction* has a name and a text in Redis (`lua/steer.lua`), and expires
//! by itself. [`Steering`] is the set of instructions in force.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use crate::limit::{Limits, MAX_REQUESTS, is_name};
use crate::tenant::{Tenant, encode};

/// Maximum number of instructions in force.
pub const MAX_INSTRUCTIONS: usize = 1_000;
/// Maximum length of a job's ID in bytes: that of an AMQP short string.
pub const MAX_ID_BYTES: usize = 255;
/// How long a sighting of a job is kept, in milliseconds.
pub const SIGHTING_KEPT_MS: u64 = 86_400_000;

/// How long an instruction to ask anew is in force, in milliseconds: longer than any job stays in a
/// delay queue.
pub const WAKE_KEPT_MS: u64 = 900_000;
/// If jobs of this many tenants are to be woken, the jobs of all tenants are woken instead.
pub const MAX_WAKES: usize = 100;

/// Reason why a canceled job is a dead letter.
pub const CANCELED: &str = "canceled by an operator";
/// Reason why a job is in the queue of a diverted tenant.
pub const DIVERTED: &str = "diverted by an operator";

/// A stop that applies to all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Workers make no calls and take no jobs.
    Paused,
    /// Workers take no new jobs and finish the jobs they have.
    Draining,
}

impl Hold {
    /// All of them. Each may be in force beside the other.
    pub const EVERY: [Self; 2] = [Self::Paused, Self::Draining];

    /// Returns the name and the text of the instruction.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Paused => "pause",
            Self::Draining => "drain",
        }
    }
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// Stops all workers.
    All(Hold),
    /// The job must not be called any more. The number identifies the request in sightings of the
    /// job.
    Cancel(Tenant, String, u64),
    /// The worker that has the job, or sees it next, reports its state. The number identifies the
    /// request.
    Show(Tenant, String, u64),
    /// Jobs of the tenant go to this queue instead of being called.
    Divert(Tenant, Arc<str>),
    /// Another `max` of the tenant's limit with this name is tried: it counts as a shadow and
    /// denies nothing.
    Try(Tenant, String, u64),
    /// Jobs of the tenant, or of all tenants if `None`, that wait for their turns ask anew once.
    /// Each wake has a greater number than all earlier ones; of two wakes the greater number
    /// counts.
    Wake(Option<Tenant>, u64),
}

/// Name of the instruction that wakes the jobs of all tenants.
const WAKE: &str = "wake";

impl Instruction {
    /// Returns the instruction's name. It replaces an earlier instruction with the same name.
    pub fn name(&self) -> String {
        match self {
            Self::All(hold) => hold.keyword().to_owned(),
            Self::Cancel(tenant, id, _) => of_job("cancel", tenant, id),
            Self::Show(tenant, id, _) => of_job("show", tenant, id),
            Self::Divert(tenant, _) => format!("divert:{}", tenant.key()),
            Self::Try(tenant, limit, _) => format!("try:{}:{limit}", tenant.key()),
            Self::Wake(None, _) => WAKE.to_owned(),
            Self::Wake(Some(tenant), _) => format!("{WAKE}:{}", tenant.key()),
        }
    }

    /// Returns the text that is stored under the name.
    pub fn text(&self) -> String {
        match self {
            Self::All(hold) => hold.keyword().to_owned(),
            Self::Cancel(_, _, number) | Self::Show(_, _, number) | Self::Wake(_, number) => {
                number.to_string()
            }
            Self::Divert(_, queue) => queue.to_string(),
            Self::Try(_, _, max) => max.to_string(),
        }
    }

    /// Parses an instruction from its name and text. Returns `None` if this version does not know
    /// it.
    pub fn read(name: &str, text: &str) -> Option<Self> {
        if let Some(hold) = Hold::EVERY.into_iter().find(|hold| hold.keyword() == name) {
            return (text == name).then_some(Self::All(hold));
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

/// Returns the text from which [`encode`] made `key`.
fn decode(key: &str) -> Option<String> {
    let text = percent_decode_str(key).decode_utf8().ok()?;
    (encode(&text) == key).then(|| text.into_owned())
}

/// The requests of operators about one job, each by its number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobRequests {
    /// The request to cancel the job.
    pub cancel: Option<u64>,
    /// The request to report the job's state.
    pub show: Option<u64>,
}

/// All instructions in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Steering {
    /// The stop for all workers.
    pub hold: Option<Hold>,
    jobs: HashMap<Tenant, HashMap<String, JobRequests>>,
    diverted: HashMap<Tenant, Arc<str>>,
    /// The `max` to try, by the limit's name.
    tried: HashMap<Tenant, BTreeMap<String, u64>>,
    /// The number of the newest wake of each tenant.
    wakes: HashMap<Tenant, u64>,
    /// The number of the newest wake of all tenants.
    wakes_all: u64,
}

impl Steering {
    /// Combines `instructions`. If there are two stops for all workers, the stricter one counts.
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

    fn wish(&mut self, tenant: Tenant, id: String) -> &mut JobRequests {
        self.jobs.entry(tenant).or_default().entry(id).or_default()
    }

    /// Returns true if no instruction concerns the state of any job.
    pub fn concerns_no_job(&self) -> bool {
        self.jobs.is_empty() && self.diverted.is_empty()
    }

    /// Returns the requests for a job.
    pub fn of_job(&self, tenant: &Tenant, id: &str) -> Option<JobRequests> {
        self.jobs.get(tenant)?.get(id).copied()
    }

    /// Returns true if no waiting job has to ask anew.
    pub fn wakes_no_job(&self) -> bool {
        self.wakes_all == 0 && self.wakes.is_empty()
    }

    /// Returns the number of the newest wake for jobs of `tenant`, or 0 if there is none. A waiting
    /// job asks anew if it has followed only older ones.
    pub fn wakes(&self, tenant: &Tenant) -> u64 {
        let own = self.wakes.get(tenant).copied().unwrap_or(0);
        own.max(self.wakes_all)
    }

    /// Returns the queue to which jobs of `tenant` are diverted.
    pub fn diverts(&self, tenant: &Tenant) -> Option<&Arc<str>> {
        self.diverted.get(tenant)
    }

    /// Returns the `limits` of `tenant`, and in addition the limits that are tried.
    pub fn with_tried(&self, tenant: &Tenant, limits: Limits) -> Limits {
        match self.tried.get(tenant) {
            None => limits,
            Some(tried) => limits.trying(tried.iter().map(|(name, max)| (name.as_str(), *max))),
        }
    }
}

/// The state of a job when a worker saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SightedState {
    /// The job waits in a worker's memory for its turn.
    Waiting,
    /// The job asks for its permit, or its call is being prepared.
    Asking,
    /// The job is being called.
    Running,
    /// The job was called and is done.
    Done,
    /// The job was canceled: it is a dead letter and is not called.
    Canceled,
    /// The job went to another queue, because its tenant is diverted.
    Diverted,
}

impl SightedState {
    /// Returns true if workers do not have the job any more.
    pub fn is_end(self) -> bool {
        match self {
            Self::Waiting | Self::Asking | Self::Running => false,
            Self::Done | Self::Canceled | Self::Diverted => true,
        }
    }
}

/// A worker's report on a job that an operator asked about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// The number of the request to cancel the job.
    pub cancel: Option<u64>,
    /// The number of the request to show the job.
    pub show: Option<u64>,
    /// The state of the job.
    pub state: SightedState,
    /// When it had this state, by the store's clock in milliseconds; 0 if not known.
    pub at_ms: u64,
    /// The number of the next attempt, or of the running one.
    pub attempt: u32,
    /// The job's units.
    pub cost: u64,
    /// The queue that has the job.
    pub queue: String,
    /// How long this worker has had the job, in milliseconds.
    pub here_ms: u64,
    /// How much longer the job waits, in milliseconds, if that is known.
    pub wait_ms: Option<u64>,
    /// The job's ticket in the waitlist.
    pub ticket: Option<u64>,
    /// The limit that denied the job last.
    pub limit: Option<String>,
    /// The reason why the job waits, or `None` if it does not wait.
    pub waits: Option<WaitState>,
}

/// The reason why a job waits, and its waitlist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitState {
    /// The reason, as far as its worker knows.
    pub what: WaitsFor,
    /// The plan that the job names.
    pub plan: Option<String>,
    /// The scopes and values that distinguish the job from its tenant's other jobs.
    pub labels: BTreeMap<String, String>,
    /// The generation of its ticket.
    pub generation: Option<u64>,
    /// The first turn that the gate promised the job, by the store's clock in milliseconds.
    pub promised_ms: Option<u64>,
}

/// The reason why a job waits, as far as its worker knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitsFor {
    /// The job's turn: the gate denied it.
    Turn,
    /// The start time that the publisher set.
    DelayedStart,
    /// The job's next attempt.
    Retry,
    /// The time before which the job must not ask again.
    Later,
    /// The breaker, which has stopped all calls.
    Breaker,
    /// An agreement of the workers on the limits, or an operator who lets them continue without.
    Agreement,
    /// A free worker slot.
    Slot,
    /// An answer from Redis.
    Redis,
    /// A connection to the API.
    Connection,
    /// Nothing: the job is about to start.
    Nothing,
    /// A reason that only later versions know.
    #[serde(other)]
    Other,
}

impl WaitsFor {
    /// Returns true if the job waits until a time that the worker knows.
    pub fn is_time(self) -> bool {
        matches!(self, Self::DelayedStart | Self::Retry | Self::Later)
    }
}

/// A [`Sighting`] and the job that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSighting {
    /// The job's tenant.
    pub tenant: Tenant,
    /// The job's ID.
    pub job: String,
    /// The worker's report.
    pub sighting: Sighting,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::tenant;

    #[test]
    fn instructions_survive_a_round_trip_through_redis() {
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
            ("pause", "explode"),
            ("pause", "drain"),
            ("cancel:a", "1"),
            ("cancel:a:b", "x"),
            ("cancel::b", "1"),
            ("cancel:%4:b", "1"),
            ("cancel:%ff:b", "1"),
            ("divert:a", ""),
            ("divert:a:b", "q"),
            ("try:a:hour", "0"),
            ("try:a:hour", "1000000000001"),
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
    fn a_newer_versions_job_state_is_read_as_far_as_known() {
        let waits = r#"{"what":"moon","plan":null,"labels":{},"generation":null,"promised_ms":null,"more":1}"#;
        let new = format!(
            r#"{{"cancel":null,"show":1,"state":"waiting","at_ms":2,"attempt":1,"cost":1,"queue":"q","here_ms":0,"wait_ms":null,"ticket":null,"limit":null,"waits":{waits}}}"#
        );
        let seen: Sighting = serde_json::from_str(&new).expect("a newer worker's");
        let waits = seen.waits.expect("it waits");
        assert_eq!((waits.what, waits.what.is_time()), (WaitsFor::Other, false));
    }

    #[test]
    fn the_newest_wake_counts() {
        let none = Steering::of([]);
        assert!(none.wakes_no_job());
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
            assert!(!all.wakes_no_job());
            assert!(all.concerns_no_job());
            assert_eq!(all.wakes(&tenant("a")), 5);
            assert_eq!(all.wakes(&tenant("b")), 4);
        }
    }

    #[test]
    fn the_stricter_hold_counts_and_each_job_has_its_own_instructions() {
        let job = |number| Instruction::Cancel(tenant("a"), "1".to_owned(), number);
        for order in [
            [Hold::Paused, Hold::Draining],
            [Hold::Draining, Hold::Paused],
        ] {
            let all = Steering::of(order.map(Instruction::All));
            assert_eq!(all.hold, Some(Hold::Paused));
            assert!(all.concerns_no_job());
        }
        let show = Instruction::Show(tenant("a"), "1".to_owned(), 9);
        let all = Steering::of([job(7), show]);
        let wish = JobRequests {
            cancel: Some(7),
            show: Some(9),
        };
        assert_eq!(all.of_job(&tenant("a"), "1"), Some(wish));
        assert_eq!(all.of_job(&tenant("b"), "1"), None);
        assert_eq!(all.of_job(&tenant("a"), "2"), None);
        assert!(!all.concerns_no_job());
        let all = Steering::of([Instruction::Divert(tenant("a"), "q".into())]);
        assert_eq!(all.diverts(&tenant("a")).map(|queue| &**queue), Some("q"));
        assert_eq!(all.diverts(&tenant("b")), None);
        assert!(!all.concerns_no_job());
    }
}
