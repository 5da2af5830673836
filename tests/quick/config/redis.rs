//! The section `redis`: a server, a cluster, a primary behind sentinels, TLS.

use config::{Config, RedisTopology};
use kit::Says;

fn parse(keys: &str) -> Result<Config, String> {
    let text = format!("redis:\n  {}\n", keys.replace("; ", "\n  "));
    Config::parse("c.yaml", &text, std::iter::empty()).map_err(|errors| errors.to_string())
}

fn topology(keys: &str) -> (Vec<String>, RedisTopology) {
    let servers = parse(keys).expect(keys).redis.url;
    let urls = servers.urls.iter().map(|url| url.expose().to_owned());
    (urls.collect(), servers.topology)
}

#[test]
fn urls_determine_the_topology() {
    for (keys, urls, cluster) in [
        ("url: redis://a", vec!["redis://a"], false),
        ("url: [redis://a]", vec!["redis://a"], false),
        ("url: redis://a; cluster: false", vec!["redis://a"], false),
        ("url: redis://a; cluster: true", vec!["redis://a"], true),
        (
            "url: 'redis://:p,w@a:1, redis://:p,w@b:2'",
            vec!["redis://:p,w@a:1", "redis://:p,w@b:2"],
            true,
        ),
        (
            "url: [rediss://a, rediss://b/0]",
            vec!["rediss://a", "rediss://b/0"],
            true,
        ),
    ] {
        let expected = if cluster {
            RedisTopology::Cluster
        } else {
            RedisTopology::Single
        };
        let urls: Vec<String> = urls.into_iter().map(String::from).collect();
        assert_eq!(topology(keys), (urls, expected), "{keys}");
    }
    let (urls, behind) =
        topology("url: redis://u:p@limits/2; sentinels: [redis://a:1, redis://b:2]");
    assert_eq!(urls, ["redis://u:p@limits/2"]);
    assert!(matches!(behind, RedisTopology::Sentinel(all) if all.len() == 2));
}

#[test]
fn contradictory_keys_are_refused() {
    for (keys, words) in [
        (
            "url: [redis://a, 5]",
            "2:3: redis.url: has an entry that is not a URL; each must be a URL such as \
            redis://user:password@host:6379/0",
        ),
        ("url: redis://a,http://b", "2:3: redis.url: "),
        ("url: [redis://a, http://b]", "2:3: redis.url: "),
        (
            "url: [redis://a, rediss://b]",
            "2:3: redis.url: has servers with and without TLS; use the same scheme for all",
        ),
        (
            "url: [redis://u:hunter2@a, redis://u:hunter3@b]",
            "2:3: redis.url: has servers with different users or passwords; all must have the \
            same login",
        ),
        (
            "url: [redis://a, redis://b/1]",
            "2:3: redis.url: selects a database, but a cluster has only database 0",
        ),
        (
            "url: [redis://a, redis://b]; cluster: false",
            "3:3: redis.cluster: is false, but redis.url has several servers; keep one",
        ),
        (
            "cluster: maybe",
            "2:3: redis.cluster: is \"maybe\"; it must be true or false",
        ),
        (
            "url: [redis://a, redis://b]; sentinels: redis://c",
            "2:3: redis.url: has several servers; with redis.sentinels it must name only the \
            primary, such as redis://user:password@NAME/0",
        ),
        (
            "cluster: true; sentinels: redis://c",
            "2:3: redis.cluster: is true and redis.sentinels is set; keep one of them",
        ),
        (
            "sentinels: [redis://a, rediss://b]",
            "2:3: redis.sentinels: has servers with and without TLS; use the same scheme for all",
        ),
        (
            "url: redis://u:hunter2@a/0?db=1",
            "2:3: redis.url: has a ? or # after the host, which has no meaning here; write the \
            database number as the path, such as /0",
        ),
        ("url: redis://a#1", "2:3: redis.url: has a ? or # "),
        (
            "sentinels: redis://a?db=1",
            "2:3: redis.sentinels: has a ? or # ",
        ),
        (
            "sentinels: http://a",
            "2:3: redis.sentinels: has the wrong scheme; it must begin with redis:// or rediss://",
        ),
        (
            "sentinels: redis://a; sentinels-file: b",
            "3:3: redis.sentinels-file: redis.sentinels is also set; keep one of them",
        ),
    ] {
        let errors = parse(keys).expect_err(keys);
        assert!(
            errors.starts_with(&format!("c.yaml:{words}")),
            "{keys}: {errors}"
        );
        assert!(!errors.contains("hunter"), "{errors}");
    }
    for keys in [
        "scripts: eval",
        "scripts: eval; prefix: p",
        "scripts: eval; sentinels: redis://a",
    ] {
        let errors = parse(keys).expect_err(keys);
        errors.says("set redis.prefix to {rlaas}:rate_limit");
    }
    let many = vec!["redis://a"; 33].join(",");
    let errors = parse(&format!("url: '{many}'")).expect_err("too many");
    errors.says("has 33 servers; the maximum is 32");
}

#[test]
fn the_shown_configuration_is_valid() {
    for keys in [
        "url: [redis://a:1, redis://b:2]",
        "url: redis://a; cluster: true",
        "url: redis://a; cluster: true; scripts: eval",
        "scripts: eval; prefix: '{p}:q'",
        "url: redis://limits/0; sentinels: [redis://a:1, redis://b:2]",
    ] {
        let config = parse(keys).expect(keys);
        let again = Config::parse("c.yaml", &config.to_string(), std::iter::empty());
        assert_eq!(again.expect(keys).redis, config.redis, "{keys}");
    }
}
