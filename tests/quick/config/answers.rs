//! `dispatch.http.answers`: the meaning of the API's answers, from the file or a variable.

use sluicegate::config::Config;

const KEY: &str = "dispatch.http.answers";

fn parse(answers: &str) -> Result<Config, String> {
    let yaml = format!("dispatch: {{http: {{url: 'https://h/', answers: {answers}}}}}\n");
    Config::parse("c.yaml", &yaml, std::iter::empty()).map_err(|errors| errors.to_string())
}

fn own(config: &Config) -> Vec<String> {
    let answers = &config.dispatch.http.as_ref().expect("a url").answers;
    let own = answers.own();
    own.map(|(which, meaning)| format!("{which} {}", meaning.name()))
        .collect()
}

#[test]
fn statuses_and_classes_have_meanings_and_are_shown() {
    let text = "{409: retry, 5xx+retry-after: throttle, '404': done, 403: reject}";
    let config = parse(text).expect("valid");
    let expected = [
        "403 reject",
        "404 done",
        "409 retry",
        "5xx+retry-after throttle",
    ];
    assert_eq!(own(&config), expected);
    let again = Config::parse("c.yaml", &config.to_string(), std::iter::empty());
    assert_eq!(own(&again.expect("what is shown can be read")), expected);

    let variable = (
        "SLUICEGATE_DISPATCH__HTTP__ANSWERS".to_owned(),
        "{4xx: done}".to_owned(),
    );
    let url = "dispatch: {http: {url: 'https://h/'}}";
    let config = Config::parse("c.yaml", url, std::iter::once(variable)).expect("valid");
    assert_eq!(own(&config), ["4xx done"]);
}

#[test]
fn invalid_answers_are_named_with_the_allowed_values() {
    for (answers, expected) in [
        (
            "retry",
            "is \"retry\"; it must be statuses with what they mean, such as {409: retry, 403+retry-after: throttle}",
        ),
        (
            "{600: retry}",
            "\"600\" is not a status; it must be a status (409), a class (4xx), or either with \
            +retry-after",
        ),
        (
            "{409-retry-after: throttle}",
            "\"409-retry-after\" is not a status; it must be a status (409), a class (4xx), or \
            either with +retry-after",
        ),
        (
            "{409: retyr}",
            "\"409\" is \"retyr\"; it must be done, retry, throttle or reject; did you mean retry?",
        ),
        ("{409: 5}", "\"409\" is read as 5 by YAML; put it in quotes"),
        (
            "{409: }",
            "\"409\" is empty; it must be done, retry, throttle or reject",
        ),
        ("{409: retry, 0409: done}", "\"0409\" is set twice"),
    ] {
        let errors = parse(answers).expect_err(answers);
        let start = format!("{KEY}: ");
        let (_, words) = errors.split_once(&start).expect("the key");
        assert_eq!(words, expected, "{answers}");
    }
}
