//! `dispatch.http`: the method, placeholders, and forwarded headers.

use config::{Config, Fields, Method, TenantField};
use kit::Says;
use kit::certificates::TestCertificates;
use rules::job::call::{PlaceholderSource, Template, TemplatePart, ValuePlace};

fn parse(keys: &str) -> Result<Config, String> {
    let yaml = format!("dispatch: {{http: {{{keys}}}}}\n");
    Config::parse("c.yaml", &yaml, std::iter::empty()).map_err(|errors| errors.to_string())
}

/// Returns the error without its position.
#[track_caller]
fn wrong(keys: &str) -> String {
    let errors = parse(keys).expect_err(keys);
    errors.split_once(": ").expect("a place").1.to_owned()
}

fn literal(text: &str) -> TemplatePart {
    TemplatePart::Literal(text.to_owned())
}

#[test]
fn a_url_is_split_at_its_placeholders() {
    let url = "https://u:p{a}@h:8443/v1/{tenant}/ä/{json:/a~1b}?k=ä&q={header:x-q}&{json:/a~1b}";
    let config = parse(&format!("url: '{url}'")).expect("valid");
    let http = config.dispatch.http.expect("a url");
    let (path, query) = (ValuePlace::Path, ValuePlace::Query);
    let expected = [
        literal("/v1/"),
        TemplatePart::Value(PlaceholderSource::Tenant, path),
        literal("/%C3%A4/"),
        TemplatePart::Value(PlaceholderSource::Field(0), path),
        literal("?k=%C3%A4&q="),
        TemplatePart::Value(PlaceholderSource::Field(1), query),
        literal("&"),
        TemplatePart::Value(PlaceholderSource::Field(0), query),
    ];
    assert!(http.target.expect("placeholders").0 == expected);
    let Fields { call, .. } = config.job;
    assert_eq!(call.pointers().collect::<Vec<_>>(), ["/a~1b"]);
    for same in [
        "https://h/",
        "https://h/{}",
        "https://h/{\"a\"}",
        "https://h/{A}",
        "https://h/{a",
    ] {
        let config = parse(&format!("url: '{same}'")).expect("valid");
        let http = config.dispatch.http.expect("a url");
        assert!(http.target.is_none(), "{same}");
        assert!(config.job.call.is_nothing(), "{same}");
    }
}

const HOST_FORM: &str = "a host with placeholders must have the form {tenant}.example.com: each \
    placeholder is a whole label, and the part behind them is a domain with a dot";

#[test]
fn a_host_has_placeholders_left_of_a_fixed_domain() {
    let (host, tenant) = (ValuePlace::Host, PlaceholderSource::Tenant);
    let shop = TemplatePart::Value(PlaceholderSource::Field(0), host);
    for (url, expected) in [
        (
            "https://{tenant}.Example.com/a",
            vec![TemplatePart::Value(tenant, host), literal(".example.com")],
        ),
        (
            "https://u:p{a}@{json:/shop/id}.{tenant}.example.com:8443/{tenant}",
            vec![
                shop.clone(),
                literal("."),
                TemplatePart::Value(tenant, host),
                literal(".example.com:8443"),
            ],
        ),
        (
            "https://{header:x-shop}.ü.example:443",
            vec![shop, literal(".xn--tda.example")],
        ),
    ] {
        let config = parse(&format!("url: '{url}'")).expect(url);
        let http = config.dispatch.http.expect("a url");
        let found = http.host.expect("placeholders").0;
        assert!(found == expected, "{url}: {}", Template(found).expose());
        assert_eq!(http.target.is_some(), url.ends_with("{tenant}"), "{url}");
        assert!(
            !http.url.to_string().contains("placeholder"),
            "{}",
            http.url
        );
    }
    for (url, why) in [
        (
            "https://{tenant}/",
            "has a placeholder at the end of its host",
        ),
        ("https://{tenant}.h/", "lacks a domain"),
        ("https://{tenant}.com./", "lacks a domain"),
        ("https://{tenant}:8443/", "lacks a domain"),
        ("https://{tenant}..com/", "lacks a domain"),
        ("https://{tenant}example.com/", "lacks a domain"),
        (
            "https://a-{tenant}.example.com/",
            "has a placeholder in the wrong place",
        ),
        (
            "https://www.{tenant}.example.com/",
            "has a placeholder in the wrong place",
        ),
        (
            "https://{tenant}{id}.example.com/",
            "has a placeholder in the wrong place",
        ),
        (
            "https://{tenant}.example.{tenant}/",
            "has a placeholder at the end of its host",
        ),
        (
            "https://{id}.example.com/",
            "has {id} in its host; only {tenant}, ",
        ),
        (
            "https://{attempt}.example.com/",
            "has {attempt} in its host; only ",
        ),
        (
            "https://{secret:tenant}.example.com/",
            "has {secret:tenant} in its host; only ",
        ),
        (
            "https://{x}.example.com/",
            "has the unknown placeholder \"{x}\"",
        ),
        ("https://h:{id}/", "has an invalid port"),
        ("https://{tenant}.168.0.1/", "is not a valid URL"),
        ("https://{tenant}.example.com:{id}/", "has an invalid port"),
    ] {
        let words = wrong(&format!("url: '{url}'"));
        assert!(
            words.starts_with(&format!("dispatch.http.url: {why}")) && !words.contains(url),
            "{url}: {words}"
        );
    }
    let long = format!("https://{{tenant}}.{}com/", "abcdefghijklmno.".repeat(12));
    let words = wrong(&format!("url: '{long}'"));
    words.ends("can become longer than 253 characters");
}

