//! The section `amqp`: a server, or the nodes of a cluster.

use config::{Amqp, Config, SecretUrl};
use kit::Says;

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
    shown.says("url: \"amqp://u:***@a,amqp://u:***@b\"");
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn urls_that_form_no_cluster_are_refused() {
    for (url, words) in [
        (
            "[amqp://a, 5]",
            "has an entry that is not a URL; each must be a URL such as \
            amqp://user:password@host:5672/%2f",
        ),
        (
            "[amqp://a, http://b]",
            "has a virtual host with a bare /; write it percent-encoded, such as /%2f for the default one",
        ),
        (
            "[amqp://a, amqps://b]",
            "has servers with and without TLS; use the same scheme for all",
        ),
        (
            "[amqp://u:hunter2@a, amqp://u:hunter3@b]",
            "has servers with different users or passwords; all must have the \
            same login",
        ),
        (
            "[amqp://a/x, amqp://b]",
            "has servers with different virtual hosts; all must have the same \
            virtual host",
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
    errors.says("has 33 servers; the maximum is 32");
}

fn queues(amqp: &str) -> Result<Amqp, String> {
    let text = format!("amqp: {{{amqp}}}");
    let config = Config::parse("c.yaml", &text, std::iter::empty());
    config
        .map(|config| config.amqp)
        .map_err(|errors| errors.to_string())
}

#[test]
fn queues_of_new_jobs_share_the_prefetch_by_their_weights() {
    for (amqp, shares) in [
        ("queue: a", vec![("a", 500)]),
        (
            "queue: a, queues: {a: 3, b: 1}",
            vec![("a", 375), ("b", 125)],
        ),
        // The work queue is always included.
        ("queue: a, queues: {b: 1}", vec![("a", 250), ("b", 250)]),
        (
            "queue: c, queues: [a, b], prefetch: 9",
            vec![("c", 3), ("a", 3), ("b", 3)],
        ),
        (
            "queue: a, queues: {b: 100}, prefetch: 2",
            vec![("a", 1), ("b", 1)],
        ),
    ] {
        let found = queues(amqp).expect(amqp);
        let found = found.shares();
        let found: Vec<_> = found
            .iter()
            .map(|(name, share)| (&**name, *share))
            .collect();
        assert_eq!(found, shares, "{amqp}");
    }
    for (amqp, words) in [
        (
            "queues: {}",
            "is empty; it must be names of queues with their weights",
        ),
        ("queues: a", "is \"a\"; it must be names of queues"),
        (
            "queues: {a: 0}",
            "\"a\" is 0; it must be a whole number from 1 to 100",
        ),
        (
            "queues: {amq.x: 1}",
            "the name \"amq.x\" is \"amq.x\"; RabbitMQ reserves names",
        ),
        ("queues: [a, a]", "names a queue twice"),
        (
            "queues: {jobs.dead: 1}",
            "has \"jobs.dead\", which is one of the queues for retries and dead letters of \"jobs\"",
        ),
        (
            "queues: [jobs.delay.from-7]",
            "has \"jobs.delay.from-7\", which is one",
        ),
    ] {
        let errors = queues(amqp).expect_err(amqp);
        errors.says(&format!("amqp.queues: {words}"));
    }
    let names: Vec<String> = (0..17).map(|n| format!("q{n}")).collect();
    let errors = queues(&format!("queues: [{}]", names.join(", "))).expect_err("too many");
    errors.says("has 17 queues; the maximum is 16");
}
