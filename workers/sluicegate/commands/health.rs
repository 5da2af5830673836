//! `sluicegate health`: asks a worker on this machine whether it is healthy.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use config::{ConfigErrors, Pipelines};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Failure, plain};

/// Timeout for an answer. A healthy worker answers within milliseconds, and health checks often
/// time out after 5 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of an answer. A worker's answers are shorter.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Check whether a worker is ready; the exit status is the answer
///
/// Asks the worker's admin port (admin.listen, with admin.token). The exit status is 0 if the
/// worker is ready (or alive, with --live), and 1 if it is not or does not answer within 3 s. If
/// there are several pipelines, one ready pipeline is enough; --pipeline checks only that one. Made
/// for health checks of containers without a shell or curl.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate health
  sluicegate health --live --config /etc/sluicegate/sluicegate.yaml
  sluicegate health --url http://10.0.0.7:9464/readyz")]
pub struct HealthArgs {
    /// Check whether it is alive (/livez) instead of ready (/readyz)
    #[arg(long)]
    live: bool,
    /// URL to ask; reads no configuration and sends no token
    #[arg(long, value_name = "URL", conflicts_with = "live")]
    url: Option<Uri>,
}

/// The address to ask and its path.
struct ProbeTarget {
    /// `host:port`
    to: String,
    path: String,
    token: Option<String>,
}

/// Asks about the pipeline `name`, if given. `load` reads the configuration if it is needed.
pub async fn run(
    args: HealthArgs,
    load: impl Fn() -> Result<Pipelines, ConfigErrors>,
    name: Option<&str>,
) -> Result<ExitCode, Failure> {
    let question = match &args.url {
        Some(url) => ProbeTarget::of_url(url)?,
        None => ProbeTarget::of_config(&load()?, name, args.live)?,
    };
    let asked = timeout(ANSWER_TIMEOUT, ask(&question)).await;
    let (is_well, text) = asked
        .unwrap_or_else(|_| Err(format!("no answer within {ANSWER_TIMEOUT:?}")))
        .map_err(|why| Failure::Failed(format!("{}: {why}", question.to)))?;
    let mut out = std::io::stdout().lock();
    for line in text.lines() {
        writeln!(out, "{}", plain(line, 1_000))?;
    }
    match is_well {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Failure::AlreadyReported),
    }
}

impl ProbeTarget {
    fn of_url(url: &Uri) -> Result<Self, Failure> {
        let wrong = |why| Failure::Usage(format!("--url {url}: {why}"));
        if url.scheme_str() != Some("http") {
            return Err(wrong(
                "must begin with http://; the admin port does not support TLS",
            ));
        }
        let host = url.host().ok_or_else(|| wrong("has no host"))?;
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            to: format!("{host}:{}", url.port_u16().unwrap_or(80)),
            path: match path {
                "/" => "/readyz".to_owned(),
                path => path.to_owned(),
            },
            token: None,
        })
    }

    fn of_config(all: &Pipelines, name: Option<&str>, live: bool) -> Result<Self, Failure> {
        let of_one = match name {
            Some(_) => {
                Some(all.select(name).map_err(Failure::Usage)?.0).filter(|_| all.are_named())
            }
            None => None,
        };
        let listen = all.admin.listen;
        if listen.port() == 0 {
            return Err(Failure::Usage(
                "admin.listen has port 0, which means any free port: give the address with --url \
                http://HOST:PORT"
                    .to_owned(),
            ));
        }
        let token = all.admin.token.as_ref();
        Ok(Self {
            to: reachable(listen).to_string(),
            path: match of_one {
                _ if live => "/livez".to_owned(),
                Some(name) => format!("/readyz/{name}"),
                None => "/readyz".to_owned(),
            },
            token: token.map(|token| format!("Bearer {}", token.expose())),
        })
    }
}

/// Returns an address that reaches a worker that listens on all addresses.
fn reachable(mut listen: SocketAddr) -> SocketAddr {
    if listen.ip().is_unspecified() {
        listen.set_ip(match listen.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    listen
}

/// Returns whether the worker is healthy, and its text.
async fn ask(question: &ProbeTarget) -> Result<(bool, String), String> {
    let mut request = Request::get(&question.path).header(HOST, &question.to);
    if let Some(token) = &question.token {
        request = request.header(AUTHORIZATION, token);
    }
    let request = request.body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let stream = TcpStream::connect(&question.to)
        .await
        .map_err(|error| format!("can't be reached: {error}"))?;
    let failed = |error: hyper::Error| format!("is not a worker's admin port: {error}");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(failed)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect();
    let body = body
        .await
        .map_err(|error| format!("is not a worker's admin port: {error}"))?
        .to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    // Another server's answer includes at least its status.
    let text = match text.trim().is_empty() || !(status.is_success() || status == 503) {
        true => format!("{status}\n{text}"),
        false => text,
    };
    Ok((status.is_success(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_listens_everywhere_is_asked_here() {
        for (listen, asked) in [
            ("0.0.0.0:9464", "127.0.0.1:9464"),
            ("[::]:9464", "[::1]:9464"),
            ("10.0.0.7:80", "10.0.0.7:80"),
        ] {
            let listen = listen.parse().expect("an address");
            assert_eq!(reachable(listen).to_string(), asked);
        }
    }

    #[test]
    fn a_url_may_leave_out_port_and_path() {
        for (url, to, path) in [
            ("http://h", "h:80", "/readyz"),
            ("http://h:9464/", "h:9464", "/readyz"),
            ("http://[::1]:9464/livez", "[::1]:9464", "/livez"),
        ] {
            let url = url.parse().expect("a url");
            let question = ProbeTarget::of_url(&url).expect("usable");
            assert_eq!((&*question.to, &*question.path), (to, path));
        }
        for url in ["https://h/", "h:9464", "/readyz"] {
            assert!(ProbeTarget::of_url(&url.parse().expect("a url")).is_err());
        }
    }
}
