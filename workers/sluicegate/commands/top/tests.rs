//! Reactions to keys, answers and time.

use gate::Change;
use operator::tenant_action::TenantAction;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rules::report::view::Sort;

use super::action::Act;
use super::beds::{HOSTILE, NOW, answer, letters, model, picture, pipelines, press, tenant, types};
use super::dialogs::Prompt;
use super::model::{Model, ServerAnswer, ServerRequest, TopView};

mod letters;

fn kinds(model: &mut Model) -> Vec<ServerRequest> {
    model
        .due()
        .into_iter()
        .map(|(_, request)| request)
        .collect()
}

fn looks_at_tenants() -> Model {
    let mut model = model();
    types(&mut model, "2");
    answer(&mut model, picture);
    model
}

fn selected(model: &Model) -> String {
    model
        .selected_tenant()
        .expect("a tenant")
        .as_str()
        .to_owned()
}

fn acts(change: Change) -> Act {
    Act::Tenant(TenantAction::Change(tenant("acme"), change))
}

#[test]
fn only_the_visible_view_is_requested_every_two_seconds() {
    let mut model = model();
    assert_eq!(kinds(&mut model), [ServerRequest::Overview(0, None)]);
    assert_eq!(kinds(&mut model), [], "one at a time");
    types(&mut model, "2");
    let due = kinds(&mut model);
    let [ServerRequest::Overview(0, Some(selection))] = due.as_slice() else {
        panic!("{due:?}");
    };
    assert_eq!((selection.sort, selection.max), (Sort::Waiting, 100));
    model.at_time(NOW + 60_000);
    assert_eq!(kinds(&mut model), [], "it hangs");

    let mut model = looks_at_tenants();
    model.at_time(NOW + 1_999);
    assert_eq!(kinds(&mut model), []);
    model.at_time(NOW + 2_000);
    assert_eq!(kinds(&mut model).len(), 1);
    // A tenant's page is requested with the fleet, and the list is not.
    types(&mut model, "\n");
    let page = ServerRequest::Glance(0, tenant("acme"));
    assert_eq!(kinds(&mut model), [page]);
}

#[test]
fn the_selected_tenant_stays_selected_when_its_position_changes() {
    let mut model = looks_at_tenants();
    assert_eq!(selected(&model), "acme");
    press(&mut model, KeyCode::Down);
    assert_eq!(selected(&model), HOSTILE);
    // Now the tenant is in the third row.
    model.at_time(NOW + 2_000);
    answer(&mut model, || {
        let mut picture = picture();
        let shown = picture.shown.as_mut().expect("tenants");
        for row in &mut shown.rows {
            if row.tenant.as_str() == "gamma" {
                row.waiting = 500;
            }
        }
        picture
    });
    let order: Vec<&str> = model
        .tenants()
        .iter()
        .map(|row| row.tenant.as_str())
        .collect();
    assert_eq!(order, ["acme", "gamma", HOSTILE, "beta"]);
    assert_eq!(
        (selected(&model).as_str(), model.place()),
        (HOSTILE, Some(2))
    );
    // After a change of the sort order, the first row is selected.
    types(&mut model, "s");
    assert_eq!(
        (model.sort, selected(&model).as_str()),
        (Sort::Denied, "acme")
    );
    types(&mut model, "s");
    assert_eq!(
        (model.sort, selected(&model).as_str()),
        (Sort::Closed, "beta")
    );
    // Lists without an order of their own keep the selection.
    for view in ["1", "4"] {
        types(&mut model, view);
        answer(&mut model, picture);
        types(&mut model, "js");
        assert_eq!(model.place(), Some(1), "{view}");
    }
}

