//! The section `redis`: a server, a cluster, a primary behind sentinels, TLS.

use sluicegate::config::{Config, RedisTopology};

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
fn urls_say_what_they_are() {
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
fn what_does_not_fit_together_is_refused() {
    let own = |name: &str| format!("{}/tests/it/config_redis.rs", name);
    let file = own(env!("CARGO_MANIFEST_DIR"));
    for (keys, words) in [
        (
            "url: [redis://a, 5]",
            "2:3: redis.url: holds no urls alone; each must be one such as redis://user:password@host:6379/0",
        ),
        ("url: redis://a,http://b", "2:3: redis.url: "),
        ("url: [redis://a, http://b]", "2:3: redis.url: "),
        (
            "url: [redis://a, rediss://b]",
            "2:3: redis.url: names servers with and without TLS; give all of them one scheme",
        ),
        (
            "url: [redis://u:hunter2@a, redis://u:hunter3@b]",
            "2:3: redis.url: names servers with different users or passwords; all of them must have one login",
        ),
        (
            "url: [redis://a, redis://b/1]",
            "2:3: redis.url: names a database; a cluster has database 0 alone",
        ),
        (
            "url: [redis://a, redis://b]; cluster: false",
            "3:3: redis.cluster: is false, and redis.url names several servers; give one",
        ),
        (
            "cluster: maybe",
            "2:3: redis.cluster: is \"maybe\"; it must be true or false",
        ),
        (
            "url: [redis://a, redis://b]; sentinels: redis://c",
            "2:3: redis.url: names several servers; with redis.sentinels it names the primary, such as redis://user:password@NAME/0",
        ),
        (
            "cluster: true; sentinels: redis://c",
            "2:3: redis.cluster: is true, and redis.sentinels is set; keep one of them",
        ),
        (
            "sentinels: [redis://a, rediss://b]",
            "2:3: redis.sentinels: names servers with and without TLS; give all of them one scheme",
        ),
        (
            "sentinels: http://a",
            "2:3: redis.sentinels: has the wrong scheme; it must begin with redis:// or rediss://",
        ),
        (
            "sentinels: redis://a; sentinels-file: b",
            "3:3: redis.sentinels-file: redis.sentinels is set too; keep one of them",
        ),
        (
            &format!("url: rediss://a; ca-file: {file}"),
            "3:3: redis.ca-file: holds no certificate that can be read; it must be a PEM file",
        ),
        (
            &format!("url: rediss://a; key-file: {file}"),
            "3:3: redis.key-file: holds no private key that can be read; it must be a PEM file without a passphrase",
        ),
        (
            "url: rediss://a; cert-file: nowhere",
            "3:3: redis.cert-file: \"nowhere\" can't be read: No such file or directory (os error 2)",
        ),
    ] {
        let errors = parse(keys).expect_err(keys);
        assert!(
            errors.starts_with(&format!("c.yaml:{words}")),
            "{keys}: {errors}"
        );
        assert!(!errors.contains("hunter"), "{errors}");
    }
    let many = vec!["redis://a"; 33].join(",");
    let errors = parse(&format!("url: '{many}'")).expect_err("too many");
    assert!(
        errors.contains("names 33 servers; 32 are enough"),
        "{errors}"
    );
}

#[test]
fn certificates_come_in_pairs_and_with_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new([]).expect("no names");
    let cert = params.self_signed(&key).expect("a certificate").pem();
    for (name, text) in [
        ("cert.pem", cert.clone()),
        ("key.pem", key.serialize_pem()),
        ("damaged.pem", cert.clone() + &cert.replace("MII", "M-I")),
    ] {
        std::fs::write(folder.path().join(name), text).expect("a folder to write to");
    }
    let load = |keys: &str| {
        let path = folder.path().join("c.yaml");
        let text = format!("redis:\n  {}\n", keys.replace("; ", "\n  "));
        std::fs::write(&path, text).expect("a folder to write to");
        let config = Config::load(Some(&path), std::iter::empty());
        config.map_err(|errors| errors.to_string())
    };
    let all =
        "url: rediss://u:hunter2@a; ca-file: cert.pem; cert-file: cert.pem; key-file: key.pem";
    let config = load(all).expect(all);
    let tls = &config.redis.url.tls;
    assert_eq!(
        tls.ca.as_ref().map(|ca| ca.bytes()),
        Some(cert.trim_end().as_bytes())
    );
    assert!(tls.identity.is_some());
    let shown = format!("{config}{config:?}");
    assert!(shown.contains("  ca-file: \"cert.pem\"\n"), "{shown}");
    assert!(shown.contains("  key-file: \"key.pem\"\n"), "{shown}");
    assert!(
        !shown.contains("hunter2") && !shown.contains("PRIVATE"),
        "{shown}"
    );
    for (keys, words) in [
        (
            "url: rediss://a; cert-file: cert.pem",
            "redis.cert-file: needs its key too: set redis.key-file",
        ),
        (
            "url: rediss://a; key-file: key.pem",
            "redis.key-file: needs its certificate too: set redis.cert-file",
        ),
        (
            "url: rediss://a; ca-file: damaged.pem",
            "redis.ca-file: holds no certificate that can be read",
        ),
        (
            "url: redis://a; ca-file: cert.pem",
            "redis.ca-file: is of no use without TLS; let the urls begin with rediss://",
        ),
    ] {
        let errors = load(keys).expect_err(keys);
        assert!(
            errors.contains(&format!(":3:3: {words}")),
            "{keys}: {errors}"
        );
    }
}

#[test]
fn what_is_shown_is_a_configuration() {
    for keys in [
        "url: [redis://a:1, redis://b:2]",
        "url: redis://a; cluster: true",
        "url: redis://limits/0; sentinels: [redis://a:1, redis://b:2]",
    ] {
        let config = parse(keys).expect(keys);
        let again = Config::parse("c.yaml", &config.to_string(), std::iter::empty());
        assert_eq!(again.expect(keys).redis, config.redis, "{keys}");
    }
}
