//! Tenants beside a rude neighbor.

use super::*;

/// Returns a history with `done` jobs of tenant 0 and 100 of tenant 1 within 10 s, in which each
/// may have 200. In the 5 s before, only tenant 1 has some.
fn beside(done: u32, kind: FaultKind) -> Story {
    beside_until(16_000, done, kind)
}

/// Returns the same history with a neighbor that is rude until `mended`.
fn beside_until(mended: u64, done: u32, kind: FaultKind) -> Story {
    let mut story = Story::new();
    story.broken(1000, mended, kind);
    let mut publish = |tenant, number, ms| {
        let job = JobId { tenant, number };
        story.published(0, job);
        story.called(ms, job, 1, DownstreamAnswer::Done);
    };
    for number in 0..done {
        publish(0, number, 6000 + 90 * u64::from(number));
    }
    for number in 0..100 {
        publish(1, number, 6000 + 99 * u64::from(number));
    }
    publish(1, 100, 3000);
    story
}

#[test]
fn each_tenant_gets_an_eighth_of_its_limit_or_more() {
    let verdict = beside(25, FaultKind::RudeJobs).verdict();
    assert!(verdict.holds(), "{:?}", verdict.findings);
    assert_eq!(verdict.neighbors, Some((25, 200)));
    let verdict = beside(24, FaultKind::RudeJobs).verdict();
    let felt = Violation::Starved {
        tenant: 0,
        kind: FaultKind::RudeJobs,
        at: 6000 * MS,
        done: 24,
        allowed: 200,
    };
    assert_eq!(verdict.findings, [felt]);
}

#[test]
fn a_paused_tenant_does_not_catch_up() {
    // Tenant 0 has 100 jobs done in 9 s, and tenant 1 has 100 in 10 s.
    let mut story = beside_until(36_000, 100, FaultKind::RudeJobs);
    // Tenant 0 pauses and then has as many jobs done as its limit allows.
    for number in 0..400 {
        let job = JobId {
            tenant: 0,
            number: 1000 + number,
        };
        story.published(0, job);
        story.called(
            20_000 + 50 * u64::from(number),
            job,
            1,
            DownstreamAnswer::Done,
        );
    }
    let findings = story.verdict().findings;
    let tenants: Vec<_> = (findings.iter())
        .map(|finding| match finding {
            Violation::Starved { tenant, done, .. } => (*tenant, *done),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tenants, [(1, 0)], "not tenant 0");
}

#[test]
fn a_job_that_is_called_again_and_again_counts_once() {
    let mut story = beside(24, FaultKind::DownstreamRefuseMost);
    let job = JobId {
        tenant: 0,
        number: 7,
    };
    for call in 0..20 {
        story.called(12_000 + 200 * call, job, 1, DownstreamAnswer::Done);
    }
    let rules = CheckRules {
        windows_hold: false,
        ..RULES
    };
    let findings = story.verdict_by(rules).findings;
    assert!(
        matches!(findings[..], [Violation::Starved { done: 24, .. }]),
        "{findings:?}"
    );
}

#[test]
fn no_share_is_required_during_faults_or_at_the_end() {
    assert!(beside(0, FaultKind::RedisCut).verdict().holds());
    // Workers learn within 11 s that a queue confirms nothing.
    assert!(
        beside_until(26_900, 0, FaultKind::RudeReplies)
            .verdict()
            .holds()
    );
    assert!(
        !beside_until(27_100, 0, FaultKind::RudeReplies)
            .verdict()
            .holds()
    );
    let mut story = beside(0, FaultKind::RudeJobs);
    story.broken(2000, 2100, FaultKind::RedisCut);
    assert!(story.verdict().holds());
    let mut story = beside(0, FaultKind::RudeJobs);
    story.add(5500, EventKind::Draining);
    assert_eq!(story.verdict().neighbors, None);
}

#[test]
fn a_run_of_rude_neighbors_has_one_that_was_not_missed() {
    let rules = CheckRules {
        neighbors: true,
        ..RULES
    };
    let verdict = beside(25, FaultKind::RudeJobs).verdict_by(rules);
    assert_eq!(
        (verdict.neighbors, verdict.findings),
        (Some((25, 200)), vec![])
    );
    let short = beside_until(15_900, 25, FaultKind::RudeJobs).verdict_by(rules);
    assert_eq!(short.findings, [Violation::NoNeighbor]);
    let mut story = beside(25, FaultKind::RudeJobs);
    story.add(9000, EventKind::Missed { fault: 1000 });
    assert_eq!(story.verdict_by(rules).findings, [Violation::NoNeighbor]);
    // A share that is too low is found nevertheless.
    let mut story = beside(24, FaultKind::RudeJobs);
    story.add(9000, EventKind::Missed { fault: 1000 });
    let findings = story.verdict().findings;
    assert!(
        matches!(findings[..], [Violation::Starved { .. }]),
        "{findings:?}"
    );
}
