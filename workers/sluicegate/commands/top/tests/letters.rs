//! When dead letters are fetched, and their replay.

use super::*;
use crate::commands::top::action::LetterSelection;
use crate::commands::top::beds;
use operator::dead::Filter;

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

    let mut model = beds::model();
    types(&mut model, "4");
    answer(&mut model, picture);
    for ms in [2_000, 60_000, 3_600_000] {
        model.at_time(NOW + ms);
        assert!(!letters(&mut model), "nothing is fetched by itself");
    }
    types(&mut model, "f");
    assert!(letters(&mut model));

    let mut model = beds::model();
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
    assert!(model.prompt.is_none(), "they are under way");

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
        let mut model = Model::new(&pipelines(yaml), Sort::Waiting, NOW);
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
fn dead_letters_are_replayed_as_selected() {
    let mut model = model();
    types(&mut model, "4");
    answer(&mut model, picture);
    let act = |id: Option<&str>, tenant: Option<&str>, listed| {
        let filter = Filter {
            reason: None,
            id: id.map(str::to_owned),
            tenant: tenant.map(str::to_owned),
        };
        Act::Replay(LetterSelection { filter, listed })
    };
    let one = act(Some("job-0"), Some("acme"), 1);
    // Other tenants may use the same ID.
    let without = act(Some("job-0"), Some(""), 1);
    let (_, words) = without.describe();
    let expected = "Replay the dead letter job-0 without a tenant: it returns";
    assert!(words.starts_with(expected), "{words}");
    let sent = |act| ServerRequest::Act(0, act);
    assert_eq!(types(&mut model, "Ry")[0].1, sent(one.clone()));
    let again = |model: &mut Model| {
        model.action = None;
        model.prompt = None;
    };
    again(&mut model);
    assert_eq!(
        types(&mut model, "Ty")[0].1,
        sent(act(None, Some("acme"), 3))
    );
    again(&mut model);
    assert_eq!(types(&mut model, "Ay")[0].1, sent(act(None, None, 5)));
    // Esc stops it.
    assert_eq!(types(&mut model, "\u{1b}"), [(0, ServerRequest::Stop)]);
    let Act::Replay(LetterSelection { filter, .. }) = one else {
        panic!("{one:?}");
    };
    let audited = filter.audited(None);
    assert_eq!(
        (&audited["id"], &audited["all"]),
        (&"job-0".into(), &false.into())
    );
    assert_eq!(Filter::default().audited(None)["all"], true);

    // If the routing key is the tenant, replaying is impossible and not offered.
    let by_key = pipelines("job: {tenant: routing-key}");
    let mut model = Model::new(&by_key, Sort::Waiting, NOW);
    types(&mut model, "4");
    answer(&mut model, picture);
    types(&mut model, "A");
    assert!(model.prompt.is_none());
    assert!(model.status().expect("a word").text.contains("routing-key"));
}
