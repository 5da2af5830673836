//! RabbitMQ as one server or as a cluster, behind the same methods.

use std::process::Command;
use std::thread;
use std::time::Duration;

use kit::rabbit_cluster::RabbitCluster;
use kit::redis_topologies::until;
use kit::servers::Rabbit;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::network::{Lost, Network};

/// Commands of rabbitmqctl that concern the node that they are given to alone.
const OF_A_NODE: [&str; 4] = [
    "eval",
    "close_all_connections",
    "set_vm_memory_high_watermark",
    "set_disk_free_limit",
];

/// A node that does not come back by itself within this is restarted: it mostly takes less than 10 s.
const APART: Duration = Duration::from_secs(40);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// The number of nodes that run; 0 where the one that is asked does not.
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

    /// Which node leads `queue`; the first where nobody says it.
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

    /// Cuts node `number`, counted round, off from the others. Its clients reach it.
    pub fn cut(&self, number: usize, lost: Lost) {
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

    /// Waits until each node knows all of them as running. One that was cut off and healed in the moment in which it was
    /// noticed may stay apart for good: then node `number` is restarted, as an operator would; whether that was needed.
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
            sleep(LOOK).await;
        }
        false
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

fn port(node: &Rabbit) -> u16 {
    let url = url::Url::parse(node.url()).ok();
    url.and_then(|url| url.port())
        .expect("a private server's URL has a port")
}

/// How many nodes are running, as this one sees it; nothing while it can't say.
fn running(node: &Rabbit) -> String {
    let script = kit::root().join("scripts/lib/private-rabbitmq");
    let mut ctl = Command::new(script);
    ctl.arg("ctl").arg(node.folder()).args(["eval", RUNNING]);
    let said = ctl.output().ok().filter(|output| output.status.success());
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    said.unwrap_or_default()
}
