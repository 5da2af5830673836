//! The broker in memory: behavior that the real one can't be made to show.

use std::time::Duration;

use broker::memory::PublishFault;
use broker::{Broker, PublishError};
use tokio::time::Instant;

use crate::broker::bed::{ids, levels, memory, tags, to};

#[tokio::test(start_paused = true)]
async fn faults_happen_when_they_are_planned() {
    let bed = memory().await;
    bed.broker.plan(|n, _| match n {
        1 => Some(PublishFault::LoseConfirm),
        2 => Some(PublishFault::LosePublish),
        3 => Some(PublishFault::Nack),
        4 => Some(PublishFault::Return),
        _ => None,
    });
    let dead = bed.names.dead.clone();
    let batch = ["1", "2", "3", "4", "5"].map(|id| to(&dead, id)).to_vec();
    let lost = || Err(PublishError::Down("injected".to_owned()));
    let answers = bed.broker.publish(batch).await;
    let (nacked, returned) = (Err(PublishError::Nacked), Err(PublishError::Returned));
    assert_eq!(answers, [lost(), lost(), nacked, returned, Ok(())]);
    let stored: Vec<_> = bed.broker.messages(&dead);
    let stored: Vec<_> = stored.iter().filter_map(|message| message.id()).collect();
    assert_eq!(stored, ["1", "5"]);
    assert_eq!(bed.broker.publishes(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_fails_the_rest_of_the_batch_and_delivers_again() {
    let mut bed = memory().await;
    bed.publish_fresh(&["a"]).await;
    let taken = bed.take(1).await;
    bed.broker.plan(|_, outgoing| {
        (outgoing.message.id() == Some("x")).then_some(PublishFault::Disconnect)
    });
    let dead = bed.names.dead.clone();
    let batch = ["w", "x", "y"].map(|id| to(&dead, id)).to_vec();
    let answers = bed.broker.publish(batch).await;
    assert_eq!(answers[0], Ok(()));
    assert!(matches!(
        answers[1..],
        [Err(PublishError::Down(_)), Err(PublishError::Down(_))]
    ));
    assert_eq!(bed.broker.messages(&dead).len(), 2);
    bed.wait_up().await;
    bed.broker.ack(tags(&taken)).await;
    assert_eq!(ids(&bed.take(1).await), ["a"]);
    assert_eq!(bed.broker.deliveries(), 2);
}

#[tokio::test(start_paused = true)]
async fn delay_queues_keep_their_jobs_through_an_outage() {
    let mut bed = memory().await;
    let delay_queue = bed.names.delay(levels().choose(200)).clone();
    assert_eq!(
        bed.broker.publish(vec![to(&delay_queue, "x")]).await,
        [Ok(())]
    );
    // It was delivered to the client at once.
    assert_eq!((bed.broker.waiting(), bed.broker.unacked()), (0, 1));
    let began = Instant::now();
    bed.broker.kill_session_for(Duration::from_secs(30));
    let answers = bed.broker.publish(vec![to(&delay_queue, "y")]).await;
    assert!(matches!(answers[..], [Err(PublishError::Down(_))]));
    assert_eq!(
        (
            bed.broker.waiting(),
            bed.broker.messages(&delay_queue).len()
        ),
        (1, 1)
    );
    bed.wait_up().await;
    assert_eq!(began.elapsed(), Duration::from_secs(30));
    assert_eq!(ids(&bed.take(1).await), ["x"]);
    assert_eq!((bed.broker.waiting(), bed.broker.unacked()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_queue_is_returned_once() {
    let bed = memory().await;
    let delay_queue = bed.names.delay(levels().choose(200)).clone();
    bed.broker.delete_queue(&delay_queue);
    let publish = || bed.broker.publish(vec![to(&delay_queue, "x")]);
    assert_eq!(publish().await, [Err(PublishError::Returned)]);
    assert_eq!(publish().await, [Ok(())]);
}
