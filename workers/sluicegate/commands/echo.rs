//! `sluicegate echo`: an API on this machine for tests.

use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use config::show_duration;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use simulator::api::{ApiModel, ServedAnswer, ServedApi};
use simulator::forms::{ApiLimit, Latency, Percent};
use simulator::limiter::Counting;
use trial::api::{ApiServer, Reply};

use super::{Failure, count, plain};

/// Maximum number of characters of a body that are shown.
const SHOWN: usize = 200;
/// Maximum number of tenants that are counted at a time. Further ones are not limited.
const MAX_TENANTS: usize = 10_000;
/// Maximum number of calls in a window, since the time of each is stored.
const MAX_CALLS: usize = 100_000;

/// Run a local HTTP API to try sluicegate with
///
/// Prints one line per call: status, tenant, job id, attempt and body. With --limit it answers
/// calls above the limit with 429 and Retry-After. --latency, --errors and --throttles work like
/// --api-latency, --api-errors and --api-throttles of `simulate`. It needs no configuration and
/// runs until Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate echo
  sluicegate echo --limit 3/10s
  sluicegate echo --times --latency lognormal:80ms,0.5 --errors 2% --limit 100/60s:all
  sluicegate echo --listen 127.0.0.1:9000 --status 503")]
pub struct EchoArgs {
    /// Address to listen on; port 0 means any free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Maximum number of calls per tenant in any window: 3/10s; of all tenants: 3/10s:all. A
    /// limiter can follow: 3/10s:nginx
    #[arg(long, value_name = "CALLS/WINDOW[:all][:LIMITER]", value_parser = limit)]
    limit: Option<ApiLimit>,
    /// Duration of a call: 80ms, uniform:50ms-200ms, or lognormal:80ms,0.5 (median and sigma);
    /// up to 1h
    #[arg(long, value_name = "TIME", default_value = "0ms")]
    latency: Latency,
    /// Share of calls that fail at random with 500, such as 2%
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    errors: Percent,
    /// Share of calls that are answered at random with 429 and Retry-After: 1, such as 2%
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    throttles: Percent,
    /// Start each line with the call's time in seconds after the first call
    #[arg(long)]
    times: bool,
    /// Status of answers to calls that are neither throttled nor failed at random
    #[arg(long, value_name = "STATUS", default_value = "200", value_parser = status)]
    status: StatusCode,
}

/// Parses the value of `--limit`: like [`ApiLimit`], but per tenant by default.
fn limit(text: &str) -> Result<ApiLimit, &'static str> {
    let limit = text.parse().ok().map(|limit: ApiLimit| ApiLimit {
        per_tenant: limit.per_tenant || !text.contains(":all"),
        ..limit
    });
    limit.filter(|limit| limit.max <= MAX_CALLS).ok_or(
        "not a number of calls (at most 100000) and a window (at most 30d), such as 3/10s (per \
        tenant) or 3/10s:all (all tenants together)",
    )
}

fn status(text: &str) -> Result<StatusCode, &'static str> {
    let status = text.parse().ok().filter(|status| *status >= StatusCode::OK);
    status.ok_or("not a status from 200 to 999")
}

struct EchoServer {
    status: StatusCode,
    began: Instant,
    /// The start, as time since the Unix epoch.
    epoch: Duration,
    answering: Mutex<ServedApi>,
    with_times: bool,
    first: OnceLock<Duration>,
}

impl EchoServer {
    /// Takes a call of `tenant`. Returns its time since the start, and the answer.
    fn answer(&self, tenant: &str) -> (Duration, Reply) {
        let mut answering = self
            .answering
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let at = self.began.elapsed();
        // It does not run for 500,000 years.
        let at_us = u64::try_from((self.epoch + at).as_micros()).unwrap_or(u64::MAX);
        let ServedAnswer {
            status,
            retry_after,
            latency,
        } = answering.arrives((tenant, 1), at_us);
        let status = match status {
            200 => self.status.as_u16(),
            status => status,
        };
        let mut reply = Reply::status(status).after(latency);
        if let Some(seconds) = retry_after {
            reply = reply.header("retry-after", &seconds.to_string());
        }
        (at, reply)
    }

    /// Returns the beginning of a call's line.
    fn begin(&self, at: Duration) -> String {
        // Two calls may arrive at once.
        let after = at.saturating_sub(*self.first.get_or_init(|| at));
        match self.with_times {
            true => format!("{:9.3} ", after.as_secs_f64()),
            false => String::new(),
        }
    }
}