#[test]
fn no_action_runs_without_confirmation() {
    let pause = acts(Change::Pause {
        duration_ms: 3_600_000,
    });
    let pause = ServerRequest::Act(0, pause);
    for no in ["n", "\n", "q", "\u{1b}", " "] {
        let mut model = looks_at_tenants();
        assert_eq!(types(&mut model, &format!("p\n{no}")), [], "{no:?}");
        assert!(model.prompt.is_none() && !model.is_over);
        assert_eq!(model.status().expect("a word").text, "nothing was changed");
    }
    let mut model = looks_at_tenants();
    let asked = types(&mut model, "p\ny");
    let [(number, asked)] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    assert_eq!(*asked, pause);
    // Only one action at a time.
    assert_eq!(types(&mut model, "ry"), []);
    assert!(model.status().expect("a word").is_bad);
    model.receive(*number, ServerAnswer::Done(Ok("paused acme".to_owned())));
    assert_eq!(model.status().expect("a word").text, "paused acme");
    assert!(!kinds(&mut model).is_empty(), "the result is looked at");
    let resume = ServerRequest::Act(0, acts(Change::Resume));
    assert_eq!(types(&mut model, "rY")[0].1, resume);
    // Messages expire.
    let mut model = looks_at_tenants();
    types(&mut model, "rn");
    model.at_time(NOW + 30_000);
    assert_eq!(model.status(), None);
}

#[test]
fn a_confirmation_applies_only_to_the_named_tenant() {
    let mut model = looks_at_tenants();
    types(&mut model, "z");
    let Some(Prompt::Sure(act)) = &model.prompt else {
        panic!("a question");
    };
    let (_, words) = act.describe();
    assert!(words.starts_with("Reset the waitlist of acme: "), "{words}");
    // In the meantime everything changes.
    model.at_time(NOW + 2_000);
    answer(&mut model, || {
        let mut picture = picture();
        picture.shown = Some(Default::default());
        picture
    });
    let reset = ServerRequest::Act(0, acts(Change::Reset));
    assert_eq!(types(&mut model, "y")[0].1, reset);
}

#[test]
fn a_search_finds_busy_tenants_and_opens_idle_ones() {
    let mut model = model();
    answer(&mut model, picture);
    types(&mut model, "/EV");
    answer(&mut model, picture);
    assert_eq!(model.view, TopView::Tenants);
    assert_eq!(selected(&model), HOSTILE);
    types(&mut model, "\n");
    let page = model.page.as_ref().expect("a page");
    assert_eq!(page.tenant.as_str(), HOSTILE);
    // Several matches are listed, and the gate is asked for them.
    let mut model = looks_at_tenants();
    types(&mut model, "/a\n");
    assert!(model.page.is_none());
    let names: Vec<&str> = model
        .tenants()
        .iter()
        .map(|row| row.tenant.as_str())
        .collect();
    assert_eq!(names, ["acme", "beta", "gamma"]);
    let due = kinds(&mut model);
    let [ServerRequest::Overview(0, Some(selection))] = due.as_slice() else {
        panic!("{due:?}");
    };
    assert_eq!(selection.name, "a");
    types(&mut model, "\u{1b}");
    assert_eq!((model.search.as_str(), model.tenants().len()), ("", 4));
    // Without a match, the typed name itself is meant.
    types(&mut model, "/nobody-knows-it\n");
    assert_eq!(selected(&model), "nobody-knows-it");
    assert!(model.search.is_empty());
    types(&mut model, "\u{1b}");
    assert!(model.page.is_none());
}

#[test]
fn a_tried_limit_is_enforced_with_its_own_value() {
    let with_trial = || {
        let mut picture = picture();
        let shown = picture.shown.as_mut().expect("tenants");
        let limits = shown.limits.get_mut(&tenant("acme")).expect("its limits");
        limits[3].is_tried = true;
        picture
    };
    let mut model = model();
    types(&mut model, "2");
    answer(&mut model, picture);
    types(&mut model, "e");
    assert!(model.prompt.is_none());
    let message = model.status().expect("a word");
    assert!(
        message.is_bad && message.text.contains("t tries one"),
        "{message:?}"
    );
    // The shadow of the limit `hour`, which tries 50, is in the list.
    model.at_time(NOW + 2_000);
    answer(&mut model, with_trial);
    let asked = types(&mut model, "e2h\ny");
    let change = Change::Limit {
        name: "hour".to_owned(),
        max: 50,
        duration_ms: 7_200_000,
    };
    let [(_, ServerRequest::Act(0, act))] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    assert_eq!(*act, acts(change));

    // Of two limits, the tried one is meant without a question.
    let two = "rate-limiter: {limits: [{name: day}, {name: hour}]}";
    let mut model = Model::new(&pipelines(two), Sort::Waiting, NOW);
    types(&mut model, "2");
    answer(&mut model, with_trial);
    let asked = types(&mut model, "xy");
    let [(_, ServerRequest::Act(0, act))] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    let end = TenantAction::EndTry(tenant("acme"), "hour".to_owned());
    assert_eq!(*act, Act::Tenant(end));
}

