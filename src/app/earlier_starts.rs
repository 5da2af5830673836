//! Finds out whether jobs were started before this worker.

use tokio::time::Instant;

use broker::BrokerError;
use broker::amqp::in_use;
use config::Config;
use engine::Stop;
use engine::outage::Outage;
use gate::EarlierStarts;
use rules::delays::DelayLevels;
use rules::failures::retry::Backoff;
use telemetry::Health;

/// Asks RabbitMQ whether jobs were started before this worker. Waits until RabbitMQ accepts the
/// connection, because until then there is nothing to start. Returns `None` if the worker was
/// stopped meanwhile; then nothing may be claimed about its start.
pub(super) async fn earlier_starts(
    config: &Config,
    levels: &DelayLevels,
    health: &Health,
    stop: &Stop,
) -> Option<EarlierStarts> {
    let answered = async {
        let began = Instant::now();
        let mut outage = Outage::new("RabbitMQ");
        let mut pauses = Backoff::default();
        loop {
            match in_use(&config.amqp, levels).await {
                Err(why) if lets_no_session_begin(&why) => {
                    outage.failed(began.elapsed(), &why);
                    health.set_no_session(why.to_string());
                    tokio::time::sleep(pauses.next(rand::random())).await;
                }
                // The session that follows reports the error.
                Err(_) => return EarlierStarts::Unknown,
                Ok(used) => {
                    outage.over(began.elapsed());
                    return if used {
                        EarlierStarts::Unknown
                    } else {
                        EarlierStarts::Idle
                    };
                }
            }
        }
    };
    tokio::select! {
        start = answered => Some(start),
        () = stop.soft.cancelled() => None,
        () = stop.hard.cancelled() => None,
    }
}

/// Returns true if a worker gets no session while the server answers like this. The other errors
/// concern one queue.
fn lets_no_session_begin(why: &BrokerError) -> bool {
    use BrokerError::{Credentials, Failed, Limit, Shortage, Unreachable, Vhost};
    matches!(
        why,
        Unreachable { .. }
            | Shortage { .. }
            | Limit { .. }
            | Credentials { .. }
            | Vhost { .. }
            | Failed { .. }
    )
}
