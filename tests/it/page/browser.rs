//! The page in a real browser: each view, each action with its confirmation, live updates, workers
//! that go away and come back, many tenants, and harmful names.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fantoccini::elements::Element;
use fantoccini::key::Key;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use kit::api::{Api, Reply};
use kit::process::Process;
use kit::servers::free_port;
use kit::{Bed, PATIENCE, client, job, jobs, until_async};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::PROGRAM;
use crate::api::{OPERATOR, Port, READER};
use crate::cli::servers::buried;
use crate::page::HOSTILE;

/// Number of waiting tenants.
const TENANTS: usize = 10_000;

/// A private browser without a window.
struct Chromium {
    client: Client,
    driver: Process,
    _profile: TempDir,
}

impl Chromium {
    async fn start() -> Self {
        let (port, profile) = (free_port(), tempfile::tempdir().expect("a folder"));
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}")).stdin(Stdio::null());
        // Files that the browser keeps outside its profile.
        command
            .env("HOME", profile.path())
            .env("TMPDIR", profile.path());
        let driver = Process::start(command);
        driver.logs(&["started successfully"]).await;
        let folder = profile.path().join("profile");
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--window-size=1280,900",
            &format!("--user-data-dir={}", folder.display()),
        ];
        let Value::Object(capabilities) = json!({
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }) else {
            unreachable!("it is an object");
        };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .expect("a browser");
        Self {
            client,
            driver,
            _profile: profile,
        }
    }

    async fn open(&self, listen: SocketAddr, path: &str) {
        let url = format!("http://{listen}{path}");
        self.client.goto(&url).await.expect("it is shown");
    }

    /// Returns the visible text of the page.
    async fn text(&self) -> String {
        let script = "return document.body.innerText";
        let text = self.client.execute(script, vec![]).await.expect("it runs");
        text.as_str().expect("a text").to_owned()
    }

    /// Waits until the page shows all of this by itself.
    async fn shows(&self, words: &[&str]) -> String {
        let started = Instant::now();
        loop {
            let text = self.text().await;
            if words.iter().all(|word| text.contains(word)) {
                return text;
            }
            let waited = started.elapsed();
            assert!(waited < PATIENCE, "no {words:?} in:\n{text}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn at(&self, selector: &str) -> Element {
        let found = self.client.find(Locator::Css(selector)).await;
        found.unwrap_or_else(|why| panic!("{selector}: {why}"))
    }

    /// Clicks on an element. Live elements may be replaced at that moment, so it is searched for
    /// again.
    async fn click_on(&self, what: Locator<'_>) {
        let started = Instant::now();
        loop {
            let clicked = match self.client.find(what).await {
                Ok(found) => found.click().await,
                Err(why) => Err(why),
            };
            let Err(why) = clicked else {
                return;
            };
            let waited = started.elapsed();
            assert!(waited < PATIENCE, "{what:?}: {why}\n{}", self.text().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn click(&self, words: &str) {
        self.click_on(Locator::LinkText(words)).await;
    }

    async fn press(&self, selector: &str) {
        self.click_on(Locator::Css(selector)).await;
    }

    /// Evaluates a JavaScript expression.
    async fn is(&self, expression: &str) -> Value {
        let script = format!("return {expression}");
        self.client.execute(&script, vec![]).await.expect("it runs")
    }

    /// Writes into the field with this name.
    async fn write(&self, name: &str, value: &str) {
        let field = self.at(&format!("main [name='{name}']")).await;
        field.clear().await.expect("it can be cleared");
        field.send_keys(value).await.expect("it can be written");
    }

    async fn sign_in(&self, token: &str, name: &str) {
        self.write("token", token).await;
        self.write("name", name).await;
        self.press("main button.main").await;
    }

    /// Follows the link of an action, confirms it, and waits until the page reports that it is
    /// done.
    async fn does(&self, link: &str, question: &str, fields: &[(&str, &str)]) -> String {
        self.click(link).await;
        self.shows(&[question, "The action is recorded in the audit log"])
            .await;
        for (name, value) in fields {
            self.write(name, value).await;
        }
        self.press("main button.main").await;
        self.shows(&[&format!("Done: {}", question.trim_end_matches('?'))])
            .await
    }

    /// Checks that the page loaded only resources of the worker itself.
    async fn takes_nothing_from_elsewhere(&self) {
        let own = "performance.getEntriesByType('resource').every(it => it.name.startsWith(location.origin))";
        assert_eq!(self.is(own).await, json!(true));
        assert_eq!(self.is("document.styleSheets.length").await, json!(1));
    }

    async fn close(self) {
        self.client.close().await.expect("it ends");
        drop(self.driver);
    }
}

/// Two workers, and an API that throttles some tenants.
struct Fleet {
    bed: Bed,
    yaml: String,
    listen: SocketAddr,
    first: Option<Process>,
    second: Process,
    _api: Api,
}

impl Fleet {
    async fn start() -> Self {
        let bed = Bed::shared();
        let api = Api::start().await;
        api.answers(|call| match call.tenant.as_str() {
            "rude" => Reply::status(429).header("retry-after", "3600"),
            "wrong" | "wrong-too" => Reply::status(400).body("no such thing"),
            _ => Reply::ok(),
        });
        let listen: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let Bed { name, amqp, redis } = &bed;
        let yaml = |port: u16| {
            format!(
                "amqp: {{url: '{amqp}', queue: '{name}', prefetch: 2000}}
redis: {{url: '{redis}', prefix: '{name}'}}
rate-limiter: {{max-requests: 1, window-size: 1h}}
delay: {{max-delay: 5s}}
dispatch: {{http: {{url: '{}'}}}}
admin: {{token: {READER}, operator-token: {OPERATOR}, listen: '127.0.0.1:{port}'}}
",
                api.url()
            )
        };
        let (own, others) = (yaml(listen.port()), yaml(0));
        let (first, second) = (PROGRAM.start(&own), PROGRAM.start(&others));
        for worker in [&first, &second] {
            Port::of(worker).await;
        }
        Self {
            bed,
            yaml: own,
            listen,
            first: Some(first),
            second,
            _api: api,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_can_use_the_whole_page_in_a_browser() {
    let mut fleet = Fleet::start().await;
    let listen = fleet.listen;
    let browser = Chromium::start().await;
    fleet.bed.publish(&fleet.yaml, jobs("acme", 5)).await;
    let few = ["rude", "wrong", "wrong-too"].into_iter().chain(HOSTILE);
    let few: Vec<_> = few
        .flat_map(|name| (0..3).map(move |id| job(name, format!("{name}-{id}"))))
        .collect();
    fleet.bed.publish(&fleet.yaml, few).await;

    // A reader signs in and reaches the requested page.
    browser.open(listen, "/ui/tenants?search=acm").await;
    browser.shows(&["Sign in", "Token"]).await;
    browser.sign_in("no-token-of-ours", "").await;
    browser
        .shows(&["neither admin.token nor admin.operator-token"])
        .await;
    browser.open(listen, "/ui/tenants?search=acm").await;
    browser.sign_in(READER, "").await;
    browser.shows(&["Tenants", "Reader", "Live", "acme"]).await;

    // A waiting tenant, and the reason.
    browser.click("acme").await;
    browser
        .shows(&[
            "acme",
            "Waiting",
            "is exhausted",
            "Empty at",
            "1 call in 1h",
        ])
        .await;
    let ends = browser
        .client
        .find_all(Locator::Css("[data-ends]"))
        .await
        .expect("clocks");
    assert!(!ends.is_empty(), "a clock runs");
    browser.takes_nothing_from_elsewhere().await;

    // It updates by itself and keeps the keyboard focus.
    let focus = "(document.querySelector('.part-limits .scroll').focus(), document.activeElement.className)";
    assert_eq!(browser.is(focus).await, json!("scroll"));
    let tile = "document.querySelector('.part-now .tiles dd').textContent";
    let before = browser.is(tile).await;
    let more = (0..4).map(|id| job("acme", format!("more-{id}")));
    fleet.bed.publish(&fleet.yaml, more).await;
    let changes = async || browser.is(tile).await != before;
    until_async("another number of jobs", changes).await;
    let focused = browser.is("document.activeElement.className").await;
    assert_eq!(focused, json!("scroll"), "the focus stays");

    // Countdowns follow the server's clock, although this computer's is ten days slow.
    let slow = "(Date.now = () => new Date().getTime() - 864e6, 0)";
    browser.is(slow).await;
    let left = "document.querySelector('[data-ends]').textContent";
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let is_right = async || !browser.is(left).await.to_string().contains("d ");
    until_async("a countdown by the server's clock", is_right).await;

    // A reader is asked for the other token, and then returns to the question.
    browser.click("Pause…").await;
    browser
        .shows(&["Actions require admin.operator-token"])
        .await;
    browser.sign_in(OPERATOR, "anna").await;
    browser.shows(&["Pause acme?"]).await;
    assert_eq!(
        browser
            .at("[name=for]")
            .await
            .prop("value")
            .await
            .expect("it"),
        Some("1h".to_owned())
    );
    browser.click("Go back").await;
    browser.shows(&["acme", "Operator anna"]).await;

    actions(&browser, &fleet).await;
    dead_letters(&browser, &fleet).await;
    hostile(&browser, listen).await;
    keyboard(&browser, listen).await;
    many(&browser, &fleet).await;

    // The audit log has all actions.
    browser.open(listen, "/ui/audit").await;
    let audit = browser.shows(&["tenant pause", "anna"]).await;
    for action in [
        "tenant resume",
        "tenant limit",
        "shadow",
        "tenant reset",
        "tenant divert",
        "tenant undivert",
        "job cancel",
        "pause --all",
        "resume --all",
        "drain",
        "tenant resume --all",
        "dead replay",
        "dead drop",
    ] {
        assert!(audit.contains(action), "{action} is not in\n{audit}");
    }

    // Another worker goes away, which is shown.
    browser.open(listen, "/ui").await;
    browser
        .shows(&[
            "Workers ready",
            "this one",
            &format!("/ {}", fleet.second.id()),
        ])
        .await;
    fleet.second.signal(Signal::KILL);
    browser.shows(&["Gone since"]).await;

    // This worker goes away. The page says so, keeps its contents, and continues when the worker is
    // back.
    browser.open(listen, "/ui/tenant?name=acme").await;
    browser.shows(&["Live", "Waiting"]).await;
    let first = fleet.first.take().expect("it runs");
    first.stop();
    let text = browser.shows(&["No connection since"]).await;
    assert!(text.contains("acme") && text.contains("Empty at"), "{text}");
    let again = PROGRAM.start(&fleet.yaml);
    Port::of(&again).await;
    // The new worker has no sessions.
    browser.shows(&["Signed out. Load the page again."]).await;
    browser.client.refresh().await.expect("it is shown");
    browser.sign_in(READER, "").await;
    browser.shows(&["Live", "acme", "Reader"]).await;

    // Without a required token, it continues by itself.
    again.stop();
    let open = fleet.yaml.replace(
        &format!("token: {READER}, operator-token: {OPERATOR}, "),
        "",
    );
    let once = PROGRAM.start(&open);
    Port::of(&once).await;
    browser.open(listen, "/ui").await;
    browser.shows(&["Live", "Ready"]).await;
    once.stop();
    browser.shows(&["No connection since"]).await;
    let twice = PROGRAM.start(&open);
    Port::of(&twice).await;
    let text = browser.shows(&["Live", "Ready"]).await;
    assert!(!text.contains("No connection"), "{text}");
    browser.close().await;
    twice.stop();
}

/// Runs each action, with its confirmation.
async fn actions(browser: &Chromium, fleet: &Fleet) {
    browser.open(fleet.listen, "/ui/tenant?name=acme").await;
    browser
        .does("Pause…", "Pause acme?", &[("for", "2h")])
        .await;
    browser.shows(&["Suspended"]).await;
    browser.does("Resume…", "Resume acme?", &[]).await;
    browser
        .does(
            "Change a limit…",
            "Change a limit of acme?",
            &[("max", "3")],
        )
        .await;
    browser.shows(&["instead of 1"]).await;
    // First tried, then enforced.
    browser
        .does(
            "Try a limit first…",
            "Try a limit of acme?",
            &[("max", "2")],
        )
        .await;
    browser
        .shows(&[
            "Tried default (2 in 1h):",
            "It denies nothing.",
            "End the trial…",
        ])
        .await;
    browser
        .does("Enforce it…", "Enforce the tried limit of acme?", &[])
        .await;
    let text = browser.shows(&["2 calls in 1h", "instead of 1"]).await;
    assert!(!text.contains("Tried default"), "{text}");
    // The form for a changed limit can also try it with the entered values.
    browser.click("Change a limit…").await;
    browser.write("max", "4").await;
    browser.press("main button[value=try]").await;
    browser
        .shows(&["Done: Try a limit of acme", "Tried default (4 in 1h):"])
        .await;
    browser
        .does("End the trial…", "End the trial of acme?", &[])
        .await;
    let text = browser.shows(&["2 calls in 1h", "instead of 1"]).await;
    assert!(!text.contains("Tried default"), "{text}");
    browser
        .does("Empty the waitlist…", "Empty the waitlist of acme?", &[])
        .await;
    browser
        .does("Divert…", "Divert the jobs of acme?", &[])
        .await;
    browser.shows(&["Diverted"]).await;
    browser
        .does("Stop diverting…", "Stop diverting acme?", &[])
        .await;
    browser.write("id", "acme-4").await;
    browser.press(".part-actions form button").await;
    browser.shows(&["Cancel the job acme-4 of acme?"]).await;
    browser.press("main button.main").await;
    browser
        .shows(&["Done: Cancel the job acme-4 of acme"])
        .await;
    // Invalid input is reported and stays in the form.
    browser.click("Pause…").await;
    browser.write("for", "soon").await;
    browser.press("main button.main").await;
    browser.shows(&["for: must be a duration"]).await;
    assert_eq!(
        browser
            .at("[name=for]")
            .await
            .prop("value")
            .await
            .expect("it"),
        Some("soon".to_owned())
    );

    browser.open(fleet.listen, "/ui").await;
    browser.does("Pause…", "Pause all workers?", &[]).await;
    browser.shows(&["All workers are paused."]).await;
    browser.does("Resume…", "Resume all workers?", &[]).await;
    browser.does("Drain…", "Drain all workers?", &[]).await;
    browser.shows(&["All workers are draining"]).await;
    browser.does("Resume…", "Resume all workers?", &[]).await;
    browser
        .does("Resume calls…", "Resume the calls of all tenants?", &[])
        .await;
    // A tenant that the API throttled is resumed.
    browser.open(fleet.listen, "/ui/tenants?sort=closed").await;
    browser.shows(&["rude"]).await;
    browser.click("rude").await;
    browser.shows(&["Suspended", "429"]).await;
    browser.does("Resume…", "Resume rude?", &[]).await;
}

async fn dead_letters(browser: &Chromium, fleet: &Fleet) {
    let listen = fleet.listen;
    let queue = client(&fleet.yaml).await;
    for (tenant, letters, link, question) in [
        ("wrong", 2, "Replay…", "Replay dead letters?"),
        ("wrong-too", 1, "Delete…", "Delete dead letters?"),
    ] {
        let id = format!("{tenant}-0");
        let started = Instant::now();
        loop {
            browser
                .open(listen, &format!("/ui/dead?tenant={tenant}"))
                .await;
            if browser.text().await.contains("400") {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "{}", browser.text().await);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let found = browser
            .is("document.querySelector('tbody th .id').textContent")
            .await;
        assert!(
            found
                .as_str()
                .is_some_and(|found| found.starts_with(tenant)),
            "{found}"
        );
        let found = found.as_str().unwrap_or(&id).to_owned();
        // Letters that a page has shown return to the queue a moment later. A replayed job waits
        // for the next window.
        buried(&queue, letters).await;
        browser.click(&found).await;
        browser
            .shows(&["Dead letter", "400", "Body", "{}", "x-tenant"])
            .await;
        buried(&queue, letters).await;
        browser.does(link, question, &[]).await;
    }
    // One was replayed, and the other was deleted.
    browser.open(listen, "/ui/dead?tenant=wrong-too").await;
    browser.shows(&["No dead letter matches."]).await;
}

/// A page with any name is reachable by its link, and no part of the name runs.
async fn hostile(browser: &Chromium, listen: SocketAddr) {
    for (place, name) in HOSTILE.into_iter().enumerate() {
        let query: String = url::form_urlencoded::byte_serialize(name.as_bytes()).collect();
        browser
            .open(listen, &format!("/ui/tenants?search={query}"))
            .await;
        // Its first row appears as soon as a worker names the tenant.
        browser.press("tbody th a").await;
        browser.shows(&["Actions", "Limits"]).await;
        let url = browser.client.current_url().await.expect("it");
        let pairs: Vec<_> = url.query_pairs().into_owned().collect();
        let own = ("name".to_owned(), name.to_owned());
        assert!(pairs.contains(&own), "{url}");
        let title = browser.client.title().await.expect("it");
        assert!(title != "owned" && title.ends_with("Sluicegate"), "{title}");
        assert!(
            browser.client.get_alert_text().await.is_err(),
            "nothing ran"
        );
        if place < 3 {
            let shown = browser.is("document.querySelector('h1').textContent").await;
            let question = format!("Pause {}?", shown.as_str().expect("a text"));
            browser.does("Pause…", &question, &[]).await;
        }
    }
}

/// Everything is reachable without a mouse.
async fn keyboard(browser: &Chromium, listen: SocketAddr) {
    browser.open(listen, "/ui").await;
    browser.shows(&["Workers", "For all workers"]).await;
    let body = browser.at("body").await;
    body.send_keys(&Key::Tab.to_string()).await.expect("a key");
    let first = browser.is("document.activeElement.textContent").await;
    assert_eq!(first, json!("Skip to content"));
    let left_out = "[...document.querySelectorAll('a, button, input:not([type=hidden])')].filter(it => it.tabIndex < 0).length";
    assert_eq!(browser.is(left_out).await, json!(0));
    // Elements that screen readers use.
    let script = "return [
        document.documentElement.lang === 'en', document.querySelectorAll('main').length === 1, document.querySelectorAll('h1').length === 1,
        document.querySelectorAll('nav:not([aria-label])').length === 0, document.querySelectorAll('th:not([scope])').length === 0,
        [...document.querySelectorAll('table')].every(it => it.caption), [...document.querySelectorAll('svg')].every(it => it.getAttribute('aria-label') || it.getAttribute('aria-hidden')),
        [...document.querySelectorAll('input:not([type=hidden])')].every(it => it.labels.length > 0),
        document.querySelectorAll('[aria-live], [role=status]').length <= 2]";
    let all = browser
        .client
        .execute(script, vec![])
        .await
        .expect("it runs");
    assert_eq!(all, json!(vec![true; 9]));
    // On a phone nothing is wider than the screen.
    browser
        .client
        .set_window_size(500, 900)
        .await
        .expect("it can be");
    let script = "return document.documentElement.scrollWidth <= window.innerWidth";
    for path in [
        "/ui",
        "/ui/tenants",
        "/ui/tenant?name=acme",
        "/ui/dead",
        "/ui/audit",
        "/ui/act?do=limit&tenant=acme",
    ] {
        browser.open(listen, path).await;
        let fits = browser
            .client
            .execute(script, vec![])
            .await
            .expect("it runs");
        assert_eq!(fits, json!(true), "{path} is too wide");
    }
    browser
        .client
        .set_window_size(1280, 900)
        .await
        .expect("it can be");
}

/// Ten thousand tenants wait: pages stay as short as before, and a search finds a tenant by name.
async fn many(browser: &Chromium, fleet: &Fleet) {
    let all = (0..TENANTS).map(|number| job(&format!("m-{number:05}"), number));
    fleet.bed.publish(&fleet.yaml, all).await;
    browser.open(fleet.listen, "/ui/tenants").await;
    browser
        .shows(&["1–50 of", "that workers do not name"])
        .await;
    browser.click("Next page").await;
    browser.shows(&["51–100 of", "First page"]).await;
    browser
        .open(fleet.listen, "/ui/tenants?search=m-09999")
        .await;
    browser
        .shows(&["Open the tenant with exactly this name"])
        .await;
    browser
        .click("Open the tenant with exactly this name")
        .await;
    browser.shows(&["m-09999", "Limits"]).await;
}
