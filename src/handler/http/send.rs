//! Sends a request, once at most, and waits for its answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::header::AUTHORIZATION;
use tokio::time::{Instant, timeout_at};

use super::advice::no_answer;
use super::answer::Answer;
use super::call::{Exchange, Failure, Sent};
use super::text::explain;
use super::tokens::Token;
use super::{HttpHandler, Ready, failed};
use crate::handler::{Attempt, Outcome, Permit, Trouble};
use crate::rules::job::Job;

/// So much of an answer's body is read, in bytes; a connection with more to come is closed.
const MAX_BODY: usize = 64 * 1024;

/// A request on its way.
struct Begun {
    exchange: Exchange,
    /// As in [`Answer`].
    secret: Option<Arc<str>>,
    token: Option<Arc<Token>>,
}

impl HttpHandler {
    /// Begins to send a request. The error is what becomes of a job of which none was sent.
    fn begin(
        &self,
        job: &Job,
        secret: Option<Arc<str>>,
        ready: Ready,
        permit: &Permit,
    ) -> Result<Begun, Box<Attempt>> {
        let Ready { connection, token } = ready;
        let made = self.requests.of(job, secret);
        let mut made = made.map_err(|why| Box::new(why.into()))?;
        if let Some(token) = &token {
            // It has expired, or was refused, since it was looked at: the job asks again, with the next one.
            if !token.is_usable() {
                return Err(Box::new(Outcome::Late.into()));
            }
            let headers = made.request.headers_mut();
            headers.insert(AUTHORIZATION, token.header.clone());
        }
        // From here to the first poll of what sends, there is nothing to wait for.
        let connection = Some(connection).filter(|_| permit.is_good());
        let sent = connection.and_then(|free| free.send(made.request, &made.whole));
        let Some(exchange) = sent else {
            return Err(Box::new(Outcome::Late.into()));
        };
        // A proxy acknowledges what the API may see much later, or never.
        if self.pool.is_direct() {
            exchange.is_written_by(permit);
        }
        Ok(Begun {
            exchange,
            secret: made.secret,
            token,
        })
    }

    /// Sends one request at most. The error is what becomes of a job without an answer.
    pub(super) async fn exchange(
        &self,
        job: &Job,
        ready: Ready,
        permit: Permit,
    ) -> Result<Answer, Attempt> {
        let deadline = Instant::now() + self.timeout;
        let secret = self.requests.secret_of(&job.tenant).await?;
        let Begun {
            mut exchange,
            secret,
            token,
        } = self
            .begin(job, secret, ready, &permit)
            .map_err(|attempt| *attempt)?;
        match timeout_at(deadline, exchange.answer()).await {
            Ok(Sent::Answered(head)) => {
                self.refused.store(0, Ordering::Relaxed);
                let mut start = Vec::new();
                // A body that breaks off or does not end in time has told what it could.
                let read = read_start(&mut exchange, &mut start, self.reader.keeps());
                let ended = timeout_at(deadline, read).await == Ok(true);
                if let Some(connection) = exchange.into_connection().filter(|_| ended) {
                    self.pool.put_back(connection);
                }
                Ok(Answer {
                    status: head.status,
                    headers: head.headers,
                    cut: !ended,
                    start,
                    secret,
                    token,
                })
            }
            Ok(Sent::Unwritten) => Err(Outcome::Late.into()),
            Ok(Sent::Refused(why)) => Err(self.refused(&why)),
            Ok(Sent::Failed(why)) => {
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

    /// What becomes of a job that the API refused and did nothing with: it asks again. One that does nothing but refuse is
    /// out of order.
    fn refused(&self, why: &Failure) -> Attempt {
        if self.refused.fetch_add(1, Ordering::Relaxed) < self.concurrency {
            return Outcome::Late.into();
        }
        Attempt {
            trouble: Some(Trouble::Unreachable),
            ..failed(format!("no answer: {}", explain(why))).into()
        }
    }
}

/// Reads to the body's end or [`MAX_BODY`], or as far as it is kept: the first `keep` bytes, in `kept`. Whether it was the end.
async fn read_start(exchange: &mut Exchange, kept: &mut Vec<u8>, keep: usize) -> bool {
    let mut read = 0;
    while read < MAX_BODY.max(keep) {
        let chunk = match exchange.next().await {
            Some(Ok(chunk)) => chunk,
            Some(Err(_)) => return false,
            None => return true,
        };
        read += chunk.len();
        let room = keep - kept.len();
        kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    false
}
