//! Three RabbitMQ servers as one cluster, from the same program as a single server.

use std::thread;

use crate::servers::Rabbit;

/// Three nodes.
pub struct RabbitCluster {
    /// Dropped in this order: the last one runs the epmd of all.
    pub nodes: [Rabbit; 3],
}

/// The setting that operators of three nodes need: a node without contact to another one stops.
const NODE: [&str; 1] = ["cluster_partition_handling = pause_minority"];

impl RabbitCluster {
    /// Starts the nodes, which takes about 15 s.
    pub fn start() -> Self {
        Self::start_with(&[vec![], vec![], vec![]])
    }

    /// Starts the nodes with individual settings in addition to the common ones.
    pub fn start_with(own: &[Vec<String>; 3]) -> Self {
        let own = own.each_ref().map(|own| {
            let own = own.iter().map(String::as_str);
            NODE.into_iter().chain(own).collect::<Vec<_>>()
        });
        let first = Rabbit::start_with(&own[2]);
        let (second, third) = thread::scope(|scope| {
            let second = scope.spawn(|| Rabbit::join(&first, &own[1]));
            let third = Rabbit::join(&first, &own[0]);
            (second.join().expect("it has started"), third)
        });
        Self {
            nodes: [third, second, first],
        }
    }
}
