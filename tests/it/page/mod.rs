//! The page at `/ui`, requested by a browser and by others: access to views and actions, the
//! headers of all answers, and long-lived streams.

mod browser;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kit::{PATIENCE, SECOND, Says, job, until, until_async};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::api::servers::unavailable;
use crate::api::{Answer, OPERATOR, READER, Run, send};

const FORM: &str = "content-type: application/x-www-form-urlencoded\r\n";
/// Maximum number of concurrent streams.
const MAX_STREAMS: usize = 32;

/// A browser. Its cookies are sent with each request.
#[derive(Clone)]
pub struct Browser {
    listen: SocketAddr,
    cookies: Vec<String>,
}

/// Encodes `text` for a form or a query.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

impl Browser {
    fn of(listen: SocketAddr) -> Self {
        Self {
            listen,
            cookies: Vec::new(),
        }
    }

    fn headers(&self) -> String {
        let cookies = match self.cookies.as_slice() {
            [] => String::new(),
            some => format!("cookie: {}\r\n", some.join("; ")),
        };
        format!("host: {}\r\n{cookies}", self.listen)
    }

    async fn get(&self, path: &str) -> Answer {
        send(self.listen, "GET", path, (&self.headers(), "")).await
    }

    async fn post_with(&self, path: &str, more: &str, form: &str) -> Answer {
        let headers = format!("{}{more}", self.headers());
        send(self.listen, "POST", path, (&headers, form)).await
    }

    /// Posts as its own page does.
    async fn post(&self, path: &str, form: &str) -> Answer {
        let own = format!(
            "{FORM}origin: http://{}\r\nsec-fetch-site: same-origin\r\n",
            self.listen
        );
        self.post_with(path, &own, form).await
    }

    /// Keeps the cookies of an answer.
    fn keep(&mut self, answer: &Answer) {
        let set = answer
            .head
            .lines()
            .filter_map(|line| line.strip_prefix("set-cookie: "));
        let pairs = set.filter_map(|line| line.split(';').next());
        self.cookies.extend(pairs.map(str::to_owned));
    }

    async fn signed_in(listen: SocketAddr, token: &str) -> Self {
        let mut browser = Self::of(listen);
        let answer = browser
            .post("/ui/sign-in", &format!("token={token}&name=anna"))
            .await;
        assert_eq!(answer.status, 303, "{answer:?}");
        browser.keep(&answer);
        browser
    }

    /// Returns the token in the forms of this browser's pages.
    async fn form_token(&self) -> String {
        let form = self.get("/ui/act?do=pause&tenant=acme").await;
        assert_eq!(form.status, 200, "{form:?}");
        let (_, rest) = form
            .body
            .split_once("action=\"/ui/act\"")
            .expect("a form that acts");
        let (_, rest) = rest.split_once("name=\"form-token\" value=\"").expect("it");
        rest.split('"').next().expect("its end").to_owned()
    }
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    let mut lines = answer.head.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Checks that the answer has no scripts or styles inline. The policy would forbid them, and a
/// browser would show a broken page.
fn is_plain(answer: &Answer) {
    let policy = header(answer, "content-security-policy").expect("a policy");
    for part in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part), "{part} is not in {policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains('*'));
    assert_eq!(header(answer, "x-content-type-options"), Some("nosniff"));
    assert_eq!(header(answer, "referrer-policy"), Some("same-origin"));
    let body = answer.body.to_lowercase();
    assert_eq!(
        body.matches("<script").count(),
        body.matches("<script src=\"/ui/page.js\" defer></script>")
            .count(),
        "{body}"
    );
    for word in [
        " style=",
        "<style",
        "javascript:",
        " onclick",
        " onerror=",
        "http://",
        "https://",
    ] {
        assert!(!body.contains(word), "{word} in {body}");
    }
    for token in [READER, OPERATOR] {
        assert!(!answer.body.contains(token) && !answer.head.contains(token));
    }
}

const VIEWS: [&str; 6] = [
    "/ui",
    "/ui/tenants?sort=denied",
    "/ui/tenant?name=acme",
    "/ui/dead",
    "/ui/letter?id=none",
    "/ui/audit",
];

