//! The claims of docs/SCALING.md about more servers: three primaries share the gate's work, and two
//! work queues share the tenants.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use gate::redis::RedisGate;
use gate::{EarlierStarts, Gate};
use kit::api::Api;
use kit::gate::{FRESH, LONG, LimitedGate, decided, limit, started};
use kit::process::{DONE, Process, sum};
use kit::redis_topologies::RedisCluster;
use kit::servers::{Rabbit, Redis, shared_redis, unique};
use kit::until;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    QueueBindOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use rules::limit::Algorithm;

use crate::PROGRAM;
use crate::gate::topology::configured;

/// Number of tenants, each with one job per batch.
const TENANTS: usize = 300;
const BATCHES: usize = 20;

/// The cost of scripts in a Redis.
#[derive(Debug, Clone, Copy)]
struct Scripts {
    calls: u64,
    micros: u64,
}

impl Scripts {
    /// Reads the cost since the statistics were reset.
    fn of(redis: &Redis) -> Self {
        let stats = redis.command_stats();
        Self {
            calls: stats.calls("evalsha"),
            micros: stats.micros("evalsha"),
        }
    }
}

impl fmt::Display for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, micros } = self;
        write!(f, "{calls} scripts, {micros} us in them")
    }
}

/// Runs the same jobs of the same tenants through a gate on `servers`, whose addresses are the
/// configuration `keys`.
async fn work(keys: &str, servers: &[Redis]) -> Vec<Scripts> {
    let limit = limit(Algorithm::SlidingWindow, 1_000, LONG);
    let gate = RedisGate::new(configured(keys), &unique("scale")).expect("a good url");
    let memory = Duration::from_millis(limit.memory_ms());
    let gate = LimitedGate::new(gate.watching(memory), limit);
    gate.begin(EarlierStarts::Fresh).await.expect("all answer");
    let batch: Vec<_> = (0..TENANTS)
        .map(|n| gate.question(&format!("tenant-{n}"), 1, &[FRESH]))
        .collect();
    // One-time work such as loading the scripts is not part of a job's cost.
    gate.ask(&batch).await.expect("all answer");
    for server in servers {
        server.reset_stats();
    }
    for _ in 0..BATCHES {
        let replies = gate.ask(&batch).await.expect("all answer");
        let started: usize = (0..TENANTS).map(|at| started(decided(&replies, at))).sum();
        assert_eq!(started, TENANTS);
    }
    servers.iter().map(Scripts::of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_primaries_share_the_work_equally() {
    let jobs = (BATCHES * TENANTS) as u64;
    let one = [Redis::start_with(&["appendonly no"])];
    let alone = work(&format!("url: '{}'", one[0].url()), &one).await[0];
    let cluster = RedisCluster::start(&["appendonly no"]);
    let keys = format!("url: '{}', cluster: true", cluster.primaries[0].url());
    let shares = work(&keys, &cluster.primaries).await;
    println!("{jobs} decisions: {alone}");
    for share in &shares {
        println!("of three primaries: {share}");
    }
    // One script per tenant of a batch, and one pulse per primary of a batch.
    let batches = BATCHES as u64;
    assert!(
        (jobs..=jobs + 2 * batches).contains(&alone.calls),
        "{alone:?}"
    );
    let all: u64 = shares.iter().map(|share| share.calls).sum();
    assert!((jobs..=jobs + 6 * batches).contains(&all), "{shares:?}");
    for share in &shares {
        assert!(
            (alone.calls / 5..alone.calls / 2).contains(&share.calls),
            "{shares:?} of {alone:?}"
        );
    }
}

/// Declares an exchange that spreads messages over the queues by their tenants.
async fn spread(channel: &Channel, exchange: &str, queues: &[String; 2]) {
    let hashed = AMQPValue::LongString("x-tenant".into());
    let mut arguments = FieldTable::default();
    arguments.insert(ShortString::from("hash-header"), hashed);
    let kind = ExchangeKind::Custom("x-consistent-hash".to_owned());
    let options = ExchangeDeclareOptions::default();
    let declared = channel.exchange_declare(exchange.into(), kind, options, arguments);
    declared.await.expect("the plugin is there");
    for queue in queues {
        // An equal number of points on the ring for each.
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        let bound = channel.queue_bind(
            queue.as_str().into(),
            exchange.into(),
            "10".into(),
            options,
            none,
        );
        bound.await.expect("it is bound");
    }
}

/// Returns the tenants of the jobs in `queue`, which stay there.
async fn tenants_in(link: &Connection, queue: &str) -> BTreeSet<String> {
    let channel = link.create_channel().await.expect("a channel");
    let mut tenants = BTreeSet::new();
    let get = || channel.basic_get(queue.into(), BasicGetOptions { no_ack: false });
    while let Some(got) = get().await.expect("an answer") {
        let headers = got.properties.headers().as_ref().expect("headers");
        let Some(AMQPValue::LongString(tenant)) = headers.inner().get("x-tenant") else {
            panic!("{headers:?}");
        };
        tenants.insert(tenant.to_string());
    }
    channel.close(200, "done".into()).await.expect("closed");
    tenants
}

async fn publish(channel: &Channel, exchange: &str, tenant: &str, id: &str) {
    let mut headers = FieldTable::default();
    let name = AMQPValue::LongString(tenant.into());
    headers.insert(ShortString::from("x-tenant"), name);
    let properties = BasicProperties::default()
        .with_message_id(id.into())
        .with_headers(headers);
    let publishing = channel.basic_publish(
        exchange.into(),
        "".into(),
        BasicPublishOptions::default(),
        b"{}",
        properties,
    );
    let confirm = publishing.await.expect("it is sent");
    assert!(confirm.await.expect("an answer").is_ack());
}

const QUEUES: usize = 2;
/// The limit of all tenants together: more than the tenants of either queue, and less than those of
/// both.
const ALL: usize = 160;
const PEOPLE: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn two_work_queues_share_the_tenants_and_one_redis_their_limits() {
    let rabbit = Rabbit::start_with(&["plugin rabbitmq_consistent_hash_exchange"]);
    let api = Api::start().await;
    let prefix = unique("scale");
    let queues: [String; QUEUES] = [0, 1].map(|n| format!("{prefix}-{n}"));
    // One file per queue, otherwise equal. No window ends during this test.
    let yaml = queues.each_ref().map(|queue| {
        format!(
            "amqp: {{url: '{}', queue: '{queue}'}}
redis: {{url: '{}', prefix: '{prefix}'}}
rate-limiter: {{window-size: 1h, guard: 10m, limits: [{{name: all, max-requests: {ALL}, scope: global}}, {{name: tenant, max-requests: 1}}]}}
dispatch: {{http: {{url: '{}'}}}}
admin: {{listen: '127.0.0.1:0'}}
",
            rabbit.url(),
            shared_redis().url(),
            api.url()
        )
    });
    for text in &yaml {
        kit::client(text).await.close().await;
    }
    let link = Connection::connect(rabbit.url(), ConnectionProperties::default()).await;
    let link = link.expect("RabbitMQ answers");
    let channel = link.create_channel().await.expect("a channel");
    let confirms = channel.confirm_select(ConfirmSelectOptions::default());
    confirms.await.expect("confirms");
    spread(&channel, &prefix, &queues).await;
    for round in 0..2 {
        for n in 0..PEOPLE {
            let tenant = format!("tenant-{n}");
            publish(&channel, &prefix, &tenant, &format!("{n}-{round}")).await;
        }
    }

    let mut tenants = Vec::new();
    for queue in &queues {
        tenants.push(tenants_in(&link, queue).await);
    }
    let sizes: Vec<usize> = tenants.iter().map(BTreeSet::len).collect();
    println!("tenants in each queue: {sizes:?}");
    assert!(tenants[0].is_disjoint(&tenants[1]), "{tenants:?}");
    assert_eq!(sizes.iter().sum::<usize>(), PEOPLE);
    assert!(
        sizes.iter().all(|size| (PEOPLE / 4..ALL).contains(size)),
        "{sizes:?}"
    );

    let workers = yaml.each_ref().map(|text| PROGRAM.start(text));
    let fresh = "sluicegate_deliveries_total{queue=\"new\"}";
    until("all calls that the limits allow", || {
        sum(&workers, fresh) >= 2.0 * PEOPLE as f64 && sum(&workers, DONE) >= ALL as f64
    })
    .await;
    // All others were denied, and nothing more starts.
    let denied = "sluicegate_decisions_total{answer=\"wait\"}";
    until("what the others are told", || {
        sum(&workers, denied) >= (2 * PEOPLE - ALL) as f64
    })
    .await;
    let each = workers.each_ref().map(|worker| worker.metric(DONE));
    println!("calls of each worker: {each:?}");
    workers.into_iter().for_each(Process::stop);
    let calls = api.calls();
    assert_eq!(calls.len(), ALL, "the limit of all holds over both queues");
    let mut of = HashMap::<&str, usize>::new();
    for call in &calls {
        *of.entry(&call.tenant).or_default() += 1;
    }
    assert!(of.values().all(|calls| *calls == 1), "{of:?}");
    // Neither queue has as many tenants as have started.
    assert!(each.iter().all(|calls| *calls > Some(0.0)), "{each:?}");
}
