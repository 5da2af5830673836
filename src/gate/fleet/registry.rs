//! The registry in Redis of the policies that workers have in force.
//! [`gate::fleet`](crate::fleet) decides which of them each worker enforces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ::redis::Value;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::GateError;
use crate::fleet::text::{self, MAX_TEXT};
use crate::fleet::{
    AGREED_FOR_MS, EnforcedPolicies, IDLE_MS, MARGIN_MS, MAX_POLICIES, RegisteredPolicy,
    RegistryKnowledge, memory_ms,
};
use crate::instructions;
use crate::primaries::Primary;
use crate::redis::RedisGate;
use crate::reply;
use rules::policy::Policy;
use rules::steering::Steering;

/// Maximum number of requests for one exchange. Registering texts that the registry lacks takes one
/// more, and so does making room in it.
const TRIES: usize = 4;
/// Timeout for one of several primaries. It is shorter than [`AGREED_FOR_MS`], so that a slow
/// primary does not let the agreements with the others expire.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(3);

/// A policy with its name in the registry.
#[derive(Debug, Clone)]
pub struct NamedPolicy {
    /// The name: the SHA-1 of its text, in hex.
    pub id: String,
    /// The policy itself.
    pub policy: Arc<Policy>,
    text: String,
}

impl NamedPolicy {
    /// Names `policy`.
    ///
    /// # Errors
    /// [`GateError::Refused`] if its text is too large for the registry.
    pub fn new(policy: Policy) -> Result<Self, GateError> {
        let text = text::write(&policy);
        if text.len() > MAX_TEXT {
            return Err(GateError::Refused(format!(
                "rate-limiter: its limits take {} bytes in Redis; the maximum is {MAX_TEXT}: give \
                tenants plans instead of limits of their own",
                text.len()
            )));
        }
        Ok(Self {
            id: ::redis::Script::new(&text).get_hash().to_owned(),
            policy: Arc::new(policy),
            text,
        })
    }
}

/// A reading of Redis's clock.
#[derive(Debug, Clone, Copy)]
pub struct ClockReading {
    /// Milliseconds since the Unix epoch.
    pub ms: u64,
    /// When the question was sent. Redis read its clock later.
    pub asked_at: Instant,
    /// When the answer came. Redis read its clock earlier.
    pub read_at: Instant,
}

/// The result of an exchange.
#[derive(Debug)]
pub struct RegistryAgreement {
    /// The policies to enforce.
    pub fleet: EnforcedPolicies,
    /// When the result expires. The gate must not be asked later without another exchange.
    pub until: Instant,
    /// Redis's clock; in a cluster, the earliest of the primaries' clocks.
    pub clock: Option<ClockReading>,
    /// The keys of the registries in this exchange. In a cluster, one for each primary that
    /// answered.
    pub registries: Vec<String>,
    /// The operators' instructions for all workers.
    pub steering: Steering,
    /// Whether, according to the registry, no worker had this policy in force before this exchange.
    pub is_new: bool,
}

/// One worker's view of the registries. Each primary of a cluster has a registry, where workers
/// agree on the limits of its tenants, so that a lost primary affects only these.
pub struct Registry {
    gate: Arc<RedisGate>,
    own: NamedPolicy,
    /// The worker's name on the boards of instructions.
    name: String,
    /// The worker's report on these boards.
    says: String,
    /// The state of each registry by its key.
    known: BTreeMap<String, RegistryState>,
}

/// The known state of one registry.
#[derive(Debug, Clone)]
struct RegistryState {
    known: RegistryKnowledge,
    board: instructions::BoardCopy,
    /// The policies that workers report as in force, or `None` if the reports were not read.
    in_use: Option<BTreeSet<String>>,
    /// Redis's clock at the last exchange.
    clock: ClockReading,
}

impl RegistryState {
    /// Estimates Redis's current time.
    fn now_ms(&self) -> u64 {
        let since = self.clock.read_at.elapsed().as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.clock.ms.saturating_add(since)
    }
}

impl Registry {
    /// Creates the view of a worker that will have `own` in force. It knows nothing yet.
    pub fn new(gate: Arc<RedisGate>, own: NamedPolicy) -> Self {
        Self {
            gate,
            own,
            name: format!("{:016x}", rand::random::<u64>()),
            says: String::new(),
            known: BTreeMap::new(),
        }
    }

    /// Returns the policy in force.
    pub fn own(&self) -> &NamedPolicy {
        &self.own
    }

    /// Returns the worker's name on the boards.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the gate that this registry belongs to.
    pub fn gate(&self) -> &RedisGate {
        &self.gate
    }