#[test]
fn an_invalid_placeholder_has_a_suggestion_without_the_url() {
    let all =
        "it must be {tenant}, {id}, {attempt}, {header:NAME}, {json:/pointer} or {secret:tenant}";
    for (url, expected) in [
        (
            "https://h/{tennant}?k=hunter2",
            format!("has the unknown placeholder \"{{tennant}}\"; {all}; did you mean tenant?"),
        ),
        (
            "https://h/{secret:x}?k=hunter2",
            format!("has the unknown placeholder \"{{secret:x}}\"; {all}"),
        ),
        (
            "https://h/{json:a}?k=hunter2",
            "is \"json:a\"; a JSON pointer (RFC 6901) begins with `/`, and `~` is written `~0`"
                .to_owned(),
        ),
        (
            "https://h/{header:x-death}?k=hunter2",
            "names the header \"x-death\", which Sluicegate or RabbitMQ sets; use a header that \
            publishers set"
                .to_owned(),
        ),
        (
            "https://h/#{id}",
            "has a placeholder after a #, but that part is never sent".to_owned(),
        ),
        (
            "https://h/{id}{id}{id}{id}{id}{id}{id}{id}{id}",
            "has too many placeholders; the maximum is 8".to_owned(),
        ),
    ] {
        assert_eq!(
            wrong(&format!("url: '{url}'")),
            format!("dispatch.http.url: {expected}")
        );
    }
    // It is reported together with all other mistakes.
    let both = parse("url: 'https://{id}/', forward-headers: [a, a]").expect_err("two mistakes");
    assert_eq!(both.lines().count(), 2, "{both}");
    let five = parse(
        "url: 'https://h/', headers: {x-key: 5}, forward-headers: [a, a], sign: all, \
        sign-secrets: x, oauth2: {client-auth: form}",
    )
    .expect_err("five mistakes");
    assert_eq!(five.lines().count(), 5, "{five}");
    let header = wrong("url: 'https://h/', headers: {x-key: 'hunter2 {tennant}'}");
    assert_eq!(
        header,
        format!(
            "dispatch.http.headers: the value of \"x-key\" has the unknown placeholder \
            \"{{tennant}}\"; {all}; did you mean tenant?"
        )
    );
}

