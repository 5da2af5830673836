//! Measures the connection to the API for `check`: opens connections as calls do, and closes them
//! again. Sends no request.

use std::error::Error;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::Uri;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tower_service::Service;
use url::{Host, Position, Url};

use super::advice::no_connection;
use super::pool::{offer, speaks_http2};
use super::proxy::{Connector, Proxies, Proxy};
use super::socket::{Sockets, Tcp};
use config::Http;
use runtime::tls;

/// Number of connections, opened one after the other.
const CONNECTION_COUNT: usize = 5;
/// Time after which no further connection is opened, and the maximum time for each.
const MAX_TOTAL_TIME: Duration = Duration::from_secs(5);

type BoxError = Box<dyn Error + Send + Sync>;

/// Result of [`reach`].
#[derive(Debug)]
pub struct Reach {
    /// Scheme, host and port.
    pub at: String,
    /// The proxy between us and the API, without user and password.
    pub proxy: Option<String>,
    /// Time for each TCP connection without name lookup, or for each tunnel through a proxy.
    pub connected: Vec<Duration>,
    /// Additional time for TLS; empty without TLS.
    pub encrypted: Vec<Duration>,
    /// Whether the API has chosen HTTP/2.
    pub is_http2: bool,
}

/// Opens several connections to `http.url`, through the proxy if there is one, each within
/// `http.timeout` and at most 5 s. Reads the TLS files.
///
/// # Errors
/// A message for the operator, without secrets: scheme, host and port, and why calls can't be made
/// now.
pub async fn reach(http: &Http) -> Result<Reach, String> {
    let url = (http.url.parse()).map_err(|why| format!("dispatch.http.url: {why}"))?;
    let at = format!(
        "{}://{}",
        url.scheme(),
        &url[Position::BeforeHost..Position::AfterPort]
    );
    let found = open(http, &url, &at).await;
    found.map_err(|why| format!("{at} can't be reached: {why}"))
}

async fn open(http: &Http, url: &Url, at: &str) -> Result<Reach, String> {
    let server: Uri = format!("{at}/").parse().map_err(|why| format!("{why}"))?;
    let is_encrypted = url.scheme() == "https";
    let mut tls = match is_encrypted {
        true => tls::client(&http.tls),
        false => tls::untrusting(),
    }?;
    tls.alpn_protocols = offer(http.http2);
    let proxy = Proxies::new(http, Some(Matcher::from_env())).of(&server)?;
    let mut reach = Reach {
        at: at.to_owned(),
        proxy: proxy.as_ref().map(|proxy| proxy.url().to_string()),
        connected: Vec::new(),
        encrypted: Vec::new(),
        is_http2: false,
    };
    let failed = |why: BoxError| no_connection(why.as_ref(), is_encrypted);
    let max = MAX_TOTAL_TIME.min(http.timeout);
    let late = |_| format!("no connection within {max:?}");
    let begun = Instant::now();
    let path = timeout(max, ConnectPath::to(url, proxy)).await;
    let mut path = path.map_err(late)?.map_err(failed)?;
    while reach.connected.is_empty()
        || reach.connected.len() < CONNECTION_COUNT && begun.elapsed() < MAX_TOTAL_TIME
    {
        let started = Instant::now();
        let opening = async {
            let socket = path.take(&server).await?;
            let connected = started.elapsed();
            let is_http2 = is_encrypted && encrypt(socket, &tls, &server).await?;
            Ok::<_, BoxError>((connected, is_http2))
        };
        let opened = timeout(max, opening).await.map_err(late)?;
        let (connected, is_http2) = opened.map_err(failed)?;
        reach.connected.push(connected);
        reach.is_http2 = is_http2;
        if is_encrypted {
            reach.encrypted.push(started.elapsed() - connected);
        }
    }
    Ok(reach)
}

/// The route of a connection, up to where TLS begins.
enum ConnectPath {
    /// Connects directly to the address that answered.
    Direct(SocketAddr),
    Through(Connector),
}

impl ConnectPath {
    async fn to(url: &Url, proxy: Option<Proxy>) -> Result<Self, BoxError> {
        if proxy.is_some() {
            let mut tcp = HttpConnector::new();
            tcp.enforce_http(false);
            tcp.set_nodelay(true);
            return Ok(Self::Through(Connector::new(Sockets(tcp), proxy)));
        }
        let port = url.port_or_known_default().unwrap_or_default();
        let addresses: Vec<SocketAddr> = match url.host() {
            Some(Host::Domain(name)) => lookup_host((name, port)).await?.collect(),
            Some(Host::Ipv4(ip)) => vec![(ip, port).into()],
            Some(Host::Ipv6(ip)) => vec![(ip, port).into()],
            None => Vec::new(),
        };
        let tcp = TcpStream::connect(addresses.as_slice()).await?;
        Ok(Self::Direct(tcp.peer_addr()?))
    }

    async fn take(&mut self, server: &Uri) -> Result<TokioIo<Tcp>, BoxError> {
        match self {
            Self::Direct(address) => {
                let tcp = TcpStream::connect(*address).await?;
                tcp.set_nodelay(true)?;
                Ok(TokioIo::new(Tcp::over(tcp)))
            }
            Self::Through(connector) => connector.call(server.clone()).await,
        }
    }
}

/// Negotiates TLS over `socket`. Returns true if the API has chosen HTTP/2.
async fn encrypt(socket: TokioIo<Tcp>, tls: &ClientConfig, server: &Uri) -> Result<bool, BoxError> {
    let mut connector = HttpsConnector::from((OpenConnection(Some(socket)), tls.clone()));
    let stream = connector.call(server.clone()).await?;
    Ok(speaks_http2(&stream))
}

/// A connection that is open already.
struct OpenConnection(Option<TokioIo<Tcp>>);

impl Service<Uri> for OpenConnection {
    type Response = TokioIo<Tcp>;
    type Error = BoxError;
    type Future = Ready<Result<TokioIo<Tcp>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(self.0.take().ok_or_else(|| "it was taken".into()))
    }
}

#[cfg(test)]
mod tests {
    use config::Config;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;

    /// `dispatch.http.timeout` is the time of one call, which needs one connection.
    #[tokio::test]
    async fn each_connection_has_the_time_of_a_call() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = listener.local_addr().expect("it is bound");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                assert!(stream.read(&mut request).await.expect("a request") > 0);
                sleep(Duration::from_millis(300)).await;
                let tunnel = b"HTTP/1.1 200 OK\r\n\r\n";
                stream.write_all(tunnel).await.expect("it is read");
            }
        });
        let yaml = format!(
            "dispatch: {{http: {{url: 'http://api/', proxy: 'http://{proxy}', timeout: 1s}}}}"
        );
        let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
        let found = reach(&config.dispatch.http.expect("an API")).await;
        assert_eq!(
            found.expect("it is reached").connected.len(),
            CONNECTION_COUNT
        );
    }
}
