//! The section `admin`.

use config::{Config, Secret};

const TOKEN: &str = "0123456789abcdef-._~+/==";

#[test]
fn a_public_port_without_a_token_has_a_warning() {
    let warned = |admin: &str| {
        let text = format!("admin: {{{admin}}}");
        let config = Config::parse("c.yaml", &text, std::iter::empty()).expect(admin);
        let mut warnings = config.warnings().into_iter();
        warnings.any(|words| words.contains("set admin.token"))
    };
    for open in [
        "0.0.0.0:9464",
        "[::]:0",
        "10.0.0.1:1",
        "[::ffff:10.0.0.1]:1",
    ] {
        assert!(warned(&format!("listen: '{open}'")), "{open}");
        assert!(
            !warned(&format!("listen: '{open}', token: {TOKEN}")),
            "{open}"
        );
    }
    for own in [
        "127.0.0.1:9464",
        "127.8.0.1:1",
        "[::1]:0",
        "[::ffff:127.0.0.1]:1",
    ] {
        assert!(!warned(&format!("listen: '{own}'")), "{own}");
    }
    // The default.
    assert!(Config::default().admin.listen.ip().is_loopback());
    assert!(!warned(""));
}

#[test]
fn a_token_comes_from_the_configuration_the_environment_or_its_own_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().join("c.yaml").display().to_string();
    let secret = folder.path().join("token");
    std::fs::write(&secret, format!("{TOKEN}\n")).expect("written");
    let load = |text: &str, env: &[(&str, &str)]| {
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Config::parse(&name, text, env)
    };
    let variable = "SLUICEGATE_ADMIN__TOKEN";
    let file_variable = "SLUICEGATE_ADMIN__TOKEN_FILE";
    for (text, env) in [
        (format!("admin: {{token: {TOKEN}}}"), vec![]),
        ("admin: {token-file: token}".to_owned(), vec![]),
        (String::new(), vec![(variable, TOKEN)]),
        (
            "admin: {token: another-token-that-is-long}".to_owned(),
            vec![(file_variable, secret.to_str().expect("UTF-8"))],
        ),
    ] {
        let config = load(&text, &env).expect(&text);
        assert_eq!(config.admin.token, Some(Secret::new(TOKEN)), "{text}");
        let shown = format!("{config}{config:?}{config:#?}");
        assert!(!shown.contains(TOKEN), "{shown}");
        assert!(config.to_string().contains("  token: \"***\"\n"));
    }
    for (value, words) in [
        ("'hunter2'", "has 7 bytes; it must be 16 to 512 letters"),
        (
            "'hunter2 hunter2 hunter2'",
            "has a character that is invalid in a Bearer token",
        ),
        ("'hunter2hunter2hunter2ü'", "has a character that"),
        ("[hunter2]", "is a list; it must be 16 to 512"),
        ("{hunter2: 1}", "contains keys; it must be a single value"),
        ("12345678901234567890", "is not text (numbers need quotes)"),
        ("\"hunter2", "is not valid YAML"),
        (
            "hunter2hunter2hunter2, token-file: token",
            "admin.token is also set",
        ),
    ] {
        let why = load(&format!("admin: {{token: {value}}}"), &[])
            .expect_err(value)
            .to_string();
        assert!(why.contains(words), "{why}");
        assert!(!why.contains("hunter2") && !why.contains("345678"), "{why}");
    }
}
