//! A fleet for tests of the state and the views, without a server.

use std::collections::BTreeMap;

use broker::Message;
use config::Pipelines;
use gate::instructions::BoardView;
use gate::reports::Fleet;
use operator::dead::{LetterList, SearchProgress};
use operator::fleet::BusiestTenants;
use operator::fullness::Fullness;
use operator::inspect::InspectionAnswer;
use operator::letters::LetterRow as Letter;
use operator::overview::Overview;
use operator::recovery::Recovery;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rules::decision::Tally;
use rules::headers::HeaderValue;
use rules::report::view::{FleetReport as Workers, Sort, WaitlistState};
use rules::report::{Load, Report, ReportedTenant};
use rules::scope::Scope;
use rules::steering::{Hold, Instruction};
use rules::tenant::Tenant;

use super::model::{Glance, Model, ServerAnswer, ServerRequest};

/// Redis's clock, and also the operator's: Tue, 14 Nov 2023 22:13:20 GMT.
pub const NOW: u64 = 1_700_000_000_000;
/// A name with characters that would control a terminal. None of them may reach it.
pub const HOSTILE: &str = "\u{202e}evil\u{200b}日本語";

pub fn tenant(name: &str) -> Tenant {
    Tenant::parse(name).expect("a tenant")
}

pub fn pipelines(yaml: &str) -> Pipelines {
    Pipelines::parse("c.yaml", yaml, std::iter::empty()).expect("valid")
}

pub fn model() -> Model {
    Model::new(&pipelines(""), Sort::Waiting, NOW)
}

fn of(name: &str, change: impl FnOnce(&mut ReportedTenant)) -> ReportedTenant {
    let mut one = ReportedTenant::new(tenant(name));
    change(&mut one);
    one
}

pub fn limit(name: &str, used: u64, max: u64) -> Fullness {
    Fullness {
        name: name.to_owned(),
        scope: Scope::Tenant,
        window: "1m".to_owned(),
        used: Some(used),
        max,
        override_until_ms: 0,
        next_ms: if used < max { 0 } else { 42_000 },
        waiting: 3,
        shadow: None,
        is_tried: false,
    }
}

/// Returns a shadow that would have delayed 312 of 4,000 jobs.
pub fn shadow(name: &str) -> Fullness {
    Fullness {
        shadow: Some(Tally {
            starts: 4_000,
            waited: 312,
            never: 0,
            worst_ms: 41_000,
        }),
        ..limit(name, 30, 50)
    }
}

/// Returns a fleet of two workers, one of which is not ready, and four tenants.
pub fn fleet() -> Fleet {
    let tenants = vec![
        of("acme", |it| {
            (it.waiting, it.running, it.starts, it.denials) = (240, 3, 25, 7);
            it.waits_for = "hour".to_owned();
            it.line_ends_ms = NOW + 724_000;
        }),
        of("beta", |it| it.closed_until_ms = NOW + 60_500),
        of(HOSTILE, |it| it.waiting = 2),
        of("gamma", |it| it.starts = 50),
    ];
    let ready = Report {
        host: "gate-1".to_owned(),
        pid: 811,
        version: "0.1.0".to_owned(),
        up_ms: 125_000,
        ready: true,
        waiting: 242,
        over_ms: 2_000,
        load: Load {
            running: 3,
            slots: 16,
            saturation: 0.1875,
            ..Load::default()
        },
        tenants,
        ..Report::default()
    };
    let ill = Report {
        host: "gate-2\u{1b}[2J".to_owned(),
        pid: 407,
        notes: vec!["Redis does\nnot answer".to_owned()],
        load: Load {
            slots: 16,
            idle: 4,
            ..Load::default()
        },
        ..ready.clone()
    };
    let ill = Report {
        ready: false,
        tenants: Vec::new(),
        ..ill
    };
    let reports = [("a", ready), ("b", ill)];
    let reports = reports.map(|(name, report)| (name.to_owned(), Some(Ok(report))));
    Fleet {
        view: Workers::of(NOW, reports.to_vec()),
        ..Fleet::default()
    }
}

