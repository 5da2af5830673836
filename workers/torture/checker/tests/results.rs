//! Correct results, and each way in which a result can be wrong.

use super::*;

/// Rules of a run with a listener.
const WITH_LISTENER: CheckRules = CheckRules {
    results: true,
    ..RULES
};

/// Judges a whole history to which `tell` adds the result of `ONE`.
fn violations_with(tell: impl FnOnce(&mut Story)) -> Vec<Violation> {
    let mut story = whole();
    let jobs: Vec<JobId> = (0..10)
        .map(|number| JobId::new(number % 2, number))
        .collect();
    for job in jobs {
        if job != ONE.of_whole() {
            story.result(900, Some(job), "done", Some(200));
        }
    }
    tell(&mut story);
    story.verdict_by(WITH_LISTENER).findings
}

impl JobId {
    /// Returns the job of this number in [`whole`].
    fn of_whole(self) -> Self {
        Self {
            tenant: self.number % 2,
            ..self
        }
    }
}

impl Story {
    fn result(&mut self, ms: u64, job: Option<JobId>, ended: &str, status: Option<u16>) {
        let ended = ended.to_owned();
        self.add(ms, EventKind::Told { job, ended, status });
    }
}

#[test]
fn each_job_has_a_result_after_its_call() {
    let one = ONE.of_whole();
    let right = |story: &mut Story| story.result(900, Some(one), "done", Some(200));
    assert_eq!(violations_with(right), []);
    let twice = |story: &mut Story| {
        right(story);
        right(story);
    };
    assert_eq!(violations_with(twice), []);
    assert_eq!(violations_with(|_| {}), [Violation::NoResult { job: one }]);
    let mistold = |ms: u64, job, how: &str| Violation::WrongResult {
        at: ms * MS,
        job,
        how: how.to_owned(),
    };
    for (ms, job, ended, status) in [
        // Too early; with another status; with another end; without a status; without a job.
        (5, Some(one), "done", Some(200)),
        (900, Some(one), "done", Some(422)),
        (900, Some(one), "done", None),
        (900, Some(one), "dead", Some(200)),
        (900, Some(one), "", Some(200)),
        (900, None, "done", Some(200)),
    ] {
        let findings = violations_with(|story| {
            right(story);
            story.result(ms, job, ended, status);
        });
        let how = format!("{ended} {status:?}");
        assert_eq!(findings, [mistold(ms, job, &how)]);
    }
}

#[test]
fn missing_results_are_found_even_if_none_ever_came() {
    let verdict = whole().verdict_by(WITH_LISTENER);
    assert_eq!((verdict.confirmed, verdict.results), (10, 0));
    let missing = (verdict.findings.iter())
        .filter(|finding| matches!(finding, Violation::NoResult { .. }))
        .count();
    assert_eq!((verdict.findings.len(), missing), (10, 10));
}

#[test]
fn a_dead_jobs_result_may_have_its_status() {
    let verdict = |status| {
        let mut story = Story::new();
        story.published(0, ONE);
        story.called(1, ONE, 1, DownstreamAnswer::Rejected);
        story.result(7, Some(ONE), "dead", status);
        let reason = "422".to_owned();
        story.add(9, EventKind::Dead { job: ONE, reason });
        story.verdict_by(WITH_LISTENER)
    };
    assert!(verdict(Some(422)).holds() && verdict(None).holds());
    assert!(!verdict(Some(500)).holds());
}
