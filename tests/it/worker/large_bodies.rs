//! A worker needs no more memory to search a body than for any other body of that size.

use kit::api::Api;
use kit::{Bed, job, until};

use crate::PROGRAM;

const SIZE: usize = 8 << 20;
/// Allowed difference: both are read in the same way otherwise. A tree of the list would take 140
/// MB.
const MORE_KB: u64 = 24 << 10;

/// Returns the peak memory, in kB, of a worker that found no tenant in `body`.
async fn peak_kb(body: Vec<u8>) -> u64 {
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml("max-requests: 5", &api.url(), "") + "job: {tenant: 'json:/t'}\n";
    let mut job = job("nobody", "large");
    job.body = body.into();
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, [job]).await;
    let dead = "sluicegate_dead_letters_total{reason=\"bad-message\"}";
    until("a dead letter", || worker.metric(dead) == Some(1.0)).await;
    let peak = worker.peak_kb();
    worker.stop();
    assert_eq!(bed.dead(&yaml).await.len(), 1);
    peak
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_millions_uses_no_more_memory_than_a_text() {
    let text = [b"\"", &vec![b'x'; SIZE][..], b"\""].concat();
    let mut list = b"[".to_vec();
    list.extend(b"0,".repeat(SIZE / 2));
    list.extend(b"0]");
    let (text, list) = (peak_kb(text).await, peak_kb(list).await);
    assert!(
        list < text + MORE_KB,
        "{list} kB for a list, {text} for a text"
    );
}
