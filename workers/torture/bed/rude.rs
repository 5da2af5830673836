//! Rude neighbors: publishers, tenants and queues that misbehave. `checker::neighbors` judges how
//! the other tenants fare meanwhile.

use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use super::Bed;
use crate::RunFailure;
use crate::amqp;
use crate::faults::FaultKind;
use crate::history::EventKind;
use crate::results;
use crate::run_plan::MAX;
use crate::schedule::ScheduledFault;

/// Prefix of the ids of rude jobs and the names of rude tenants. No other job or tenant has it.
pub const RUDE: &str = "rude-";
/// Prefixes of the names of rude tenants: their access token is refused, their token endpoint
/// hangs, or their calls hang.
pub const WAYS: [&str; 3] = ["rude-revoked", "rude-waiting", "rude-hanging"];
/// A tenant whose calls take long.
pub const SLOW: &str = "rude-slow";
/// The limit of [`SLOW`]: all of its jobs may be called at once, so that only worker slots bound its
/// calls.
pub const SLOW_MAX: usize = JOBS;
/// Number of jobs of one fault: more than all workers hold together.
const JOBS: usize = 600;
/// Number of rude tenants whose token endpoint hangs, each with a limit of its own.
const WAITING_TENANTS: usize = 20;
/// Number of rude tenants that request results. All of their jobs may be called at once, so that
/// results fill the prefetch instead of waiting in delay queues as jobs.
const RESULT_TENANTS: usize = JOBS / MAX as usize;
/// Names of queues for results. RabbitMQ closes the connection after a publish to some of them.
const CLOSING: [&str; 3] = [
    "amq.rabbitmq.reply-to.g2dkAA.x",
    "amq.rabbitmq.reply-to.garbage",
    "amq.rabbitmq.reply-to.",
];
/// Minimum time that a neighbor is rude.
const MIN_RUDE_TIME: Duration = Duration::from_secs(20);
/// Minimum time with rude results: workers need 10 s to detect that a queue confirms nothing.
const MIN_RUDE_REPLIES_TIME: Duration = Duration::from_secs(35);
/// Time after which a rude job expires, in milliseconds.
const EXPIRATION: &str = "20000";
/// Time limit for all publishes of a fault, including confirms.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns how long the neighbor is rude.
pub(super) fn lasts(fault: &ScheduledFault) -> Duration {
    fault.lasts.max(match fault.kind {
        FaultKind::RudeReplies => MIN_RUDE_REPLIES_TIME,
        _ => MIN_RUDE_TIME,
    })
}

/// Returns a description of the fault.
pub(super) fn how(fault: &ScheduledFault) -> String {
    let way = usize::from(fault.way);
    let what = match fault.kind {
        FaultKind::RudeReplies => ["closing connections, ", "refusing, ", "silent, "][way],
        FaultKind::RudeTenant => ["without a token, ", "waiting for a token, ", "hanging, "][way],
        _ => "",
    };
    format!("{what}for {:.1} s", lasts(fault).as_secs_f64())
}

/// Returns the `n`th job of fault `number`, whose results go to `queue`.
fn job((number, fault): (u64, &ScheduledFault), n: usize, queue: &str) -> BasicProperties {
    let text = |text: String| AMQPValue::LongString(text.into());
    let tenant = match fault.kind {
        FaultKind::RudeReplies => Some(text(format!("{RUDE}{}", n % RESULT_TENANTS))),
        FaultKind::RudeTenant => {
            let tenants = if fault.way == 1 { WAITING_TENANTS } else { 1 };
            let name = WAYS[usize::from(fault.way)];
            Some(text(format!("{name}-{}", n % tenants)))
        }
        FaultKind::RudeFlood => Some(text(RUDE.to_owned())),
        FaultKind::RudeSlow => Some(text(SLOW.to_owned())),
        // Invalid: the tenant is missing, or is a number.
        _ => n.is_multiple_of(2).then_some(AMQPValue::Double(0.5)),
    };
    let mut headers = FieldTable::default();
    if let Some(tenant) = tenant {
        headers.insert("x-tenant".into(), tenant);
    }
    let properties = BasicProperties::default()
        .with_message_id(format!("{RUDE}{number}-{n}").into())
        .with_expiration(EXPIRATION.into())
        .with_delivery_mode(2)
        .with_headers(headers);
    match (fault.kind, fault.way) {
        (FaultKind::RudeReplies, 0) => properties.with_reply_to(CLOSING[n % CLOSING.len()].into()),
        (FaultKind::RudeReplies, _) => properties.with_reply_to(queue.into()),
        _ => properties,
    }
}

impl Bed {
    /// Runs a rude neighbor for a while. Records a missed fault if its jobs can't be published.
    pub(super) async fn rude(&self, number: u64, fault: ScheduledFault) -> Result<(), RunFailure> {
        let queue = results::queue(&format!("{}-{RUDE}{number}", self.names.fresh));
        let ctl = |args: &[&str]| {
            block_in_place(|| self.rabbit.ctl(args));
        };
        let full = match (fault.kind, fault.way) {
            (FaultKind::RudeJobs, _) => Some(&*self.names.dead),
            (FaultKind::RudeReplies, 1) => Some(&*queue),
            _ => None,
        };
        let is_silent = (fault.kind, fault.way) == (FaultKind::RudeReplies, 2);
        // A suspended queue process behaves like a queue without a majority.
        let process = |what: &str| {
            ctl(&[
                "eval",
                &format!(
                    "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), sys:{what}(amqqueue:get_pid(Q))."
                ),
            ]);
        };
        if fault.kind == FaultKind::RudeReplies {
            results::declare(self.rabbit.url(), &queue).await?;
        }
        if let Some(full) = full {
            let (pattern, refuses) = (
                format!("^{}$", full.replace('.', "\\.")),
                r#"{"max-length": 1, "overflow": "reject-publish"}"#,
            );
            ctl(&[
                "set_policy",
                "--apply-to",
                "queues",
                RUDE,
                &pattern,
                refuses,
            ]);
        }
        if is_silent {
            process("suspend");
        }
        if (timeout(PUBLISH_TIMEOUT, self.publish((number, &fault), &queue)).await)
            .is_ok_and(|sent| sent.is_ok())
        {
            sleep(lasts(&fault)).await;
        } else {
            self.history.add(EventKind::Missed { fault: number });
        }
        if is_silent {
            process("resume");
        }
        if full.is_some() {
            ctl(&["clear_policy", RUDE]);
        }
        if fault.kind == FaultKind::RudeReplies {
            ctl(&["delete_queue", &queue]);
        }
        Ok(())
    }

    /// Publishes the jobs of a fault.
    async fn publish(&self, fault: (u64, &ScheduledFault), queue: &str) -> Result<(), RunFailure> {
        let (connection, channel) = amqp::connect(self.rabbit.url()).await?;
        (channel.confirm_select(ConfirmSelectOptions::default())).await?;
        let mut confirms = Vec::with_capacity(JOBS);
        for n in 0..JOBS {
            let (fresh, options) = ((&*self.names.fresh).into(), BasicPublishOptions::default());
            let sent =
                channel.basic_publish("".into(), fresh, options, b"{}", job(fault, n, queue));
            confirms.push(sent.await?);
        }
        for confirm in confirms {
            confirm.await?;
        }
        Ok(connection.close(200, "done".into()).await?)
    }
}
