//! Delayed starts: correct ones, and one that is too early.

use super::*;

#[test]
fn a_job_is_not_called_before_its_time() {
    let findings = |at: u64| {
        let mut story = Story::new();
        story.published(0, ONE);
        let from = 40 * MS;
        story.add(0, EventKind::Starts { job: ONE, from });
        story.called(at, ONE, 1, DownstreamAnswer::Failed);
        story.called(300, ONE, 2, DownstreamAnswer::Done);
        let verdict = story.verdict();
        assert_eq!(verdict.delayed, 1);
        verdict.findings
    };
    assert_eq!(findings(40), []);
    let (at, by) = (39 * MS, MS);
    assert_eq!(findings(39), [Violation::Early { job: ONE, at, by }]);
}
