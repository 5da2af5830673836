//! `redis`: where Redis is, and how keys are named.

use std::fmt;

use serde_json::{Value as Json, json};

use super::section::section;
use super::tls_keys::{TlsKeys, tls};
use crate::reading::key::{boolean, choice, file, pem, text, url};
use crate::reading::parse::text as parse_text;
use crate::reading::{ConfigInput, Raw, ShownValue, ValueError, keys, show, wrong};
use crate::values::redis_servers::{RedisTopology, ScriptCommand, has_database, has_tls};
use crate::values::secret::SecretUrl;
use crate::values::tls::Tls;
use crate::values::urls::{UrlForm, difference, join};
use rules::policy::Policy;
use rules::slots::hash_tag;

const URLS: UrlForm = UrlForm {
    schemes: ["redis", "rediss"],
    example: "redis://user:password@host:6379/0",
};
const SENTINEL_URLS: UrlForm = UrlForm {
    example: "redis://host:26379",
    ..URLS
};
const TLS: TlsKeys = [&CA_FILE, &CERT_FILE, &KEY_FILE];

keys! {
    URL: Vec<SecretUrl> = url("redis.url", URLS.schemes, true, |raw| URLS.several(raw))
        .or_file(&URL_FILE)
        .default("redis://127.0.0.1:6379")
        .about("URL of Redis (6.2 or newer) or Valkey; it must not evict keys (maxmemory-policy \
            noeviction).")
        .note("Several URLs are nodes of one Redis Cluster. `rediss://` uses TLS.");
    URL_FILE: String = file("redis.url-file").about("File that contains `redis.url`.");
    CLUSTER: bool = boolean("redis.cluster")
        .about("Whether redis.url belongs to a Redis Cluster, even if it is a single URL.")
        .note("Some clouds have one address for all nodes. By default, several URLs are a \
            cluster, and a single URL is not.");
    SENTINELS: Vec<SecretUrl> =
        url("redis.sentinels", URLS.schemes, true, |raw| SENTINEL_URLS.several(raw))
            .or_file(&SENTINELS_FILE)
            .about("Sentinels that know the primary; redis.url then has the primary's name as its \
                host.");
    SENTINELS_FILE: String = file("redis.sentinels-file").about("File that contains `redis.sentinels`.");
    CA_FILE: String = pem("redis.ca-file")
        .about("Certificate authorities to trust with rediss://, instead of the system's.")
        .note("See [TLS](DEPLOYMENT.md#tls).");
    CERT_FILE: String = pem("redis.cert-file")
        .about("Client certificate of workers, with its chain.");
    KEY_FILE: String = pem("redis.key-file").about("Private key of the client certificate, \
        without a passphrase.");
    PREFIX: String = text(
        "redis.prefix",
        "1 to 128 bytes, no spaces, no control characters; braces only as one hash tag, such as \
        `{rlaas}:rate_limit`, which keeps all keys of a cluster in one slot, so on one primary",
        prefix_schema,
        prefix,
    )
        .default("rlaas:rate_limit")
        .about("Prefix of all keys; workers with the same prefix share their limits.")
        .note("The only key that never expires is the epoch, `PREFIX:%epoch`, or \
            `PREFIX:{NUMBER}:%epoch` for each primary of a cluster.");
    SCRIPTS: ScriptCommand = choice("redis.scripts")
        .default("evalsha")
        .about("How scripts are called: `evalsha` by their hash, `eval` with their text.")
        .note("`eval` is for [proxies](DEPLOYMENT.md#redis-behind-a-proxy) that refuse SCRIPT.");
}

section! {
    /// `redis`
    #[derive(Debug, Clone, PartialEq)]
    pub struct Redis {
        /// `redis.url`, and the keys that belong to it.
        pub url: RedisServers = RedisServers::read,
        /// `redis.prefix`: prefix of every key.
        pub prefix: String = PREFIX,
    }
    |input| {
        let (servers, tag) = (url.as_ref()?, hash_tag(prefix.as_ref()?));
        let is_eval = servers.scripts == ScriptCommand::Eval;
        let scattered = is_eval && servers.topology != RedisTopology::Cluster && tag.is_none();
        let words = "is eval, but redis.prefix has no hash tag by which a proxy sends all keys to \
            one server; set redis.prefix to {rlaas}:rate_limit, for example";
        input.check(&SCRIPTS.key, scattered.then_some(words))?;
    }
}

section! {
    /// `redis.url`, and the keys that belong to it. `Display` and `Debug` show no password.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RedisServers {
        /// `redis.url`: at least one URL. Several are the seeds of a cluster. With Sentinel, the
        /// host is the primary's name.
        pub urls: Vec<SecretUrl> = URL,
        /// Type of the servers.
        pub topology: RedisTopology,
        /// `redis.ca-file`, `redis.cert-file` and `redis.key-file`
        pub tls: Tls = tls(TLS),
        /// `redis.scripts`
        pub scripts: ScriptCommand = SCRIPTS,
    }
    |input| {
        let (cluster, sentinels) = (input.optional(&CLUSTER), input.optional(&SENTINELS));
        let topology = input.topology(urls.as_ref()?, cluster?, sentinels?);
    }
}