#[test]
fn only_valid_methods_and_headers_are_accepted() {
    let config = parse("url: 'https://h/', method: PATCH").expect("valid");
    assert_eq!(config.dispatch.http.expect("a url").method, Method::Patch);
    for (keys, expected) in [
        (
            "method: post",
            "dispatch.http.method: is \"post\"; it must be POST, PUT, PATCH, DELETE or GET; did you mean POST?",
        ),
        (
            "forward-headers: traceparent",
            "dispatch.http.forward-headers: is \"traceparent\"; it must be a list of header \
            names, such as [traceparent, x-request-id]",
        ),
        (
            "forward-headers: [a, A]",
            "dispatch.http.forward-headers: \"A\" is listed twice",
        ),
        (
            "forward-headers: [a b]",
            "dispatch.http.forward-headers: \"a b\" has characters that are invalid in an HTTP \
            header",
        ),
        (
            "forward-headers: [x-tenant]",
            "dispatch.http.forward-headers: \"x-tenant\" is set by Sluicegate itself",
        ),
        (
            "forward-headers: [content-length]",
            "dispatch.http.forward-headers: \"content-length\" is set by Sluicegate itself",
        ),
        (
            "forward-headers: [x-death]",
            "dispatch.http.forward-headers: names the header \"x-death\", which Sluicegate or \
            RabbitMQ sets",
        ),
        (
            "forward-headers: [x-a], headers: {X-A: b}",
            "dispatch.http.forward-headers: \"x-a\" is also in dispatch.http.headers; keep one of \
            them",
        ),
        (
            "idempotency-key: order",
            "dispatch.http.idempotency-key: is \"order\"; it must be true, false, or a text with placeholders such as \"order-{json:/id}\"",
        ),
        (
            "idempotency-key: true, headers: {Idempotency-Key: a}",
            "dispatch.http.idempotency-key: sets a header that dispatch.http.headers sets, too; \
            keep one of them",
        ),
    ] {
        assert_eq!(wrong(&format!("url: 'https://h/', {keys}")), expected);
    }
    let many: Vec<String> = (0..33).map(|n| format!("x-{n}")).collect();
    let words = wrong(&format!(
        "url: 'https://h/', forward-headers: [{}]",
        many.join(", ")
    ));
    assert_eq!(
        words,
        "dispatch.http.forward-headers: has 33 names; the maximum is 32"
    );
}

#[test]
fn a_header_with_the_name_of_a_variable_gets_a_warning_without_its_value() {
    let warnings = |value: &str| {
        let config = parse(&format!("url: 'https://h/', headers: {{x-key: '{value}'}}"));
        config.expect(value).warnings()
    };
    let expected = "dispatch.http.headers: x-key contains ${…}, which is sent unchanged, since \
        environment variables are not inserted; write the value itself, for example in \
        dispatch.http.headers-file";
    for value in [
        "Bearer ${TOKEN}",
        "${API_KEY_2}s3cr3t",
        "a${b${C}",
        "{tenant}-${A}",
    ] {
        assert_eq!(warnings(value), [expected], "{value}");
    }
    for value in ["Bearer $TOKEN", "a${}", "${B", "$2y$10$KEY}", "{B}"] {
        assert_eq!(warnings(value), [""; 0], "{value}");
    }
}

