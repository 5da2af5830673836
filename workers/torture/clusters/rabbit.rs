//! RabbitMQ as one server or as a cluster, with the same methods.

use std::process::Command;
use std::time::Duration;

use kit::rabbit_cluster::RabbitCluster;
use kit::redis_topologies::until;
use kit::servers::Rabbit;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::at_once;
use super::network::{LostDirection, Network};

/// Commands of rabbitmqctl that affect only the node that runs them.
const OF_A_NODE: [&str; 4] = [
    "eval",
    "close_all_connections",
    "set_vm_memory_high_watermark",
    "set_disk_free_limit",
];

/// How long a queue must look empty. RabbitMQ's message counts of quorum queues, which include
/// unacked messages, are up to 5 s old.
pub const EMPTY_FOR: Duration = Duration::from_secs(7);
/// Time after which a node that does not come back by itself is restarted. Usually it takes less
/// than 10 s.
const APART: Duration = Duration::from_secs(40);
/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Evaluates to the number of running nodes; 0 if the asked node does not run.
const RUNNING: &str = "case rabbit:is_running() of \
    true -> length(rabbit_mnesia:cluster_nodes(running)); \
    false -> 0 end.";

/// One server, or three.
pub enum Rabbits {
    One(Rabbit),
    Cluster(Box<(RabbitCluster, Network)>),
}

impl Rabbits {
    /// Starts one server, or three with a network between them.
    pub fn start(network: Option<Network>) -> Self {
        match network {
            None => Self::One(Rabbit::start()),
            Some(network) => {
                let cluster = RabbitCluster::start_with(&network.settings());
                network.between(cluster.nodes.each_ref().map(port));
                Self::Cluster(Box::new((cluster, network)))
            }
        }
    }

    fn nodes(&self) -> &[Rabbit] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Cluster(cluster) => &cluster.0.nodes,
        }
    }

    /// Returns node `number` modulo the number of nodes.
    pub fn node(&self, number: usize) -> &Rabbit {
        let nodes = self.nodes();
        &nodes[number % nodes.len()]
    }

    /// Returns a node's URL. Any node will do while nothing is broken.
    pub fn url(&self) -> &str {
        self.node(0).url()
    }

    /// Returns the URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes().iter().map(|n| n.url().to_owned()).collect()
    }

    /// Runs `act` on all nodes at the same time: restarted nodes of a cluster wait for each other.
    pub fn all(&self, act: impl Fn(&Rabbit) + Sync) {
        at_once(self.nodes(), act);
    }

    /// Returns the node that leads `queue`, or the first one if that is unknown.
    pub fn leader(&self, queue: &str) -> usize {
        let listed = self.ctl(&["list_queues", "name", "leader", "--no-table-headers"]);
        let mut lines = listed.lines().filter_map(|line| line.split_once('\t'));
        let leader = lines.find_map(|(name, leader)| (name == queue).then_some(leader));
        let leads = |node: &Rabbit| {
            let name = format!("private{}@", port(node));
            leader.is_some_and(|leader| leader.starts_with(&name))
        };
        self.nodes().iter().position(leads).unwrap_or(0)
    }

    /// Cuts off node `number` (modulo the number of nodes) from the others. Its clients still reach
    /// it.
    pub fn cut(&self, number: usize, lost: LostDirection) {
        if let Self::Cluster(cluster) = self {
            let (cluster, network) = &**cluster;
            network.cut(number % cluster.nodes.len(), lost);
        }
    }

    /// Ends [`Self::cut`].
    pub fn heal(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.1.heal();
        }
    }

    /// Waits until each node sees all nodes running. A node that was healed just when its loss was
    /// noticed may stay apart for good. Node `number` is then restarted, as an operator would do.
    /// Returns true if that was necessary.
    pub async fn until_whole(&self, number: usize) -> bool {
        let all = self.nodes().len().to_string();
        let whole = || self.nodes().iter().all(|node| running(node) == all);
        let patience = Instant::now() + APART;
        while !block_in_place(whole) {
            if Instant::now() > patience {
                block_in_place(|| self.node(number).restart());
                block_in_place(|| until("all nodes of RabbitMQ run together", whole));
                return true;
            }
            sleep(CHECK_INTERVAL).await;
        }
        false
    }

    /// Runs `rabbitmqctl`, on each node if the command affects one node alone.
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

fn port(node: &Rabbit) -> u16 {
    let url = url::Url::parse(node.url()).ok();
    url.and_then(|url| url.port())
        .expect("a private server's URL has a port")
}

/// Returns the number of running nodes as this node sees it; empty if it can't say.
fn running(node: &Rabbit) -> String {
    let script = kit::root().join("scripts/lib/private-rabbitmq");
    let mut ctl = Command::new(script);
    ctl.arg("ctl").arg(node.folder()).args(["eval", RUNNING]);
    let done = ctl.output().ok().filter(|output| output.status.success());
    let done = done.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    done.unwrap_or_default()
}
