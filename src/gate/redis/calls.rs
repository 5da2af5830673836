//! Script calls: batches them, repeats calls without effect, and translates their errors.

use ::redis::{Cmd, ServerError, Value};

use super::RedisGate;
use crate::GateError;
use crate::epoch::{SentPulse, Watch};
use crate::keys::CallKeys;
use crate::link::{Answers, PrimaryLink, Request};
use crate::refusal;
use crate::reply::{self, LIMIT_BYTES};
use crate::scripts::Script;
use rules::layout::Layout;
use rules::limit::Limit;

/// Maximum number of times a call is sent if its script was not cached or its window was guessed
/// wrong.
const TRIES: usize = 4;

/// Usual size, in bytes, of a command without its script, keys, limits and own arguments: numbers
/// and a mark.
const OTHER_BYTES: usize = 128;
const OTHER_ARGUMENTS: usize = 6;

/// The end of a pipeline of admitting calls.
pub(super) struct PipelinePulse<'a> {
    pub(super) watch: &'a Watch,
    pub(super) sent: SentPulse,
    /// The primary that has all keys of the calls.
    pub(super) shard: &'a PrimaryLink,
}

impl PipelinePulse<'_> {
    /// Takes the answer to the pulse. Returns false if the pulse must be sent again, with its
    /// script.
    ///
    /// # Errors
    /// The calls of the pipeline do not count.
    fn take_answer(&self, answer: Result<Value, GateError>) -> Result<bool, GateError> {
        match answer {
            Ok(Value::ServerError(error)) if error.code() == "NOSCRIPT" => Ok(false),
            Ok(Value::ServerError(error)) => Err(self.watch.refused(&error)),
            Err(why) => Err(why),
            Ok(answer) => {
                self.watch.beaten(&self.sent, &answer)?;
                Ok(true)
            }
        }
    }
}

/// One script call: its content and its purpose.
pub(super) struct ScriptCall<'a> {
    pub(super) script: &'static Script,
    /// The tenant in error texts, or what stands for it.
    pub(super) who: &'a str,
    /// The look-back of its limits in milliseconds. 0 means that the call admits nothing.
    pub(super) span_ms: u64,
    /// The limits it decides on. Empty for scripts that use only the waitlist.
    pub(super) limits: &'a [Limit],
    /// The partitions of these limits.
    pub(super) layout: Layout,
    pub(super) keys: CallKeys,
    /// Whether the node lacks the script.
    pub(super) load: bool,
    /// A key after those of the limits.
    pub(super) mark: Option<String>,
    /// The arguments after those of the limits.
    pub(super) more: Vec<Vec<u8>>,
}

impl RedisGate {
    /// Makes all calls in one round trip to each node. Repeats calls whose script a node had lost
    /// or whose window was guessed wrong. Returns one reply per call, in order; an error that
    /// affects one call, or one node of several, takes its place. With `pulse` the calls admit
    /// jobs: they count only if Redis still has all usage.
    pub(super) async fn run(
        &self,
        mut calls: Vec<ScriptCall<'_>>,
        pulse: Option<PipelinePulse<'_>>,
    ) -> Result<Vec<Result<Value, GateError>>, GateError> {
        let mut replies: Vec<_> = calls.iter().map(|_| Ok(Value::Nil)).collect();
        let mut open: Vec<usize> = (0..calls.len()).collect();
        // The last pulse follows all calls.
        let mut counts = pulse.is_none();
        let mut load_pulse = false;
        for _ in 0..TRIES {
            if open.is_empty() && counts {
                return Ok(replies);
            }
            let pulse = pulse.as_ref();
            let sent = pulse.map(|pulse| (pulse, load_pulse));
            let mut answers = self.send_calls(&calls, &open, sent).await?;
            let beat = pulse.zip(answers.pop_if(|_| pulse.is_some()));
            let mut retries = Vec::new();
            for (index, answer) in open.into_iter().zip(answers) {
                match self.take_answer(&mut calls[index], answer).await? {
                    Some(reply) => replies[index] = reply,
                    None => retries.push(index),
                }
            }
            open = retries;
            counts = match beat {
                Some((pulse, answer)) => pulse.take_answer(answer)?,
                None => true,
            };
            load_pulse |= !counts;
        }
        if open.is_empty() && counts {
            return Ok(replies);
        }
        Err(GateError::Unreachable(format!(
            "{}: its clock jumps or its script cache is flushed faster than a call can be repeated",
            self.link.servers()
        )))
    }

