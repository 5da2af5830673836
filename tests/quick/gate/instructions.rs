//! A board takes a limited number of operators' instructions, and each lasts as long as it was given.

use std::sync::Arc;
use std::time::Duration;

use fake_redis::FakeRedis;
use gate::fleet::registry::{NamedPolicy, Registry};
use gate::instructions::{drop_all, drop_own, put, see};
use gate::{Gate as _, GateError};
use kit::SECOND;
use kit::gate::{clock, fake_gate, gate_on, limit, tenant};
use operator::NotDone;
use operator::hold;
use operator::job::{CancelState, JobRef};
use rules::limit::Algorithm;
use rules::policy::Policy;
use rules::steering::{Hold, Instruction, JobSighting, MAX_INSTRUCTIONS};
use serde_json::json;

const HOUR_MS: u64 = 3_600_000;

#[tokio::test(start_paused = true)]
async fn a_full_board_takes_an_instruction_once_another_has_ended() {
    let fake = fake_gate(limit(Algorithm::FixedWindow, 1, 1_000));
    let cancel = |job: usize| Instruction::Cancel(tenant("t"), format!("job-{job}"), 1);
    let posted = async || see(&fake.gate).await.expect("a board")[0].posted.len();
    for job in 0..MAX_INSTRUCTIONS {
        let put = put(&fake.gate, &cancel(job), HOUR_MS).await;
        put.expect("there is room");
    }
    let refused = put(&fake.gate, &cancel(MAX_INSTRUCTIONS), HOUR_MS).await;
    let Err(GateError::Refused(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.starts_with("1000 instructions are in force"), "{why}");
    assert_eq!(posted().await, MAX_INSTRUCTIONS);
    let paused = put(&fake.gate, &Instruction::All(Hold::Paused), HOUR_MS).await;
    paused.expect("all tenants can be paused at any time");

    // An instruction replaces another with the same name.
    let again = put(&fake.gate, &cancel(7), 2 * HOUR_MS).await;
    again.expect("it needs no more room");
    let ended = drop_all(&fake.gate, &[cancel(0).name()]).await;
    ended.expect("the gate answers");
    let next = put(&fake.gate, &cancel(MAX_INSTRUCTIONS), HOUR_MS).await;
    next.expect("there is room again");
    assert_eq!(posted().await, MAX_INSTRUCTIONS + 1);
}

#[tokio::test(start_paused = true)]
async fn a_board_forgets_silent_workers_also_without_an_instruction() {
    let server = Arc::new(FakeRedis::new(clock()));
    for _ in 0..3 {
        let policy = Policy::from(limit(Algorithm::FixedWindow, 1, 1_000));
        let own = NamedPolicy::new(policy).expect("it is small");
        let mut worker = Registry::new(Arc::new(gate_on(&server, "p")), own);
        worker.exchange().await.expect("an agreement");
        tokio::time::sleep(61 * SECOND).await;
    }
    let mut fields = redis::pipe();
    fields.cmd("HKEYS").arg("p:%board");
    let replies = server.run(&fields);
    let [redis::Value::Array(fields)] = replies.as_slice() else {
        panic!("{replies:?}");
    };
    assert_eq!(
        fields.len(),
        2,
        "the version and the last worker: {fields:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pause_and_a_drain_do_not_end_each_other() {
    let fake = fake_gate(limit(Algorithm::FixedWindow, 1, 1_000));
    let held = async || {
        let seen = see(&fake.gate).await.expect("a board");
        hold::held(&seen).map(|(hold, _)| hold)
    };
    for (long, short) in [
        (Hold::Draining, Hold::Paused),
        (Hold::Paused, Hold::Draining),
    ] {
        for (hold, hours) in [(long, 3), (short, 1)] {
            let posted = put(&fake.gate, &Instruction::All(hold), hours * HOUR_MS).await;
            posted.expect("there is room");
        }
        assert_eq!(held().await, Some(Hold::Paused));
        tokio::time::sleep(Duration::from_millis(2 * HOUR_MS)).await;
        assert_eq!(held().await, Some(long));
        hold::resume(&fake.gate).await.expect("the gate answers");
        assert_eq!(held().await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_cancellation_lasts_longer_but_not_shorter() {
    let fake = fake_gate(limit(Algorithm::FixedWindow, 1, 1_000));
    let job = JobRef::new(tenant("t"), "order-7", 300 * SECOND).expect("a job");
    let ends = async |for_ms| {
        let canceled = job.cancel(&fake.gate, SECOND, for_ms).await;
        canceled
            .expect("the gate answers")
            .until_ms
            .0
            .expect("it ends")
    };
    let first = ends(60_000).await;
    assert!(ends(HOUR_MS).await > first + HOUR_MS / 2);
    assert!(ends(1_000).await > first + HOUR_MS / 2);
}

/// Two operators look at the same job: the first to finish does not end the other's instruction.
#[tokio::test(start_paused = true)]
async fn an_instruction_ends_only_if_no_other_replaced_it() {
    let fake = fake_gate(limit(Algorithm::FixedWindow, 1, 1_000));
    let show = |number| Instruction::Show(tenant("t"), "order-7".to_owned(), number);
    let posted = async || {
        let seen = see(&fake.gate).await.expect("a board");
        let posted = seen[0].posted.iter();
        let posted: Vec<_> = posted.map(|(posted, _)| posted.clone()).collect();
        (posted, seen[0].version)
    };
    for number in [1, 2] {
        let put = put(&fake.gate, &show(number), HOUR_MS).await;
        put.expect("there is room");
    }
    let before = posted().await;
    assert_eq!(before.0, [show(2)]);
    let ended = async |number| {
        let ended = drop_own(&fake.gate, &show(number)).await;
        ended.expect("the gate answers")
    };
    ended(1).await;
    assert_eq!(posted().await, before, "it is not the first one any more");
    let versions = ended(2).await;
    assert_eq!(posted().await, (vec![], versions[0].1));
    assert!(versions[0].1 > before.1);
    assert_eq!(ended(2).await, versions, "there is none to end");
}

#[tokio::test(start_paused = true)]
async fn an_instruction_that_ended_is_not_reported_as_in_force() {
    let fake = fake_gate(limit(Algorithm::FixedWindow, 1, 1_000));
    let pause = Instruction::All(Hold::Paused);
    let versions = put(&fake.gate, &pause, 1_000).await;
    let versions = versions.expect("there is room");
    tokio::time::sleep(2 * SECOND).await;
    let paused = hold::paused(&fake.gate, &versions, SECOND).await;
    let Err(NotDone::Failed(why)) = paused else {
        panic!("it is not in force");
    };
    assert!(why.contains("has ended since"), "{why}");
}

/// The rest of the wait would be in vain.
#[tokio::test(start_paused = true)]
async fn a_cancellation_that_ended_is_not_waited_for() {
    let fake = fake_gate(limit(Algorithm::FixedWindow, 1, 1_000));
    let job = JobRef::new(tenant("t"), "order-7", 300 * SECOND).expect("a job");
    let started = tokio::time::Instant::now();
    let canceled = job.cancel(&fake.gate, 600 * SECOND, 2_000).await;
    let state = canceled.expect("the gate answers").state;
    assert_eq!(state, CancelState::Undone);
    assert!(started.elapsed() < 5 * SECOND);
}

/// Two operators cancel the same job at once.
/// Returns a worker's report that the job `order-7` was canceled by the request 7.
pub(super) fn canceled_job() -> JobSighting {
    let sighting = json!({
        "cancel": 7, "state": "canceled", "at_ms": 0, "attempt": 1, "cost": 1, "queue": "q", "here_ms": 0,
    });
    JobSighting {
        tenant: tenant("t"),
        job: "order-7".to_owned(),
        sighting: serde_json::from_value(sighting).expect("a report"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_that_another_replaced_is_followed() {
    let fake = fake_gate(limit(Algorithm::FixedWindow, 1, 1_000));
    let job = JobRef::new(tenant("t"), "order-7", 300 * SECOND).expect("a job");
    let other = async {
        tokio::time::sleep(SECOND).await;
        let cancel = Instruction::Cancel(tenant("t"), "order-7".to_owned(), 7);
        let put = put(&fake.gate, &cancel, HOUR_MS).await;
        put.expect("there is room");
        let sighted = canceled_job();
        fake.gate.sighted(&[sighted]).await.expect("it is stored");
    };
    let (canceled, ()) = tokio::join!(job.cancel(&fake.gate, 60 * SECOND, HOUR_MS), other);
    let state = canceled.expect("the gate answers").state;
    assert_eq!(state, CancelState::Canceled);
}