/// Answers calls until Ctrl-C.
pub async fn run(args: EchoArgs) -> Result<ExitCode, Failure> {
    let failed = |why| {
        let listen = args.listen;
        Failure::Failed(format!("--listen: can't listen on {listen}: {why}"))
    };
    let strict = args.limit.map_or_else(String::new, |limit| {
        let (calls, window) = (limit.max as u64, show_duration(limit.window));
        let calls = count(calls, "call");
        let whose = match limit.per_tenant {
            true => "of a tenant",
            false => "of all tenants",
        };
        match limit.counting {
            Counting::Sliding => format!(", and takes {calls} {whose} in any {window}"),
            other => format!(", and takes {calls} {whose} in {window} ({})", other.name()),
        }
    });
    let api = ApiModel {
        latency: args.latency,
        errors: args.errors,
        throttles: args.throttles,
        limits: args.limit.into_iter().collect(),
    };
    // The seed differs each time.
    let seed = RandomState::new().hash_one(args.listen);
    let echo = Arc::new(EchoServer {
        status: args.status,
        began: Instant::now(),
        epoch: since_epoch(),
        answering: Mutex::new(ServedApi::new(api, seed, MAX_TENANTS)),
        with_times: args.times,
        first: OnceLock::new(),
    });
    let called = move |request| call(Arc::clone(&echo), request);
    let server = ApiServer::start(args.listen, called).map_err(failed)?;
    print_line(&format!(
        "listening on http://{}/; answers {}{strict}",
        server.door.address,
        args.status.as_u16()
    ))?;
    tokio::signal::ctrl_c().await?;
    Ok(ExitCode::SUCCESS)
}

fn since_epoch() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default()
}

async fn call(echo: Arc<EchoServer>, request: Request<Incoming>) -> Reply {
    let (head, body) = request.into_parts();
    let text = |name: &str| {
        let value = head.headers.get(name).map(|value| value.as_bytes());
        let value = value.map(String::from_utf8_lossy);
        value.map_or_else(|| "-".to_owned(), |value| plain(&value, 255))
    };
    let tenant = text("x-tenant");
    let (at, reply) = echo.answer(&tenant);
    let (id, attempt) = (text("x-job-id"), text("x-attempt"));
    let body = shown(body).await;
    let code = reply.status.as_u16();
    let begin = echo.begin(at);
    // A reader that closed the output wants no more of it.
    let _ = print_line(&format!(
        "{begin}{code} {tenant} {id} attempt {attempt}: {body}"
    ));
    let reply = reply.header("content-type", "text/plain; charset=utf-8");
    reply.body(format!("{body}\n"))
}

/// Returns the beginning of a body, and reads it to its end.
async fn shown(mut body: Incoming) -> String {
    let mut start = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else {
            continue;
        };
        // A character has up to 4 bytes.
        let room = (4 * SHOWN).saturating_sub(start.len());
        start.extend(data.iter().take(room));
    }
    plain(&String::from_utf8_lossy(&start), SHOWN)
}

fn print_line(line: &str) -> Result<(), std::io::Error> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_windows_begin_at_multiples_of_their_length() {
        let limit = limit("1/7h:aligned").expect("a limit");
        let api = ApiModel {
            limits: vec![limit],
            ..ApiModel::default()
        };
        let echo = EchoServer {
            status: StatusCode::OK,
            began: Instant::now(),
            epoch: since_epoch(),
            answering: Mutex::new(ServedApi::new(api, 1, MAX_TENANTS)),
            with_times: false,
            first: OnceLock::new(),
        };
        let length = limit.window.as_secs();
        let left = || length - since_epoch().as_secs() % length;
        let before = left();
        let headers = [(); 2].map(|()| echo.answer("acme").1.headers);
        // The window may end in between.
        let wait = headers.iter().find_map(|it| it.get("retry-after"));
        let wait = wait.map(|wait| {
            wait.to_str()
                .expect("text")
                .parse::<u64>()
                .expect("seconds")
        });
        assert!(
            left() > before || wait.is_some_and(|wait| before.abs_diff(wait) < 60),
            "{wait:?} of {before}"
        );
    }

    #[test]
    fn a_limit_is_a_number_and_a_window() {
        let expected = |max, ms, per_tenant| {
            Ok(ApiLimit {
                max,
                window: Duration::from_millis(ms),
                per_tenant,
                counting: Counting::Sliding,
                burst: None,
                by_cost: false,
            })
        };
        assert_eq!(limit("3/10s"), expected(3, 10_000, true));
        assert_eq!(limit("3/10s:tenant"), expected(3, 10_000, true));
        assert_eq!(limit("1/500ms:all"), expected(1, 500, false));
        for wrong in [
            "",
            "3",
            "0/1s",
            "3/0s",
            "x/1s",
            "3/x",
            "100001/1s",
            "3/1s:",
            "3/1s:each",
        ] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "199", "1000", "ok"] {
            assert!(status(wrong).is_err(), "{wrong}");
        }
        assert_eq!(status("503"), Ok(StatusCode::SERVICE_UNAVAILABLE));
    }
}
