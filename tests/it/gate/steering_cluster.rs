//! Operators' instructions and dedupe keys in a Redis Cluster: a board per primary, and all keys of
//! a tenant in one slot.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use gate::fleet::registry::{NamedPolicy, Registry};
use gate::instructions::{BoardView, drop_all, followers, in_force, put, see};
use gate::redis::RedisGate;
use gate::{Candidate, Change, DedupeAnswer, Gate};
use kit::gate::{FRESH, LONG, limit, started, tenant};
use kit::redis_topologies::{RedisCluster, shared_cluster};
use kit::servers::{Redis, unique};
use operator::tenant::change;
use operator::trials::Trial;
use rules::limit::{Algorithm, Limit};
use rules::policy::Policy;
use rules::steering::{Hold, Instruction, JobSighting, SightedState, Sighting, Steering};

use crate::gate::topology::{connect, tenants_of};

/// Longer than a test.
const LASTS_MS: u64 = 600_000;

fn much() -> Limit {
    limit(Algorithm::SlidingWindow, 100, LONG)
}

fn gate(cluster: &RedisCluster, prefix: &str) -> Arc<RedisGate> {
    Arc::new(connect(cluster, prefix, much()).gate)
}

fn candidate(id: &str, key: &str, job: &str) -> Candidate {
    Candidate {
        tenant: tenant(id),
        key: key.to_owned(),
        job: job.to_owned(),
        owner: format!("w-{job}"),
        seen_before: false,
        lasts_ms: LASTS_MS,
    }
}

/// Returns for each candidate whether it is the first, in one batch, or `None` if its primary did
/// not answer.
async fn first(gate: &RedisGate, batch: &[Candidate]) -> Vec<Option<bool>> {
    let deduped = gate.dedupe(batch).await.expect("most answer");
    let first = |it: Result<DedupeAnswer, _>| Some(it.ok()? == DedupeAnswer::First);
    deduped.into_iter().map(first).collect()
}

