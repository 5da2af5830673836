//! `sluicegate echo`: an API on this machine for tests.

use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use clap::Args;
use futures_util::StreamExt as _;
use simulator::api::{ApiAnswer, ApiModel, ServedApi};
use simulator::forms::{ApiLimit, Latency, Percent};
use simulator::limiter::Counting;
use sluicegate::config::show_duration;
use tokio::net::TcpListener;
use tokio::time::sleep;

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
    /// Duration of a call: 80ms, uniform:50ms-200ms, or lognormal:80ms,0.5 (median and deviation);
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
    /// Status of all other answers
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
    /// The start, which the limit's times are relative to.
    began: Instant,
    answering: Mutex<ServedApi>,
    with_times: bool,
    first: OnceLock<Duration>,
}

impl EchoServer {
    /// Takes a call of `tenant`. Returns its time since the start, the answer, and how long the
    /// answer takes.
    fn answer(&self, tenant: &str) -> (Duration, (StatusCode, HeaderMap), Duration) {
        let mut answering = self
            .answering
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let at = self.began.elapsed();
        // It does not run for 500,000 years.
        let at_us = u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        let ApiAnswer {
            status,
            retry_after,
            latency,
        } = answering.arrives((tenant, 1), at_us);
        let mut headers = HeaderMap::new();
        headers.extend(retry_after.map(|seconds| (header::RETRY_AFTER, seconds.into())));
        let status = match status {
            429 => StatusCode::TOO_MANY_REQUESTS,
            500 => StatusCode::INTERNAL_SERVER_ERROR,
            _ => self.status,
        };
        (at, (status, headers), latency)
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
    let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
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
    print_line(&format!(
        "listening on http://{address}/; answers {}{strict}",
        args.status.as_u16()
    ))?;
    let api = ApiModel {
        latency: args.latency,
        errors: args.errors,
        throttles: args.throttles,
        limits: args.limit.into_iter().collect(),
    };
    // The seed differs each time.
    let seed = RandomState::new().hash_one(address);
    let echo = Arc::new(EchoServer {
        status: args.status,
        began: Instant::now(),
        answering: Mutex::new(ServedApi::new(api, seed, MAX_TENANTS)),
        with_times: args.times,
        first: OnceLock::new(),
    });
    let app = Router::new().fallback(call).with_state(echo);
    tokio::select! {
        served = async { axum::serve(listener, app).await } => served?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn call(State(echo): State<Arc<EchoServer>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let text = |name: &str| {
        let value = head.headers.get(name).map(|value| value.as_bytes());
        let value = value.map(String::from_utf8_lossy);
        value.map_or_else(|| "-".to_owned(), |value| plain(&value, 255))
    };
    let tenant = text("x-tenant");
    let (at, (status, headers), latency) = echo.answer(&tenant);
    let (id, attempt) = (text("x-job-id"), text("x-attempt"));
    let body = shown(body).await;
    let code = status.as_u16();
    let begin = echo.begin(at);
    // A reader that closed the output wants no more of it.
    let _ = print_line(&format!(
        "{begin}{code} {tenant} {id} attempt {attempt}: {body}"
    ));
    // A sleep of zero would take a millisecond.
    if !latency.is_zero() {
        sleep(latency).await;
    }
    (status, headers, format!("{body}\n")).into_response()
}

/// Returns the beginning of a body, and reads it to its end.
async fn shown(body: Body) -> String {
    let mut stream = body.into_data_stream();
    let mut start = Vec::new();
    while let Some(Ok(data)) = stream.next().await {
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
