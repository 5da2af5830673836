//! The registry of policies in Redis: what all workers have in force. What follows from it is decided in
//! [`rules::fleet`](crate::rules::fleet).

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::redis::Value;

use crate::gate::GateError;
use crate::gate::redis::RedisGate;
use crate::rules::fleet::text::{self, MAX_TEXT};
use crate::rules::fleet::{
    AGREED_FOR_MS, Fleet, Known, MARGIN_MS, MAX_POLICIES, Registered, memory_ms,
};
use crate::rules::policy::Policy;

/// A policy, as the registry names it.
#[derive(Debug, Clone)]
pub struct Named {
    /// Its name: the SHA-1 of its text, in hex.
    pub id: String,
    /// What it says.
    pub policy: Arc<Policy>,
    text: String,
}

impl Named {
    /// `policy` with its name.
    ///
    /// # Errors
    /// [`GateError::Refused`] when it is too large for the registry.
    pub fn new(policy: Policy) -> Result<Self, GateError> {
        let text = text::write(&policy);
        if text.len() > MAX_TEXT {
            return Err(GateError::Refused(format!(
                "rate-limiter: its limits make {} bytes for Redis; at most {MAX_TEXT} can be: give tenants plans instead of limits of their own",
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

/// What one exchange found out.
#[derive(Debug)]
pub struct Agreed {
    /// What is to be enforced.
    pub fleet: Fleet,
    /// Until when: later, the gate must not be asked before another exchange.
    pub until: Instant,
}

/// One worker's view of the registry.
pub struct Registry {
    gate: Arc<RedisGate>,
    own: Named,
    known: Known,
}

impl Registry {
    /// The view of a worker that is to have `own` in force. It knows nothing yet.
    pub fn new(gate: Arc<RedisGate>, own: Named) -> Self {
        Self {
            gate,
            own,
            known: Known::default(),
        }
    }

    /// The policy in force.
    pub fn own(&self) -> &Named {
        &self.own
    }

    /// All policies that are to be enforced, as of the last exchange.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Says what is in force here, and learns what is elsewhere.
    ///
    /// # Errors
    /// [`GateError`]: nothing is known anew.
    pub async fn exchange(&mut self) -> Result<Agreed, GateError> {
        self.switch_to(self.own.clone()).await
    }

    /// [`Registry::exchange`], and from then on `next` is in force.
    ///
    /// # Errors
    /// [`GateError`]: all stays as it was.
    pub async fn switch_to(&mut self, next: Named) -> Result<Agreed, GateError> {
        let sent = Instant::now();
        let mut mine = vec![&self.own];
        if next.id != self.own.id {
            mine.push(&next);
        }
        let now_ms = exchange(&self.gate, &mine, &mut self.known).await?;
        self.own = next;
        let fleet = (self.known).fleet(Arc::clone(&self.own.policy), &self.own.id, now_ms);
        let until = sent + Duration::from_millis(AGREED_FOR_MS);
        Ok(Agreed { fleet, until })
    }
}

/// Reads what all workers have in force, without saying anything. Also returns Redis's clock in milliseconds.
///
/// # Errors
/// [`GateError`] says why nothing is known.
pub async fn look(gate: &RedisGate) -> Result<(Known, u64), GateError> {
    let mut known = Known::default();
    let now_ms = exchange(gate, &[], &mut known).await?;
    Ok((known, now_ms))
}

async fn exchange(gate: &RedisGate, mine: &[&Named], known: &mut Known) -> Result<u64, GateError> {
    for with_text in [false, true] {
        let mut more = vec![MAX_POLICIES.to_string(), mine.len().to_string()];
        for named in mine {
            let kept_ms = memory_ms(&named.policy) + MARGIN_MS;
            let text = if with_text { &named.text } else { "" };
            more.extend([named.id.clone(), kept_ms.to_string(), text.to_owned()]);
        }
        let texts = known.policies().iter().map(|policy| policy.id.clone());
        more.extend(texts);
        more.extend(mine.iter().map(|named| named.id.clone()));
        let reply = gate.run_policies(more).await?;
        let Some((now_ms, word, rest)) = head(&reply) else {
            return Err(broken("its reply has another form"));
        };
        match word.as_str() {
            "ok" => {
                let registered = decode(rest, mine, known)?;
                known.learn(registered, now_ms);
                return Ok(now_ms);
            }
            "full" => {
                return Err(GateError::Refused(format!(
                    "the workers have had {MAX_POLICIES} different policies in force within the longest window; wait until one of them is dropped"
                )));
            }
            _ => {}
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
    let Value::Int(now) = now else { return None };
    Some((u64::try_from(*now).ok()?, text_of(word)?, rest))
}

/// The policies of the reply: those with a text, and those whose text is known.
fn decode(rest: &[Value], mine: &[&Named], known: &Known) -> Result<Vec<Registered>, GateError> {
    let (chunks, []) = rest.as_chunks::<4>() else {
        return Err(broken("its reply has another form"));
    };
    let decode = |[id, since, used, text]: &[Value; 4]| {
        let (Some(id), &Value::Int(since), &Value::Int(used), Some(text)) =
            (text_of(id), since, used, text_of(text))
        else {
            return Err(broken("its reply has another form"));
        };
        let own = mine.iter().find(|named| named.id == id);
        let policy = match own.map(|named| &named.policy).or(known.find(&id)) {
            Some(policy) => Arc::clone(policy),
            None => Arc::new(text::read(&text).map_err(|why| {
                GateError::Refused(format!(
                    "another worker's policy {id} can't be enforced here: {why}; run one version of sluicegate, or wait until that policy is dropped"
                ))
            })?),
        };
        Ok(Registered {
            id,
            policy,
            since_ms: since.unsigned_abs(),
            used_ms: used.unsigned_abs(),
        })
    };
    chunks.iter().map(decode).collect()
}

fn text_of(value: &Value) -> Option<String> {
    ::redis::from_redis_value_ref(value).ok()
}

fn broken(why: &str) -> GateError {
    GateError::Refused(format!("the registry of policies: {why}"))
}