    /// Sets what the worker reports from the next exchange on, in addition to its policy in force.
    pub fn set_report(&mut self, says: String) {
        self.says = says;
    }

    /// Records that the worker follows `agreed.steering`. The next exchange reports it.
    pub fn follows(&mut self, agreed: &RegistryAgreement) {
        for (key, registry) in &mut self.known {
            if agreed.registries.contains(key) {
                registry.board.follows = registry.board.version;
            }
        }
    }

    /// Registers the policy in force here, and reads those of other workers.
    ///
    /// # Errors
    /// [`GateError`] if nothing new was learned.
    pub async fn exchange(&mut self) -> Result<RegistryAgreement, GateError> {
        self.switch_to(self.own.clone()).await
    }

    /// Makes an exchange like [`Registry::exchange`], and puts `next` in force. If a primary of a
    /// cluster is lost, `next` is in force at the others, and no job starts at the lost primary
    /// until it has registered `next`.
    ///
    /// # Errors
    /// [`GateError`] if nothing was changed. Before the first exchange, `next` becomes this
    /// worker's policy also in this case.
    pub async fn switch_to(&mut self, next: NamedPolicy) -> Result<RegistryAgreement, GateError> {
        if self.known.is_empty() {
            // Before its first exchange a worker does not ask the gate, so no job has started
            // under the old policy. If it were registered, all workers would enforce it for a
            // longest window.
            self.own = next.clone();
        }
        let mut mine = vec![&self.own];
        if next.id != self.own.id {
            mine.push(&next);
        }
        let primaries = self.gate.registries().await?;
        let until = Instant::now() + Duration::from_millis(AGREED_FOR_MS);
        let exchanged = self.exchange_with_all(&primaries, &mine).await;
        let (mut registries, mut failed, mut clocks) = (Vec::new(), Vec::new(), Vec::new());
        for (primary, exchanged) in primaries.iter().zip(exchanged) {
            match exchanged {
                Ok(registry) => {
                    clocks.push(registry.clock);
                    self.known.insert(primary.policies.clone(), registry);
                    registries.push(primary.policies.clone());
                }
                Err(why) => failed.push((&primary.policies, why)),
            }
        }
        if registries.is_empty() {
            let why = failed.into_iter().map(|(_, why)| why).next();
            return Err(why.unwrap_or_else(|| {
                GateError::Unreachable("the cluster has no primaries".to_owned())
            }));
        }
        if next.id != self.own.id {
            for (policies, _) in &failed {
                self.gate.agree(policies, None);
            }
        }
        self.own = next;
        self.age_missing(&registries);
        Ok(RegistryAgreement {
            steering: self.steering(),
            fleet: self.fleet(),
            until,
            clock: clocks.into_iter().min_by_key(|clock| clock.ms),
            registries,
            is_new: self.is_new(),
        })
    }

    /// Makes an exchange with all primaries at once. `mine`: see [`Self::exchange_with`].
    async fn exchange_with_all(
        &self,
        primaries: &[Arc<Primary>],
        mine: &[&NamedPolicy],
    ) -> Vec<Result<RegistryState, GateError>> {
        let several = primaries.len() > 1;
        let exchanges = primaries.iter().map(|primary| {
            let exchange = self.exchange_with(primary, mine).boxed();
            async move {
                if !several {
                    return exchange.await;
                }
                let late =
                    |_| GateError::Unreachable(format!("{}: no answer in time", primary.policies));
                let done = tokio::time::timeout(EXCHANGE_TIMEOUT, exchange).await;
                done.map_err(late)?
            }
        });
        join_all(exchanges).await
    }

    /// Makes an exchange with one primary: registers the policies `mine`, of which the last one
    /// comes into force, and reads the registry and the board.
    async fn exchange_with(
        &self,
        primary: &Primary,
        mine: &[&NamedPolicy],
    ) -> Result<RegistryState, GateError> {
        let known = self.known.get(&primary.policies);
        let known = known.map(|registry| (registry.known.clone(), registry.board.clone()));
        let (known, board) = known.unwrap_or_default();
        let says = format!("{} {}", self.says, self.own.id);
        let own = mine.last().map_or("", |named| named.id.as_str());
        // The board is read first, so that a worker that follows an instruction knows all policies
        // that its author knew. Likewise, a worker reports its policy on the board before it
        // registers the policy.
        let worker = (self.name.as_str(), says.as_str());
        let board = board.refresh(&self.gate, &primary.board, worker).await?;
        let (known, clock) = exchange(&self.gate, &primary.policies, mine, known).await?;
        let in_use = match known.others_in_use(own, clock.ms).next() {
            None => None,
            Some(_) => Some(in_use(&self.gate, &primary.board).await?),
        };
        Ok(RegistryState {
            known,
            board,
            in_use,
            clock,
        })
    }

