//! `dispatch.results`: where results of jobs go.

use config::{Config, ResultsTo};

fn parse(results: &str) -> Result<Config, String> {
    let yaml = format!("dispatch: {{results: {results}}}\n");
    Config::parse("c.yaml", &yaml, std::iter::empty()).map_err(|errors| errors.to_string())
}

#[test]
fn results_are_off_by_default_and_shown() {
    let off = parse("{}").expect("valid").dispatch.results;
    assert_eq!((off.to, off.max_body), (ResultsTo::None, 65_536));
    let text = "{to: exchange, exchange: ends, routing-key: 'a.b', headers: [Location, x-request-id], max-body: 10}";
    let config = parse(text).expect("valid");
    let results = &config.dispatch.results;
    assert_eq!(results.to, ResultsTo::Exchange);
    assert_eq!(results.exchange.as_deref(), Some("ends"));
    assert_eq!(results.routing_key, "a.b");
    assert_eq!(results.headers, ["location", "x-request-id"]);
    assert_eq!(results.max_body, 10);
    assert_eq!(config.warnings(), [""; 0]);
    let again = Config::parse("c.yaml", &config.to_string(), std::iter::empty());
    let again = again.expect("what is shown can be read");
    assert_eq!(again.dispatch.results, *results);
    let empty = parse("{to: exchange, exchange: ends, routing-key: ''}").expect("valid");
    assert_eq!(empty.dispatch.results.routing_key, "");
}

#[test]
fn impossible_values_are_refused_and_useless_ones_have_warnings() {
    for (results, expected) in [
        (
            "{to: exchange}".to_owned(),
            "to: is exchange, so dispatch.results.exchange must be set to the name of an existing \
            exchange",
        ),
        ("{to: reply}".to_owned(), "to: is \"reply\"; it must be"),
        ("{exchange: ''}".to_owned(), "exchange: is empty"),
        (
            format!("{{exchange: '{}'}}", "e".repeat(256)),
            "exchange: has 256 bytes",
        ),
        (
            r#"{exchange: "a\nb"}"#.to_owned(),
            "exchange: has a control character",
        ),
        (
            r#"{routing-key: "a\x07b"}"#.to_owned(),
            "routing-key: has a control character",
        ),
        (
            "{headers: ['a b']}".to_owned(),
            "\"a b\" has characters that are invalid in an HTTP header",
        ),
        ("{headers: [a, A]}".to_owned(), "\"A\" is listed twice"),
        (
            format!("{{headers: [{}]}}", "a, ".repeat(33)),
            "has 33 names; the maximum is 32",
        ),
        ("{max-body: 1048577}".to_owned(), "max-body: "),
    ] {
        let errors = parse(&results).expect_err(&results);
        assert!(errors.contains(expected), "{results}: {errors}");
    }
    let unused = parse("{exchange: ends}").expect("valid");
    let warning =
        "dispatch.results.exchange: has no effect, since dispatch.results.to is not exchange";
    assert_eq!(unused.warnings(), [warning]);
}
