//! Sends a request at most once and waits for its answer.

use hyper::header::AUTHORIZATION;
use tokio::time::{Instant, timeout_at};

use super::advice::no_answer;
use super::answer::HttpAnswer;
use super::call::{CallFailure, CallResult, Exchange};
use super::server::Server;
use super::text::explain;
use super::{HttpHandler, ReadyCall, failed};
use crate::{Attempt, Outcome, Permit};
use rules::job::Job;

/// Maximum number of bytes read of an answer's body. The connection of a longer one is closed.
const MAX_BODY: usize = 64 * 1024;

impl HttpHandler {
    /// Sends at most one request.
    ///
    /// # Errors
    /// The attempt of a job without an answer.
    pub(super) async fn exchange(
        &self,
        job: &Job,
        ready: ReadyCall,
        permit: Permit,
    ) -> Result<HttpAnswer, Attempt> {
        let deadline = Instant::now() + self.timeout;
        let secret = self.requests.secret_of(&job.tenant).await?;
        let ReadyCall {
            server,
            connection,
            token,
        } = ready;
        let is_new = connection.is_new();
        // It was prepared for another job.
        if !self.hosts.fits(job, &server) {
            return Err(Outcome::Late.into());
        }
        let (mut exchange, secret) = {
            let mut made = self.requests.of((job, &server), secret)?;
            if let Some(token) = &token {
                // The token expired or was refused after the last check: the job asks again with
                // the next token.
                if !token.is_usable() {
                    return Err(Outcome::Late.into());
                }
                let headers = made.request.headers_mut();
                headers.insert(AUTHORIZATION, token.header.clone());
            }
            // There is no await between this check and the first poll of the future that sends.
            let connection = Some(connection).filter(|_| permit.is_good());
            let sent = connection.and_then(|free| free.send(made.request, &made.full_uri));
            (sent.ok_or(Outcome::Late)?, made.secret)
        };
        // A proxy acknowledges a request that may reach the API much later, or never.
        if server.is_direct {
            exchange.is_written_by(&permit);
        }
        match timeout_at(deadline, exchange.answer()).await {
            Ok(CallResult::Answered(head)) => {
                server.answered();
                self.hosts.reached();
                let mut start = Vec::new();
                // If the body breaks off or is not complete in time, the bytes read so far are
                // used.
                let read = read_start(&mut exchange, &mut start, self.reader.keeps(&head));
                let ended = timeout_at(deadline, read).await == Ok(true);
                if let Some(connection) = exchange.into_connection().filter(|_| ended) {
                    self.pool.put_back(&server, connection);
                }
                Ok(HttpAnswer {
                    status: head.status,
                    headers: head.headers,
                    cut: !ended,
                    start,
                    secret,
                    token,
                })
            }
            Ok(CallResult::Unwritten) => {
                if is_new {
                    server.closed_unused();
                }
                Err(Outcome::Late.into())
            }
            Ok(CallResult::Refused(why)) => Err(self.refused(&server, &why)),
            Ok(CallResult::Failed(why)) => {
                let words = no_answer(&why);
                Err(Attempt {
                    fate: self.abandoned.failed(&why),
                    ..failed(format!("no answer: {words}")).into()
                })
            }
            Err(_) => Err(Attempt {
                fate: self.abandoned.give_up(exchange),
                ..failed(self.too_late("no answer")).into()
            }),
        }
    }

    /// Returns the attempt of a job whose request the API refused without processing it: the job
    /// asks again. An API that refuses many calls in a row counts as unreachable.
    fn refused(&self, server: &Server, why: &CallFailure) -> Attempt {
        if server.refused() < self.pool.max() {
            return Outcome::Late.into();
        }
        Attempt {
            trouble: Some(self.hosts.refused()),
            ..failed(format!("no answer: {}", explain(why))).into()
        }
    }
}

/// Reads the body to its end or up to [`MAX_BODY`], or further if `keep` is larger. Puts the first
/// `keep` bytes into `start`. Returns true if the end was reached.
async fn read_start(exchange: &mut Exchange, start: &mut Vec<u8>, keep: usize) -> bool {
    let mut read = 0;
    while read < MAX_BODY.max(keep) {
        let chunk = match exchange.next().await {
            Some(Ok(chunk)) => chunk,
            Some(Err(_)) => return false,
            None => return true,
        };
        read += chunk.len();
        let room = keep - start.len();
        start.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    false
}
