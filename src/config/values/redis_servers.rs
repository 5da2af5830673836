//! Addresses of Redis: a single server, a cluster, or a primary behind Sentinel.

use std::fmt;

use strum::{IntoStaticStr, VariantArray};
use url::Url;

use super::secret::SecretUrl;
use super::tls::Tls;
use super::urls::join;
use rules::named::Named;

/// `redis.url`, and the keys that belong to it. `Display` and `Debug` show no password.
#[derive(Debug, Clone, PartialEq)]
pub struct RedisServers {
    /// `redis.url`: at least one URL. Several are the seeds of a cluster. With Sentinel, the host
    /// is the primary's name.
    pub urls: Vec<SecretUrl>,
    /// Type of the servers.
    pub topology: RedisTopology,
    /// `redis.ca-file`, `redis.cert-file` and `redis.key-file`
    pub tls: Tls,
    /// `redis.scripts`
    pub scripts: ScriptCommand,
}

/// `redis.scripts`: the command that calls a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum ScriptCommand {
    /// `evalsha`: each call has the script's hash; Redis keeps its text.
    #[default]
    EvalSha,
    /// `eval`: each call has the script's text.
    Eval,
}

impl Named for ScriptCommand {}

/// Type of the servers in `redis.url`.
#[derive(Debug, Clone, PartialEq)]
pub enum RedisTopology {
    /// A single server.
    Single,
    /// Nodes of a Redis Cluster.
    Cluster,
    /// A primary that these sentinels (`redis.sentinels`) find.
    Sentinel(Vec<SecretUrl>),
}

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

/// Returns true if one of `urls` names a database other than 0.
pub(crate) fn has_database(urls: &[SecretUrl]) -> bool {
    let other = |url: Url| !matches!(url.path(), "" | "/" | "/0");
    urls.iter()
        .filter_map(|url| Url::parse(url.expose()).ok())
        .any(other)
}

/// Returns true if one of `urls` uses TLS.
pub(crate) fn has_tls(urls: &[SecretUrl]) -> bool {
    urls.iter().any(|url| url.has_scheme("rediss"))
}