    /// Ages the registries that are not in `registries`. A registry that was lost or has moved is
    /// kept for as long as its policies must be enforced.
    fn age_missing(&mut self, registries: &[String]) {
        for (_, registry) in (self.known.iter_mut()).filter(|(key, _)| !registries.contains(key)) {
            let now_ms = registry.now_ms();
            registry.known.learn(Vec::new(), now_ms);
        }
        self.known.retain(|key, registry| {
            registries.contains(key) || !registry.known.policies().is_empty()
        });
    }

    /// Returns the policies to enforce.
    fn fleet(&self) -> EnforcedPolicies {
        let fleets = self.known.values().map(|registry| {
            let own = Arc::clone(&self.own.policy);
            let in_use = registry.in_use.as_ref();
            (registry.known).fleet_of(own, &self.own.id, registry.now_ms(), in_use)
        });
        let alone = EnforcedPolicies::alone(Arc::clone(&self.own.policy));
        fleets.fold(alone, EnforcedPolicies::joined_with)
    }

    /// Returns the operators' instructions on all boards.
    fn steering(&self) -> Steering {
        let boards = self.known.values();
        Steering::of(boards.flat_map(|registry| registry.board.in_force(registry.now_ms())))
    }

    /// Returns true if no worker had the policy before the last exchange, according to all
    /// registries.
    fn is_new(&self) -> bool {
        self.known.values().all(|registry| {
            let mut known = registry.known.policies().iter();
            known.any(|it| it.id == self.own.id && it.since_ms >= registry.clock.ms)
        })
    }

    /// In a cluster, allows starts at the primaries of this exchange. Must be called only after
    /// `agreed.fleet` is enforced: a primary that was unavailable may have a policy that this
    /// worker did not know.
    pub fn open(&self, agreed: &RegistryAgreement) {
        for registry in &agreed.registries {
            self.gate.agree(registry, Some(agreed.until));
        }
    }
}

/// The policies of all workers.
#[derive(Debug, Default)]
pub struct RegisteredPolicies {
    /// The policies.
    pub known: RegistryKnowledge,
    /// The policies that workers report as in force, or `None` if not all reports could be read.
    in_use: Option<BTreeSet<String>>,
    /// Redis's clock in milliseconds.
    pub now_ms: u64,
    /// The errors of primaries in a cluster that could not be read. The result is complete only if
    /// there are none.
    pub failed: Vec<GateError>,
}

impl RegisteredPolicies {
    /// Returns true if workers have `policy` in force.
    pub fn is_in_use(&self, policy: &RegisteredPolicy) -> bool {
        policy.used_ms + IDLE_MS >= self.now_ms
            && (self.in_use.as_ref()).is_none_or(|ids| ids.contains(&policy.id))
    }

    /// Returns the policies that workers with `own` enforce.
    pub fn fleet(&self, own: &NamedPolicy) -> EnforcedPolicies {
        let (policy, in_use) = (Arc::clone(&own.policy), self.in_use.as_ref());
        (self.known).fleet_of(policy, &own.id, self.now_ms, in_use)
    }
}

/// Reads the policies that workers have in force without registering any.
///
/// # Errors
/// [`GateError`] with the reason if no registry can be read.
pub async fn read_policies(gate: &RedisGate) -> Result<RegisteredPolicies, GateError> {
    let primaries = gate.registries().await?;
    let mut seen = RegisteredPolicies {
        in_use: Some(BTreeSet::new()),
        ..RegisteredPolicies::default()
    };
    let looks = primaries.iter().map(|primary| async {
        let none = RegistryKnowledge::default();
        let (known, clock) = exchange(gate, &primary.policies, &[], none).await?;
        let in_use = match known.policies() {
            // The time of its last use says enough.
            [] | [_] => known.policies().iter().map(|it| it.id.clone()).collect(),
            _ => in_use(gate, &primary.board).await?,
        };
        Ok((known, clock, in_use))
    });
    for looked in join_all(looks).await {
        match looked {
            Ok((known, clock, in_use)) => {
                if let Some(all) = &mut seen.in_use {
                    all.extend(in_use);
                }
                seen.now_ms = clock.ms.max(seen.now_ms);
                let newer = known.policies().iter().filter(|policy| {
                    let mut all = seen.known.policies().iter();
                    let before = all.find(|before| before.id == policy.id);
                    before.is_none_or(|before| before.used_ms < policy.used_ms)
                });
                let newer = newer.cloned().collect();
                seen.known.learn(newer, seen.now_ms);
            }
            Err(why) => {
                seen.failed.push(why);
                seen.in_use = None;
            }
        }
    }
    if seen.failed.len() < primaries.len() {
        return Ok(seen);
    }
    let nowhere = || GateError::Unreachable("the cluster has no primaries".to_owned());
    Err(seen.failed.pop().unwrap_or_else(nowhere))
}

