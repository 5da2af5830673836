//! The nodes of a cluster. They are equivalent: a connection goes to one node, and when it ends, to
//! the next.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use super::connection::{AmqpLink, NodeTarget};
use crate::BrokerError;

/// The servers in `amqp.url`.
#[derive(Debug)]
pub(super) struct Nodes {
    targets: Vec<NodeTarget>,
    /// Index of the node that connections try first.
    first: usize,
}

impl Nodes {
    /// Creates the list of nodes. Connections begin at a random node, so that workers spread over
    /// them.
    ///
    /// # Errors
    /// [`BrokerError::Url`], which never contains the URL itself.
    pub fn new(amqp: &config::Amqp) -> Result<Self, BrokerError> {
        Self::beginning_at(amqp, rand::random::<u32>() as usize)
    }

    fn beginning_at(amqp: &config::Amqp, number: usize) -> Result<Self, BrokerError> {
        let urls = &amqp.url.urls;
        let targets: Vec<NodeTarget> = (urls.iter())
            .map(|url| NodeTarget::new(amqp, url))
            .collect::<Result<_, _>>()?;
        let first = number.checked_rem(targets.len());
        let none = || BrokerError::Url("it has no server".to_owned());
        Ok(Self {
            first: first.ok_or_else(none)?,
            targets,
        })
    }

    /// Returns the order in which one connection tries the nodes.
    pub fn turns(&self) -> NodeRotation<'_> {
        NodeRotation {
            nodes: self,
            next: self.first,
        }
    }

    /// Connects to all nodes at once. Returns a connection to the first node that accepts it, and
    /// the errors of the others.
    ///
    /// # Errors
    /// The same as [`NodeRotation::open`].
    pub async fn survey(&self, name: &str) -> Result<(AmqpLink, Vec<BrokerError>), BrokerError> {
        let opening = self
            .targets
            .iter()
            .map(|target| AmqpLink::open(target, name));
        let (mut links, mut errors) = (Vec::new(), Vec::new());
        for opened in join_all(opening).await {
            match opened {
                Ok(link) => links.push(link),
                Err(error) => errors.push(error),
            }
        }
        let mut links = links.into_iter();
        let Some(link) = links.next() else {
            return Err(self.all_failed(errors));
        };
        join_all(links.map(|other| async move { other.close().await })).await;
        Ok((link, errors))
    }
}

/// The order in which one connection tries the nodes. Each node is tried once per attempt,
/// beginning behind the one on which the last session ended.
pub(super) struct NodeRotation<'a> {
    nodes: &'a Nodes,
    next: usize,
}

impl NodeRotation<'_> {
    /// Connects to the next node that accepts the connection. RabbitMQ's tools show `name`.
    ///
    /// # Errors
    /// No node accepts it. A misconfiguration is reported before errors that may pass.
    pub async fn open(&mut self, name: &str) -> Result<AmqpLink, BrokerError> {
        let targets = &self.nodes.targets;
        let mut errors = Vec::new();
        for _ in targets {
            let target = &targets[self.next];
            self.next = (self.next + 1) % targets.len();
            match AmqpLink::open(target, name).await {
                Ok(link) => return Ok(link),
                Err(error) => {
                    if targets.len() > 1 {
                        tracing::debug!(connection = name, %error, "trying the next node");
                    }
                    errors.push(error);
                }
            }
        }
        Err(self.nodes.all_failed(errors))
    }
}

impl Nodes {
    /// Combines the errors of all nodes. The text does not depend on the order in which they were
    /// tried, so that the same errors are logged once.
    fn all_failed(&self, mut errors: Vec<BrokerError>) -> BrokerError {
        if let Some(at) = errors.iter().position(BrokerError::is_misconfiguration) {
            return errors.swap_remove(at);
        }
        if let [error] = &errors[..] {
            return error.clone();
        }
        let reasons: BTreeSet<String> = (errors.into_iter())
            .map(|error| match error {
                BrokerError::Unreachable { reason, .. } => reason,
                other => other.to_string(),
            })
            .collect();
        let at: Vec<&str> = self.targets.iter().map(|node| node.at.as_str()).collect();
        BrokerError::Unreachable {
            at: at.join(","),
            reason: Vec::from_iter(reasons).join("; "),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpSocket;

    use super::*;
    use config::Config;

    fn amqp(urls: &str) -> config::Amqp {
        let text = format!("amqp:\n  url: {urls}\n");
        let config = Config::parse("c.yaml", &text, std::iter::empty());
        config.expect("a good configuration").amqp
    }

    /// Returns a socket on a port that refuses connections and that no other process can use.
    fn closed() -> TcpSocket {
        let socket = TcpSocket::new_v4().expect("a socket");
        let bound = socket.bind((Ipv4Addr::LOCALHOST, 0).into());
        bound.expect("a port");
        socket
    }

    #[tokio::test]
    async fn all_nodes_are_tried_in_turn_and_named_if_none_answers() {
        let closed = [(); 3].map(|()| closed());
        let url = |socket: &TcpSocket| {
            let address = socket.local_addr().expect("an address");
            format!("amqp://u:hunter2@{address}/%2f")
        };
        let urls = closed.each_ref().map(url);
        let shown = urls.join(",").replace("hunter2", "***");
        let amqp = amqp(&urls.join(","));
        for first in 0..4 {
            let nodes = Nodes::beginning_at(&amqp, first).expect("good urls");
            let mut turns = nodes.turns();
            for _ in 0..2 {
                let Err(BrokerError::Unreachable { at, reason }) = turns.open("test").await else {
                    panic!("nobody listens there");
                };
                assert_eq!(at, shown);
                assert_eq!(reason.matches("refused").count(), 1, "{reason}");
            }
        }
    }
}
