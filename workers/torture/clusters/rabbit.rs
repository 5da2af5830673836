//! RabbitMQ as one server or as a cluster, behind the same methods.

use std::thread;

use super::RabbitMq;
use crate::rabbit_cluster::RabbitCluster;
use crate::servers::Rabbit;

/// Commands of rabbitmqctl that concern the node that they are given to alone.
const OF_A_NODE: [&str; 4] = [
    "eval",
    "close_all_connections",
    "set_vm_memory_high_watermark",
    "set_disk_free_limit",
];

/// One server, or three.
pub enum Rabbits {
    One(Rabbit),
    Cluster(Box<RabbitCluster>),
}

impl Rabbits {
    /// Starts them.
    pub fn start(what: RabbitMq) -> Self {
        match what {
            RabbitMq::Single => Self::One(Rabbit::start()),
            RabbitMq::Cluster => Self::Cluster(Box::new(RabbitCluster::start())),
        }
    }

    fn nodes(&self) -> &[Rabbit] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Cluster(cluster) => &cluster.nodes,
        }
    }

    /// Node `number`, counted round.
    pub fn node(&self, number: usize) -> &Rabbit {
        let nodes = self.nodes();
        &nodes[number % nodes.len()]
    }

    /// A node's URL: while nothing is broken any of them will do.
    pub fn url(&self) -> &str {
        self.node(0).url()
    }

    /// Those of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes().iter().map(|n| n.url().to_owned()).collect()
    }

    /// At once: nodes of a cluster that were all away wait for each other.
    fn all(&self, act: impl Fn(&Rabbit) + Sync) {
        let act = &act;
        thread::scope(|scope| {
            for node in self.nodes() {
                scope.spawn(move || act(node));
            }
        });
    }

    pub fn kill(&self) {
        self.all(Rabbit::kill);
    }

    pub fn stop(&self) {
        self.all(Rabbit::stop);
    }

    pub fn restart(&self) {
        self.all(Rabbit::restart);
    }

    pub fn pause(&self) {
        self.all(Rabbit::pause);
    }

    pub fn resume(&self) {
        self.all(Rabbit::resume);
    }

    /// `rabbitmqctl`, at each node where it concerns that node alone.
    pub fn ctl(&self, args: &[&str]) -> String {
        if args.first().is_some_and(|first| OF_A_NODE.contains(first)) {
            self.all(|node| {
                node.ctl(args);
            });
            return String::new();
        }
        self.node(0).ctl(args)
    }
}