#[test]
fn secrets_are_read_where_needed_and_calls_are_signed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display();
    let file = folder.path().join("default");
    std::fs::write(&file, "key").expect("written");
    let file = file.display();
    let needs = ", headers: {a: '{secret:tenant}'}";
    let key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    for good in [
        format!("{needs}, secrets-folder: '{path}'"),
        format!("{needs}, default-secret-file: '{file}'"),
        format!(", sign: standard-webhooks, sign-secrets: '{key}'"),
        format!(
            ", sign: standard-webhooks, sign-secrets: '{{secret:tenant}}', secrets-folder: '{path}'"
        ),
    ] {
        let config = parse(&format!("url: 'https://h/'{good}")).expect(&good);
        assert_eq!(config.warnings(), [""; 0]);
        assert!(!format!("{config}{config:?}").contains("MfKQ9"), "{config}");
    }
    let unsigned = parse(&format!("url: 'https://h/', sign-secrets: '{key}'")).expect("valid");
    let warning = "dispatch.http.sign-secrets: has no effect, since dispatch.http.sign is none";
    assert_eq!(unsigned.warnings(), [warning]);
    for (keys, expected) in [
        (
            needs.to_owned(),
            "headers: {secret:tenant} has no value: set dispatch.http.secrets-folder to a folder \
            with a file for each tenant, or dispatch.http.default-secret-file",
        ),
        (
            ", idempotency-key: '{secret:tenant}'".to_owned(),
            "idempotency-key: {secret:tenant} has no value: set dispatch.http.secrets-folder to a \
            folder with a file for each tenant, or dispatch.http.default-secret-file",
        ),
        (
            format!(", secrets-folder: '{path}'"),
            "secrets-folder: has no effect: use {secret:tenant} in dispatch.http.url, headers, \
            sign-secrets or oauth2.client-secret, or remove this key",
        ),
        (
            format!("{needs}, secrets-folder: '{file}'"),
            "secrets-folder: is not a readable folder",
        ),
        (
            format!("{needs}, default-secret-file: '{path}/none'"),
            "default-secret-file: is not a readable file",
        ),
        (
            ", sign: standard-webhooks".to_owned(),
            "sign: needs keys: set dispatch.http.sign-secrets or dispatch.http.sign-secrets-file",
        ),
        (
            ", sign: standard-webhooks, sign-secrets: hunter2".to_owned(),
            "sign-secrets: must contain one or two keys such as whsec_… in base64, of 24 to 64 \
            bytes each",
        ),
        (
            format!(", sign: standard-webhooks, sign-secrets: '{key}', headers: {{Webhook-Id: a}}"),
            "sign: sets webhook-id, and dispatch.http.headers sets it, too; keep one of them",
        ),
    ] {
        let words = wrong(&format!("url: 'https://h/'{keys}"));
        assert_eq!(words, format!("dispatch.http.{expected}"));
    }
}

#[test]
fn jobs_without_tenants_belong_to_one() {
    let config = Config::parse("c.yaml", "job: {tenant: all}", std::iter::empty()).expect("valid");
    assert_eq!(config.job.tenant, TenantField::All);
    assert!(config.to_string().contains("tenant: \"all\""), "{config}");
}

