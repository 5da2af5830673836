//! No output of a run contains a secret: not at the most verbose log level, not in errors of
//! servers that refuse it, and not in what an API's echo returns.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use config::{Config, Pipelines};
use kit::certificates::TestCertificates;
use kit::connect::ConnectProxy;
use kit::process::listen_of;
use kit::redis_topologies::port;
use kit::servers::{Rabbit, shared_rabbit, shared_redis, unique};
use kit::until;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::PROGRAM;
use crate::admin::get_with;
use crate::api::{JSON, send};
use crate::broker::tls::Listening;
use crate::gate::access::server;
use crate::http::downstream::{AfterAnswer, Downstream, DownstreamBehavior};

/// Enables all log output of the process.
const LOUD: &str = "trace,lapin=trace,lapin::io_loop=trace,amq_protocol=trace,redis=trace,hyper=trace,hyper_util=trace,rustls=trace,tokio=trace";

/// The secrets of a test, with their forms in an output.
#[derive(Default)]
struct Secrets(Vec<(String, Vec<Vec<u8>>)>);

impl Secrets {
    /// Creates a secret. Its text needs no encoding anywhere; tests append `%40` to it in a URL.
    fn make(&mut self, what: &str) -> String {
        let text = format!("Zq{what}{:016x}", rand::random::<u64>());
        self.add(what, text.as_bytes());
        text
    }

    /// Adds an existing secret.
    fn add(&mut self, what: &str, bytes: &[u8]) {
        let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // The plain text, the bytes as `Debug` shows them, and hex.
        let forms = vec![
            bytes.to_vec(),
            numbers.join(", ").into_bytes(),
            numbers.join(",\n").into_bytes(),
            hex.to_uppercase().into_bytes(),
            hex.into_bytes(),
        ];
        self.0.push((what.to_owned(), forms));
    }

    /// Adds the private key in the PEM file, as text and as bytes.
    fn add_key(&mut self, what: &str, papers: &TestCertificates, name: &str) {
        let pem = papers.read(&format!("{name}.key"));
        let line = pem.lines().nth(1).expect("a line of base64");
        self.add(what, line.as_bytes());
        let der = BASE64_STANDARD.decode(&line[..60]).expect("base64");
        self.add(what, &der[24..]);
    }

    /// Adds the user and the password in the form of Basic authorization.
    fn add_basic(&mut self, user: &str, password: &str) {
        let basic = BASE64_STANDARD.encode(format!("{user}:{password}"));
        self.add("basic", basic.as_bytes());
    }

    #[track_caller]
    fn are_not_in(&self, place: &str, bytes: &[u8]) {
        for (what, forms) in &self.0 {
            for form in forms {
                if let Some(at) = bytes.windows(form.len()).position(|part| part == form) {
                    let around = &bytes[at.saturating_sub(300)..(at + 100).min(bytes.len())];
                    let around = String::from_utf8_lossy(around);
                    panic!("{place} holds the secret {what}: {around}");
                }
            }
        }
    }

    /// Searches all files under `folder`. Returns their total size in bytes.
    #[track_caller]
    fn are_not_under(&self, folder: &Path) -> usize {
        let mut read = 0;
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                read += self.are_not_under(&path);
            } else if let Ok(bytes) = fs::read(&path) {
                self.are_not_in(&path.display().to_string(), &bytes);
                read += bytes.len();
            }
        }
        read
    }

    /// Searches the arguments of every process on this machine. A test that passes a secret to a
    /// tool waits for the tool's end first.
    #[track_caller]
    fn are_no_arguments(&self) {
        for entry in fs::read_dir("/proc").expect("/proc") {
            let path = entry.expect("an entry").path();
            // Most entries are not processes, and processes end.
            for name in ["cmdline", "comm"] {
                if let Ok(bytes) = fs::read(path.join(name)) {
                    self.are_not_in(&path.join(name).display().to_string(), &bytes);
                }
            }
        }
    }
}

