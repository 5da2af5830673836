//! Results. In simulations with seeds from [`RESULTS`], each end of a job has a result; histories
//! of lower seeds are unchanged.

use std::collections::BTreeMap;

use broker::memory::{MemoryBroker, PublishFault};
use broker::{ExternalMessage, Message, Outgoing};
use engine::action::{ResultSettings, ResultTarget};
use rules::headers::RESULT;
use rules::job::Field;

use super::starts;
use super::world::World;

/// First seed with results.
pub const RESULTS: u64 = 9_000_000;

const EXCHANGE: &str = "ends";
const KEY: &str = "end";
const QUEUE: &str = "ends";

/// Returns where results go.
pub fn settings(seed: u64) -> Option<ResultSettings> {
    let to = ResultTarget::Exchange {
        exchange: EXCHANGE.into(),
        routing_key: KEY.into(),
    };
    (seed >= RESULTS).then_some(ResultSettings { to, max_body: 0 })
}

/// Binds the queue that keeps the results.
pub fn bind(server: &MemoryBroker) {
    server.bind(EXCHANGE, KEY, QUEUE);
}

/// Replaces the loss of a returned result by a refusal. A result without a target may be lost, so a
/// check could not tell it from a defect.
pub fn fault(outgoing: &Outgoing, fault: Option<PublishFault>) -> Option<PublishFault> {
    match fault {
        Some(PublishFault::Return) if &*outgoing.queue == KEY => Some(PublishFault::Nack),
        fault => fault,
    }
}

fn ended(message: &Message) -> &str {
    match message.header(RESULT) {
        Field::Text(ended) => ended,
        _ => "no word",
    }
}

/// Checks that a "done" result follows its job's call, and that only a job with a dedupe key has
/// the result "duplicate".
pub fn look_at(world: &World, result: &ExternalMessage) {
    let id = result.message.id().unwrap_or_default();
    let mut history = world.history();
    let (done, ended) = (history.job(id).done, ended(&result.message));
    let is_true = match ended {
        "dead" => true,
        "done" => done,
        "duplicate" => starts::may_be_duplicate(&world.plan, &result.message),
        _ => false,
    };
    if !is_true {
        history.wrong(format_args!("{id} is told to be {ended} before it is"));
    }
}

/// Checks that each ended job has a result, and that each dead letter's result says "dead".
pub fn check_results(world: &World) {
    if world.plan.seed < RESULTS {
        return;
    }
    let mut results_by_job: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for result in world.server.results(QUEUE) {
        let id = result.id().unwrap_or_default().to_owned();
        results_by_job
            .entry(id)
            .or_default()
            .push(ended(&result).to_owned());
    }
    let letters = world.server.messages(&world.server.names().dead);
    let mut history = world.history();
    for planned in &world.plan.jobs {
        let id = planned.id.as_str();
        let ends = results_by_job.get(id).map_or(&[][..], Vec::as_slice);
        if history.job(id).confirmed && ends.is_empty() {
            history.wrong(format_args!("nobody was told of {id}"));
        }
        let is_dead = letters.iter().any(|letter| letter.id() == Some(id));
        if is_dead && !ends.iter().any(|end| end == "dead") {
            history.wrong(format_args!("{id} is dead, and only told to be {ends:?}"));
        }
    }
}