    /// Sends the calls with the indexes `open` and the pulse in one round trip. The flag says whether
    /// the pulse loads its script. Returns the answers, the pulse's last.
    async fn send_calls(
        &self,
        calls: &[ScriptCall<'_>],
        open: &[usize],
        pulse: Option<(&PipelinePulse<'_>, bool)>,
    ) -> Result<Answers, GateError> {
        let mut requests: Vec<_> = open
            .iter()
            .map(|index| self.request(&calls[*index]))
            .collect();
        match pulse {
            Some((PipelinePulse { watch, sent, shard }, load)) => {
                let by = self.link.scripts();
                requests.push(watch.request(sent, (by, load)));
                self.link.send_to(shard, requests).await
            }
            None => self.link.send(requests).await,
        }
    }

    /// Takes the answer to `call`. Returns its reply, or `None` if the call must be sent again.
    ///
    /// # Errors
    /// An error that affects other calls, too.
    async fn take_answer(
        &self,
        call: &mut ScriptCall<'_>,
        answer: Result<Value, GateError>,
    ) -> Result<Option<Result<Value, GateError>>, GateError> {
        let reply = match answer {
            Ok(Value::ServerError(error)) if error.code() == "NOSCRIPT" => {
                call.load = true;
                return Ok(None);
            }
            Ok(Value::ServerError(error)) if refusal::is_wrong_type(&error) => {
                Err(self.explain(call, &error).await)
            }
            Ok(Value::ServerError(error)) if refusal::is_unreadable(&error) => {
                Err(refusal::unreadable(&error, &call.words()))
            }
            Ok(Value::ServerError(error)) => {
                let why = refusal::refused(&error, &call.words());
                Err(self.for_this_call(why)?)
            }
            Err(why) => Err(self.for_this_call(why)?),
            Ok(answer) => {
                let head = reply::head(&answer);
                if let Some((_, now)) = head {
                    self.record_clock(now);
                }
                if let Some((false, now)) = head {
                    call.keys = self.keys.call(&call.layout, call.limits, now);
                    return Ok(None);
                }
                Ok(answer)
            }
        };
        Ok(Some(reply))
    }

    fn request<'c>(&self, call: &'c ScriptCall<'_>) -> Request<'c> {
        // Without enough capacity, a command is copied each time it grows.
        let texts = (call.keys.names.iter().map(String::len)).chain(call.more.iter().map(Vec::len));
        let script = call.script.call(self.link.scripts());
        let name = script[1].len();
        let bytes = texts.sum::<usize>() + name + LIMIT_BYTES * call.limits.len() + OTHER_BYTES;
        let arguments = call.keys.names.len() + call.more.len() + OTHER_ARGUMENTS;
        let mut command = Cmd::with_capacity(arguments, bytes);
        command
            .arg(&script)
            .arg(call.keys.names.len() + usize::from(call.mark.is_some()))
            .arg(&call.keys.names)
            .arg(&call.mark);
        if !call.limits.is_empty() {
            let packed = reply::limits_argument(call.limits, &call.layout, &call.keys);
            command.arg(packed);
        }
        command.arg(&call.more);
        command.arg(reply::shared_argument(&call.layout, &call.keys));
        command.arg(reply::shadows_argument(&call.layout, &call.keys));
        Request {
            key: call.keys.waitlist(),
            command,
            load: call.load.then_some(call.script),
        }
    }

    /// Returns `Ok` if an error of a node affects only this call, as in a cluster, which has other
    /// nodes.
    fn for_this_call(&self, why: GateError) -> Result<GateError, GateError> {
        if self.link.is_cluster() {
            Ok(why)
        } else {
            Err(why)
        }
    }

    /// Runs one call and returns its reply.
    pub(super) async fn run_one(&self, call: ScriptCall<'_>) -> Result<Value, GateError> {
        let replies = self.run(vec![call], None).await?;
        replies.into_iter().next().unwrap_or(Ok(Value::Nil))
    }

    /// Finds the key that has another type than expected.
    async fn explain(&self, call: &ScriptCall<'_>, error: &ServerError) -> GateError {
        let names = &call.keys.names;
        let request = |name: &'_ String| {
            let mut command = ::redis::cmd("TYPE");
            command.arg(name);
            Request {
                key: call.keys.waitlist(),
                command,
                load: None,
            }
        };
        let sent = self.link.send(names.iter().map(request).collect()).await;
        match sent.and_then(|types| types.into_iter().collect::<Result<Vec<_>, _>>()) {
            Ok(types) => refusal::wrong_type(&call.keys, &types, error),
            Err(error) => error,
        }
    }
}

impl ScriptCall<'_> {
    fn words(&self) -> String {
        format!(
            "{} of tenant {} ({})",
            self.script.name,
            self.who,
            self.keys.names.join(", ")
        )
    }
}
