//! The baselines that call the API: a careful program with lapin and hyper, without a gate. Each
//! runs in its own process, as a worker does.

use std::sync::Mutex;

use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use kit::process::Process;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::api::{role, until_released};
use crate::bare::{ack, close, confirmed, consume, declare, delete, open, select_confirms, send};
use crate::bed::{Bed, CONCURRENCY};

/// The argument that makes this program a loop. It is followed by the loop's name, RabbitMQ's URL,
/// the queue, the API's address and the number of jobs.
pub const ROLE: &str = "--as-bare";
/// The text that it prints when all jobs are acked.
const DONE: &str = "all acked";

/// How long a job that [`Loop::many`] delays waits, in milliseconds.
const DELAY_MS: i32 = 2000;

/// Runs a loop until it has acked `jobs`. Returns the process, which still runs.
pub async fn finish(which: &str, bed: &Bed, jobs: usize) -> Process {
    let jobs = jobs.to_string();
    let process = role(&[ROLE, which, bed.amqp(), &bed.queue, &bed.api.url(), &jobs]);
    bed.api.until_called(jobs.parse().expect("a number")).await;
    process.logs(&[DONE]).await;
    process
}

/// Runs the role.
pub fn run(args: &[String]) {
    let [which, amqp, queue, api, jobs] = args else {
        panic!("{ROLE} LOOP AMQP QUEUE API JOBS");
    };
    let jobs = jobs.parse().expect("a number");
    // The same runtime as a worker's: TOKIO_WORKER_THREADS sets the number of threads.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let loops = Loop::connect(amqp, queue, api).await;
        match which.as_str() {
            "http" => loops.http(jobs).await,
            "many" => loops.many(jobs).await,
            other => panic!("there is no loop {other}"),
        }
    });
    println!("{DONE}");
    until_released();
}

fn id(delivery: &Delivery) -> &str {
    let id = delivery.properties.message_id().as_ref();
    id.map_or("?", |id| id.as_str())
}

/// The queue of waiting jobs and the queue that they return to.
struct DelayedQueues {
    waiting: String,
    due: String,
}

/// The connections of a loop.
struct Loop {
    channel: Channel,
    queue: String,
    /// Connections to the API without a call.
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    host: String,
    // Kept for its drop.
    _connection: Connection,
}

impl Loop {
    async fn connect(amqp: &str, queue: &str, api: &str) -> Self {
        let (connection, channel) = open(amqp).await;
        let host = (api.trim_start_matches("http://").trim_end_matches('/')).to_owned();
        let mut idle = Vec::new();
        for _ in 0..CONCURRENCY {
            let stream = TcpStream::connect(&host).await.expect("the API");
            stream.set_nodelay(true).expect("a socket");
            let (sender, serving) = handshake(TokioIo::new(stream)).await.expect("HTTP");
            tokio::spawn(serving);
            idle.push(sender);
        }
        Self {
            channel,
            queue: queue.to_owned(),
            idle: Mutex::new(idle),
            host,
            _connection: connection,
        }
    }

    /// Consumes jobs, posts and acks each, [`CONCURRENCY`] at once.
    async fn http(self, jobs: usize) {
        let deliveries = consume(&self.channel, &self.queue).await.take(jobs);
        let calls = deliveries.for_each_concurrent(CONCURRENCY, async |delivery| {
            let delivery = delivery.expect("a delivery");
            self.post(&delivery).await;
            ack(&self.channel, &delivery).await;
        });
        calls.await;
        close(&self.channel).await;
    }

    /// Does the same with every other job. It first moves the jobs in between to a queue from which
    /// RabbitMQ moves them back after [`DELAY_MS`], and acks them when that is confirmed.
    async fn many(self, jobs: usize) {
        let delayed = self.declare_delayed().await;
        let fresh = consume(&self.channel, &self.queue).await.take(jobs);
        let due = consume(&self.channel, &delayed.due).await.take(jobs / 2);
        let both = stream::select(
            fresh.map(|delivery| (true, delivery)),
            due.map(|delivery| (false, delivery)),
        );
        let calls = Semaphore::new(CONCURRENCY);
        let all = both.for_each_concurrent(None, async |(is_fresh, delivery)| {
            let delivery = delivery.expect("a delivery");
            let number = id(&delivery).parse::<usize>().expect("a number");
            if is_fresh && number % 2 == 1 {
                let properties = delivery.properties.clone();
                let sent = send(&self.channel, &delayed.waiting, &delivery.data, properties);
                confirmed(sent.await).await;
            } else {
                let _slot = calls.acquire().await.expect("it is never closed");
                self.post(&delivery).await;
            }
            ack(&self.channel, &delivery).await;
        });
        all.await;
        for queue in [delayed.waiting, delayed.due] {
            delete(&self.channel, &queue).await;
        }
        close(&self.channel).await;
    }

    async fn declare_delayed(&self) -> DelayedQueues {
        select_confirms(&self.channel).await;
        let delayed = DelayedQueues {
            waiting: format!("{}.waiting", self.queue),
            due: format!("{}.back", self.queue),
        };
        let text = |text: &str| AMQPValue::LongString(text.into());
        declare(&self.channel, &delayed.due, FieldTable::default()).await;
        let mut arguments = FieldTable::default();
        // Without x-dead-letter-strategy, RabbitMQ moves them faster, but may lose some in a crash.
        arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(DELAY_MS));
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(&delayed.due));
        declare(&self.channel, &delayed.waiting, arguments).await;
        delayed
    }

    async fn post(&self, delivery: &Delivery) {
        let headers = delivery.properties.headers().as_ref();
        let tenant = headers.and_then(|headers| headers.inner().get("x-tenant"));
        let tenant = tenant.and_then(|tenant| tenant.as_long_string());
        let tenant = tenant.map_or(&b"?"[..], |tenant| tenant.as_bytes());
        let request = Request::post("/")
            .header("host", &self.host)
            .header("x-job-id", id(delivery))
            .header("x-tenant", tenant)
            .body(Full::new(Bytes::copy_from_slice(&delivery.data)));
        let idle = self.idle.lock().expect("no panic").pop();
        let mut sender = idle.expect("as many connections as calls");
        sender.ready().await.expect("a connection");
        let answer = sender.send_request(request.expect("a request")).await;
        let answer = answer.expect("an answer");
        assert!(answer.status().is_success());
        answer.into_body().collect().await.expect("a body");
        self.idle.lock().expect("no panic").push(sender);
    }
}
