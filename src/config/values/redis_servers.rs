//! Addresses of Redis: a single server, a cluster, or a primary behind Sentinel.

use strum::{IntoStaticStr, VariantArray};
use url::Url;

use super::secret::SecretUrl;
use rules::named::Named;

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
