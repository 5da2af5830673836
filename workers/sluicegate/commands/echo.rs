//! `sluicegate echo`: an API on this machine, to try the rest with.

use std::collections::{HashMap, VecDeque};
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use clap::Args;
use futures_util::StreamExt as _;
use sluicegate::config::{parse_duration, show_duration};
use tokio::net::TcpListener;

use super::{Failure, count, plain};

/// So much of a body is shown.
const SHOWN: usize = 200;
/// So many tenants are counted at a time. Further ones are not limited.
const MAX_TENANTS: usize = 10_000;

/// Answer HTTP calls on this machine: an API to try sluicegate with
///
/// Prints a line for each call: the status, the tenant, the job's id, the attempt and the body. With --limit it is strict: more calls
/// of a tenant are answered 429 with Retry-After. It needs no configuration, and ends at Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate echo
  sluicegate echo --limit 3/10s
  sluicegate echo --listen 127.0.0.1:9000 --status 503")]
pub struct EchoArgs {
    /// Where it listens; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The calls of one tenant that are taken in any window of this length
    #[arg(long, value_name = "CALLS/WINDOW")]
    limit: Option<Limit>,
    /// The status of the answers
    #[arg(long, value_name = "STATUS", default_value = "200", value_parser = status)]
    status: StatusCode,
}

/// So many calls in any window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    calls: usize,
    window: Duration,
}

impl FromStr for Limit {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "not a number of calls (at most 100000) and a window, such as 3/10s";
        let (calls, window) = text.split_once('/').ok_or(WRONG)?;
        let calls = calls
            .parse()
            .ok()
            .filter(|calls| (1..=100_000).contains(calls));
        let window = parse_duration(window).filter(|window| !window.is_zero());
        Ok(Self {
            calls: calls.ok_or(WRONG)?,
            window: window.ok_or(WRONG)?,
        })
    }
}

fn status(text: &str) -> Result<StatusCode, &'static str> {
    let status = text.parse().ok().filter(|status| *status >= StatusCode::OK);
    status.ok_or("not a status from 200 to 999")
}

/// When each tenant's calls of the last window came.
#[derive(Debug, Default)]
struct Calls(HashMap<String, VecDeque<Instant>>);

impl Calls {
    /// A call of `tenant` comes. `Err`: it is one too many, and there is room again after this.
    fn come(&mut self, limit: Limit, tenant: &str, now: Instant) -> Result<(), Duration> {
        let old = |at: &Instant| now.duration_since(*at) >= limit.window;
        if self.0.len() >= MAX_TENANTS && !self.0.contains_key(tenant) {
            self.0.retain(|_, calls| !calls.back().is_none_or(old));
            if self.0.len() >= MAX_TENANTS {
                return Ok(());
            }
        }
        let calls = self.0.entry(tenant.to_owned()).or_default();
        while calls.front().is_some_and(old) {
            calls.pop_front();
        }
        match calls.front() {
            Some(first) if calls.len() >= limit.calls => {
                Err((*first + limit.window).duration_since(now))
            }
            _ => {
                calls.push_back(now);
                Ok(())
            }
        }
    }
}

struct Echo {
    limit: Option<Limit>,
    status: StatusCode,
    calls: Mutex<Calls>,
}

impl Echo {
    fn answer(&self, tenant: &str) -> (StatusCode, HeaderMap) {
        let mut headers = HeaderMap::new();
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let come = |limit| calls.come(limit, tenant, Instant::now());
        match self.limit.map_or(Ok(()), come) {
            Ok(()) => (self.status, headers),
            Err(wait) => {
                let seconds = wait.as_millis().div_ceil(1_000).max(1) as u64;
                headers.insert(header::RETRY_AFTER, seconds.into());
                (StatusCode::TOO_MANY_REQUESTS, headers)
            }
        }
    }
}