/// Returns the keys below `prefix` on this primary.
fn keys(primary: &Redis, prefix: &str) -> Vec<String> {
    let keys = primary.ctl(&["keys", &format!("{prefix}:*")]);
    keys.lines().map(|key| key.trim().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_keys_of_a_tenant_share_a_slot() {
    let (cluster, prefix) = (shared_cluster(), unique("slots"));
    let limited = connect(cluster, &prefix, much());
    let ids = tenants_of(cluster, &prefix, 2).concat();
    let batch: Vec<_> = (ids.iter())
        .flat_map(|id| ["k", "{other}:x", "}%{"].map(|key| candidate(id, key, "1")))
        .collect();
    let firsts = first(&limited.gate, &batch).await;
    assert_eq!(firsts, vec![Some(true); batch.len()]);
    for id in &ids {
        let question = limited.question(id, 1, &[FRESH]);
        let mut replies = limited.ask(&[question]).await.expect("all answer");
        let reply = replies.remove(0).expect("it is decided");
        assert_eq!(started(&reply.answers), 1);
        let sighted = JobSighting {
            tenant: tenant(id),
            job: "{j}".to_owned(),
            sighting: sighting(),
        };
        limited.gate.sighted(&[sighted]).await.expect("all answer");
        let seen = limited.gate.sighting(&tenant(id), "{j}").await;
        assert_eq!(seen.expect("all answer"), Some(sighting()));
    }
    for id in ids {
        let slot = cluster.slot(&format!("{prefix}:{{{id}}}:line"));
        let begin = format!("{prefix}:{{{id}}}:");
        let all = cluster.primaries.iter().flat_map(|it| keys(it, &prefix));
        let own: Vec<_> = all.filter(|key| key.starts_with(&begin)).collect();
        let of = |kind: &str| own.iter().filter(|key| key.contains(kind)).count();
        assert_eq!((of(":%first:"), of(":%sighting:")), (3, 1), "{own:?}");
        assert!(own.len() > 4, "none of the limit: {own:?}");
        for key in own {
            assert_eq!(cluster.slot(&key), slot, "{key}");
        }
    }
}

fn sighting() -> Sighting {
    Sighting {
        cancel: Some(7),
        show: None,
        state: SightedState::Waiting,
        at_ms: 1,
        attempt: 1,
        cost: 1,
        queue: "jobs".to_owned(),
        here_ms: 0,
        wait_ms: None,
        ticket: None,
        limit: None,
        waits: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dedupe_keys_move_with_their_slot_and_a_lost_primary_affects_its_tenants() {
    let (cluster, prefix) = (RedisCluster::start(&[]), unique("firsts"));
    let gate = gate(&cluster, &prefix);
    let ids = tenants_of(&cluster, &prefix, 1).concat();
    let batch = |job: &str| -> Vec<_> { ids.iter().map(|id| candidate(id, "k", job)).collect() };
    let firsts = async |job: &str| first(&gate, &batch(job)).await;
    assert_eq!(firsts("1").await, [Some(true); 3]);
    assert_eq!(firsts("2").await, [Some(false); 3]);
    let slot = cluster.slot(&format!("{prefix}:{{{}}}:line", ids[0]));
    let moving = cluster.begin_move(slot, &cluster.primaries[0], &cluster.primaries[1]);
    moving.keys();
    assert_eq!(firsts("3").await, [Some(false); 3]);
    moving.end();
    assert_eq!(firsts("4").await, [Some(false); 3]);
    assert_eq!(firsts("1").await, [Some(true); 3]);
    cluster.primaries[2].kill();
    assert_eq!(firsts("5").await, [Some(false), Some(false), None]);
}

/// Returns a worker's view of all boards.
fn worker(gate: &Arc<RedisGate>) -> Registry {
    let own = NamedPolicy::new(Policy::from(much())).expect("it is small");
    Registry::new(Arc::clone(gate), own)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instruction_is_on_every_primarys_board_until_dropped() {
    let (cluster, prefix) = (RedisCluster::start(&[]), unique("boards"));
    let gate = gate(&cluster, &prefix);
    let id = &tenants_of(&cluster, &prefix, 1).concat()[2];
    let cancel = Instruction::Cancel(tenant(id), "{j}".to_owned(), 7);
    let versions = put(&gate, &cancel, LASTS_MS).await.expect("all answer");
    assert_eq!(versions.len(), 3);
    for (number, primary) in cluster.primaries.iter().enumerate() {
        let boards: Vec<_> = (keys(primary, &prefix).into_iter())
            .filter(|key| key.ends_with(":%board"))
            .collect();
        let [board] = &boards[..] else {
            panic!("{boards:?}");
        };
        assert_eq!(cluster.owner(board), number);
        assert!(versions.iter().any(|(key, _)| key == board), "{board}");
    }
    let mut workers = [worker(&gate), worker(&gate)];
    let canceled = |steering: &Steering| {
        let wish = steering.of_job(&tenant(id), "{j}");
        wish.is_some_and(|wish| wish.cancel == Some(7))
    };
    let not_yet = async || {
        let seen = see(&gate).await.expect("all answer");
        assert_eq!(seen.len(), 3);
        let (all, not_yet) = followers(&seen, &versions);
        (all.len(), not_yet.len())
    };
    for (number, worker) in workers.iter_mut().enumerate() {
        let agreed = worker.exchange().await.expect("all answer");
        assert!(canceled(&agreed.steering));
        assert_eq!(not_yet().await, (number + 1, 1));
        worker.follows(&agreed);
        worker.exchange().await.expect("all answer");
        assert_eq!(not_yet().await, (number + 1, 0));
    }
    // An instruction on a single board is in force, too: the command may have failed at the others.
    cluster.primaries[0].kill();
    let hold = Instruction::All(Hold::Paused);
    assert!(put(&gate, &hold, LASTS_MS).await.is_err());
    assert!(see(&gate).await.is_err());
    let agreed = workers[0].exchange().await.expect("two answer");
    assert_eq!(agreed.registries.len(), 2);
    assert!(canceled(&agreed.steering), "two boards say it");
    assert_eq!(agreed.steering.hold, Some(Hold::Paused));
    cluster.primaries[0].restart();
    let names = [hold.name(), cancel.name()];
    let dropped = async || drop_all(&gate, &names).await.is_ok();
    kit::until_async("its return", dropped).await;
    let seen = see(&gate).await.expect("all answer");
    assert!(in_force(&seen).concerns_no_job());
    let agreed = workers[1].exchange().await.expect("all answer");
    assert!(agreed.steering.concerns_no_job());
    assert_eq!(agreed.steering.hold, None);
}

/// Returns the number of the only wake instruction for `id`, which must be the same on each board.
fn wake_of(seen: &[BoardView], id: &str) -> u64 {
    let numbers = |board: &BoardView| -> Vec<u64> {
        let posted = board.posted.iter();
        let wakes = posted.filter_map(|(it, _)| match it {
            Instruction::Wake(Some(of), number) if *of == tenant(id) => Some(*number),
            Instruction::Wake(..) => panic!("{it:?}"),
            _ => None,
        });
        wakes.collect()
    };
    let all: Vec<Vec<u64>> = seen.iter().map(numbers).collect();
    let number = all[0][0];
    assert_eq!(all, vec![vec![number]; 3], "one number for all boards");
    number
}

fn max_is(max: u64) -> Change {
    Change::Limit {
        name: much().name().to_owned(),
        max,
        duration_ms: LASTS_MS,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trial_and_a_diverted_tenant_are_known_at_all_primaries_and_the_limit_that_ends_it_wakes()
{
    let (cluster, prefix) = (shared_cluster(), unique("trials"));
    let gate = gate(cluster, &prefix);
    let id = &tenants_of(cluster, &prefix, 1).concat()[1];
    let policy = Policy::from(much());
    let trial = Trial::new(&policy, tenant(id), much().name().to_owned(), 150);
    let trial = trial.expect("it can be tried");
    let started = trial.begin(&gate, (LASTS_MS, Duration::ZERO)).await;
    started.expect("all answer");
    let divert = Instruction::Divert(tenant(id), "jobs.diverted".into());
    put(&gate, &divert, LASTS_MS).await.expect("all answer");
    let mut worker = worker(&gate);
    let steering = worker.exchange().await.expect("all answer").steering;
    let limits = || policy.limits(&tenant(id), None).clone();
    assert_eq!(
        steering.with_tried(&tenant(id), limits()).shadows().len(),
        1
    );
    let queue = steering.diverts(&tenant(id)).map(|queue| &**queue);
    assert_eq!(queue, Some("jobs.diverted"));
    let seen = async || see(&gate).await.expect("all answer");
    let trials = |seen: &[BoardView]| -> Vec<usize> {
        let is_trial = |(it, _): &&(Instruction, u64)| matches!(it, Instruction::Try(..));
        let all = seen.iter().map(|board| board.posted.iter());
        all.map(|posted| posted.filter(is_trial).count()).collect()
    };
    // Setting another max does not end the trial. Setting the tried one does, in the same change
    // that wakes jobs.
    let changed = change(&gate, tenant(id), max_is(120)).await;
    assert!(changed.is_ok());
    let after_another = seen().await;
    assert_eq!(trials(&after_another), [1, 1, 1]);
    assert!(change(&gate, tenant(id), max_is(150)).await.is_ok());
    let after_it = seen().await;
    assert_eq!(trials(&after_it), [0, 0, 0]);
    let (first, second) = (wake_of(&after_another, id), wake_of(&after_it, id));
    assert!(first < second, "{first} {second}");
    let steering = worker.exchange().await.expect("all answer").steering;
    assert!(
        steering
            .with_tried(&tenant(id), limits())
            .shadows()
            .is_empty()
    );
    assert_eq!(steering.wakes(&tenant(id)), second);
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_set_back_do_not_prevent_waking() {
    const AHEAD: Duration = Duration::from_secs(3_600);
    let (cluster, prefix) = (shared_cluster(), unique("wakes"));
    let id = &tenants_of(cluster, &prefix, 1).concat()[0];
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    let ahead = u64::try_from((now + AHEAD).as_millis()).expect("before the year 500,000,000");
    let woken = |gate: Arc<RedisGate>| async move {
        let changed = change(&gate, tenant(id), Change::Resume).await;
        assert!(changed.is_ok());
        wake_of(&see(&gate).await.expect("all answer"), id)
    };
    let gate = gate(cluster, &prefix);
    woken(Arc::clone(&gate)).await;
    // Writes the versions that a change leaves while the clocks are ahead.
    for primary in &cluster.primaries {
        for key in keys(primary, &prefix) {
            if key.contains("%board") {
                primary.ctl(&["hset", &key, "version", &ahead.to_string()]);
            }
        }
    }
    let first = woken(Arc::clone(&gate)).await;
    assert_eq!(first, ahead + 1);
    let second = woken(Arc::clone(&gate)).await;
    assert!(second > first, "{second} {first}");
    // Later versions account for instructions that have ended.
    let names = [Instruction::Wake(Some(tenant(id)), 0).name()];
    drop_all(&gate, &names).await.expect("all answer");
    let third = woken(Arc::clone(&gate)).await;
    assert!(third > second, "{third} {second}");
    let agreed = worker(&gate).exchange().await.expect("all answer");
    assert_eq!(agreed.steering.wakes(&tenant(id)), third);
}