/// The places where a run may write: its working folder, which includes the output of all commands,
/// and its temporary folder.
struct Place {
    config: TempDir,
    out: TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Place {
    fn new() -> Self {
        let out = TempDir::new().expect("a folder");
        fs::create_dir(out.path().join("tmp")).expect("a folder");
        Self {
            config: TempDir::new().expect("a folder"),
            out,
            variables: Vec::new(),
        }
    }

    fn file(&self) -> PathBuf {
        self.config.path().join("sluicegate.yaml")
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.config.path().join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    }

    /// Starts `sluicegate args` with its output in files called `name`.
    fn start(&self, name: &str, args: &[&str]) -> Child {
        let to = |suffix: &str| {
            let path = self.out.path().join(format!("{name}.{suffix}"));
            File::create(path).expect("a file")
        };
        let mut command = Command::new(PROGRAM.0);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SLUICEGATE_") {
                command.env_remove(name);
            }
        }
        command
            .env("RUST_LOG", "trace")
            .env("RUST_BACKTRACE", "full")
            .env("TMPDIR", self.out.path().join("tmp"))
            .env("SLUICEGATE_CONFIG", self.file())
            .envs(self.variables.iter().cloned())
            .current_dir(self.out.path())
            .args(args)
            .stdin(std::process::Stdio::null())
            .stdout(to("out"))
            .stderr(to("err"))
            .spawn()
            .expect("it starts")
    }

    /// Runs `sluicegate args` to its end. Returns its output.
    fn run(&self, name: &str, args: &[&str], code: i32) -> String {
        let status = self.start(name, args).wait().expect("it ends");
        let out = self.text(&format!("{name}.out"));
        let err = self.text(&format!("{name}.err"));
        assert_eq!(status.code(), Some(code), "{args:?}: {out} {err}");
        out
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.out.path().join(file)).unwrap_or_default()
    }

    /// Waits until all of `words` are in the log of the worker `name`.
    async fn logs(&self, name: &str, words: &[&str]) {
        let file = format!("{name}.err");
        until(&format!("{words:?} in {file}"), || {
            let text = self.text(&file);
            words.iter().all(|word| text.contains(word))
        })
        .await;
    }
}

fn signal(child: &Child, signal: Signal) {
    let id = i32::try_from(child.id()).expect("an id");
    kill_process(Pid::from_raw(id).expect("an id"), signal).expect("it runs");
}

/// Returns the admin port's answer to `GET path`.
async fn ask(listen: &str, path: &str, token: Option<&str>) -> String {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    get_with(listen, path, &token.unwrap_or_default()).await
}

/// Starts an API that returns the head of each request in its answer, in the body and in headers.
/// The job's ID selects the status.
async fn echo(tls: Option<tokio_rustls::TlsAcceptor>) -> Downstream {
    let manner = DownstreamBehavior {
        tls,
        ..DownstreamBehavior::default()
    };
    Downstream::with(manner, |request| {
        let id = request.header("x-job-id").unwrap_or_default();
        let status = match id.split(|byte| *byte == b'-').next().unwrap_or_default() {
            b"done" => "200 OK",
            b"bad" => "400 Bad Request",
            b"late" => "429 Too Many Requests",
            b"moved" => "307 Temporary Redirect",
            _ => "500 Internal Server Error",
        };
        // Escaped, as in an error's page.
        let head = String::from_utf8_lossy(&request.head).replace('&', "&amp;");
        let basic = request.header("authorization").unwrap_or_default();
        let basic = String::from_utf8_lossy(basic).into_owned();
        let answer = format!(
            "HTTP/1.1 {status}\r\nlocation: /{basic}\r\nretry-after: 1\r\nx-actual-cost: {basic}\r\n\
             ratelimit-policy: \"{basic}\";q=1;w=60\r\nratelimit: \"{basic}\";r=5;t=1\r\ncontent-length: {}\r\n\r\n{head}",
            head.len()
        );
        (answer.into_bytes(), AfterAnswer::Keep)
    })
    .await
}

/// Adds a user of RabbitMQ with all permissions.
fn user(rabbit: &Rabbit, name: &str, password: &str) {
    rabbit.ctl(&["add_user", name, password]);
    rabbit.ctl(&["set_permissions", name, ".*", ".*", ".*"]);
}

/// The paths of the HTTP API.
const API: [&str; 9] = [
    "/api/v1/openapi.json",
    "/api/v1/pipelines",
    "/api/v1/limits",
    "/api/v1/tenants/acme",
    "/api/v1/instructions",
    "/api/v1/queues",
    "/api/v1/dead/letters",
    "/api/v1/dead/letters/bad-1",
    "/api/v1/audit",
];