/// Returns the policies that workers report as in force. Reports older than [`IDLE_MS`] do not
/// count.
async fn in_use(gate: &RedisGate, board: &str) -> Result<BTreeSet<String>, GateError> {
    let reports = instructions::recent_reports(gate, board, IDLE_MS).await?;
    let policy = |says: &String| says.rsplit(' ').next().map(str::to_owned);
    Ok(reports.iter().filter_map(policy).collect())
}

/// Makes an exchange with one registry. `known` is what the worker knows of it so far. Returns the
/// new knowledge and Redis's clock.
async fn exchange(
    gate: &RedisGate,
    registry: &str,
    mine: &[&NamedPolicy],
    mut known: RegistryKnowledge,
) -> Result<(RegistryKnowledge, ClockReading), GateError> {
    let mut with_text = false;
    for _ in 0..TRIES {
        let mut more = vec![MAX_POLICIES.to_string(), mine.len().to_string()];
        for named in mine {
            let kept_ms = memory_ms(&named.policy) + MARGIN_MS;
            let text = if with_text { &named.text } else { "" };
            more.extend([named.id.clone(), kept_ms.to_string(), text.to_owned()]);
        }
        let superseded = known.superseded();
        more.push(superseded.len().to_string());
        for (id, used_ms) in superseded {
            more.extend([id.clone(), used_ms.to_string()]);
        }
        let texts = known.policies().iter().map(|policy| policy.id.clone());
        more.extend(texts);
        more.extend(mine.iter().map(|named| named.id.clone()));
        let asked_at = Instant::now();
        let reply = gate.run_policies(registry, more).await?;
        let read_at = Instant::now();
        let Some((now_ms, word, rest)) = head(&reply) else {
            return Err(broken("its reply has an unknown form"));
        };
        match word.as_str() {
            "ok" => {
                let registered = decode(rest, mine, &known)?;
                known.learn(registered, now_ms);
                let clock = ClockReading {
                    ms: now_ms,
                    asked_at,
                    read_at,
                };
                return Ok((known, clock));
            }
            "full" => {
                // The script has dropped the superseded policies that `known` lists. If there were
                // none, reads the registry to find some.
                let none = known.superseded().is_empty();
                if none {
                    (known, _) = Box::pin(exchange(gate, registry, &[], known)).await?;
                }
                if !none || known.superseded().is_empty() {
                    return Err(GateError::Refused(format!(
                        "the workers have had {MAX_POLICIES} different policies within the \
                        longest window; wait until one of them is dropped"
                    )));
                }
            }
            _ => with_text = true,
        }
    }
    Err(GateError::Unreachable(
        "Redis lost the registry of policies twice in a row".to_owned(),
    ))
}

fn head(reply: &Value) -> Option<(u64, String, &[Value])> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [_, now, word, rest @ ..] = values.as_slice() else {
        return None;
    };
    Some((reply::number(now)?, reply::text(word)?, rest))
}

/// Parses the policies in the reply. The reply omits texts that this worker knows.
fn decode(
    rest: &[Value],
    mine: &[&NamedPolicy],
    known: &RegistryKnowledge,
) -> Result<Vec<RegisteredPolicy>, GateError> {
    let (chunks, []) = rest.as_chunks::<4>() else {
        return Err(broken("its reply has an unknown form"));
    };
    let decode = |[id, since, used, text]: &[Value; 4]| {
        let (Some(id), &Value::Int(since), &Value::Int(used), Some(text)) =
            (reply::text(id), since, used, reply::text(text))
        else {
            return Err(broken("its reply has an unknown form"));
        };
        let own = mine.iter().find(|named| named.id == id);
        let policy = match own.map(|named| &named.policy).or(known.find(&id)) {
            Some(policy) => Arc::clone(policy),
            None => Arc::new(text::read(&text).map_err(|why| {
                GateError::Refused(format!(
                    "another worker's policy {id} can't be enforced here: {why}; run the same \
                    version of sluicegate everywhere, or wait until that policy is dropped"
                ))
            })?),
        };
        Ok(RegisteredPolicy {
            id,
            policy,
            since_ms: since.unsigned_abs(),
            used_ms: used.unsigned_abs(),
        })
    };
    chunks.iter().map(decode).collect()
}

fn broken(why: &str) -> GateError {
    GateError::Refused(format!("the registry of policies: {why}"))
}