/// Returns this fleet as a complete picture, with the state at the gate.
pub fn picture() -> Box<Overview> {
    let fleet = fleet();
    let mut rows = fleet.view.first(Sort::Waiting, 99);
    for row in &mut rows {
        let line = match row.tenant.as_str() {
            "acme" => WaitlistState {
                waiting: Some(700),
                ends_ms: NOW + 724_000,
                ..WaitlistState::default()
            },
            "beta" => WaitlistState {
                waiting: Some(0),
                closed_until_ms: NOW + 60_500,
                closed_by: "429 from\nthe API".to_owned(),
                ..WaitlistState::default()
            },
            _ => WaitlistState {
                waiting: Some(0),
                ..WaitlistState::default()
            },
        };
        row.update(line);
    }
    let shared = Fullness {
        scope: Scope::Global,
        ..limit("all", 90, 100)
    };
    let by_header = Fullness {
        used: None,
        scope: Scope::Header("x-path".to_owned()),
        ..limit("path", 0, 9)
    };
    let limits = [
        (
            "acme",
            vec![
                shared.clone(),
                limit("hour", 50, 50),
                by_header,
                shadow("hour"),
            ],
        ),
        ("beta", vec![shared, limit("hour", 0, 50)]),
        (HOSTILE, vec![limit("hour", 7, 50)]),
    ];
    let limits = limits.map(|(name, limits)| (tenant(name), limits));
    Box::new(Overview {
        shown: Some(BusiestTenants {
            rows,
            limits: BTreeMap::from(limits),
            ..BusiestTenants::default()
        }),
        fleet,
        recovery: vec![Recovery::Over],
        all: None,
        others: None,
    })
}

/// Returns the picture with all workers paused by operators, a possible data loss of Redis, and an
/// open breaker.
pub fn stopped() -> Box<Overview> {
    let mut picture = picture();
    picture.fleet.boards = vec![BoardView {
        now_ms: NOW,
        posted: vec![(Instruction::All(Hold::Paused), NOW + 3_600_000)],
        ..BoardView::default()
    }];
    picture.recovery = vec![Recovery::Waits {
        now_ms: NOW,
        until_ms: NOW + 42_000,
        why: "it was emptied".to_owned(),
    }];
    picture.all = Some(Ok(gate::Standing {
        now_ms: NOW,
        is_open: true,
        closed_until_ms: NOW + 9_000,
        reason: "5 failures in a row: HTTP 503".to_owned(),
        ..Default::default()
    }));
    picture
}

pub fn glance() -> Box<Glance> {
    Box::new(Glance {
        found: InspectionAnswer {
            now_ms: NOW,
            waiting: Some(700),
            waitlist_end_in_ms: Some(724_000),
            reason: "the limit hour is exhausted".to_owned(),
            ..InspectionAnswer::default()
        },
        limits: vec![
            limit("hour", 50, 50),
            limit("day", 60, 1_000),
            shadow("hour"),
        ],
        description: (0..30)
            .map(|at| format!("line {at}    words\u{1b}[31m\n"))
            .collect(),
    })
}

pub fn letters(number: usize) -> LetterList {
    let row = |at: usize| {
        let message = Message {
            routing_key: String::new(),
            properties: lapin::BasicProperties::default()
                .with_message_id(format!("job-{at}").into()),
            body: "{}".into(),
        };
        let reason = HeaderValue::Text("HTTP 422\u{1b}[2J".to_owned());
        let message = message.with_headers(
            &[
                ("x-sluicegate-reason", reason),
                ("x-sluicegate-died", HeaderValue::Int(1_699_999_000_000)),
                ("x-sluicegate-attempt", HeaderValue::Int(5)),
            ],
            &[],
        );
        let whose = if at.is_multiple_of(2) {
            "acme"
        } else {
            HOSTILE
        };
        Letter::new(&message, Some(whose.to_owned()))
    };
    LetterList {
        rows: (0..number).map(row).collect(),
        progress: SearchProgress {
            left: 0,
            seen: number as u64,
            bytes: 0,
            max_bytes: 1,
        },
    }
}

pub fn press(model: &mut Model, code: KeyCode) -> Vec<(u64, ServerRequest)> {
    model.pressed(KeyEvent::new(code, KeyModifiers::NONE))
}

/// Types each character. `\n` is Enter, `\u{1b}` is Esc.
pub fn types(model: &mut Model, text: &str) -> Vec<(u64, ServerRequest)> {
    let code = |c| match c {
        '\n' => KeyCode::Enter,
        '\u{1b}' => KeyCode::Esc,
        c => KeyCode::Char(c),
    };
    text.chars().flat_map(|c| press(model, code(c))).collect()
}

/// Answers all due questions with one picture.
pub fn answer(model: &mut Model, picture: fn() -> Box<Overview>) {
    for (number, request) in model.due() {
        let answer = match request {
            ServerRequest::Overview(at, selection) => {
                let mut picture = picture();
                if selection.is_none() {
                    picture.shown = None;
                }
                ServerAnswer::Overview(at, Ok(picture))
            }
            ServerRequest::Glance(..) => ServerAnswer::Glance(Ok(glance())),
            ServerRequest::DeadLetters(at) => ServerAnswer::DeadLetters(at, Ok(letters(5))),
            other => panic!("{other:?} is never due"),
        };
        model.receive(number, answer);
    }
}