#[test]
fn an_access_token_needs_a_client_and_is_the_only_authorization() {
    let all = "token-url: 'https://login/t', client-id: shop, client-secret: hunter2";
    let with = |oauth2: &str, rest: &str| format!("url: 'https://h/', oauth2: {{{oauth2}}}{rest}");
    let config = parse(&with(all, "")).expect("valid");
    let shown = format!("{config}{config:?}");
    assert!(
        shown.contains("client-id: \"shop\"") && !shown.contains("hunter2"),
        "{shown}"
    );
    let oauth2 = config
        .dispatch
        .http
        .expect("a url")
        .oauth2
        .expect("it is set");
    assert_eq!(oauth2.client_secret.expose(), "hunter2");
    assert!(!oauth2.is_by_tenant());
    // A secret per tenant, with a shared client ID or one per tenant.
    let folder = tempfile::tempdir().expect("a folder");
    let folder = format!(", secrets-folder: '{}'", folder.path().display());
    let of_tenants = "token-url: 'https://login/t', client-secret: '{secret:tenant}'";
    for (oauth2, rest) in [
        (of_tenants.to_owned(), &*folder),
        (
            format!("{of_tenants}, client-id: 'shop-{{tenant}}'"),
            &folder,
        ),
        (all.replace("/t'", "/{tenant}'"), ""),
        (format!("{all}, audience: 'https://{{tenant}}/'"), ""),
    ] {
        let config = parse(&with(&oauth2, rest)).expect("valid");
        let http = config.dispatch.http.expect("a url");
        assert!(http.oauth2.expect("it is set").is_by_tenant(), "{oauth2}");
    }
    // Only the token's URL needs the TLS files here.
    let papers = TestCertificates::new();
    let ca = papers.path("ca.pem").display().to_string();
    parse(&format!("url: 'http://h/', ca-file: '{ca}'")).expect_err("there is no TLS");
    parse(&format!(
        "url: 'http://h/', ca-file: '{ca}', oauth2: {{{all}}}"
    ))
    .expect("valid");

    let url = "dispatch.http.oauth2.token-url";
    let both = "sets authorization, and";
    for (keys, expected) in [
        (
            with("client-id: shop", ""),
            "dispatch.http.oauth2.client-id: has no effect without \
            dispatch.http.oauth2.token-url; set that or remove this key"
                .to_owned(),
        ),
        (
            with("client-auth: post", ""),
            "dispatch.http.oauth2.client-auth: has no effect without \
            dispatch.http.oauth2.token-url; set that or remove this key"
                .to_owned(),
        ),
        (
            with("token-url: 'https://login/t', client-secret: hunter2", ""),
            format!("{url}: needs a client: set dispatch.http.oauth2.client-id"),
        ),
        (
            with("token-url: 'https://login/t', client-id: shop", ""),
            format!(
                "{url}: needs the client's secret: set dispatch.http.oauth2.client-secret or dispatch.http.oauth2.client-secret-file"
            ),
        ),
        (
            with(&all.replace("//", "//shop:hunter2@"), ""),
            format!(
                "{url}: contains a user; set dispatch.http.oauth2.client-id and client-secret \
                instead"
            ),
        ),
        (
            with(&all.replace("https:", "ftp:"), ""),
            format!("{url}: has the wrong scheme; it must begin with http:// or https://"),
        ),
        (
            with(all, ", headers: {Authorization: Bearer x}"),
            format!("{url}: {both} dispatch.http.headers sets it, too; keep one of them"),
        ),
        (
            with(all, ", forward-headers: [Authorization]"),
            format!("{url}: {both} dispatch.http.forward-headers sets it, too; keep one of them"),
        ),
        (
            with(all, "").replace("//h/", "//u:p@h/"),
            format!("{url}: {both} the user in dispatch.http.url sets it, too; keep one of them"),
        ),
        (
            with(&all.replace("hunter2", "'x{secret:tenant}'"), ""),
            "dispatch.http.oauth2.client-secret: must be {secret:tenant} alone, or contain no \
            placeholder"
                .to_owned(),
        ),
        (
            with(&all.replace("shop", "'{secret:tenant}'"), ""),
            "dispatch.http.oauth2.client-id: has {secret:tenant}, which only \
            dispatch.http.oauth2.client-secret can contain"
                .to_owned(),
        ),
        (
            with(&all.replace("hunter2", "'{secret:tenant}'"), ""),
            "dispatch.http.oauth2.client-secret: {secret:tenant} has no value: set \
            dispatch.http.secrets-folder to a folder with a file for each tenant, or \
            dispatch.http.default-secret-file"
                .to_owned(),
        ),
        // The other keys may be used, but that is not known.
        (
            with(
                "token-url: 'https://login/t', client-id: shop, client-secret: '{secret:tenant}', \
                scope: ''",
                ", secrets-folder: '/'",
            ),
            "dispatch.http.oauth2.scope: is empty; it must be a text of 1 to 1024 ASCII characters"
                .to_owned(),
        ),
        (
            with(&all.replace("//login", "//{tenant}.login"), ""),
            format!("{url}: lacks a domain behind the placeholders of its host; {HOST_FORM}"),
        ),
        (
            with(&all.replace("//login", "//{tenant}login.example.com"), ""),
            format!("{url}: lacks a domain behind the placeholders of its host; {HOST_FORM}"),
        ),
        (
            with(&all.replace("//login/t", "//login/t#{tenant}"), ""),
            format!("{url}: has {{tenant}} after a #, but that part is never sent"),
        ),
        (
            with(&all.replace("//login/t", "//login/{tennant}"), ""),
            format!(
                "{url}: has the unknown placeholder \"{{tennant}}\"; it must be {{tenant}}; did \
                you mean tenant?"
            ),
        ),
        (
            with(&all.replace("shop", "'{header:x-shop}'"), ""),
            "dispatch.http.oauth2.client-id: has the unknown placeholder \"{header:x-shop}\"; it \
            must be {tenant}"
                .to_owned(),
        ),
        (
            with(&all.replace("hunter2", "'{secret:tennant}'"), ""),
            "dispatch.http.oauth2.client-secret: must be {secret:tenant} alone, or contain no \
            placeholder"
                .to_owned(),
        ),
        (
            with(&all.replace("hunter2", "hunterü"), ""),
            "dispatch.http.oauth2.client-secret: must be a text of 1 to 1024 ASCII characters"
                .to_owned(),
        ),
    ] {
        assert_eq!(wrong(&keys), expected);
    }
}
