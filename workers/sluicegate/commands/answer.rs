//! Waits for the result of a job that was just published, and prints it.

use std::borrow::Cow;
use std::io::{IsTerminal as _, Write};
use std::process::ExitCode;
use std::time::Duration;

use broker::amqp::{Client, REPLY_TO, Replies};
use broker::{Message, Outgoing};
use config::{Config, ResultsTo, show_duration};
use rules::delays::DelayLevels;
use rules::headers::{ANSWER_PREFIX, ANSWERED, ATTEMPT, CALLED, REASON, RESULT, STATUS, TRUNCATED};
use rules::job::Field;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::letters::{headers, hex};
use super::{Failure, plain, print_json};

/// Publishes `job`, waits up to `time` for its result, and prints it.
pub async fn wait(
    mut job: Outgoing,
    time: Duration,
    config: &Config,
    as_json: bool,
) -> Result<ExitCode, Failure> {
    let id = job.message.id().unwrap_or_default().to_owned();
    // The job's ID may not be unique.
    let correlation = ulid::Ulid::new().to_string();
    job.message.properties = (job.message.properties)
        .with_reply_to(REPLY_TO.into())
        .with_correlation_id(correlation.as_str().into());
    // The workers may have another configuration.
    if config.dispatch.results.to != ResultsTo::ReplyTo {
        eprintln!(
            "note: dispatch.results.to is not reply-to in this configuration; a result comes only \
            if workers have reply-to"
        );
    }
    let levels = DelayLevels::new(config.delay.max_delay);
    let client = Client::connect(&config.amqp, &levels).await?;
    let mut replies = client.replies().await?;
    if let Some(Err(why)) = client.publish(&[job]).await?.into_iter().next() {
        client.close().await;
        return Err(Failure::Failed(format!("the job was not published: {why}")));
    }
    let result = timeout(time, find(&mut replies, &correlation)).await;
    client.close().await;
    match result {
        Ok(Some(result)) => print(&id, &result, as_json),
        Ok(None) => Err(Failure::Failed(format!(
            "the connection ended before the result of {id} came; the job continues"
        ))),
        Err(_) => Err(Failure::Failed(format!(
            "no result of {id} within {}; the job continues. `sluicegate inspect` shows what its \
            tenant waits for; workers send results only with dispatch.results.to: reply-to",
            show_duration(time)
        ))),
    }
}

/// Returns the result with this correlation ID.
async fn find(replies: &mut Replies, correlation: &str) -> Option<Message> {
    loop {
        let reply = replies.next().await?;
        let found = reply.properties.correlation_id();
        if found.as_ref().is_some_and(|id| id.as_str() == correlation) {
            return Some(reply);
        }
    }
}

fn print(id: &str, result: &Message, as_json: bool) -> Result<ExitCode, Failure> {
    let text = |name| match result.header(name) {
        Field::Text(text) => Some(text),
        _ => None,
    };
    let number = |name| match result.header(name) {
        Field::Int(n) => Some(n),
        _ => None,
    };
    let ended = text(RESULT).unwrap_or("unknown");
    if as_json {
        let all = headers(result);
        let of_answer = all.iter().filter_map(|(name, value)| {
            Some((name.strip_prefix(ANSWER_PREFIX)?.to_owned(), value.clone()))
        });
        let of_answer: serde_json::Map<String, Value> = of_answer.collect();
        let (body, encoding) = match str::from_utf8(&result.body) {
            Ok(text) => (text.to_owned(), "utf-8"),
            Err(_) => (hex(&result.body), "hex"),
        };
        print_json(&json!({
            "id": id,
            "result": ended,
            "status": number(STATUS),
            "attempt": number(ATTEMPT),
            "reason": text(REASON),
            "called_ms": number(CALLED),
            "answered_ms": number(ANSWERED),
            "headers": of_answer,
            "content_type": result.content_type(),
            "truncated": text(TRUNCATED).is_some(),
            "encoding": encoding,
            "body": body,
        }))?;
    } else {
        let mut out = std::io::stdout().lock();
        let is_terminal = out.is_terminal();
        out.write_all(&shown(&result.body, is_terminal))?;
        if text(TRUNCATED).is_some() {
            eprintln!("the answer is truncated to dispatch.results.max-body");
        }
    }
    if ended == "done" {
        return Ok(ExitCode::SUCCESS);
    }
    let reason = plain(text(REASON).unwrap_or("no reason given"), 1_000);
    Err(Failure::Failed(format!("the job is {ended}: {reason}")))
}

/// Returns the body of an answer as it is printed. It may contain any text, which must not control
/// a terminal. Programs get all other bytes as they are.
fn shown(body: &[u8], is_terminal: bool) -> Cow<'_, [u8]> {
    if is_terminal {
        let text = String::from_utf8_lossy(body);
        let lines = text.lines().map(|line| plain(line, usize::MAX) + "\n");
        return Cow::Owned(lines.collect::<String>().into_bytes());
    }
    match body.ends_with(b"\n") || body.is_empty() {
        true => Cow::Borrowed(body),
        false => Cow::Owned([body, b"\n"].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_does_not_control_the_terminal() {
        let body = b"one\x1b[2J\ntwo\xff";
        assert_eq!(&*shown(body, false), b"one\x1b[2J\ntwo\xff\n");
        let text = "one\\u{1b}[2J\ntwo\u{fffd}\n";
        assert_eq!(&*shown(body, true), text.as_bytes());
        assert_eq!(&*shown(b"line\n", false), b"line\n");
        for is_terminal in [false, true] {
            assert_eq!(&*shown(b"", is_terminal), b"");
        }
    }
}
