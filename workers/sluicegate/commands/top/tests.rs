//! Reactions to keys, answers and time.

use gate::Change;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rules::report::view::Sort;

use super::action::{Act, LetterSelection};
use super::beds::{HOSTILE, NOW, answer, letters, model, picture, pipelines, press, tenant, types};
use super::dialogs::Prompt;
use super::model::{Model, ServerAnswer, ServerRequest, TopView};

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
fn dead_letters_are_fetched_on_opening_and_on_a_key_only() {
    let mut model = model();
    let letters = |model: &mut Model| kinds(model).contains(&ServerRequest::DeadLetters(0));
    types(&mut model, "4");
    assert!(letters(&mut model));
    model.at_time(NOW + 100_000);
    assert!(!letters(&mut model), "they are under way");
    types(&mut model, "f");
    assert!(!letters(&mut model), "they are under way");

    let mut model = super::beds::model();
    types(&mut model, "4");
    answer(&mut model, picture);
    for ms in [2_000, 60_000, 3_600_000] {
        model.at_time(NOW + ms);
        assert!(!letters(&mut model), "nothing is fetched by itself");
    }
    types(&mut model, "f");
    assert!(letters(&mut model));

    let mut model = super::beds::model();
    types(&mut model, "4");
    answer(&mut model, picture);
    types(&mut model, "14");
    assert!(!letters(&mut model), "they are new");
    model.at_time(NOW + 10_000);
    types(&mut model, "14");
    assert!(letters(&mut model));
}

/// A fetch holds dead letters, which a replay at the same time would not find.
#[test]
fn dead_letters_are_not_fetched_while_they_are_replayed() {
    let fetches = |model: &mut Model| kinds(model).contains(&ServerRequest::DeadLetters(0));
    let opened = || {
        let mut model = model();
        types(&mut model, "4");
        answer(&mut model, picture);
        model
    };
    let mut model = opened();
    types(&mut model, "f");
    assert!(fetches(&mut model));
    types(&mut model, "A");
    assert_eq!(model.prompt, None, "they are under way");

    let mut model = opened();
    let begun = types(&mut model, "Ay");
    let [(number, ServerRequest::Act(..))] = begun.as_slice() else {
        panic!("{begun:?}");
    };
    model.at_time(NOW + 60_000);
    types(&mut model, "14");
    assert!(!fetches(&mut model), "they are being replayed");
    // A changed configuration does not fetch them, either.
    assert!(model.reread(Ok(pipelines("amqp: {prefetch: 7}"))));
    assert!(!fetches(&mut model), "they are being replayed");
    model.receive(*number, ServerAnswer::Done(Ok("replayed 5".to_owned())));
    assert!(fetches(&mut model));
}

#[test]
fn replayed_dead_letters_are_fetched_again_in_the_pipeline_of_the_replay() {
    let fetches = |model: &mut Model, at| kinds(model).contains(&ServerRequest::DeadLetters(at));
    let yaml = "
pipelines:
  bills: {amqp: {queue: bills}}
  orders: {amqp: {queue: orders}}
";
    // The operator waits in another view, or in another pipeline.
    for (leave, back) in [("1", "4"), ("1]4", "[4")] {
        let mut model = Model::new(pipelines(yaml), Sort::Waiting, NOW);
        types(&mut model, "4");
        answer(&mut model, picture);
        let begun = types(&mut model, "Ay");
        types(&mut model, leave);
        model.receive(begun[0].0, ServerAnswer::Done(Ok("replayed 5".to_owned())));
        answer(&mut model, picture);
        types(&mut model, back);
        assert!(fetches(&mut model, 0), "{leave}");
    }
    // Another action changes no dead letter.
    let mut model = model();
    types(&mut model, "4");
    answer(&mut model, picture);
    let begun = types(&mut model, "ry");
    model.receive(begun[0].0, ServerAnswer::Done(Ok("resumed".to_owned())));
    assert!(!fetches(&mut model, 0));
}

