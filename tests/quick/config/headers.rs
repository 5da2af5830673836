//! `dispatch.http.headers`: headers of each call, from the file, a variable or their own file. They
//! are never shown.

use std::path::{Path, PathBuf};

use config::Config;

/// Returns a configuration with these keys in `http:`.
fn yaml(http: &str) -> String {
    format!("dispatch: {{http: {{url: 'https://h/', {http}}}}}\n")
}

fn parse(http: &str) -> Result<Config, String> {
    Config::parse("c.yaml", &yaml(http), std::iter::empty()).map_err(|errors| errors.to_string())
}

/// Checks that `http` is refused with this text, at its position.
#[track_caller]
fn check(http: &str, expected: &str) {
    let errors = parse(http).expect_err(http);
    let words = errors.split_once(": ").expect("a place").1;
    assert_eq!(words, expected, "{http}");
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    path
}

fn sent(config: &Config) -> Vec<(String, String)> {
    let headers = &config.dispatch.http.as_ref().expect("a url").headers;
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).expect("text");
    let mut all: Vec<_> = (headers.same.iter())
        .map(|(name, value)| (name.to_string(), text(value.as_bytes())))
        .collect();
    all.sort();
    all
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[test]
fn headers_come_from_the_configuration_and_a_secret_file() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "keys", "X-Api-Key: sk-hunter2\n");
    let http = "headers: {api-version: '2023-06-01', User-Agent: shop}, headers-file: keys";
    let path = write(folder.path(), "c.yaml", &yaml(http));
    let config = Config::load(Some(&path), std::iter::empty()).expect("valid");
    let expected = [
        pair("api-version", "2023-06-01"),
        pair("user-agent", "shop"),
        pair("x-api-key", "sk-hunter2"),
    ];
    assert_eq!(sent(&config), expected);
    let shown = format!("{config}{config:?}{config:#?}");
    assert!(shown.contains("\"x-api-key\": \"***\""), "{shown}");
    for secret in ["hunter2", "2023-06-01"] {
        assert!(!shown.contains(secret), "{shown}");
    }

    // A variable wins over the file's key with the same name, and over no other key.
    let name = "SLUICEGATE_DISPATCH__HTTP__HEADERS".to_owned();
    let variable = (name, "{authorization: Bearer hunter3}".to_owned());
    let config = Config::load(Some(&path), std::iter::once(variable)).expect("valid");
    let expected = [
        pair("authorization", "Bearer hunter3"),
        pair("x-api-key", "sk-hunter2"),
    ];
    assert_eq!(sent(&config), expected);
}

#[test]
fn invalid_headers_are_named_without_their_values() {
    const HEADERS: &str = "dispatch.http.headers";
    let long = "x".repeat(1025);
    let many: Vec<String> = (0..33).map(|n| format!("x-{n}: a")).collect();
    for (http, expected) in [
        (
            "headers: hunter2",
            "must hold names of headers with their values, such as x-api-key: \"…\"",
        ),
        (
            "headers: {'a b': hunter2}",
            "the name of header 1 has invalid characters (is the space after the colon missing?)",
        ),
        (
            "headers: {a: b, x-api-key:hunter2}",
            "the name of header 2 has invalid characters (is the space after the colon missing?)",
        ),
        (
            "headers: {cookie: a=1, session=hunter2}",
            "the name of header 2 has invalid characters (is the space after the colon missing?)",
        ),
        ("headers: {cookie: a, hunter2}", "header 2 has no value"),
        (
            "headers: {content-encoding: gzip}",
            "\"content-encoding\" comes from the property content_encoding of each message; remove it here",
        ),
        (
            "headers: {Host: hunter2}",
            "\"Host\" is set by Sluicegate itself",
        ),
        (
            "headers: {x-tenant: hunter2}",
            "\"x-tenant\" is set by Sluicegate itself",
        ),
        ("headers: {a: hunter2, A: hunter2}", "\"A\" is set twice"),
        (
            "headers: {x-version: 2}",
            "the value of \"x-version\" is not text; put it in quotes",
        ),
        (
            "headers: {a: \"hunter2\\n\"}",
            "the value of \"a\" must be 1 to 1024 bytes, without control characters and spaces at its ends",
        ),
        (
            &format!("headers: {{a: {long}}}"),
            "the value of \"a\" must be 1 to 1024 bytes, without control characters and spaces at its ends",
        ),
        (
            &format!("headers: {{{}}}", many.join(", ")),
            "there are too many headers; the maximum is 32",
        ),
    ] {
        check(http, &format!("{HEADERS}: {expected}"));
    }
    let user = "dispatch: {http: {url: 'https://u:hunter2@h/', headers: {authorization: hunter2}}}";
    let errors = Config::parse("c.yaml", user, std::iter::empty()).expect_err("two of them");
    assert_eq!(
        errors.to_string(),
        "c.yaml:1:48: dispatch.http.headers: sets authorization, and the user in \
        dispatch.http.url sets it, too; keep one of them"
    );
}

#[test]
fn all_invalid_headers_are_named_at_once() {
    let errors = parse("headers: {a b: hunter2, c: d, x-version: 2}").expect_err("two mistakes");
    assert_eq!(errors.lines().count(), 2, "{errors}");
    assert!(
        errors.contains("of header 1 ") && errors.contains("\"x-version\""),
        "{errors}"
    );
}

#[test]
fn invalid_yaml_is_not_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "keys", "a: b\nx-api-key: *hunter2\n");
    let path = write(folder.path(), "c.yaml", &yaml("headers-file: keys"));
    let errors = Config::load(Some(&path), std::iter::empty()).expect_err("an alias of nothing");
    let words = errors.to_string();
    let expected = "dispatch.http.headers-file: line 2 of the file is not valid YAML";
    assert!(words.ends_with(expected), "{words}");

    for http in [
        "headers: {x-api-key: *hunter2}",
        "\"headers\" : {x-api-key: *hunter2}",
    ] {
        let words = parse(http).expect_err("an alias of nothing");
        assert!(
            words.contains("is not valid YAML") && !words.contains("hunter2"),
            "{words}"
        );
    }
    let name = "SLUICEGATE_DISPATCH__HTTP__HEADERS".to_owned();
    let variable = (name, "{x-api-key: *hunter2}".to_owned());
    let errors = Config::parse("c.yaml", "", std::iter::once(variable)).expect_err("the same");
    assert_eq!(
        errors.to_string(),
        "environment variable SLUICEGATE_DISPATCH__HTTP__HEADERS: dispatch.http.headers: is not valid YAML"
    );
}
