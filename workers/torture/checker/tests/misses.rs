//! Faults that missed.

use super::*;

/// Returns a history with a missed fault of `kind` each 10 s.
fn missed(times: u64, kind: FaultKind) -> Story {
    let mut story = whole();
    for time in 1..=times {
        story.missed(10_000 * time, 10_000 * time + 5000, kind);
    }
    story
}

#[test]
fn missed_faults_are_counted_by_kind() {
    let mut story = missed(2, FaultKind::KillAtGate);
    story.missed(70_000, 75_000, FaultKind::RabbitDelete);
    story.broken(80_000, 85_000, FaultKind::StopAtGate);
    let verdict = story.verdict();
    assert!(verdict.holds(), "{:?}", verdict.findings);
    let counts = [(FaultKind::KillAtGate, 2), (FaultKind::RabbitDelete, 1)];
    assert_eq!(verdict.missed, BTreeMap::from(counts));
}

#[test]
fn a_kind_that_always_misses_is_found() {
    let kind = FaultKind::KillAtGate;
    let always = |count| [Violation::AlwaysMissed { kind, count }];
    assert_eq!(missed(2, kind).verdict().findings, []);
    assert_eq!(missed(3, kind).verdict().findings, always(3));
    let mut story = missed(3, kind);
    story.broken(90_000, 95_000, kind);
    assert_eq!(story.verdict().findings, [], "one found its moment");
    assert_eq!(missed(9, FaultKind::RabbitDelete).verdict().findings, []);
}

#[test]
fn other_faults_explain_misses() {
    let kind = FaultKind::KillAtGate;
    let beside = |from, to, other| {
        let mut story = missed(3, kind);
        story.broken(from, to, other);
        story.verdict().findings
    };
    assert_eq!(beside(12_000, 13_000, FaultKind::WorkerKill), []);
    // It is over before the first of them begins.
    let always = [Violation::AlwaysMissed { kind, count: 3 }];
    assert_eq!(beside(9000, 9999, FaultKind::WorkerKill), always);
    assert_eq!(beside(9000, 9999, FaultKind::RedisFlush), []);
    assert_eq!(beside(9000, 9999, FaultKind::RedisKill), []);
}

#[test]
fn a_changed_file_that_is_not_applied_needs_a_fault() {
    let beside = |from, to, other| {
        let mut story = whole();
        story.missed(50_000, 60_000, FaultKind::WorkerConfig);
        story.broken(from, to, other);
        story.verdict().findings
    };
    let at = 50_000 * MS;
    let found = [Violation::NotReloaded { at }];
    assert_eq!(beside(55_000, 56_000, FaultKind::DownstreamHang), found);
    assert_eq!(beside(19_000, 19_999, FaultKind::RedisStop), found);
    assert_eq!(beside(61_000, 62_000, FaultKind::RedisStop), found);
    assert_eq!(beside(19_000, 20_000, FaultKind::RedisStop), []);
    assert_eq!(beside(30_000, 31_000, FaultKind::WorkerKill), []);
}
