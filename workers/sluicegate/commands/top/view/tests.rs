//! The text on the screen, character by character.

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::commands::top::beds::{HOSTILE, NOW, answer, model, picture, pipelines, stopped, types};
use crate::commands::top::model::{ServerAnswer, ServerRequest};
use rules::report::view::Sort;

mod beside;
mod page;
mod scrolling;
mod shadows;

fn screen(model: &Model, (wide, high): (u16, u16), has_color: bool) -> (String, bool) {
    let mut terminal = Terminal::new(TestBackend::new(wide, high)).expect("a terminal");
    let frame = terminal
        .draw(|frame| draw(frame, model, has_color))
        .expect("drawn");
    let cells = frame.buffer.content();
    let is_coloured = cells
        .iter()
        .any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
    let mut text = String::new();
    for row in cells.chunks(usize::from(wide.max(1))) {
        let mut skip = 0;
        let mut line = String::new();
        for cell in row {
            if skip > 0 {
                skip -= 1;
                continue;
            }
            line.push_str(cell.symbol());
            skip = ratatui::text::Span::raw(cell.symbol())
                .width()
                .saturating_sub(1);
        }
        text += line.trim_end();
        text.push('\n');
    }
    (text, is_coloured)
}

fn shows(model: &Model, size: (u16, u16)) -> String {
    let (text, is_coloured) = screen(model, size, false);
    assert!(!is_coloured, "without colour");
    let steers = text.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(steers, None, "{text}");
    assert!(!text.contains(['\u{202e}', '\u{200b}']), "{text}");
    let (coloured, _) = screen(model, size, true);
    assert_eq!(coloured, text, "colours say nothing that words do not");
    text
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

fn at(keys: &str, picture: fn() -> Box<operator::overview::Overview>) -> Model {
    let mut model = model();
    for key in keys.chars() {
        types(&mut model, &key.to_string());
        answer(&mut model, picture);
    }
    answer(&mut model, picture);
    model
}

#[test]
fn the_fleet() {
    let text = shows(&at("1", picture), (80, 24));
    has(
        &text,
        &[
            "sluicegate top  2 workers, 1 ready",
            "22:13:20 UTC",
            "[1 Fleet]  2 Tenants   3 Limits   4 Dead letters",
            "3 of 32 calls in flight; 484 jobs waiting in memory (0 delayed); 4 late",
            "WORKER",
            ">gate-1:811",
            "2m 5s    3/16  19 %",
            "gate-2\\u{1b}[2J:…",
            "not ready",
        ],
    );
    let mut model = at("1", picture);
    types(&mut model, "j");
    has(
        &shows(&model, (80, 24)),
        &["gate-2\\u{1b}[2J:407: not ready: Redis does\\nnot answer"],
    );
    has(
        &shows(&model, (120, 40)),
        &["[##......]  19 %", "not ready: Redis does\\nnot "],
    );
    let nobody = at("1", || {
        let mut picture = picture();
        picture.fleet.view.workers.clear();
        picture
    });
    has(&shows(&nobody, (80, 24)), &["no worker is running"]);
    let silent = at("1", || {
        let mut picture = picture();
        let view = &mut picture.fleet.view;
        view.workers.clear();
        view.silent = vec!["a".to_owned()];
        picture
    });
    let text = shows(&silent, (80, 24));
    has(&text, &["1 more worker is alive but has no report"]);
    assert!(!text.contains("no worker is running"), "{text}");
}

#[test]
fn several_pipelines() {
    let yaml = "
pipelines:
  bills: {amqp: {queue: bills}}
  orders: {amqp: {queue: orders}}
";
    let mut model = Model::new(&pipelines(yaml), Sort::Waiting, NOW);
    let due = model.due();
    model.receive(due[0].0, ServerAnswer::Overview(0, Ok(picture())));
    model.receive(due[1].0, ServerAnswer::Overview(1, Err("away".to_owned())));
    types(&mut model, "]");
    has(
        &shows(&model, (80, 24)),
        &[
            "pipeline orders (2 of 2)",
            "PIPELINE",
            "bills",
            "1/2",
            "1 not ready",
            ">orders",
            "NO ANSWER from Redis",
        ],
    );
    types(&mut model, "1");
    model.at_time(NOW + 2_000);
    answer(&mut model, stopped);
    has(
        &shows(&model, (120, 40)),
        &["an operator paused all workers; it"],
    );
}

#[test]
fn the_tenants() {
    let text = shows(&at("2", picture), (80, 24));
    has(
        &text,
        &[
            "by waiting (s changes): 4 tenants",
            "TENANT",
            ">acme",
            "   700    240     12.5      3.5",
            "12:04",
            "limit hour",
            "\\u{202e}evil",
            "1:01",
            "429 from\\n",
            "acme: waits for the limit hour; 700 in line, the last starts in 12:04",
            "(22:25:24",
        ],
    );
    let wide = shows(&at("2", picture), (120, 40));
    has(
        &wide,
        &[
            "CALLS",
            "\\u{202e}evil\\u{200b}日本語",
            "429 from\\nthe API",
        ],
    );
    // The clock runs without answers, and stops at its end.
    let mut model = at("2jj", picture);
    has(
        &shows(&model, (80, 24)),
        &["beta: SUSPENDED, opens in 1:01 (22:14:20 UTC): 429 from\\nthe API"],
    );
    model.at_time(NOW + 20_500);
    has(
        &shows(&model, (80, 24)),
        &["SUSPENDED, opens in 0:40", "11:44"],
    );
    model.at_time(NOW + 61_000);
    has(&shows(&model, (80, 24)), &["beta: open"]);
    let search = at("2/e", picture);
    has(
        &shows(&search, (80, 24)),
        &["/e_", "with \"e\" in the name: 3 tenants"],
    );
}

#[test]
fn the_limits() {
    let text = shows(&at("3", picture), (80, 24));
    has(
        &text,
        &[
            "(all tenants)",
            "[############.]",
            "90/100",
            "50/50",
            "[#############]",
            "0:42",
            "by x-path",
            "?/9",
        ],
    );
    assert_eq!(text.matches("(all tenants)").count(), 1, "{text}");
    let mut changed = at("3", || {
        let mut picture = picture();
        let limits = &mut picture.shown.as_mut().expect("tenants").limits;
        let of = limits.values_mut().next().expect("acme");
        of[1].override_until_ms = NOW + 1_000;
        picture
    });
    has(&shows(&changed, (120, 40)), &["50/50*"]);
    changed.at_time(NOW + 2_000);
    has(&shows(&changed, (120, 40)), &["0:40"]);
}

#[test]
fn the_dead_letters() {
    let text = shows(&at("4", picture), (80, 24));
    has(
        &text,
        &[
            "5 dead letters, newest first, as of now",
            "DIED",
            "16m 40s ago",
            "acme",
            "HTTP 422\\u{1b}[2J",
            "id job-0  tenant acme  died Tue, 14 Nov 2023 21:56:40 GMT  attempt 5",
        ],
    );
    let mut model = at("4", picture);
    model.at_time(NOW + 14_000);
    has(
        &shows(&model, (80, 24)),
        &["as of 14s ago (f fetches again)"],
    );
    types(&mut model, "f");
    model.due();
    has(
        &shows(&model, (80, 24)),
        &["fetching dead letters from RabbitMQ ... 5 dead"],
    );
}

#[test]
fn a_confirmation_prompt_describes_the_action() {
    for (keys, parts) in [
        (
            "2p",
            &["Pause acme for how long? (90s, 30m, 7d; Enter: 1h)", "> _"][..],
        ),
        (
            "2p\n",
            &[
                "Pause acme for 1h: no worker starts its jobs.",
                "Do it? (y/N)",
            ],
        ),
        ("2p0\n", &["invalid: it must be from 1s to 365d", "> 0_"]),
        ("2r", &["Resume acme: ends its pause and throttle (429)"]),
        ("2l", &["Limit default of acme: temporary max-requests?"]),
        (
            "2l7\n\n",
            &["Limit default of acme: max-requests is 7 for 1h, at all"],
        ),
        (
            "2c",
            &["Limit default of acme: the configured max-requests applies"],
        ),
        (
            "2t",
            &["Limit default of acme: max-requests to try? It denies"],
        ),
        (
            "2t7\n\n",
            &["Try max-requests 7 for the limit default of acme for 1h: it counts"],
        ),
        (
            "2x",
            &["End the trial of the limit default of acme: the enforced"],
        ),
        (
            "2z",
            &["Reset the waitlist of acme: it is emptied, and usage is"],
        ),
        (
            "4R",
            &["Replay the dead letter job-0 of acme: it returns to"],
        ),
        (
            "4T",
            &["Replay all dead letters of acme (3 in the list): they return"],
        ),
        (
            "4A",
            &["Replay ALL dead letters of all tenants (5 dead letters in"],
        ),
        (
            "4jT",
            &["Replay all dead letters of \\u{202e}evil\\u{200b}日本語 (2 in"],
        ),
    ] {
        let mut model = at(&keys[..1], picture);
        types(&mut model, &keys[1..]);
        has(&shows(&model, (80, 24)), parts);
    }
}

#[test]
fn global_stops_and_unreachable_servers_are_above_each_view() {
    for keys in ["1", "2", "3", "4", "2\n"] {
        let mut model = at(keys, stopped);
        has(
            &shows(&model, (120, 40)),
            &[
                "an operator paused all workers; it ends in 1h 0m",
                "recovery wait: ends in 44.0s",
                "all tenants are suspended, the next job is admitted in 9.0s (",
                "by 5 failures in a row:",
                "HTTP 503; sluicegate tenant resume --all ends it",
            ],
        );
        // The question hangs, and then fails.
        model.at_time(NOW + 2_000);
        let due = model.due();
        model.at_time(NOW + 5_000);
        has(
            &shows(&model, (120, 40)),
            &["NO ANSWER from Redis since 22:13:22 UTC (3s) - the picture below is 5s old"],
        );
        for (number, _) in due {
            let away = "refused\u{1b}".to_owned();
            model.receive(number, ServerAnswer::Overview(0, Err(away.clone())));
            model.receive(number, ServerAnswer::Glance(Err(away)));
        }
        model.at_time(NOW + 9_000);
        has(
            &shows(&model, (120, 40)),
            &[
                "NO ANSWER from Redis since 22:13:22 UTC (7s) - the picture below is 9s old: refused\\u{1b}",
            ],
        );
    }
    let mut model = at("1", picture);
    types(&mut model, "4");
    for (number, request) in model.due() {
        if let ServerRequest::DeadLetters(_) = request {
            model.receive(
                number,
                ServerAnswer::DeadLetters(0, Err("closed".to_owned())),
            );
        }
    }
    has(
        &shows(&model, (80, 24)),
        &[
            "NO ANSWER from RabbitMQ since",
            "dead letters were not fetched",
        ],
    );
}

#[test]
fn completed_actions_are_shown_below() {
    let mut model = at("2", picture);
    let asked = types(&mut model, "ry");
    has(&shows(&model, (80, 24)), &["resuming acme (now)"]);
    model.receive(
        asked[0].0,
        ServerAnswer::Progress("3 so far\u{1b}".to_owned()),
    );
    model.receive(
        asked[0].0,
        ServerAnswer::Done(Err("Redis is away".to_owned())),
    );
    has(&shows(&model, (80, 24)), &["NOT DONE: Redis is away"]);
}

#[test]
fn any_size_is_drawn() {
    for keys in ["1", "2", "3", "4", "2\n", "?", "2p", "2z", "2/x", "4A"] {
        for picture in [picture, stopped] {
            let mut model = at(&keys[..1], picture);
            types(&mut model, &keys[1..]);
            answer(&mut model, picture);
            for size in [
                (1, 1),
                (2, 1),
                (39, 7),
                (40, 8),
                (40, 10),
                (60, 9),
                (80, 24),
                (81, 25),
                (120, 40),
                (300, 3),
                (300, 100),
            ] {
                shows(&model, size);
            }
        }
    }
    let small = shows(&at("1", picture), (30, 5));
    assert!(small.starts_with("too small: needs 40x8"), "{small}");
}

#[test]
fn help_has_room_on_a_small_terminal() {
    let text = shows(&at("?", picture), (80, 24));
    has(&text, &["sluicegate top: keys", "q, Ctrl-C        quit"]);
    assert!(!text.contains('…'), "{text}");
}

#[test]
fn a_hostile_name_is_marked_by_its_columns() {
    let model = at("2j", picture);
    let text = shows(&model, (80, 24));
    assert_eq!(model.selected_tenant().expect("a tenant").as_str(), HOSTILE);
    has(&text, &[">\\u{202e}evil"]);
    for line in text.lines() {
        let wide = ratatui::text::Span::raw(line).width();
        assert!(wide <= 80, "{wide}: {line}");
    }
}