/// Answers until Ctrl-C.
pub async fn run(args: EchoArgs) -> Result<ExitCode, Failure> {
    let failed = |why| {
        let listen = args.listen;
        Failure::Failed(format!("--listen: can't listen on {listen}: {why}"))
    };
    let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let strict = args.limit.map_or_else(String::new, |limit| {
        let (calls, window) = (limit.calls as u64, show_duration(limit.window));
        let calls = count(calls, "call");
        format!(", and takes {calls} of a tenant in any {window}")
    });
    say(&format!(
        "listening on http://{address}/; answers {}{strict}",
        args.status.as_u16()
    ))?;
    let echo = Arc::new(Echo {
        limit: args.limit,
        status: args.status,
        calls: Mutex::default(),
    });
    let app = Router::new().fallback(call).with_state(echo);
    tokio::select! {
        served = async { axum::serve(listener, app).await } => served?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn call(State(echo): State<Arc<Echo>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let text = |name: &str| {
        let value = head.headers.get(name).map(|value| value.as_bytes());
        let value = value.map(String::from_utf8_lossy);
        value.map_or_else(|| "-".to_owned(), |value| plain(&value, 255))
    };
    let tenant = text("x-tenant");
    let (status, headers) = echo.answer(&tenant);
    let (id, attempt) = (text("x-job-id"), text("x-attempt"));
    let body = shown(body).await;
    let code = status.as_u16();
    // Whoever read our output has seen enough.
    let _ = say(&format!("{code} {tenant} {id} attempt {attempt}: {body}"));
    (status, headers, format!("{body}\n")).into_response()
}

/// The beginning of a body, which is read to its end.
async fn shown(body: Body) -> String {
    let mut stream = body.into_data_stream();
    let mut kept = Vec::new();
    while let Some(Ok(data)) = stream.next().await {
        // A character has up to 4 bytes.
        let room = (4 * SHOWN).saturating_sub(kept.len());
        kept.extend(data.iter().take(room));
    }
    plain(&String::from_utf8_lossy(&kept), SHOWN)
}

fn say(line: &str) -> Result<(), std::io::Error> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_and_a_window() {
        let limit = |calls, ms| {
            Ok(Limit {
                calls,
                window: Duration::from_millis(ms),
            })
        };
        assert_eq!("3/10s".parse(), limit(3, 10_000));
        assert_eq!("1/500ms".parse(), limit(1, 500));
        for wrong in ["", "3", "0/1s", "3/0s", "x/1s", "3/x", "100001/1s"] {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
        for wrong in ["", "199", "1000", "ok"] {
            assert!(status(wrong).is_err(), "{wrong}");
        }
        assert_eq!(status("503"), Ok(StatusCode::SERVICE_UNAVAILABLE));
    }

    #[test]
    fn each_tenant_has_its_own_window() {
        let limit: Limit = "2/10s".parse().expect("a limit");
        let (mut calls, begun) = (Calls::default(), Instant::now());
        let mut come = |tenant: &str, ms| {
            let now = begun + Duration::from_millis(ms);
            let wait = calls.come(limit, tenant, now).err();
            wait.map(|wait| wait.as_millis())
        };
        assert_eq!([come("a", 0), come("a", 4_000)], [None, None]);
        // What is refused does not count.
        assert_eq!([come("a", 5_000), come("a", 9_999)], [Some(5_000), Some(1)]);
        assert_eq!(come("b", 9_999), None);
        assert_eq!([come("a", 10_000), come("a", 10_001)], [None, Some(3_999)]);
    }

    #[test]
    fn what_it_counts_is_bounded() {
        let limit: Limit = "1/10s".parse().expect("a limit");
        let (mut calls, now) = (Calls::default(), Instant::now());
        for number in 0..MAX_TENANTS + 1 {
            assert_eq!(calls.come(limit, &number.to_string(), now), Ok(()));
        }
        assert_eq!(calls.0.len(), MAX_TENANTS);
        let later = now + limit.window;
        assert_eq!(calls.come(limit, "late", later), Ok(()));
        assert_eq!(calls.0.len(), 1);
    }
}
