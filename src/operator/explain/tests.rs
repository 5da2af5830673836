use std::collections::BTreeMap;

use super::*;
use crate::steer::Followers;
use rules::answers::Quotas;
use rules::gate::forecast::Turn;
use rules::steering::Instruction;
use rules::tenant::Tenant;

const NOW: u64 = 1_700_000_000_000;

fn job() -> JobRef {
    let tenant = Tenant::parse("acme").expect("a tenant");
    JobRef::new(tenant, "7", Duration::from_secs(60)).expect("a good id")
}

fn seen(what: WaitsFor, wait_ms: Option<u64>) -> Sighting {
    Sighting {
        cancel: None,
        show: Some(1),
        state: SightedState::Waiting,
        at_ms: NOW,
        attempt: 2,
        cost: 1,
        queue: "jobs".to_owned(),
        here_ms: 1_000,
        wait_ms,
        ticket: Some(7),
        limit: Some("default".to_owned()),
        waits: Some(WaitState {
            what,
            plan: None,
            labels: BTreeMap::new(),
            generation: Some(3),
            promised_ms: Some(NOW + 5_000),
        }),
    }
}

fn found(blocked_ms: u64) -> Inspection {
    Inspection {
        now_ms: NOW,
        limits: Vec::new(),
        shadows: Vec::new(),
        waiting: 12,
        widest: 1,
        waitlist_end_ms: 0,
        turn_ms: 0,
        blocked_until_ms: if blocked_ms > 0 { NOW + blocked_ms } else { 0 },
        blocked_by: "429 from the API".to_owned(),
        quotas: Quotas::default(),
        quotas_at_ms: 0,
    }
}

/// Explains a job whose worker reports `seen` and whose turn comes in `turn_ms`.
fn explained(
    seen: &Sighting,
    turn_ms: u64,
    (blocked_ms, steering): (u64, Steering),
) -> JobExplanation {
    let policy = Config::default().rate_limiter.policy;
    let limits = policy.default_limits();
    let (found, all) = (found(blocked_ms), Ok(Standing::default()));
    let around = ExplainContext {
        found: &found,
        all: &all,
        recovery: &Recovery::Over,
        paused_until_ms: steering.hold.map(|_| NOW + 60_000),
        steering: &steering,
    };
    let schedule = Schedule {
        now_ms: NOW,
        opens_ms: NOW,
        waiting: 12,
        units: 4,
        jobs: 4,
        max: vec![5],
        set: vec![5],
        turns: vec![Turn {
            unit: 4,
            at: vec![NOW + turn_ms],
        }],
    };
    let turn = end(limits, &schedule, false);
    let waits = seen.waits.as_ref().expect("it waits");
    let job = job();
    let state = job.state(Followers::default(), Some(seen.clone()));
    let mut explained = JobExplanation::new(state);
    explained.waits_for = causes((&job, seen, waits), limits, &turn, &around);
    explained.fill_in((&job, seen, waits), (&schedule, turn), &around);
    explained
}

fn causes_of(explained: &JobExplanation) -> Vec<&str> {
    let causes = explained.waits_for.iter();
    causes.map(|cause| cause.what.as_str()).collect()
}

#[test]
fn a_job_in_its_line_starts_at_its_turn() {
    let seen = seen(WaitsFor::Turn, Some(4_000));
    let explanation = explained(&seen, 4_000, (0, Steering::default()));
    assert_eq!(causes_of(&explanation), ["limit"]);
    assert_eq!(
        (explanation.starts_at_ms, explanation.sure),
        (Some(NOW + 4_000), Certainty::Exact)
    );
    assert_eq!(
        explanation.describe(),
        "waits for its turn under the limit default, in 4.0s (Tue, 14 Nov 2023 22:13:24 GMT)
place     4 of 12 in the waitlist
starts    in 4.0s (Tue, 14 Nov 2023 22:13:24 GMT)
promised  Tue, 14 Nov 2023 22:13:25 GMT, when it was first denied
sure      exact: as computed by the gate, if the limits do not change and the jobs ahead ask in time
"
    );
    assert_eq!(
        (explanation.place, explanation.waiting),
        (Some(4), Some(12))
    );
    let of_cost = JobExplanation {
        counts_cost: true,
        ..explanation.clone()
    };
    assert!((of_cost.describe()).contains("place     4 of 12 units of cost in the waitlist\n"));
    assert_eq!(explanation.starts_in_ms, Some(4_000));
    // A limit was raised after the job was given its turn.
    let earlier = explained(&seen, 1_000, (0, Steering::default()));
    assert_eq!(
        (earlier.starts_at_ms, earlier.sure),
        (Some(NOW + 4_000), Certainty::Estimated)
    );
}

