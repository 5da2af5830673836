//! A minimal HTTP client for the workers' admin ports: one request per connection.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout for one request, including its connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer's body in bytes. Metrics take some ten thousand.
const MAX_BODY: usize = 16 * 1024 * 1024;

/// Returns the body of `path` at `server` if the status is 2xx.
///
/// # Errors
/// A text, if there is no such answer within 5 s.
pub async fn get(server: SocketAddr, path: &str) -> Result<String, String> {
    match timeout(REQUEST_TIMEOUT, exchange(server, path)).await {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(why)) => Err(format!("{path}: {why}")),
        Err(_) => Err(format!("{path}: no answer within {REQUEST_TIMEOUT:?}")),
    }
}

async fn exchange(server: SocketAddr, path: &str) -> Result<String, Box<dyn Error + Send + Sync>> {
    let stream = TcpStream::connect(server).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path)
        .header(header::HOST, server.to_string())
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let answer = async {
        let answer = sender.send_request(request).await?;
        if !answer.status().is_success() {
            return Err(answer.status().to_string().into());
        }
        let body = Limited::new(answer.into_body(), MAX_BODY).collect().await?;
        Ok(String::from_utf8(body.to_bytes().into())?)
    };
    // The connection ends after the answer, or with an error that the answer has as well.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}
