//! The log lines of facts, their number, and their metrics.

use std::io;
use std::sync::{Arc, Mutex};

use super::*;
use crate::line_limiter::LineLimiter;
use ::gate::GateError;
use handler::Outcome;
use rules::limit::{Algorithm, Limit};
use rules::tenant::Tenant;

#[derive(Clone, Default)]
struct LogLines(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogLines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(text)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the lines that are logged.
fn logged(facts: Vec<impl Into<Fact>>) -> String {
    let facts: Vec<Fact> = facts.into_iter().map(Into::into).collect();
    let lines = LogLines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let mut limiter = LineLimiter::default();
    let say_all = || {
        let now = Duration::from_secs(60);
        for fact in &facts {
            fact.log(&mut LineBudget {
                limiter: &mut limiter,
                now,
            });
        }
        limiter.close(now + Duration::from_secs(3));
    };
    tracing::subscriber::with_default(subscriber, say_all);
    let bytes = lines.0.lock().expect("no panic").clone();
    String::from_utf8(bytes).expect("text")
}

fn job() -> JobFields {
    JobFields {
        id: Some("job-7".to_owned()),
        tenant: Tenant::parse("a").expect("a tenant"),
        trace: None,
    }
}

#[test]
fn a_dead_letter_is_logged_with_its_reason() {
    let reason = "its deadline is over".to_owned();
    let fact = JobFact::DeadLetter(job(), Death::Expired, reason);
    let log = logged(vec![fact]);
    for part in ["WARN", "job-7", "tenant=a", "its deadline is over"] {
        assert!(log.contains(part), "{part} is missing in {log}");
    }
}

#[test]
fn a_line_about_a_job_names_its_trace() {
    let trace = Context::parse("00-0000000000000000000000000000000a-000000000000000b-01");
    let job = JobFields { trace, ..job() };
    let log = logged(vec![JobFact::FailedWhileOpen(job, "503".to_owned())]);
    let ids = "trace_id=\"0000000000000000000000000000000a\" span_id=\"000000000000000b\"";
    assert!(log.contains(ids), "{log}");
}

#[test]
fn many_lines_of_a_kind_become_a_few_and_a_summary() {
    let reason = || "503".to_owned();
    let failed = |number: u32| JobFact::Retried {
        job: job(),
        attempt: number,
        wait: Duration::from_secs(1),
        reason: reason(),
    };
    let mut facts: Vec<JobFact> = (0..500).map(failed).collect();
    facts.extend((0..13).map(|_| JobFact::DeadLetter(job(), Death::Attempts, reason())));
    let log = logged(facts);
    let lines = |part: &str| log.lines().filter(|line| line.contains(part)).count();
    assert_eq!(lines("job failed: it will be retried"), 10, "{log}");
    assert_eq!(lines("dead letter "), 10, "{log}");
    assert_eq!(log.lines().count(), 22, "{log}");
    for rest in [
        "INFO sluicegate_engine::line_limiter: more jobs failed more=490 within_s=3",
        "WARN sluicegate_engine::line_limiter: more dead letters more=3 within_s=3",
    ] {
        assert!(log.contains(rest), "{rest} is missing in {log}");
    }
}

#[test]
fn many_tenants_without_a_decision_have_a_few_lines_and_a_summary() {
    let undecided = |number: u32| TenantFact::Undecided {
        tenant: Tenant::parse(&format!("tenant-{number}")).expect("a name"),
        labels: Labels::default(),
        jobs: 1,
        why: GateError::Refused("NOPERM".into()),
        what: NoDecision::Refused(Duration::from_secs(60)),
    };
    let log = logged((0..500).map(undecided).collect::<Vec<_>>());
    assert_eq!(log.matches("ERROR").count(), 10, "{log}");
    assert!(
        log.contains("more questions without a decision more=490"),
        "{log}"
    );
}

#[test]
fn a_tenant_that_closes_and_opens_has_a_line_for_each() {
    let second = Duration::from_secs(1);
    let limit = Limit::new("hourly", Algorithm::SlidingWindow, 5, second, second / 20);
    let limits = limit.expect("a limit").into();
    let tenant = job().tenant;
    let closed = |by| TenantFact::Closed {
        tenant: tenant.clone(),
        by,
        wait: second,
    };
    let log = logged(vec![
        closed(ClosedBy::Limit(limits, 0)),
        closed(ClosedBy::Suspension),
        TenantFact::Opened {
            tenant: tenant.clone(),
            after: 90 * second,
            denied: 7,
        },
    ]);
    for line in [
        "tenant closed: its jobs wait for a limit tenant=a limit=\"hourly\" wait_ms=1000",
        "tenant closed: suspended tenant=a wait_ms=1000",
        "tenant open again tenant=a closed_s=90 denied=7",
    ] {
        assert!(log.contains(line), "{line} is missing in {log}");
    }
}

#[test]
fn an_unreadable_clock_is_logged_with_its_tenant_and_reason() {
    let why = GateError::Refused("WRONGTYPE of a test".to_owned());
    let log = logged(vec![TenantFact::ClockUnreadable(job().tenant, 3, why)]);
    for part in ["WARN", "tenant=a", "jobs=3", "WRONGTYPE of a test"] {
        assert!(log.contains(part), "{part} is missing in {log}");
    }
}

#[test]
fn events_of_single_jobs_are_not_logged() {
    let log = logged(vec![
        Fact::from(GateFact::Decided(Decision::Admitted)),
        Fact::from(JobFact::Called(
            Outcome::Done,
            Some(Duration::from_millis(5)),
        )),
        Fact::from(JobFact::Delayed(WaitPlace::LongestDelayQueue)),
    ]);
    assert_eq!(log, "");
}

#[test]
fn events_of_jobs_are_counted_by_kind() {
    let job = || JobFields {
        id: Some("job-7".to_owned()),
        tenant: Tenant::parse("a").expect("a tenant"),
        trace: None,
    };
    let metrics = Metrics::new();
    for fact in [
        Fact::from(GateFact::Answered(Duration::from_millis(2), false)),
        Fact::from(GateFact::Decided(Decision::Admitted)),
        Fact::from(JobFact::Called(
            Outcome::Done,
            Some(Duration::from_millis(5)),
        )),
        Fact::from(JobFact::Called(Outcome::Done, None)),
        Fact::from(JobFact::Delayed(WaitPlace::LongestDelayQueue)),
        Fact::from(JobFact::DeadLetter(job(), Death::Expired, String::new())),
        Fact::from(JobFact::DeadLetter(job(), Death::Attempts, String::new())),
        Fact::from(JobFact::DeadLetter(job(), Death::Attempts, String::new())),
    ] {
        fact.count(&metrics);
    }
    let shown = metrics.encode();
    for line in [
        "sluicegate_gate_round_trips_total 1",
        "sluicegate_gate_failures_total 1",
        "sluicegate_gate_seconds_count 1",
        "sluicegate_decisions_total{answer=\"start\"} 1",
        "sluicegate_dispatches_total{outcome=\"done\"} 2",
        "sluicegate_dispatch_seconds_count 1",
        "sluicegate_delays_total{where=\"longest-delay-queue\"} 1",
        "sluicegate_dead_letters_total{reason=\"expired\"} 1",
        "sluicegate_dead_letters_total{reason=\"attempts\"} 2",
    ] {
        assert!(shown.lines().any(|l| l == line), "{line} is missing");
    }
}

#[test]
fn a_turn_with_many_events_leaves_no_large_buffer() {
    let (mut facts, mut buffer) = (Facts::default(), Vec::new());
    facts.extend((0..5 * MAX_KEPT).map(|_| GateFact::Decided(Decision::Admitted)));
    facts.take(&mut buffer);
    assert_eq!(buffer.len(), 5 * MAX_KEPT);
    facts.take(&mut buffer);
    assert!(buffer.is_empty());
    assert!(facts.0.capacity() <= MAX_KEPT);
}
