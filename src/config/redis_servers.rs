//! Where Redis is: one server, a cluster, or behind Sentinel.

use std::fmt;

use url::Url;

use super::secret::SecretUrl;
use super::tls::Tls;
use super::urls::join;

/// `redis.url`, and what belongs to it. `Display` and `Debug` show no password.
#[derive(Debug, Clone, PartialEq)]
pub struct RedisServers {
    /// `redis.url`: at least one; several are the seeds of a cluster. Behind Sentinel the host is the primary's name.
    pub urls: Vec<SecretUrl>,
    /// What they are.
    pub topology: RedisTopology,
    /// `redis.ca-file`, `redis.cert-file` and `redis.key-file`
    pub tls: Tls,
}

/// What `redis.url` names.
#[derive(Debug, Clone, PartialEq)]
pub enum RedisTopology {
    /// A server.
    Single,
    /// Nodes of a Redis Cluster.
    Cluster,
    /// A primary, which these sentinels (`redis.sentinels`) find.
    Sentinel(Vec<SecretUrl>),
}

impl From<&SecretUrl> for RedisServers {
    /// A single server.
    fn from(url: &SecretUrl) -> Self {
        Self {
            urls: vec![url.clone()],
            topology: RedisTopology::Single,
            tls: Tls::default(),
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

/// Why `urls` can't be servers of one kind: all of them are used with the login and the TLS of the first.
pub(super) fn unlike(urls: &[SecretUrl]) -> Option<&'static str> {
    let all: Vec<Url> = urls
        .iter()
        .filter_map(|url| Url::parse(url.expose()).ok())
        .collect();
    let first = all.first()?;
    let differ = |f: fn(&Url) -> (&str, Option<&str>)| all.iter().any(|url| f(url) != f(first));
    if differ(|url| (url.scheme(), None)) {
        Some("names servers with and without TLS; give all of them one scheme")
    } else if differ(|url| (url.username(), url.password())) {
        Some("names servers with different users or passwords; all of them must have one login")
    } else {
        None
    }
}

/// One of `urls` names a database other than 0.
pub(super) fn has_database(urls: &[SecretUrl]) -> bool {
    let other = |url: Url| !matches!(url.path(), "" | "/" | "/0");
    urls.iter()
        .filter_map(|url| Url::parse(url.expose()).ok())
        .any(other)
}

/// One of `urls` is of a server with TLS.
pub(super) fn has_tls(urls: &[SecretUrl]) -> bool {
    urls.iter().any(|url| url.has_scheme("rediss"))
}