#[tokio::test(flavor = "multi_thread")]
async fn no_output_of_a_run_holds_a_secret() {
    let mut secrets = Secrets::default();
    let papers = TestCertificates::new();
    for name in ["server", "amqp", "redis", "http"] {
        papers.issue(name, &["localhost", "127.0.0.1"]);
    }
    let demands = [
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = true",
    ];
    let rabbit = Listening::start(&papers, &demands).await;
    let redis = server(&papers, "server", &[]);
    let downstream = echo(Some(papers.acceptor("server", Some(&papers)))).await;

    // A user and a password that need encoding, so that they have two forms.
    let [amqp, cache, api, query, token, operator, header] = [
        "Amqp", "Redis", "Http", "Query", "Token", "Operator", "Header",
    ]
    .map(|what| secrets.make(what));
    secrets.add_basic("us@r", &format!("{api}@"));
    for name in ["amqp", "redis", "http"] {
        secrets.add_key(name, &papers, name);
    }
    user(&rabbit.rabbit, "worker", &format!("{amqp}@"));
    let rule = format!(">{cache}@");
    redis.ctl(&["acl", "setuser", "worker", "on", &rule, "~*", "+@all"]);

    let mut place = Place::new();
    let queue = unique("secrets");
    let keys = |name: &str| papers.keys(Some("ca.pem"), Some(name));
    place.write("token", &token);
    place.write("operator", &operator);
    let tokens = "token-file: token, operator-token-file: operator";
    place.write("headers", &format!("x-api-key: {header}\n"));
    place.write(
        "amqp",
        &format!("amqps://worker:{amqp}%40@localhost:{}/%2f\n", rabbit.port),
    );
    place.variables.push((
        "SLUICEGATE_REDIS__URL",
        format!("rediss://worker:{cache}%40@localhost:{}", port(&redis) + 2),
    ));
    let yaml = |admin: &str| {
        format!(
            "
amqp: {{url-file: amqp, queue: '{queue}'{}}}
redis: {{prefix: '{queue}'{}}}
rate-limiter: {{max-requests: 4, window-size: 1s, max-throttle: 1s}}
dispatch: {{http: {{url: 'https://us%40r:{api}%40@{}/jobs?v=2&key={query}', headers-file: headers{}}}}}
delay: {{max-delay: 1s}}
retry: {{max-attempts: 2, initial-interval: 10ms}}
admin: {{{admin}, listen: '127.0.0.1:0'}}
log: {{level: '{LOUD}'}}
",
            keys("amqp"),
            keys("redis"),
            downstream.addr,
            keys("http"),
        )
    };
    place.write("sluicegate.yaml", &yaml(tokens));

    // The output of a debugger or a panic.
    let loaded = Config::load(
        Some(&place.file()),
        place
            .variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone())),
    );
    let loaded = loaded.expect("valid");
    assert!(loaded.amqp.url.expose().contains(&amqp) && loaded.dispatch.http.is_some());
    let shown = format!("{loaded}{loaded:?}{loaded:#?}");
    secrets.are_not_in("the configuration", shown.as_bytes());

    let mut worker = place.start("run", &["run"]);
    place
        .logs("run", &["admin.listen=", "RabbitMQ: consuming"])
        .await;
    place.run("check", &["check"], 0);
    let checked = place.run("check-json", &["check", "--json"], 0);
    assert!(checked.contains("\"ok\":true"), "{checked}");
    for (number, kind) in ["done", "bad", "late", "moved", "broken", "done"]
        .iter()
        .enumerate()
    {
        let id = format!("{kind}-{number}");
        let args = ["publish", "--tenant", "acme", "--id", &id, "a body"];
        place.run(&format!("publish-{id}"), &args, 0);
    }
    secrets.are_no_arguments();
    // The job that is always answered with 429 waits.
    until("three dead letters", || {
        place.run("dead", &["dead", "list", "--json"], 0);
        place.text("dead.out").lines().count() == 3
    })
    .await;
    let dead = place.text("dead.out");
    for words in ["400 Bad Request", "307 Temporary", "500 Internal"] {
        assert!(dead.contains(words), "{words}: {dead}");
    }
    let listen = &listen_of(&place.text("run.err")).expect("it is said");
    let mut answers = String::new();
    for shown in [None, Some(&*token), Some("another-that-is-none")] {
        for path in ["/metrics", "/readyz", "/livez", "/"] {
            answers += &ask(listen, path, shown).await;
        }
    }
    for path in API {
        for shown in [&*token, &*operator, "another-that-is-none"] {
            answers += &ask(listen, path, Some(shown)).await;
        }
    }
    let headers = format!("host: x\r\nauthorization: Bearer {operator}\r\n{JSON}");
    let path = "/api/v1/tenants/acme/reset";
    let listens = listen.parse().expect("an address");
    let reset = send(listens, "POST", path, (&headers, "{}")).await;
    assert_eq!(reset.status, 200, "{reset:?}");
    answers += &format!("{reset:?}");
    for words in ["# EOF", "401 Unauthorized", "404 Not Found", "\"bad-1\""] {
        assert!(answers.contains(words), "{words}: {answers}");
    }
    secrets.are_not_in("the admin port", answers.as_bytes());

    let bad = "bad-1";
    for (name, args) in [
        ("inspect", vec!["inspect", "acme"]),
        ("inspect-json", vec!["inspect", "acme", "--json"]),
        ("show", vec!["dead", "show", bad]),
        ("show-json", vec!["dead", "show", bad, "--json"]),
        ("pause", vec!["tenant", "pause", "acme", "--json"]),
        ("resume", vec!["tenant", "resume", "acme"]),
        ("replay", vec!["dead", "replay", "--id", bad]),
    ] {
        // A letter that something else has looked at returns to the queue a moment later.
        let shown = || place.start(name, &args).wait().expect("it ends").success();
        match name.starts_with("show") {
            true => until(name, shown).await,
            false => drop(place.run(name, &args, 0)),
        }
    }

    // Mistakes next to a secret, and in it.
    let good = yaml(tokens);
    let broken = [
        yaml(&format!("token: {token}, operator-token: {token}")),
        yaml(&format!("token-file: token, operator-token: [{operator}]")),
        yaml(&format!("token: \"{token}")),
        yaml(&format!("token: '{token} '")),
        yaml(&format!("token: [{token}]")),
        yaml(&format!("{token}: x, token-file: token")).replace(&format!("{token}: x"), "tokn: x"),
        good.replace("https://us%40r:", "https//us%40r:"),
        good.replace("%40@", "/@"),
        good.replace("https:", "htps:"),
        good.replace("key-file: '", "key-file: '/no"),
        good.replace(
            "{url-file: amqp",
            &format!("{{url: 'amqp://u:{amqp}@h:{amqp}'"),
        ),
    ];
    for (number, text) in broken.iter().enumerate() {
        assert_ne!(*text, good, "{number}");
        place.write("sluicegate.yaml", text);
        signal(&worker, Signal::HUP);
        let refused = || {
            place
                .text("run.err")
                .matches("configuration refused")
                .count()
        };
        until(&format!("refusal {number}"), || refused() > number).await;
        place.run(
            &format!("broken-{number}"),
            &["check", "--offline", "--json"],
            2,
        );
    }
    place.write(
        "sluicegate.yaml",
        &yaml(&format!("token: {}", secrets.make("Other"))),
    );
    signal(&worker, Signal::HUP);
    place
        .logs("run", &["these keys require a restart", "admin"])
        .await;

    signal(&worker, Signal::TERM);
    assert!(worker.wait().expect("it ended").success());
    assert!(secrets.are_not_under(place.out.path()) > 10_000);
    assert!(secrets.are_not_under(redis.folder()) > 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_error_of_a_server_that_refuses_holds_a_secret() {
    let mut secrets = Secrets::default();
    let [right, amqp, cache, api] =
        ["Right", "Amqp", "Redis", "Http"].map(|what| secrets.make(what));
    secrets.add_basic("us@r", &format!("{api}@"));
    let (name, shared) = (unique("refused"), shared_rabbit());
    user(shared, &name, &right);
    let address = |url: &str| {
        let url = url::Url::parse(url).expect("a url");
        format!("127.0.0.1:{}", url.port().expect("a port"))
    };
    let (rabbit, redis) = (address(shared.url()), address(shared_redis().url()));
    // The API refuses by its answers. A second address has no API.
    let downstream = echo(None).await;
    let amqp_urls = [
        format!("amqp://{name}:{amqp}%40@{rabbit}/%2f"),
        format!("amqp://{name}:{right}@{rabbit}/nowhere"),
        format!("amqp://{name}:{amqp}%40@127.0.0.1:1/%2f"),
        format!("amqps://{name}:{amqp}%40@{rabbit}/%2f"),
        format!("amqp://{name}:{amqp}%40@{redis}/%2f"),
    ];
    let redis_urls = [
        format!("redis://{name}:{cache}%40@{redis}"),
        format!("redis://:{cache}%40@{redis}"),
        format!("redis://{name}:{cache}%40@127.0.0.1:1"),
        format!("rediss://{name}:{cache}%40@{redis}"),
        format!("redis://{name}:{cache}%40@{rabbit}"),
    ];
    let place = Place::new();
    let yaml = |amqp: &str, redis: &str, api: &str| {
        format!(
            "
amqp: {{url: '{amqp}', queue: '{name}'}}
redis: {{url: '{redis}', prefix: '{name}'}}
dispatch: {{http: {{url: '{api}', timeout: 5s}}, breaker: {{enabled: false}}}}
delay: {{max-delay: 1s}}
retry: {{max-attempts: 2, initial-interval: 1ms}}
admin: {{listen: '127.0.0.1:0'}}
log: {{level: '{LOUD}', format: json}}
"
        )
    };
    let http = |at: &str| format!("http://us%40r:{api}%40@{at}/?key={api}");
    // All at once, since most of them wait for a server that does not answer.
    let mut commands = Vec::new();
    let mut workers = Vec::new();
    for (number, (rabbit, redis)) in amqp_urls.iter().zip(&redis_urls).enumerate() {
        let text = yaml(rabbit, redis, &http("127.0.0.1:1"));
        let file = place.write(&format!("{number}.yaml"), &text);
        for (name, args) in [
            ("check", &["check"][..]),
            ("check-json", &["check", "--json"]),
            ("publish", &["publish", "--tenant", "acme"]),
            ("inspect", &["inspect", "acme"]),
            ("dead", &["dead", "list"]),
            ("pause", &["tenant", "pause", "acme"]),
        ] {
            let all = [args, &["--config", &file]].concat();
            commands.push((file.clone(), place.start(&format!("{name}-{number}"), &all)));
        }
        let run = format!("run-{number}");
        workers.push(place.start(&run, &["run", "--config", &file]));
    }
    for (number, mut worker) in workers.into_iter().enumerate() {
        place
            .logs(&format!("run-{number}"), &["RabbitMQ at "])
            .await;
        secrets.are_no_arguments();
        signal(&worker, Signal::TERM);
        worker.wait().expect("it ended");
    }
    for (file, mut command) in commands {
        let status = command.wait().expect("it ends");
        assert_eq!(status.code(), Some(1), "{file}");
    }
    // RabbitMQ accepts the login, and Redis does not.
    let good = format!("amqp://{name}:{right}@{rabbit}/%2f");
    place.write(
        "sluicegate.yaml",
        &yaml(&good, &redis_urls[0], &http("127.0.0.1:1")),
    );
    let mut worker = place.start("no-redis", &["run"]);
    place.logs("no-redis", &["wrong user or password"]).await;
    signal(&worker, Signal::TERM);
    worker.wait().expect("it ended");

    // Both accept the password, and the API does not, or there is no API.
    let address = downstream.addr.to_string();
    for (number, at) in [&address, "127.0.0.1:1", &rabbit].iter().enumerate() {
        place.write(
            "sluicegate.yaml",
            &yaml(&good, shared_redis().url(), &http(at)),
        );
        let id = format!("bad-{number}");
        place.run(&id, &["publish", "--tenant", "acme", "--id", &id], 0);
        let run = format!("no-downstream-{number}");
        let mut worker = place.start(&run, &["run", "--skip-recovery-wait"]);
        until(&id, || {
            let letter = format!("letter-{number}");
            let mut show = place.start(&letter, &["dead", "show", &id, "--json"]);
            show.wait().expect("it ends").success()
        })
        .await;
        signal(&worker, Signal::TERM);
        assert!(worker.wait().expect("it ended").success());
    }
    assert!(secrets.are_not_under(place.out.path()) > 10_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_shows_no_secret_of_its_workers() {
    let mut secrets = Secrets::default();
    let [amqp, cache] = ["Amqp", "Redis"].map(|what| secrets.make(what));
    let name = unique("demo-secrets");
    user(shared_rabbit(), &name, &amqp);
    let rule = format!(">{cache}");
    shared_redis().ctl(&["acl", "setuser", &name, "on", &rule, "~*", "+@all"]);
    let with = |url: &str, password: &str| {
        let mut url = url::Url::parse(url).expect("a url");
        let set = url
            .set_username(&name)
            .and(url.set_password(Some(password)));
        set.expect("a url with a host");
        url
    };
    let place = Place::new();
    place.write(
        "sluicegate.yaml",
        &format!(
            "amqp: {{url: '{}'}}\nredis: {{url: '{}'}}\nlog: {{level: '{LOUD}'}}\n",
            with(shared_rabbit().url(), &amqp),
            with(shared_redis().url(), &cache),
        ),
    );
    let args = [
        "demo",
        "--tenants",
        "1",
        "--jobs",
        "10",
        "--limit",
        "5",
        "--window",
        "200ms",
    ];
    let rest = ["--guard", "20ms", "--workers", "1", "--json"];
    let mut demo = place.start("demo", &[&args[..], &rest].concat());
    while demo.try_wait().expect("it runs").is_none() {
        secrets.are_no_arguments();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let figures = place.text("demo.out");
    assert!(figures.contains("never_lost"), "{}", place.text("demo.err"));
    assert!(secrets.are_not_under(place.out.path()) > 100);
    shared_redis().ctl(&["acl", "deluser", &name]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_output_of_a_worker_holds_its_access_token_or_the_secret_for_it() {
    let of_all = "client-secret-file: client";
    let of_tenants =
        "client-secret: '{secret:tenant}'}, default-secret-file: client, headers: {x-a: b";
    for (auth, whose) in [("basic", of_all), ("post", of_all), ("post", of_tenants)] {
        let mut secrets = Secrets::default();
        let [client, token, query, password] =
            ["Client", "Access", "TokenQuery", "Proxy"].map(|what| secrets.make(what));
        let basic = BASE64_STANDARD.encode(format!("us@r:{password}@"));
        secrets.add("proxy's basic", basic.as_bytes());
        let proxy = ConnectProxy::start(Some(&format!("Basic {basic}"))).await;
        secrets.add_basic("shop", &client);
        let refuses = Arc::new(AtomicBool::new(true));
        let (refuses_now, given) = (Arc::clone(&refuses), token.clone());
        // It repeats what it refuses, also as the error's code.
        let tokens = Downstream::start(move |request| {
            let head = String::from_utf8_lossy(&request.head).replace(['"', '\r', '\n'], "");
            let body = String::from_utf8_lossy(&request.body).into_owned();
            let (status, text) = match refuses_now.load(Ordering::Relaxed) {
                true => {
                    let code = body.rsplit('=').next().unwrap_or_default();
                    let json = format!(
                        "{{\"error\": \"{code}\", \"error_description\": \"{head} {body}\"}}"
                    );
                    ("401 Unauthorized", json)
                }
                false => (
                    "200 OK",
                    format!("{{\"access_token\": \"{given}\", \"expires_in\": 60}}"),
                ),
            };
            let length = text.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\nx-echo: {head}\r\ncontent-length: {length}\r\n\r\n{text}"
            );
            (answer.into_bytes(), AfterAnswer::Keep)
        })
        .await;
        let api = echo(None).await;
        let place = Place::new();
        place.write("client", &format!("{client}\n"));
        let queue = unique("tokens");
        place.write(
            "sluicegate.yaml",
            &format!(
                "
amqp: {{url: '{}', queue: '{queue}'}}
redis: {{url: '{}', prefix: '{queue}'}}
dispatch: {{http: {{url: 'http://{}/', timeout: 1s, proxy: 'http://us%40r:{password}%40@{}', oauth2: {{token-url: 'http://{}/?key={query}', client-id: shop, client-auth: {auth}, {whose}}}}}}}
retry: {{initial-interval: 10ms, max-attempts: 20}}
admin: {{listen: '127.0.0.1:0'}}
log: {{level: '{LOUD}'}}
",
                shared_rabbit().url(),
                shared_redis().url(),
                api.addr,
                proxy.door.address,
                tokens.addr,
            ),
        );
        let config = Config::load(Some(&place.file()), std::iter::empty()).expect("valid");
        let shown = format!("{config}{config:?}{config:#?}");
        secrets.are_not_in("the configuration", shown.as_bytes());
        place.run("check", &["check"], 0);
        let mut worker = place.start("run", &["run"]);
        place.run(
            "publish",
            &["publish", "--tenant", "acme", "--id", "bad-1", "a body"],
            0,
        );
        place
            .logs(
                "run",
                &["no access token: retrying", "the token URL answered 401"],
            )
            .await;
        // No call is made without a token.
        let calls = || api.requests().len();
        assert_eq!(calls(), 0);
        refuses.store(false, Ordering::Relaxed);
        until("a dead letter", || {
            place.run("dead", &["dead", "list", "--json"], 0);
            place.text("dead.out").contains("400 Bad Request")
        })
        .await;
        assert_eq!(calls(), 1);
        assert!(proxy.asked().contains(&api.addr.to_string()));
        let carried = format!("Bearer {token}");
        let requests = api.requests();
        assert_eq!(
            requests[0].header("authorization"),
            Some(carried.as_bytes())
        );
        place.run("show", &["dead", "show", "bad-1", "--json"], 0);
        secrets.are_no_arguments();
        signal(&worker, Signal::TERM);
        assert!(worker.wait().expect("it ended").success());
        let read = secrets.are_not_under(place.out.path());
        assert!(read > 1_000, "{read}");
    }
}

/// A program that reports ready and rejects each job with its inherited environment, for the log
/// and for the dead letter.
const TALKATIVE: &str = r#"env >&2; echo '{"ready": true}'; while read -r job; do printf '{"call": %s, "outcome": "reject", "reason": "%s", "body": "%s"}\n' "$(echo "$job" | sed 's/[^0-9]*//; s/,.*//')" "inherited $(env | tr -cd 'A-Za-z0-9=_' | tail -c 400)" "$(env | tr -cd 'A-Za-z0-9=_ ')"; done"#;

#[tokio::test(flavor = "multi_thread")]
async fn pipelines_programs_and_forwarded_jobs_show_no_secret() {
    let mut secrets = Secrets::default();
    let [top, program, forward, mail, client, access] =
        ["Top", "Program", "Forward", "Mail", "Client", "Access"].map(|what| secrets.make(what));
    secrets.add_basic("acme-app", &client);
    let (name, given) = (unique("ways"), access.clone());
    // Each pipeline has its own login.
    for (who, password) in [
        ("programs", &program),
        ("orders", &forward),
        ("mail", &mail),
    ] {
        user(shared_rabbit(), &format!("{name}-{who}"), password);
    }
    let tokens = Downstream::start(move |request| {
        let head = String::from_utf8_lossy(&request.head).replace(['"', '\r', '\n'], "");
        let (status, text) = match request.header("authorization") {
            Some(_) => (
                "200 OK",
                format!("{{\"access_token\": \"{given}\", \"expires_in\": 60}}"),
            ),
            None => ("401 Unauthorized", format!("{{\"error\": \"{head}\"}}")),
        };
        let length = text.len();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{text}");
        (answer.into_bytes(), AfterAnswer::Keep)
    })
    .await;
    let api = echo(None).await;
    let mut place = Place::new();
    fs::create_dir(place.config.path().join("clients")).expect("a folder");
    place.write("clients/acme", &format!("acme-app:{client}\n"));
    let rabbit = |who: &str, password: &str| {
        let login = format!("//{name}-{who}:{password}@");
        shared_rabbit().url().replace("//guest:guest@", &login)
    };
    let variable = |key: &'static str, value: String| (key, value);
    place.variables = vec![
        variable("SLUICEGATE_AMQP__URL", rabbit("top", &top)),
        variable(
            "SLUICEGATE_PIPELINES__PROGRAMS__AMQP__URL",
            rabbit("programs", &program),
        ),
        variable(
            "SLUICEGATE_PIPELINES__MAIL__AMQP__URL",
            rabbit("mail", &mail),
        ),
    ];
    place.write(
        "sluicegate.yaml",
        &format!(
            "
redis: {{url: '{}', prefix: '{name}'}}
retry: {{initial-interval: 10ms, max-attempts: 2}}
dispatch: {{results: {{to: reply-to}}}}
pipelines:
  programs:
    amqp: {{queue: '{name}-programs'}}
    dispatch: {{exec: {{command: [sh, -c, {}]}}}}
  orders:
    amqp: {{url: '{}', queue: '{name}-orders'}}
    dispatch: {{forward: {{exchange: '{name}-missing', done: true}}}}
  mail:
    amqp: {{queue: '{name}-mail'}}
    dispatch:
      http:
        url: 'http://{}/'
        secrets-folder: clients
        oauth2: {{token-url: 'http://{}/{{tenant}}', client-secret: '{{secret:tenant}}'}}
admin: {{listen: '127.0.0.1:0'}}
log: {{level: '{LOUD}'}}
",
            shared_redis().url(),
            serde_json::json!(TALKATIVE),
            rabbit("orders", &forward),
            api.addr,
            tokens.addr,
        ),
    );
    let variables = place.variables.iter();
    let variables = variables.map(|(name, value)| ((*name).to_owned(), value.clone()));
    let loaded = Pipelines::load(Some(&place.file()), variables).expect("valid");
    assert_eq!(loaded.each().len(), 3);
    let shown = format!("{loaded}{loaded:?}{loaded:#?}");
    secrets.are_not_in("the configuration", shown.as_bytes());

    let mut worker = place.start("run", &["run"]);
    place
        .logs("run", &["admin.listen=", "program: PATH="])
        .await;
    for (pipeline, reason) in [
        ("programs", "inherited"),
        ("orders", "not forwarded to"),
        ("mail", "400 Bad Request"),
    ] {
        let of = ["--pipeline", pipeline];
        let publish = ["publish", "--tenant", "acme", "--id", "bad-1", "a body"];
        place.run(
            &format!("publish-{pipeline}"),
            &[&publish[..], &of].concat(),
            0,
        );
        let list = format!("dead-{pipeline}");
        until(&format!("a dead letter of {pipeline}"), || {
            place.run(&list, &[&["dead", "list", "--json"][..], &of].concat(), 0);
            place.text(&format!("{list}.out")).contains(reason)
        })
        .await;
        let show = ["dead", "show", "bad-1", "--json"];
        place.run(&format!("show-{pipeline}"), &[&show[..], &of].concat(), 0);
    }
    // This tenant has no client.
    let unknown = [
        "publish",
        "--tenant",
        "nobody",
        "--pipeline",
        "mail",
        "a body",
    ];
    place.run("publish-nobody", &unknown, 0);
    until("its dead letter", || {
        place.run("dead", &["dead", "list", "--json", "--pipeline", "mail"], 0);
        place.text("dead.out").contains("nobody")
    })
    .await;
    assert_eq!(
        api.requests()[0].header("authorization"),
        Some(format!("Bearer {access}").as_bytes())
    );
    let log = place.text("run.err");
    assert!(
        !log.contains("program: SLUICEGATE_"),
        "a program inherits what is ours"
    );
    let listen = &listen_of(&log).expect("it is said");
    for path in ["/metrics", "/readyz", "/readyz/orders"] {
        let answer = ask(listen, path, None).await;
        secrets.are_not_in(path, answer.as_bytes());
    }
    // Missing permissions are reported, and so is a refused login.
    place.run("check", &["check"], 1);
    assert!(place.text("check.out").contains("jobs can't be forwarded"));
    let wrong = rabbit("orders", &secrets.make("Wrong"));
    place.write(
        "wrong.yaml",
        &place_text(&place).replace(&rabbit("orders", &forward), &wrong),
    );
    let wrong = place.config.path().join("wrong.yaml").display().to_string();
    place.run("check-wrong", &["check", "--config", &wrong], 1);
    secrets.are_no_arguments();
    signal(&worker, Signal::TERM);
    assert!(worker.wait().expect("it ended").success());
    assert!(secrets.are_not_under(place.out.path()) > 10_000);
}

/// Returns the configuration that was written.
fn place_text(place: &Place) -> String {
    fs::read_to_string(place.file()).expect("it is there")
}
