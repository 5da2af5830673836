//! Data other than policies that workers store in Redis for each other: the epoch, slots, quotas, a
//! job's ticket, and reports.

use gate::epoch::{EarlierStarts, EpochFields, NextStep, ServerIdentity, WorkerKnowledge, decide};
use rules::answers::Quotas;
use rules::headers::read_ticket;
use rules::report::view::{FleetReport, Sort};
use rules::report::{MAX_BYTES, Report};
use rules::slots::SlotOwnership;

/// Any time of Redis's clock.
const NOW_MS: u64 = 1_700_000_000_000;
/// The `INFO` of the server, which identifies its data.
const INFO: &str = "run_id:a1\nmaster_replid:b2\nmaster_replid2:0000\nuptime_in_seconds:5";

/// Checks stored data: lines with a field and its value, separated by a space, like the hash of the
/// epoch. The value of `info` is appended to `INFO`.
///
/// No input may make a worker start calls while the hash forbids that. Written data must be read as
/// it was meant.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let fields: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    let stored = EpochFields::parse(fields.iter().copied());
    let claims = stored.claims.text();
    assert_eq!(SlotOwnership::parse(&claims), stored.claims, "{claims}");
    for (_, value) in &fields {
        let quotas = Quotas::read(value);
        assert_eq!(Quotas::read(&quotas.text()), quotas);
        assert!(read_ticket(value).is_none_or(|ticket| ticket.number > 0));
    }
    let reports = fields.iter().map(|(_, value)| Report::read(value));
    joined(reports.filter_map(Result::ok).collect());
    let info_lines = fields.iter().filter(|(name, _)| *name == "info");
    let info_lines: String = info_lines
        .map(|(_, value)| format!("{}\n", value.replace(';', "\n")))
        .collect();
    let info = format!("{info_lines}{INFO}");
    let Some(memory) = ServerIdentity::parse(&info) else {
        return;
    };
    let _ = memory.whole_ms(&info);
    for start in [EarlierStarts::Unknown, EarlierStarts::Idle] {
        let known = WorkerKnowledge {
            worker: "me".to_owned(),
            span_ms: 60_000,
            start,
            ..WorkerKnowledge::default()
        };
        step(&stored, &known, &memory);
    }
    let known = WorkerKnowledge {
        worker: "me".to_owned(),
        epoch: Some((stored.id.clone(), memory.text())),
        pulse: 7,
        idle_ms: Some(5),
        span_ms: 60_000,
        ..WorkerKnowledge::default()
    };
    step(&stored, &known, &memory);
}

/// Asserts that any set of reports can be joined to one view. A rewritten report must fit its
/// maximum size and be readable.
fn joined(reports: Vec<Report>) {
    for report in &reports {
        let text = report.clone().write();
        assert!(text.len() <= MAX_BYTES, "{text}");
        assert!(Report::read(&text).is_ok(), "{text}");
    }
    let named = |(at, report): (usize, Report)| (at.to_string(), Some(Ok(report)));
    let named_reports = reports.into_iter().enumerate().map(named).collect();
    let view = FleetReport::of(NOW_MS, named_reports);
    for row in &view.tenants {
        assert!(row.starts.is_finite() && row.denials.is_finite());
        for until_ms in [row.closed_until_ms, row.line_ends_ms] {
            assert!(until_ms == 0 || until_ms > NOW_MS);
        }
    }
    for sort in [Sort::Waiting, Sort::Denied, Sort::Closed, Sort::Starts] {
        assert_eq!(view.first(sort, usize::MAX).len(), view.tenants.len());
    }
}

fn step(stored: &EpochFields, known: &WorkerKnowledge, memory: &ServerIdentity) {
    match decide(stored, known, memory, NOW_MS, "new") {
        NextStep::Admit { .. } => {
            assert!(stored.cold <= NOW_MS && stored.run == memory.text() && !stored.id.is_empty());
        }
        NextStep::Wait { until, .. } => assert!(until > NOW_MS),
        NextStep::Write(fields) => {
            assert!(!fields.is_empty());
            let fields = fields
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()));
            let written = EpochFields::parse(fields);
            assert!(written.cold < u64::MAX, "nothing would ever start");
        }
    }
}
