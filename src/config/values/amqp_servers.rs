//! Addresses of RabbitMQ: a server, or the nodes of a cluster.

use std::fmt;

use super::secret::{SecretUrl, shown_urls};
use super::urls::join;
use crate::reading::show;

/// `amqp.url`. `Display` and `Debug` show no password.
#[derive(Debug, Clone, PartialEq)]
pub struct AmqpServers {
    /// URLs, at least one. Several URLs are nodes of one cluster; any of them can be used.
    pub urls: Vec<SecretUrl>,
}

show!(|servers: &AmqpServers| shown_urls(&servers.urls) => AmqpServers);

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
