//! One connection: opened, used and closed within bounded time.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_rs::traits::Reactor;
use futures_util::{Stream, StreamExt};
use lapin::tcp::RustlsConnector;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties};

use super::screen::{self, FRAME_MAX, ScreenedConnection};
use crate::BrokerError;
use config::{self, SecretUrl, Tls};
use runtime::tls;

/// Timeout for name lookup, TCP, TLS and the AMQP handshake together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for one request and its answer.
pub(super) const RPC_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a clean close, after which the socket is shut.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Minimum number of channels a connection must allow: a worker's own, and one for each check that
/// finds a queue missing. RabbitMQ then closes the channel, and `lapin` does not reuse its number.
pub(super) const MIN_CHANNELS: u16 = 16;
/// Heartbeat interval in seconds. A peer that is silent for two intervals is given up. The server
/// may ask for a shorter one.
const HEARTBEAT: u16 = 10;

/// A stream to a server, possibly with TLS.
pub(super) type TargetStream = AsyncTcpStream<<async_rs::TokioRuntime as Reactor>::TcpStream>;

/// The server to connect to.
#[derive(Clone)]
pub(super) struct NodeTarget {
    uri: AMQPUri,
    tls: Tls,
    /// The URL without its password, for errors.
    pub at: String,
}

impl fmt::Debug for NodeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at)
    }
}

