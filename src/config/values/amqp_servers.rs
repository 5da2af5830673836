//! Addresses of RabbitMQ: a server, or the nodes of a cluster.

use std::fmt;

use url::Url;

use super::secret::SecretUrl;
use super::urls::join;

/// `amqp.url`. `Display` and `Debug` show no password.
#[derive(Debug, Clone, PartialEq)]
pub struct AmqpServers {
    /// URLs, at least one. Several URLs are nodes of one cluster; any of them can be used.
    pub urls: Vec<SecretUrl>,
}

impl From<SecretUrl> for AmqpServers {
    fn from(url: SecretUrl) -> Self {
        Self { urls: vec![url] }
    }
}

impl fmt::Display for AmqpServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&join(&self.urls))
    }
}

impl AmqpServers {
    /// Returns the servers as in a configuration, with passwords. Never print the result; it is for
    /// a worker's configuration.
    pub fn expose(&self) -> String {
        let urls: Vec<&str> = self.urls.iter().map(SecretUrl::expose).collect();
        urls.join(",")
    }
}

/// Returns why `urls` can't be nodes of one cluster, or `None` if they can.
pub(crate) fn unlike(urls: &[SecretUrl]) -> Option<&'static str> {
    let all: Vec<Url> = (urls.iter())
        .filter_map(|url| Url::parse(url.expose()).ok())
        .collect();
    let (first, others) = all.split_first()?;
    // No path, `/` and `/%2f` all name the default virtual host.
    let vhost = |url: &Url| match url.path().trim_start_matches('/') {
        "" => "%2f".to_owned(),
        name => name.replace("%2F", "%2f"),
    };
    let differ = |f: &dyn Fn(&Url) -> bool| others.iter().any(f);
    if differ(&|url| url.scheme() != first.scheme()) {
        Some("has servers with and without TLS; use the same scheme for all")
    } else if differ(&|url| {
        (url.username(), url.password()) != (first.username(), first.password())
    }) {
        Some(
            "has servers with different users or passwords; nodes of one cluster must have the \
            same login",
        )
    } else if differ(&|url| vhost(url) != vhost(first)) {
        Some(
            "has servers with different virtual hosts; nodes of one cluster must have the same \
            virtual host",
        )
    } else {
        None
    }
}
