//! An HTTP proxy that opens tunnels (CONNECT) and records their destinations.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use trial::door::{ANY_PORT, Door};

/// A running proxy. Dropping it ends it and its tunnels.
pub struct ConnectProxy {
    pub door: Door,
    asked: Arc<Mutex<Vec<String>>>,
}

impl ConnectProxy {
    /// Accepts all clients, or only those that send this `proxy-authorization`.
    pub async fn start(authorization: Option<&str>) -> Self {
        Self::leading(authorization, |target| target.parse().ok()).await
    }

    /// Does the same, and opens a tunnel to the address that `route` returns for a destination. To
    /// others it can open none. If the address has port 0, it never answers.
    pub async fn leading(
        authorization: Option<&str>,
        route: impl Fn(&str) -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> Self {
        let route = Arc::new(route);
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let credentials =
            authorization.map(|value| format!("proxy-authorization: {value}").to_lowercase());
        let (seen, credentials) = (Arc::clone(&asked), Arc::new(credentials));
        let door = Door::open(ANY_PORT, move |stream, _| {
            let (seen, credentials) = (Arc::clone(&seen), Arc::clone(&credentials));
            let route = Arc::clone(&route);
            async move {
                // An error means that one side has ended.
                let _ = serve(stream, &seen, (credentials.as_deref(), &*route)).await;
            }
        });
        Self {
            door: door.expect("a free port"),
            asked,
        }
    }

    /// Returns the requested destinations in order, as `host:port`.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    asked: &Mutex<Vec<String>>,
    (credentials, route): (Option<&str>, &impl Fn(&str) -> Option<SocketAddr>),
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let target = head
        .strip_prefix("CONNECT ")
        .and_then(|rest| rest.split_once(' '));
    let (target, _) = target.unwrap_or_else(|| panic!("no tunnel is wanted: {head}"));
    asked.lock().expect("no panic").push(target.to_owned());
    let has = |line: &str| head.lines().any(|own| own.to_lowercase() == line);
    if credentials.is_some_and(|line| !has(line)) {
        let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic\r\ncontent-length: 0\r\n\r\n";
        return stream.write_all(refusal).await;
    }
    let Some(address) = route(target) else {
        let refusal = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n";
        return stream.write_all(refusal).await;
    };
    if address.port() == 0 {
        std::future::pending::<()>().await;
    }
    let mut there = TcpStream::connect(address).await?;
    stream
        .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        .await?;
    copy_bidirectional(&mut stream, &mut there).await.map(drop)
}
