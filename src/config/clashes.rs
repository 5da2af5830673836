//! Finds what two pipelines must not share: queues, since one would take the other's jobs, and
//! names of Redis keys, since their limits would be counted together.

use std::collections::BTreeMap;

use url::Url;

use super::load::Config;
use super::values::pipeline_name::PipelineName;
use super::values::redis_servers::RedisTopology;
use super::values::secret::SecretUrl;
use super::values::urls::place;
use rules::delays::{DelayLevels, QueueNames};

/// Returns the problem of each pipeline that clashes with one before it.
pub(super) fn clashes(each: &BTreeMap<PipelineName, Config>) -> Vec<(PipelineName, String)> {
    let mut found = Vec::new();
    for (index, (name, config)) in each.iter().enumerate() {
        for (other, theirs) in each.iter().take(index) {
            let words = [queues(config, theirs, other), keys(config, theirs, other)];
            let words = words.into_iter().flatten();
            found.extend(words.map(|words| (name.clone(), words)));
        }
    }
    found
}

/// Returns a problem if the pipelines share a queue.
fn queues(own: &Config, theirs: &Config, other: &PipelineName) -> Option<String> {
    if !share(&own.amqp.url.urls, &theirs.amqp.url.urls) {
        return None;
    }
    let names = |config: &Config| config.amqp.names(&DelayLevels::new(config.delay.max_delay));
    let (own, theirs) = (names(own), names(theirs));
    let new = |names: &QueueNames| {
        [&names.fresh]
            .into_iter()
            .chain(names.more())
            .cloned()
            .collect()
    };
    let (own_new, their_new): (Vec<_>, Vec<_>) = (new(&own), new(&theirs));
    let same = (own_new.iter().find(|queue| theirs.has(queue)))
        .or_else(|| their_new.iter().find(|queue| own.has(queue)))?;
    Some(format!(
        "has the queue {same:?}, which the pipeline {other} also uses on the same RabbitMQ; \
        change amqp.queue or amqp.queues of one of them"
    ))
}

/// Returns a problem if keys of one pipeline can be keys of the other.
fn keys(own: &Config, theirs: &Config, other: &PipelineName) -> Option<String> {
    let servers = |config: &Config| {
        let mut urls = config.redis.url.urls.clone();
        if let RedisTopology::Sentinel(sentinels) = &config.redis.url.topology {
            urls.extend(sentinels.iter().cloned());
        }
        urls
    };
    if !share(&servers(own), &servers(theirs)) {
        return None;
    }
    let (own, theirs) = (&own.redis.prefix, &theirs.redis.prefix);
    if own == theirs {
        return Some(format!(
            "has the prefix {own:?}, which the pipeline {other} also uses in the same Redis, so \
            their limits would be counted together; change or remove redis.prefix of one of them"
        ));
    }
    let (short, long) = match own.len() < theirs.len() {
        true => (own, theirs),
        false => (theirs, own),
    };
    let rest = long.strip_prefix(short.as_str())?.strip_prefix(':')?;
    // No tenant's key continues with `%`.
    (!rest.starts_with('%')).then(|| {
        format!(
            "has the prefix {own:?}, and the pipeline {other} has {theirs:?} in the same Redis, \
            so their keys could collide; choose prefixes of which neither begins with the other \
            and a colon"
        )
    })
}

/// Returns true if both lists contain the same server, with the same database or virtual host.
fn share(own: &[SecretUrl], theirs: &[SecretUrl]) -> bool {
    let theirs: Vec<_> = theirs.iter().filter_map(server_address).collect();
    own.iter()
        .filter_map(server_address)
        .any(|own| theirs.contains(&own))
}

/// Returns host, port, and database or virtual host.
fn server_address(url: &SecretUrl) -> Option<(String, u16, String)> {
    let url = Url::parse(url.expose()).ok()?;
    let port = match url.scheme() {
        "amqp" => 5672,
        "amqps" => 5671,
        _ => 6379,
    };
    let host = url.host_str()?.to_ascii_lowercase();
    Some((host, url.port().unwrap_or(port), place(&url)))
}