impl NodeTarget {
    /// Parses `url`.
    ///
    /// # Errors
    /// [`BrokerError::Url`], which never contains the URL itself.
    pub fn new(amqp: &config::Amqp, url: &SecretUrl) -> Result<Self, BrokerError> {
        let parsed = url::Url::parse(url.expose()).map_err(|e| BrokerError::Url(e.to_string()))?;
        if !["amqp", "amqps"].contains(&parsed.scheme()) {
            let scheme = parsed.scheme();
            return Err(BrokerError::Url(format!("the scheme is {scheme}")));
        }
        let mut uri: AMQPUri = url
            .expose()
            .parse()
            .map_err(|_| BrokerError::Url("it is not readable".to_owned()))?;
        // The parser mistakes an IPv6 address for a missing host, and a missing host means
        // localhost.
        if let Some(url::Host::Ipv6(host)) = parsed.host() {
            uri.authority.host = host.to_string();
        }
        // `amqp://host/` means the default virtual host, not a virtual host without a name.
        if uri.vhost.is_empty() {
            uri.vhost = "/".to_owned();
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        // The client allocates buffers of 32 frames. If it knows the frame size now, it requests
        // zeroed memory from the system, which takes no RAM before it is used. If it learned the
        // size from the server, it would write zeros to 8 MB.
        uri.query.frame_max = Some(FRAME_MAX);
        let at = url.to_string();
        let tls = amqp.tls.clone();
        Ok(Self { uri, tls, at })
    }

    /// Opens a stream, with TLS if the URL says so, on which nothing was sent yet.
    pub async fn stream(&self) -> io::Result<TargetStream> {
        let runtime = async_rs::Runtime::tokio_current();
        stream(&runtime, &self.uri, &self.tls, &SocketHandle::default()).await
    }

    pub fn failed(&self, reason: impl Into<String>) -> BrokerError {
        BrokerError::Failed {
            at: self.at.clone(),
            reason: reason.into(),
        }
    }

    pub fn error(&self, error: &lapin::Error) -> BrokerError {
        BrokerError::from_lapin(&self.at, error)
    }

    /// Returns advice on `error`, which prevented a connection from being set up.
    fn advice(&self, error: &lapin::Error) -> Option<String> {
        match self.uri.scheme {
            AMQPScheme::AMQP => None,
            AMQPScheme::AMQPS => tls::setup_advice(error, "amqp"),
        }
    }

    /// Waits for the answer to `request`, at most [`RPC_TIMEOUT`].
    pub async fn rpc<T>(
        &self,
        what: &str,
        request: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, BrokerError> {
        match tokio::time::timeout(RPC_TIMEOUT, request).await {
            Ok(result) => result.map_err(|error| self.error(&error)),
            Err(_) => Err(self.failed(format!("no answer to {what} within {RPC_TIMEOUT:?}"))),
        }
    }
}

/// A second handle of the connection's socket. `lapin` can't give up a handshake that hangs or a
/// connection that is blocked: its thread would stay for as long as the peer is silent. Shutting
/// the socket ends it.
#[derive(Clone, Default)]
struct SocketHandle(Arc<Mutex<Option<TcpStream>>>);

impl SocketHandle {
    fn hold(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = TcpStream::from(socket.as_fd().try_clone_to_owned()?);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
        Ok(())
    }
}

/// Shuts the socket when it is dropped.
struct ShutOnDrop(SocketHandle);

impl Drop for ShutOnDrop {
    fn drop(&mut self) {
        let held = (self.0.0.lock().unwrap_or_else(PoisonError::into_inner)).take();
        if let Some(socket) = held {
            // An error means that it is shut already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// An open connection. Dropping it without [`AmqpLink::close`] shuts its socket at once.
pub(super) struct AmqpLink {
    connection: Connection,
    pub target: NodeTarget,
    _socket: ShutOnDrop,
}

impl AmqpLink {
    /// Connects. RabbitMQ's tools show `name`.
    pub async fn open(target: &NodeTarget, name: &str) -> Result<Self, BrokerError> {
        let socket = ShutOnDrop(SocketHandle::default());
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connecting = connect(target.clone(), properties, socket.0.clone());
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(connection)) => Self {
                connection,
                target: target.clone(),
                _socket: socket,
            }
            .with_enough_channels(),
            Ok(Err(error)) => Err(target.error(&error).advised(target.advice(&error))),
            Err(_) => Err(BrokerError::Unreachable {
                at: target.at.clone(),
                reason: format!("no answer within {CONNECT_TIMEOUT:?}"),
            }),
        }
    }

    fn with_enough_channels(self) -> Result<Self, BrokerError> {
        let channels = self.channels();
        if channels >= MIN_CHANNELS {
            return Ok(self);
        }
        let at = self.target.at.clone();
        let reason = format!(
            "a connection can have {channels} channels (channel_max), but a worker needs \
            {MIN_CHANNELS}"
        );
        Err(BrokerError::Limit { at, reason })
    }

    pub async fn channel(&self) -> Result<Channel, BrokerError> {
        let opening = self.connection.create_channel();
        self.target.rpc("channel.open", opening).await
    }

    /// Returns the maximum number of channels. `lapin` does not reuse the number of a channel that
    /// the server has closed.
    pub fn channels(&self) -> u16 {
        self.connection.configuration().channel_max()
    }

    /// Returns true while the broker accepts no publishes (a memory or disk alarm).
    pub fn blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    pub fn connected(&self) -> bool {
        self.connection.status().connected()
    }

    /// Waits for the connection's error. Meanwhile logs when the broker blocks and unblocks the
    /// connection, and reports it to `blocks`. May be called once per connection, because the
    /// events go to one listener.
    pub async fn failure(&self, name: &str, blocks: impl Fn(bool)) -> BrokerError {
        let mut events = std::pin::pin!(self.connection.events_listener());
        while let Some(event) = next(&mut events).await {
            match event {
                // Errors of a channel go to the users of that channel.
                lapin::Event::Error(error) if error.is_amqp_soft_error() => {}
                lapin::Event::Error(error) => return self.target.error(&error),
                lapin::Event::ConnectionBlocked(reason) => {
                    blocks(true);
                    tracing::warn!(connection = name, %reason, "RabbitMQ blocks publishes");
                }
                lapin::Event::ConnectionUnblocked => {
                    blocks(false);
                    tracing::info!(connection = name, "RabbitMQ accepts publishes again");
                }
                _ => {}
            }
        }
        self.target.failed("the connection ended")
    }

    /// Closes the connection, as far as the peer responds.
    pub async fn close(&self) {
        self.close_after(async {}).await;
    }

    /// Runs `last`, which talks to RabbitMQ on this connection, and then closes the connection.
    pub async fn close_after(&self, last: impl Future<Output = ()>) {
        // A blocked connection writes nothing, not even its close.
        if self.connected() && !self.blocked() {
            let closing = async {
                last.await;
                // A channel that was dropped closes itself in the background. If that is still to
                // be sent, `lapin` breaks the connection off instead of closing it, and RabbitMQ
                // logs a warning. A new channel is opened after that.
                let _last = self.connection.create_channel().await;
                self.connection.close(200, "closed".into()).await
            };
            match tokio::time::timeout(CLOSE_TIMEOUT, closing).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "closing the connection failed"),
                Err(_) => tracing::debug!("the connection was not closed within {CLOSE_TIMEOUT:?}"),
            }
        }
    }
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    stream.next().await
}

async fn connect(
    target: NodeTarget,
    properties: ConnectionProperties,
    socket: SocketHandle,
) -> lapin::Result<Connection> {
    let runtime = async_rs::Runtime::tokio_current();
    let NodeTarget { uri, tls, .. } = target;
    Connection::connector(
        uri,
        screen::runtime(),
        async move |uri: AMQPUri, _| {
            // This runs on the connection's own thread, which must not outlive the timeout either.
            let connecting = stream(&runtime, &uri, &tls, &socket);
            let timeout = || io::Error::from(io::ErrorKind::TimedOut);
            tokio::time::timeout(CONNECT_TIMEOUT, connecting)
                .await
                .unwrap_or_else(|_| Err(timeout()))
                // `lapin` sees a plain stream, whether or not it is TLS inside.
                .map(|stream| AsyncTcpStream::Plain(ScreenedConnection::new(stream)))
                .map_err(lapin::Error::from)
        },
        properties,
    )
    .await
}

/// Opens a stream to the server of `uri`, with TLS if it says so.
async fn stream(
    runtime: &async_rs::TokioRuntime,
    uri: &AMQPUri,
    tls: &Tls,
    socket: &SocketHandle,
) -> io::Result<TargetStream> {
    let host = (uri.authority.host.as_str(), uri.authority.port);
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host(host).await?.collect();
    let stream = connect_first(runtime, &addresses).await?;
    if let AsyncTcpStream::Plain(stream) = &stream {
        socket.hold(stream.get_ref())?;
    }
    match uri.scheme {
        AMQPScheme::AMQP => Ok(stream),
        AMQPScheme::AMQPS => {
            let tls = connector(tls.clone()).await?;
            stream.into_rustls(&tls, &uri.authority.host).await
        }
    }
}

/// Connects to the first address that answers. Each may take an equal part of the timeout, so that
/// one of several nodes that does not answer keeps no other from being tried.
async fn connect_first(
    runtime: &async_rs::TokioRuntime,
    addresses: &[SocketAddr],
) -> io::Result<TargetStream> {
    let parts = u32::try_from(addresses.len() + 1).unwrap_or(u32::MAX);
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        let connecting = AsyncTcpStream::connect(runtime, *address);
        match tokio::time::timeout(CONNECT_TIMEOUT / parts, connecting).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

/// Reads the certificate files, so that the next connection uses replaced certificates.
async fn connector(tls: Tls) -> io::Result<RustlsConnector> {
    let made = tokio::task::spawn_blocking(move || tls::client(&tls)).await;
    let config = made.map_err(io::Error::other)?;
    let config = config.map_err(|why| io::Error::other(format!("amqp.{why}")))?;
    Ok(config.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    #[tokio::test]
    async fn an_address_that_does_not_answer_keeps_no_other_from_being_tried() {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .bind("127.0.0.1:0".parse().expect("an address"))
            .expect("a port");
        // Two connections fill the queue of this listener. The system drops the next ones.
        let full = socket.listen(1).expect("a listener");
        let silent = full.local_addr().expect("its address");
        let queued = [
            TcpStream::connect(silent).await,
            TcpStream::connect(silent).await,
        ];
        let good = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = good.local_addr().expect("its address");
        let runtime = async_rs::Runtime::tokio_current();
        let connected = connect_first(&runtime, &[silent, address]).await;
        let AsyncTcpStream::Plain(stream) = connected.expect("a connection") else {
            panic!("TLS was not asked for");
        };
        assert_eq!(stream.get_ref().peer_addr().expect("its address"), address);
        assert!(queued.iter().all(Result::is_ok));
    }

    #[test]
    fn a_url_without_a_virtual_host_means_the_default_one() {
        for (url, vhost) in [
            ("amqp://h", "/"),
            ("amqp://h/", "/"),
            ("amqp://h/?heartbeat=5", "/"),
            ("amqp://h/%2f", "/"),
            ("amqp://h/orders", "orders"),
        ] {
            let text = format!("amqp: {{url: '{url}'}}");
            let config = Config::parse("c.yaml", &text, std::iter::empty());
            let amqp = config.expect("a good configuration").amqp;
            let target = NodeTarget::new(&amqp, &amqp.url.urls[0]).expect("a good url");
            assert_eq!(target.uri.vhost, vhost, "{url}");
        }
    }
}