#[test]
fn a_changed_configuration_fetches_dead_letters_once_the_old_fetch_has_ended() {
    let fetch = |model: &mut Model| {
        let mut due = model.due().into_iter();
        let found = due.find(|(_, request)| *request == ServerRequest::DeadLetters(0));
        found.map(|(number, _)| number)
    };
    let mut model = model();
    types(&mut model, "4");
    let old = fetch(&mut model).expect("a fetch");
    assert!(model.reread(Ok(pipelines("amqp: {prefetch: 7}"))));
    model.at_time(NOW + 60_000);
    assert_eq!(fetch(&mut model), None, "the old one is under way");
    // Its answer is of the old configuration.
    model.receive(old, ServerAnswer::DeadLetters(0, Ok(letters(3))));
    assert!(model.rows().is_empty());
    let new = fetch(&mut model).expect("a fetch");
    model.receive(new, ServerAnswer::DeadLetters(0, Ok(letters(5))));
    assert_eq!(model.rows().len(), 5);
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
    let pause = ServerRequest::Act(
        0,
        Act::Change(
            tenant("acme"),
            Change::Pause {
                duration_ms: 3_600_000,
            },
        ),
    );
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
    let resume = ServerRequest::Act(0, Act::Change(tenant("acme"), Change::Resume));
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
    let words = act.describe();
    assert!(words.starts_with("Reset the waitlist of acme: "), "{words}");
    // In the meantime everything changes.
    model.at_time(NOW + 2_000);
    answer(&mut model, || {
        let mut picture = picture();
        picture.shown = Some(Default::default());
        picture
    });
    let reset = ServerRequest::Act(0, Act::Change(tenant("acme"), Change::Reset));
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
fn dead_letters_are_replayed_as_selected() {
    let mut model = model();
    types(&mut model, "4");
    answer(&mut model, picture);
    let act = |which| ServerRequest::Act(0, Act::Replay(which));
    let one = LetterSelection::One("job-0".to_owned(), Some("acme".to_owned()));
    assert_eq!(one.filter().tenant.as_deref(), Some("acme"));
    // Other tenants may use the same ID.
    let without = LetterSelection::One("job-0".to_owned(), None);
    assert_eq!(without.filter().tenant.as_deref(), Some(""));
    let words = Act::Replay(without).describe();
    let expected = "Replay the dead letter job-0 without a tenant: it returns";
    assert!(words.starts_with(expected), "{words}");
    assert_eq!(types(&mut model, "Ry")[0].1, act(one.clone()));
    let again = |model: &mut Model| {
        model.action = None;
        model.prompt = None;
    };
    again(&mut model);
    assert_eq!(
        types(&mut model, "Ty")[0].1,
        act(LetterSelection::Of("acme".to_owned(), 3))
    );
    again(&mut model);
    assert_eq!(types(&mut model, "Ay")[0].1, act(LetterSelection::All(5)));
    // Esc stops it.
    assert_eq!(types(&mut model, "\u{1b}"), [(0, ServerRequest::Stop)]);
    assert_eq!(one.in_the_audit()["id"], "job-0");
    assert_eq!(LetterSelection::All(5).in_the_audit()["all"], true);

    // If the routing key is the tenant, replaying is impossible and not offered.
    let by_key = pipelines("job: {tenant: routing-key}");
    let mut model = Model::new(by_key, Sort::Waiting, NOW);
    types(&mut model, "4");
    answer(&mut model, picture);
    types(&mut model, "A");
    assert!(model.prompt.is_none());
    assert!(model.status().expect("a word").text.contains("routing-key"));
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
    assert_eq!(*act, Act::Change(tenant("acme"), change));

    // Of two limits, the tried one is meant without a question.
    let two = "rate-limiter: {limits: [{name: day}, {name: hour}]}";
    let mut model = Model::new(pipelines(two), Sort::Waiting, NOW);
    types(&mut model, "2");
    answer(&mut model, with_trial);
    let asked = types(&mut model, "xy");
    let [(_, ServerRequest::Act(0, act))] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    assert_eq!(*act, Act::EndTry(tenant("acme"), "hour".to_owned()));
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
    let mut model = Model::new(pipelines(yaml), Sort::Waiting, NOW);
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
    let mut model = Model::new(pipelines(yaml), Sort::Waiting, NOW);
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