#[test]
fn a_changed_configuration_is_shown_and_an_unusable_one_is_ignored() {
    let mut model = looks_at_tenants();
    let limit = |model: &Model| {
        let policy = &model.pipeline().config.rate_limiter.policy;
        policy.default_limits().iter().next().expect("one").max()
    };
    let changed = "rate-limiter: {max-requests: 7}";
    assert!(model.reread(Ok(pipelines(changed))));
    assert_eq!(limit(&model), 7);
    assert!(!kinds(&mut model).is_empty(), "it is looked at");
    assert!(!model.reread(Ok(pipelines(changed))), "it is the same");
    assert!(!model.reread(Err("c.yaml:1:1: no".to_owned())));
    assert_eq!(
        (limit(&model), model.file_error.as_deref()),
        (7, Some("c.yaml:1:1: no"))
    );
    // The same configuration as before can be used again.
    assert!(!model.reread(Ok(pipelines(changed))));
    assert_eq!(model.file_error, None);
    assert!(!model.reread(Ok(pipelines("pipelines: {bills: {amqp: {queue: bills}}}"))));
    assert!(
        model
            .file_error
            .as_deref()
            .is_some_and(|it| it.contains("restart top"))
    );
    // A picture of another Redis does not apply to this one.
    assert!(model.picture().is_some());
    assert!(model.reread(Ok(pipelines("redis: {prefix: other}"))));
    assert!(model.picture().is_none() && model.file_error.is_none());
}

#[test]
fn answers_for_closed_views_are_dropped() {
    let yaml = "
pipelines:
  bills: {amqp: {queue: bills}}
  orders: {amqp: {queue: orders}}
";
    let mut model = Model::new(&pipelines(yaml), Sort::Waiting, NOW);
    // The fleet of each pipeline is shown.
    let due = model.due();
    assert_eq!(due.len(), 2);
    types(&mut model, "2]");
    assert_eq!((model.at, model.pipeline().name.as_str()), (1, "orders"));
    let now = model.due();
    let [(_, ServerRequest::Overview(1, Some(_)))] = now.as_slice() else {
        panic!("{now:?}");
    };
    model.receive(due[1].0, ServerAnswer::Overview(1, Err("old".to_owned())));
    assert!(model.pipeline().picture.trouble(NOW).is_none());
    model.receive(now[0].0, ServerAnswer::Overview(1, Ok(picture())));
    assert_eq!(model.tenants().len(), 4);
    types(&mut model, "]");
    assert_eq!((model.at, model.tenants().len()), (0, 0));
    // Letters of one pipeline don't belong to another.
    let mut model = Model::new(&pipelines(yaml), Sort::Waiting, NOW);
    types(&mut model, "4");
    let due = model.due();
    let (number, _) = due
        .iter()
        .find(|(_, it)| *it == ServerRequest::DeadLetters(0))
        .expect("letters");
    types(&mut model, "]");
    model.receive(*number, ServerAnswer::DeadLetters(0, Ok(letters(3))));
    assert!(model.rows().is_empty());
    types(&mut model, "[");
    assert_eq!(model.rows().len(), 3);
}

#[test]
fn every_key_is_harmless_everywhere() {
    let all = "qQpPrRlLcCtTeExXzZfFTAsShHjkgG/?[]1234 \n\u{1b}yY0é日";
    for view in ["1", "2", "3", "4", "2\n", "?", "/", "2p", "2l", "2t", "2z"] {
        for with_picture in [false, true] {
            for key in all.chars() {
                let mut model = model();
                if with_picture {
                    types(&mut model, &view[..1]);
                    answer(&mut model, picture);
                }
                types(&mut model, view);
                types(&mut model, &key.to_string());
                for code in [
                    KeyCode::Up,
                    KeyCode::Down,
                    KeyCode::PageUp,
                    KeyCode::End,
                    KeyCode::Home,
                    KeyCode::Backspace,
                    KeyCode::BackTab,
                    KeyCode::Tab,
                    KeyCode::F(5),
                ] {
                    press(&mut model, code);
                }
                model.due();
            }
        }
    }
    for before in ["", "?", "/x", "2p"] {
        let mut model = model();
        types(&mut model, before);
        model.pressed(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(model.is_over, "{before:?}");
    }
}