#[test]
fn a_job_that_waits_for_its_start_time_has_no_place_in_the_waitlist() {
    let mut seen = seen(WaitsFor::DelayedStart, Some(9_000));
    seen.ticket = None;
    let explanation = explained(&seen, 4_000, (0, Steering::default()));
    assert_eq!(
        (explanation.place, explanation.waiting),
        (None, Some(12)),
        "it has not asked yet"
    );
    let text = explanation.describe();
    assert!(!text.contains("place"), "{text}");
}

#[test]
fn every_cause_of_a_wait_is_named() {
    for (what, name, sure) in [
        (
            WaitsFor::DelayedStart,
            "delayed-start",
            Certainty::Estimated,
        ),
        (WaitsFor::Retry, "retry", Certainty::Estimated),
        (WaitsFor::Later, "later", Certainty::Estimated),
        (WaitsFor::Breaker, "breaker", Certainty::Unknown),
        (WaitsFor::Agreement, "agreement", Certainty::Unknown),
        (WaitsFor::Slot, "worker-slot", Certainty::Estimated),
        (WaitsFor::Redis, "redis", Certainty::Unknown),
        (WaitsFor::Connection, "connection", Certainty::Estimated),
    ] {
        let explanation = explained(&seen(what, Some(9_000)), 4_000, (0, Steering::default()));
        assert_eq!(
            (causes_of(&explanation), explanation.sure),
            (vec![name], sure)
        );
        let starts = (sure != Certainty::Unknown).then_some(NOW + 9_000);
        assert_eq!(explanation.starts_at_ms, starts, "{name}");
    }
    let explanation = explained(&seen(WaitsFor::Nothing, None), 0, (0, Steering::default()));
    assert_eq!(
        (causes_of(&explanation), explanation.starts_at_ms),
        (vec![], Some(NOW))
    );
}

#[test]
fn tenant_and_global_stops_come_first() {
    let seen = seen(WaitsFor::Turn, Some(4_000));
    let explanation = explained(&seen, 4_000, (3_000, Steering::default()));
    assert_eq!(causes_of(&explanation), ["suspended", "limit"]);
    assert!(
        explanation
            .describe()
            .contains("the end of its tenant's suspension: 429 from the API, in 3.0s")
    );
    let pause = Steering::of([Instruction::All(Hold::Paused)]);
    let explanation = explained(&seen, 4_000, (0, pause));
    assert_eq!(
        (causes_of(&explanation), explanation.starts_at_ms),
        (vec!["pause", "limit"], None)
    );
    let divert = Instruction::Divert(job().tenant, "jobs.diverted".into());
    let explanation = explained(&seen, 4_000, (0, Steering::of([divert])));
    assert_eq!(
        (causes_of(&explanation), explanation.sure),
        (vec!["divert", "limit"], Certainty::Unknown)
    );
}

#[test]
fn a_job_in_the_window_of_a_delay_queue_is_estimated() {
    let seen = Sighting {
        queue: "jobs.delay.60000".to_owned(),
        ..seen(WaitsFor::Turn, Some(4_000))
    };
    let explanation = explained(&seen, 4_000, (0, Steering::default()));
    assert_eq!(
        (explanation.starts_at_ms, explanation.sure),
        (Some(NOW + 4_000), Certainty::Estimated)
    );
}
