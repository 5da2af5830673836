//! The section `amqp`: a server, or the nodes of a cluster.

use sluicegate::config::{Config, SecretUrl};

fn parse(url: &str) -> Result<Config, String> {
    let text = format!("amqp:\n  url: {url}\n");
    Config::parse("c.yaml", &text, std::iter::empty()).map_err(|errors| errors.to_string())
}

#[test]
fn several_urls_are_nodes_of_one_cluster() {
    for (url, urls) in [
        ("amqp://a", vec!["amqp://a"]),
        ("[amqp://a]", vec!["amqp://a"]),
        (
            "'amqp://u:p,w@a:1/%2f, amqp://u:p,w@b:2'",
            vec!["amqp://u:p,w@a:1/%2f", "amqp://u:p,w@b:2"],
        ),
        (
            "[amqps://a/x?heartbeat=5, amqps://b/x]",
            vec!["amqps://a/x?heartbeat=5", "amqps://b/x"],
        ),
    ] {
        let servers = parse(url).expect(url).amqp.url;
        let found: Vec<&str> = servers.urls.iter().map(SecretUrl::expose).collect();
        assert_eq!(found, urls, "{url}");
        assert_eq!(servers.expose(), urls.join(","));
    }
    let env = [(
        "SLUICEGATE_AMQP__URL".to_owned(),
        "amqp://u:hunter2@a,amqp://u:hunter2@b".to_owned(),
    )];
    let config = Config::parse("c.yaml", "", env.into_iter()).expect("two nodes");
    assert_eq!(config.amqp.url.urls.len(), 2);
    let shown = config.to_string();
    assert!(
        shown.contains("url: \"amqp://u:***@a,amqp://u:***@b\""),
        "{shown}"
    );
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn what_can_not_be_one_cluster_is_refused() {
    for (url, words) in [
        (
            "[amqp://a, 5]",
            "holds no urls alone; each must be a url such as amqp://user:password@host:5672/%2f",
        ),
        (
            "[amqp://a, http://b]",
            "has a virtual host with a bare /; write it percent-encoded, such as /%2f for the default one",
        ),
        (
            "[amqp://a, amqps://b]",
            "names servers with and without TLS; give all of them one scheme",
        ),
        (
            "[amqp://u:hunter2@a, amqp://u:hunter3@b]",
            "names servers with different users or passwords; they must be nodes of one cluster, which has one login",
        ),
        (
            "[amqp://a/x, amqp://b]",
            "names different virtual hosts; they must be nodes of one cluster, which has all of them",
        ),
    ] {
        let errors = parse(url).expect_err(url);
        assert!(
            errors.starts_with(&format!("c.yaml:2:3: amqp.url: {words}")),
            "{url}: {errors}"
        );
        assert!(!errors.contains("hunter"), "{errors}");
    }
    let many = vec!["amqp://a"; 33].join(",");
    let errors = parse(&format!("'{many}'")).expect_err("too many");
    assert!(
        errors.contains("names 33 servers; 32 are enough"),
        "{errors}"
    );
}