#[tokio::test(flavor = "multi_thread")]
async fn without_a_session_a_client_signs_in_and_all_answers_have_strict_headers() {
    let run = Run::start("max-requests: 5, window-size: 1h").await;
    let listen = run.port.0;
    let stranger = Browser::of(listen);
    for view in VIEWS {
        let answer = stranger.get(view).await;
        assert_eq!(answer.status, 303, "{answer:?}");
        let to = format!(
            "/ui/sign-in?to={}",
            url::form_urlencoded::byte_serialize(view.as_bytes())
                .collect::<String>()
                .to_lowercase()
        );
        assert_eq!(header(&answer, "location"), Some(to.as_str()));
        is_plain(&answer);
        let headers = format!("host: {listen}\r\naccept: text/event-stream\r\n");
        let stream = send(listen, "GET", view, (&headers, "")).await;
        assert_eq!(stream.status, 401, "{stream:?}");
    }
    for (path, kind) in [
        ("/ui/page.css", "text/css"),
        ("/ui/page.js", "text/javascript"),
    ] {
        let asset = stranger.get(path).await;
        assert_eq!(asset.status, 200);
        assert!(header(&asset, "content-type").is_some_and(|it| it.starts_with(kind)));
        for elsewhere in ["http:", "https:", "@import", "//cdn"] {
            assert!(!asset.body.contains(elsewhere), "{elsewhere} in {path}");
        }
    }
    let form = stranger
        .get("/ui/sign-in?to=%2Fui%2Faudit%22%3E%3Cb%3E")
        .await;
    is_plain(&form);
    form.body.says("value=\"/ui/audit&#34;&#62;&#60;b&#62;\"");

    let wrong = stranger.post("/ui/sign-in", "token=wrong-0123456789").await;
    assert_eq!(wrong.status, 401);
    assert!(
        wrong
            .body
            .contains("neither admin.token nor admin.operator-token")
    );
    let elsewhere = format!("{FORM}origin: https://example.com\r\n");
    let form = format!("token={READER}");
    let answer = stranger.post_with("/ui/sign-in", &elsewhere, &form).await;
    assert_eq!((answer.status, header(&answer, "set-cookie")), (403, None));

    let mut reader = Browser::of(listen);
    let to = encoded("//example.com");
    let answer = reader
        .post("/ui/sign-in", &format!("token={READER}&to={to}"))
        .await;
    assert_eq!(header(&answer, "location"), Some("/ui"));
    let cookie = header(&answer, "set-cookie").expect("one");
    for word in ["path=/ui", "httponly", "samesite=strict", "max-age=43200"] {
        cookie.says(word);
    }
    assert!(
        !cookie.contains("secure") && !cookie.contains(READER),
        "{cookie}"
    );
    reader.keep(&answer);
    for view in VIEWS {
        let answer = reader.get(view).await;
        let expected = if view.contains("letter") { 404 } else { 200 };
        assert_eq!(answer.status, expected, "{view}: {answer:?}");
        is_plain(&answer);
        // A view with countdowns also shows the server's time.
        let counts_down = view == "/ui" || view.contains("/tenant");
        assert_eq!(answer.body.contains(" data-now=\""), counts_down, "{view}");
    }
    assert_eq!(reader.get("/ui/nothing").await.status, 404);
    assert_eq!(reader.get("/ui?pipeline=default").await.status, 200);
    let other = reader.get("/ui/tenant?name=acme&pipeline=other").await;
    assert_eq!(other.status, 404, "{other:?}");
    // A proxy with TLS.
    let secure = format!("{FORM}x-forwarded-proto: https\r\n");
    let answer = stranger.post_with("/ui/sign-in", &secure, &form).await;
    assert!(
        header(&answer, "set-cookie")
            .expect("one")
            .contains("; secure")
    );

    // The cookie is valid only for /ui.
    let api = reader.get("/api/v1/workers").await;
    assert_eq!(api.status, 401, "{api:?}");
    assert_eq!(reader.get("/metrics").await.status, 401);
    // A program sends its token as for /api/v1.
    let bearer = format!("host: {listen}\r\nauthorization: Bearer {READER}\r\n");
    assert_eq!(send(listen, "GET", "/ui", (&bearer, "")).await.status, 200);

    // A request from a link on another site is repeated from here.
    let link = format!(
        "{}sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n",
        reader.headers()
    );
    let again = send(listen, "GET", "/ui/tenant?name=a", (&link, "")).await;
    assert!(again.body.contains("http-equiv=\"refresh\"") && !again.body.contains("Waiting"));
    let frame = link.replace("dest: document", "dest: iframe");
    assert_eq!(send(listen, "GET", "/ui", (&frame, "")).await.status, 403);

    let form = reader.get("/ui").await.body;
    let (_, rest) = form
        .split_once("name=\"form-token\" value=\"")
        .expect("to sign out");
    let token = rest.split('"').next().expect("its end");
    reader.post("/ui/sign-out", "form-token=x").await;
    assert_eq!(reader.get("/ui").await.status, 200, "somebody else's form");
    let gone = reader
        .post("/ui/sign-out", &format!("form-token={token}"))
        .await;
    assert!(
        header(&gone, "set-cookie")
            .expect("it ends")
            .contains("max-age=0")
    );
    assert_eq!(reader.get("/ui").await.status, 303);
    run.worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_requires_an_operators_session_and_its_own_form_and_site() {
    let run = Run::start("max-requests: 5, window-size: 1h").await;
    let listen = run.port.0;
    let reader = Browser::signed_in(listen, READER).await;
    let operator = Browser::signed_in(listen, OPERATOR).await;
    let token = operator.form_token().await;
    let form = format!("do=pause&tenant=acme&for=1h&form-token={token}");

    let sent = reader.get("/ui/act?do=pause&tenant=acme").await;
    assert_eq!(sent.status, 303);
    assert!(
        header(&sent, "location")
            .expect("it")
            .contains("for=operator")
    );
    let refusals = [
        // Readers.
        (reader.post("/ui/act", &form).await, "operator"),
        (Browser::of(listen).post("/ui/act", &form).await, "operator"),
        // Another session's token, none, and a wrong one.
        (
            Browser::signed_in(listen, OPERATOR)
                .await
                .post("/ui/act", &form)
                .await,
            "belongs to another session",
        ),
        (
            operator.post("/ui/act", "do=pause&tenant=acme").await,
            "belongs to another session",
        ),
        (
            operator
                .post("/ui/act", &form.replace("form-token=", "form-token=0"))
                .await,
            "belongs to another session",
        ),
        // Another site.
        (
            operator
                .post_with(
                    "/ui/act",
                    &format!("{FORM}origin: https://example.com\r\n"),
                    &form,
                )
                .await,
            "another site",
        ),
        (
            operator
                .post_with("/ui/act", &format!("{FORM}origin: null\r\n"), &form)
                .await,
            "another site",
        ),
        (
            operator
                .post_with(
                    "/ui/act",
                    &format!("{FORM}sec-fetch-site: cross-site\r\n"),
                    &form,
                )
                .await,
            "another site",
        ),
    ];
    for (answer, words) in &refusals {
        assert_eq!(answer.status, 403, "{answer:?}");
        assert!(answer.body.contains(words), "{words}: {answer:?}");
        is_plain(answer);
    }
    let no_form = operator
        .post_with("/ui/act", "content-type: text/plain\r\n", &form)
        .await;
    assert_eq!(no_form.status, 415);
    let long = format!("{form}&x={}", "x".repeat(20_000));
    assert_eq!(operator.post("/ui/act", &long).await.status, 413);
    assert_eq!(operator.get("/ui/act?do=none").await.status, 404);
    assert_eq!(run.port.get("/audit").await.is(200)["entries"], json!([]));

    // A link asks for confirmation and changes nothing.
    let asked = operator.get("/ui/act?do=pause&tenant=acme").await;
    assert!(asked.body.contains("<h1>Pause acme?</h1>"), "{asked:?}");
    is_plain(&asked);
    assert_eq!(run.port.get("/audit").await.is(200)["entries"], json!([]));

    let wrong = form.replace("1h", "soon");
    let wrong = operator.post("/ui/act", &wrong).await;
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.body.contains("for: must be a duration") && wrong.body.contains("value=\"soon\"")
    );

    let done = operator.post("/ui/act", &form).await;
    assert_eq!(
        (done.status, header(&done, "location")),
        (303, Some("/ui/tenant?name=acme"))
    );
    let page = operator.get("/ui/tenant?name=acme").await;
    assert!(
        page.body.contains("Done: Pause acme.") && page.body.contains("Suspended"),
        "{page:?}"
    );
    let page = operator.get("/ui/tenant?name=acme").await;
    assert!(!page.body.contains("Done: Pause acme."), "it is said once");
    let entry = run.port.get("/audit").await.is(200)["entries"][0].clone();
    assert_eq!(
        (
            &entry["operator"],
            &entry["action"],
            &entry["of"],
            &entry["request"]
        ),
        (
            &json!("anna"),
            &json!("tenant pause"),
            &json!({"tenant": "acme"}),
            &json!({"for": "1h"})
        )
    );
    // A text field would drop the line break, and a hidden field would send another one.
    let link = "/ui/act?id=7%0A8&tenant=a%0Ab";
    let asked = operator.get(&link.replace('?', "?do=drop&")).await;
    assert!(
        asked
            .body
            .contains("action=\"/ui/act?tenant=a%0Ab&#38;id=7%0A8\""),
        "{asked:?}"
    );
    let form = format!("do=drop&form-token={token}");
    let done = operator.post(link, &form).await;
    assert_eq!(done.status, 303, "{done:?}");
    let audit = run.port.get("/audit").await.is(200);
    let request = &audit["entries"][0]["request"];
    assert_eq!(request, &json!({"id": "7\n8", "tenant": "a\nb"}));
    let audit = operator.get("/ui/audit").await;
    for word in ["anna", "tenant pause", "tenant acme, for 1h"] {
        assert!(audit.body.contains(word), "{word}: {}", audit.body);
    }
    run.worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_tokens_are_refused_slowly_and_block_no_valid_one() {
    let server = unavailable([Some(READER), None]).await;
    let browser = Browser::of(server.listen);
    for _ in 0..10 {
        assert_eq!(browser.post("/ui/sign-in", "token=wrong").await.status, 401);
    }
    let bearer = |token: &str| format!("host: x\r\nauthorization: Bearer {token}\r\n");
    let (wrong, right) = (bearer("wrong"), bearer(READER));
    let get = async |path: &str, headers: &str| {
        let answer = send(server.listen, "GET", path, (headers, "")).await;
        answer.status
    };
    // The limit is four per second for all paths together.
    let began = Instant::now();
    let sign_in = async || browser.post("/ui/sign-in", "token=wrong").await.status;
    let all = tokio::join!(
        sign_in(),
        sign_in(),
        get("/api/v1/pipelines", &wrong),
        get("/api/v1/nothing", &wrong),
        get("/ui", &wrong),
        get("/metrics", &wrong),
    );
    assert_eq!(all, (429, 429, 429, 429, 429, 429));
    assert!(began.elapsed() >= 2 * SECOND, "{:?}", began.elapsed());
    for path in ["/metrics", "/api/v1/openapi.json"] {
        assert_eq!(get(path, &right).await, 200, "{path}");
    }
    assert_eq!(get("/readyz", &wrong).await, 503);
    assert_eq!(get("/livez", &wrong).await, 200);
    let token = format!("token={READER}");
    assert_eq!(browser.post("/ui/sign-in", &token).await.status, 303);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_local_clients_read_and_unreachable_servers_are_shown() {
    let server = unavailable([None, None]).await;
    let listen = server.listen;
    let page = Browser::of(listen).get("/ui").await;
    assert_eq!(page.status, 503, "{page:?}");
    assert!(page.body.contains("Redis can&#39;t be reached"), "{page:?}");
    is_plain(&page);
    let dead = Browser::of(listen).get("/ui/dead").await;
    assert!(dead.body.contains("RabbitMQ"), "{dead:?}");
    for (name, more) in [
        ("example.com", ""),
        ("localhost", "x-forwarded-for: 1.2.3.4\r\n"),
    ] {
        let headers = format!("host: {name}\r\n{more}");
        let answer = send(listen, "GET", "/ui", (&headers, "")).await;
        assert_eq!(answer.status, 403, "{answer:?}");
        assert!(answer.body.contains("set admin.token"));
    }
    // Actions are disabled.
    let act = Browser::of(listen).get("/ui/act?do=pause-all").await;
    assert_eq!(act.status, 403);
    assert!(act.body.contains("admin.operator-token"), "{act:?}");
    server.stop().await;
}

/// A stream of a view.
struct Stream {
    stream: TcpStream,
    text: String,
}

impl Stream {
    async fn of(browser: &Browser, path: &str) -> Self {
        let mut stream = TcpStream::connect(browser.listen)
            .await
            .expect("it listens");
        let headers = browser.headers();
        let request = format!("GET {path} HTTP/1.1\r\n{headers}accept: text/event-stream\r\n\r\n");
        stream
            .write_all(request.as_bytes())
            .await
            .expect("it reads");
        Self {
            stream,
            text: String::new(),
        }
    }

    /// Reads until the stream contains this text.
    async fn shows(&mut self, words: &str) {
        let reading = async {
            let mut bytes = [0; 16 * 1024];
            while !self.text.contains(words) {
                let read = self.stream.read(&mut bytes).await.expect("it is open");
                assert!(read > 0, "no {words:?} in {}", self.text);
                self.text += &String::from_utf8_lossy(&bytes[..read]);
            }
        };
        timeout(PATIENCE, reading).await.expect("never said");
    }

    async fn ends(&mut self) {
        let mut rest = Vec::new();
        let reading = self.stream.read_to_end(&mut rest);
        // The connection may be reset.
        let _ = timeout(PATIENCE, reading).await.expect("it does not end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_sends_changes_and_ends_with_its_session() {
    let run = Run::start("max-requests: 1, window-size: 1h").await;
    let listen = run.port.0;
    let mut operator = Browser::signed_in(listen, OPERATOR).await;
    let mut stream = Stream::of(&operator, "/ui/tenant?name=acme").await;
    stream.shows("retry: 2000").await;
    stream.shows("\"id\":\"limits\"").await;
    stream.text.says("content-type: text/event-stream");
    assert!(stream.text.contains("cache-control: no-store"));
    stream.text.clear();
    // Longer than any other connection may last, and while more arrive than may be open at once.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let mut idle = Vec::new();
    for _ in 0..70 {
        idle.push(TcpStream::connect(listen).await.expect("it listens"));
    }
    stream.text.clear();
    let jobs = (0..3).map(|id| job("acme", id));
    run.bed.publish(&run.yaml, jobs).await;
    stream.shows("Waiting").await;
    stream.shows("is exhausted").await;
    drop(idle);

    let page = operator.get("/ui").await.body;
    let (_, rest) = page
        .split_once("name=\"form-token\" value=\"")
        .expect("to sign out");
    let token = rest.split('"').next().expect("its end");
    operator
        .post("/ui/sign-out", &format!("form-token={token}"))
        .await;
    stream.shows("event: out").await;
    stream.ends().await;

    // A worker that stops ends them without waiting.
    operator = Browser::signed_in(listen, OPERATOR).await;
    let mut stream = Stream::of(&operator, "/ui").await;
    stream.shows("\"id\":\"workers\"").await;
    run.worker.stop();
    stream.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded_independently_of_pages() {
    let run = Run::start("max-requests: 1, window-size: 1h").await;
    let listen = run.port.0;
    let reader = Browser::signed_in(listen, READER).await;
    let mut streams = Vec::new();
    for number in 0..MAX_STREAMS {
        let mut stream = Stream::of(&reader, &format!("/ui/tenant?name=t{}", number % 3)).await;
        stream.shows("retry: 2000").await;
        streams.push(stream);
    }
    let mut more = Stream::of(&reader, "/ui").await;
    more.shows("503 Service Unavailable").await;
    more.shows("32 pages already show this worker live").await;
    assert_eq!(
        reader.get("/ui").await.status,
        200,
        "pages are shown all the same"
    );
    drop(streams.pop());
    // A place becomes free once the worker has noticed that its viewer is gone.
    until_async("a free place", async || {
        let mut stream = Stream::of(&reader, "/ui").await;
        stream.shows("HTTP/1.1 ").await;
        stream.text.starts_with("HTTP/1.1 200")
    })
    .await;
    run.worker.stop();
}

/// Names chosen to break a page.
pub const HOSTILE: [&str; 7] = [
    "<script>document.title='owned'</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='x",
    "\u{202e}txt.exe\u{200b}",
    "../..",
    "a/b?c=d&e=f#g%2e",
    "<!--part:head-->",
];

#[tokio::test(flavor = "multi_thread")]
async fn foreign_names_are_always_shown_as_text() {
    let run = Run::start("max-requests: 1, window-size: 1h").await;
    let reader = Browser::signed_in(run.port.0, READER).await;
    let long = "é".repeat(127);
    for name in HOSTILE.into_iter().chain([long.as_str()]) {
        let mut one = job(name, name);
        one.body = name.to_owned().into();
        run.bed
            .publish(&run.yaml, (0..3).map(|_| one.clone()))
            .await;
    }
    let listed = async || {
        let answer = run.port.get("/tenants?limit=50").await.is(200);
        answer["tenants"].as_array().map_or(0, Vec::len)
    };
    until_async("all are named", async || listed().await > HOSTILE.len()).await;
    let list = reader.get("/ui/tenants").await;
    is_plain_of_others(&list);
    for name in HOSTILE.into_iter().chain([long.as_str()]) {
        let query: String = url::form_urlencoded::byte_serialize(name.as_bytes()).collect();
        let link = format!("/ui/tenant?name={query}");
        assert!(
            list.body.contains(&format!("href=\"{link}\"")),
            "{link} is not in {}",
            list.body
        );
        let page = reader.get(&link).await;
        assert_eq!(page.status, 200, "{page:?}");
        is_plain_of_others(&page);
        let found = reader.get(&format!("/ui/tenants?search={query}")).await;
        assert!(found.body.contains(&format!("href=\"{link}\"")), "{link}");
        is_plain_of_others(&found);
        for path in [
            "/ui/dead?tenant=",
            "/ui/sign-in?to=",
            "/ui/act?do=pause&tenant=",
        ] {
            is_plain_of_others(&reader.get(&format!("{path}{query}")).await);
        }
    }
    run.worker.stop();
}

fn is_plain_of_others(answer: &Answer) {
    let mut body = answer.body.to_lowercase();
    // Values that a form sends again are unchanged.
    while let Some((before, rest)) = body.split_once(" value=\"") {
        let (_, after) = rest.split_once('"').expect("its end");
        body = format!("{before}{after}");
    }
    for word in [
        "<script>",
        "<img",
        " onmouseover='",
        "onerror=alert(1)>",
        "\u{202e}",
        "\u{200b}",
    ] {
        assert!(!body.contains(word), "{word} in {body}");
    }
    assert_eq!(
        body.matches("<main").count(),
        usize::from(answer.status == 200),
        "{body}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn several_pipelines_are_chosen_by_name() {
    use crate::pipelines::{File, consume, to};
    let (file, api) = (File::new(), kit::api::Api::start().await);
    let each = ["one", "two"].map(|name| file.pipeline(name, &to(&api.url(), "max-requests: 5")));
    let yaml = file.yaml(&each);
    let tokens = format!("admin: {{token: {READER}, operator-token: {OPERATOR}, listen");
    let path = file.write(&yaml.replace("admin: {listen", &tokens));
    let worker = crate::PROGRAM.start_with(&path);
    consume(&worker, &["one", "two"]).await;
    let port = crate::api::Port::of(&worker).await;
    let operator = Browser::signed_in(port.0, OPERATOR).await;
    let first = operator.get("/ui").await;
    assert!(
        first
            .body
            .contains("href=\"?pipeline=one\" aria-current=\"true\""),
        "{first:?}"
    );
    let second = operator.get("/ui/tenants?pipeline=two").await;
    assert!(
        second.body.contains("href=\"/ui/audit?pipeline=two\""),
        "{second:?}"
    );
    assert_eq!(operator.get("/ui?pipeline=tow").await.status, 404);
    let token = operator.form_token().await;
    let form = format!("do=pause&tenant=acme&for=1h&pipeline=two&form-token={token}");
    assert_eq!(operator.post("/ui/act", &form).await.status, 303);
    // A dead letter, a question and a problem keep the pipeline.
    let mut stray = job("acme", "stray");
    stray.properties = lapin::BasicProperties::default().with_message_id("stray".into());
    let queue = format!(
        "amqp: {{url: '{}', queue: '{}'}}",
        file.bed.amqp,
        file.queue("two")
    );
    file.bed.publish(&queue, [stray]).await;
    let letter = async || {
        operator
            .get("/ui/letter?id=stray&no-tenant=true&pipeline=two")
            .await
    };
    until_async("a dead letter", async || letter().await.status == 200).await;
    let letter = letter().await;
    assert_eq!(
        letter
            .body
            .matches("href=\"/ui/dead?pipeline=two\"")
            .count(),
        2,
        "{letter:?}"
    );
    let asked = operator
        .get("/ui/act?do=pause&tenant=acme&pipeline=two")
        .await;
    let wrong = operator.post("/ui/act", &form.replace("1h", "soon")).await;
    let missing = operator.get("/ui/act?do=none&pipeline=two").await;
    let refused = operator
        .post("/ui/act", "do=pause&tenant=acme&pipeline=two")
        .await;
    let nowhere = operator.get("/ui/nothing?pipeline=two").await;
    for answer in [asked, wrong, missing, refused, nowhere] {
        for view in ["/ui", "/ui/dead"] {
            let link = format!("href=\"{view}?pipeline=two\"");
            assert!(answer.body.contains(&link), "{link}: {answer:?}");
        }
    }
    let entries = async |name: &str| -> usize {
        let audit = port.get(&format!("/audit?pipeline={name}")).await.is(200);
        audit["entries"].as_array().map_or(0, Vec::len)
    };
    assert_eq!((entries("one").await, entries("two").await), (0, 1));
    worker.stop();
}

/// Counts questions, not times: without viewers Redis has no load, and any number of viewers of the
/// same view cause the load of one.
#[tokio::test(flavor = "multi_thread")]
async fn no_viewer_costs_redis_nothing_and_many_cost_as_much_as_one() {
    let redis = kit::servers::Redis::start();
    let rabbit = kit::servers::shared_rabbit();
    let bed = kit::Bed::on(rabbit.url(), redis.url());
    let api = kit::api::Api::start().await;
    let tokens = format!("admin: {{token: {READER}, listen");
    let yaml = bed.yaml("max-requests: 5", &api.url(), "");
    let worker = crate::PROGRAM.start(&yaml.replace("admin: {listen", &tokens));
    let port = crate::api::Port::of(&worker).await;
    let reader = Browser::signed_in(port.0, READER).await;
    // Counts the page's own questions: workers write the boards, and nothing else reads them with
    // this command.
    let asked = || {
        let stats = redis.command_stats();
        stats.calls("mget") + stats.calls("get")
    };
    let before = asked();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(asked(), before, "nobody looks");
    let mut streams = Vec::new();
    for _ in 0..10 {
        let mut stream = Stream::of(&reader, "/ui").await;
        stream.shows("\"id\":\"workers\"").await;
        streams.push(stream);
    }
    let (began, before) = (std::time::Instant::now(), asked());
    tokio::time::sleep(Duration::from_secs(6)).await;
    let (looks, spent) = (asked() - before, began.elapsed().as_secs());
    // Two looks at the fleet, once every two seconds. Each reads one report of one worker.
    assert!(
        looks >= 2 && looks <= 2 * (spent / 2 + 2),
        "{looks} in {spent} s"
    );
    drop(streams);
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_in_pages() {
    let run = Run::start("max-requests: 1, window-size: 1h").await;
    let jobs = (0..70).flat_map(|tenant| (0..2).map(move |id| job(&format!("t-{tenant:02}"), id)));
    run.bed.publish(&run.yaml, jobs).await;
    let reader = Browser::signed_in(run.port.0, READER).await;
    until_async("all are named", async || {
        let answer = run.port.get("/tenants?limit=1").await.is(200);
        answer["tenants_not_shown"] == 69
    })
    .await;
    let rows = |answer: &Answer| answer.body.matches("<th scope=\"row\">").count();
    let first = reader.get("/ui/tenants").await;
    assert_eq!(rows(&first), 50, "{first:?}");
    let (_, rest) = first.body.split_once("rel=\"next\" href=\"").expect("more");
    let next = rest
        .split('"')
        .next()
        .expect("its end")
        .replace("&#38;", "&")
        .replace("&amp;", "&");
    let second = reader.get(&next).await;
    assert_eq!(rows(&second), 20, "{second:?}");
    assert!(!second.body.contains("rel=\"next\"") && second.body.contains("First page"));
    assert!(
        first.body.contains("1–50 of 70 named by 1 worker,"),
        "{first:?}"
    );
    assert!(
        second.body.contains("51–70 of 70 named by 1 worker,"),
        "{second:?}"
    );
    // A page that a shrinking list has left.
    for path in ["/ui/tenants?offset=100", "/ui/dead?offset=50"] {
        let late = reader.get(path).await;
        assert!(
            late.body.contains("The list ends before this page.")
                && late.body.contains("First page"),
            "{late:?}"
        );
    }
    let found = reader.get("/ui/tenants?search=T-6").await;
    assert_eq!(rows(&found), 10);
    let json: Value = run.port.get("/tenants?limit=50&offset=50").await.is(200);
    assert_eq!(
        (
            json["tenants"].as_array().map(Vec::len),
            &json["next_offset"]
        ),
        (Some(20), &Value::Null)
    );
    until("no call more than one for each", || run.api.count() <= 70).await;
    run.worker.stop();
}