show!(ShownValue::named => ScriptCommand);

impl From<&SecretUrl> for RedisServers {
    /// Returns a single server.
    fn from(url: &SecretUrl) -> Self {
        Self {
            urls: vec![url.clone()],
            topology: RedisTopology::Single,
            tls: Tls::default(),
            scripts: ScriptCommand::default(),
        }
    }
}

impl From<&RedisServers> for RedisServers {
    fn from(servers: &RedisServers) -> Self {
        servers.clone()
    }
}

impl fmt::Display for RedisServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&join(&self.urls))?;
        match &self.topology {
            RedisTopology::Sentinel(sentinels) => write!(f, " behind {}", join(sentinels)),
            RedisTopology::Single | RedisTopology::Cluster => Ok(()),
        }
    }
}

impl Redis {
    /// Returns why this Redis can't keep the limits of `policy`, or `None` if it can.
    pub(crate) fn incompatibility(&self, policy: &Policy) -> Option<String> {
        let global = policy.default_limits().global().next()?;
        let scattered =
            self.url.topology == RedisTopology::Cluster && hash_tag(&self.prefix).is_none();
        scattered.then(|| {
            format!(
                "the limit {} is global, so in a Redis Cluster its keys and the keys of all \
                tenants must share a slot: give redis.prefix a hash tag, such as \
                {{rlaas}}:rate_limit (one primary then decides for all tenants, and the others \
                are idle), or use a single Redis",
                global.name()
            )
        })
    }
}

impl ConfigInput {
    /// Returns the type of the servers, whose URLs fit it.
    fn topology(
        &mut self,
        urls: &[SecretUrl],
        cluster: Option<bool>,
        sentinels: Option<Vec<SecretUrl>>,
    ) -> Option<RedisTopology> {
        let topology = match (sentinels, cluster) {
            (Some(_), Some(true)) => {
                let words = "is true and redis.sentinels is set; keep one of them";
                return self.wrong(&CLUSTER.key, words);
            }
            (Some(_), _) if urls.len() > 1 => {
                let words = "has several servers; with redis.sentinels it must name only the \
                    primary, such as redis://user:password@NAME/0";
                return self.wrong(&URL.key, words);
            }
            (Some(sentinels), _) => RedisTopology::Sentinel(sentinels),
            (None, Some(false)) if urls.len() > 1 => {
                let words = "is false, but redis.url has several servers; keep one";
                return self.wrong(&CLUSTER.key, words);
            }
            (None, cluster) if cluster == Some(true) || urls.len() > 1 => RedisTopology::Cluster,
            (None, _) => RedisTopology::Single,
        };
        // Several URLs are a cluster even if the key is not set.
        let is_cluster = (topology == RedisTopology::Cluster).then_some(true);
        self.shown.set(&CLUSTER.key, &is_cluster);
        self.check(&URL.key, difference(urls))?;
        let words = "selects a database, but a cluster has only database 0";
        let selects = topology == RedisTopology::Cluster && has_database(urls);
        self.check(&URL.key, selects.then_some(words))?;
        let mut encrypted = has_tls(urls);
        if let RedisTopology::Sentinel(sentinels) = &topology {
            encrypted |= has_tls(sentinels);
            self.check(&SENTINELS.key, difference(sentinels))?;
        }
        if !encrypted {
            self.tls_unused(TLS, "the URLs begin with rediss://")?;
        }
        Some(topology)
    }
}

/// Parses `redis.prefix`. Braces must form one hash tag. Otherwise each key of a cluster would have
/// a slot of its own.
pub(crate) fn prefix(raw: &Raw) -> Result<String, ValueError> {
    const MUST: &str = "1 to 128 bytes without spaces and control characters, with braces only as one hash tag that is not empty, such as {rlaas}:rate_limit";
    let prefix = parse_text(raw, MUST)?;
    if prefix.len() > 128 {
        return Err(format!("has {} bytes; it must be {MUST}", prefix.len()));
    }
    let braces = prefix.matches(['{', '}']).count();
    let one_tag = braces == 2 && hash_tag(prefix).is_some();
    if prefix.contains(|c: char| c.is_control() || c.is_whitespace()) || (braces > 0 && !one_tag) {
        return Err(wrong(raw, MUST));
    }
    Ok(prefix.to_owned())
}

fn prefix_schema() -> Json {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 128,
        "pattern": "^[^{}\\s\\u0000-\\u001f\\u007f-\\u009f]*(\\{[^{}\\s\\u0000-\\u001f\\u007f-\\u009f]+\\}[^{}\\s\\u0000-\\u001f\\u007f-\\u009f]*)?$",
    })
}
