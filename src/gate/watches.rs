//! The epoch watches of one worker: one for its only Redis, or one per primary of a cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::Pipeline;
use futures_util::future::{join_all, try_join_all};
use tokio::time::Instant;

use crate::epoch::{SentPulse, Watch, WatchTarget};
use crate::link::{self, Link, PrimaryLink};
use crate::primaries::{AllPrimaries, Finder, Primary};
use crate::{EarlierStarts, GateError, Primaries};
use rules::slots::Slots;

/// How long an answer of a primary counts as proof that it works, while other primaries fail.
const LATELY: Duration = Duration::from_secs(1);

/// The state in a primary's last answer.
#[derive(Clone, Copy)]
enum PrimaryState {
    Admitting,
    Recovering,
    Unavailable,
}

impl PrimaryState {
    fn of<T>(answer: &Result<T, GateError>) -> Self {
        match answer {
            Ok(_) => Self::Admitting,
            Err(GateError::Cold { .. }) => Self::Recovering,
            Err(GateError::Unreachable(_) | GateError::Unusable(_) | GateError::Refused(_)) => {
                Self::Unavailable
            }
        }
    }
}

/// All watches of a worker.
pub struct Watches {
    inner: Mutex<WatchesState>,
}

struct WatchesState {
    /// The watches by the key of the epoch.
    watches: BTreeMap<String, Arc<Watch>>,
    /// The longest look-back of any limit in a question.
    span: Duration,
    /// The shortest look-back of any question.
    shortest: Duration,
    /// Knowledge of starts before the worker began.
    start: Option<EarlierStarts>,
    /// Since when questions at each epoch have failed.
    failing: BTreeMap<String, Instant>,
    /// The last state of the primary with each epoch.
    states: BTreeMap<String, PrimaryState>,
    /// Whether the first look at the primaries is done. Any primary seen later is new.
    initialized: bool,
}

impl Watches {
    /// Creates the watches of a new worker. `span` is the longest look-back of its limits.
    pub fn new(span: Duration) -> Self {
        Self {
            inner: Mutex::new(WatchesState {
                watches: BTreeMap::new(),
                span,
                shortest: span,
                start: None,
                failing: BTreeMap::new(),
                states: BTreeMap::new(),
                initialized: false,
            }),
        }
    }

    fn inner(&self) -> MutexGuard<'_, WatchesState> {
        // Nothing panics while it holds the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Includes limits that look back by `span`.
    pub fn cover(&self, span: Duration) {
        let mut inner = self.inner();
        if span > inner.span || span < inner.shortest {
            inner.span = inner.span.max(span);
            inner.shortest = inner.shortest.min(span);
            inner.watches.values().for_each(|watch| watch.cover(span));
        }
    }

    /// Sets the knowledge of starts before the worker began.
    pub fn set_start(&self, start: EarlierStarts) {
        let mut inner = self.inner();
        inner.start = Some(start);
        inner
            .watches
            .values()
            .for_each(|watch| watch.set_start(start));
    }

    /// Returns the watches over `primaries`, in their order.
    fn over(&self, primaries: &AllPrimaries) -> Vec<Arc<Watch>> {
        let mut inner = self.inner();
        let (span, shortest, initialized) = (inner.span, inner.shortest, inner.initialized);
        let start = inner.start.filter(|_| !initialized).unwrap_or_default();
        let mut watch = |primary: &Arc<Primary>| {
            let new = || {
                let watch = Watch::new(primary.epoch.clone(), span, initialized);
                watch.cover(shortest);
                watch.set_start(start);
                Arc::new(watch)
            };
            // This primary had its epoch at another key, and another primary had its epoch at this
            // key. The watch of this key knows that primary's slots, which count as lost here
            // unless they are handed over.
            let was_at = |watch: &Arc<Watch>| watch.was_at(&primary.shard);
            let here = |(key, watch): (&String, &Arc<Watch>)| {
                *key != primary.epoch && primary.has(key) && was_at(watch) == Some(true)
            };
            if inner.watches.get(&primary.epoch).and_then(was_at) == Some(false)
                && inner.watches.iter().any(here)
            {
                inner.watches.remove(&primary.epoch);
            }
            let known = inner.watches.entry(primary.epoch.clone());
            Arc::clone(known.or_insert_with(new))
        };
        let all = primaries.iter().map(&mut watch).collect();
        inner.initialized |= inner.start.is_some() && !primaries.is_empty();
        all
    }

    /// Returns all watches but that of `primary`, each with the primary that has its key.
    fn others(
        &self,
        primaries: &AllPrimaries,
        primary: &Primary,
    ) -> Vec<(Arc<Watch>, PrimaryLink)> {
        if primaries.len() < 2 && self.inner().watches.len() < 2 {
            return Vec::new();
        }
        let inner = self.inner();
        let others = inner.watches.values().filter_map(|watch| {
            let at = primaries.iter().find(|primary| primary.has(watch.key()))?;
            (watch.key() != primary.epoch).then(|| (Arc::clone(watch), at.shard.clone()))
        });
        others.collect()
    }

    /// Ensures that this worker may admit jobs at `primary`, one of `primaries`, as far as it
    /// knows.
    ///
    /// # Errors
    /// Like [`Watch::ready`].
    pub async fn ready(
        &self,
        (link, finder): (&Link, &Finder),
        primaries: &AllPrimaries,
        primary: &Primary,
    ) -> Result<(Arc<Watch>, SentPulse), GateError> {
        let mut all = primaries.iter().zip(self.over(primaries));
        let Some((_, watch)) = all.find(|(known, _)| known.epoch == primary.epoch) else {
            return Err(primary.moving());
        };
        let others = self.others(primaries, primary);
        let at = at((link, finder), primary, &others);
        let sent = watch.ready(&at).await?;
        Ok((watch, sent))
    }

    /// Reads the epochs of all primaries.
    ///
    /// # Errors
    /// The first error of any primary.
    pub async fn begin(&self, link: &Link, finder: &Finder) -> Result<(), GateError> {
        let primaries = finder.all(link, false).await?;
        let looks = primaries
            .iter()
            .map(|primary| self.ready((link, finder), &primaries, primary));
        for look in join_all(looks).await {
            look?;
        }
        Ok(())
    }

    /// Returns the last known states of the primaries.
    pub fn primaries(&self) -> Primaries {
        let mut all = Primaries::default();
        for state in self.inner().states.values() {
            match state {
                PrimaryState::Admitting => all.admitting += 1,
                PrimaryState::Recovering => all.recovering += 1,
                PrimaryState::Unavailable => all.unavailable += 1,
            }
        }
        all
    }

    /// Records the result of a question at `primary`.
    pub fn note<T>(&self, primary: &Primary, answer: &Result<T, GateError>) {
        let mut inner = self.inner();
        let state = PrimaryState::of(answer);
        inner.states.insert(primary.epoch.clone(), state);
        if answer.is_ok() {
            inner.failing.remove(&primary.epoch);
        } else {
            let since = inner.failing.entry(primary.epoch.clone());
            since.or_insert_with(Instant::now);
        }
    }

    /// Checks whether any primary that has not `failed` still works. It asks them, unless one has
    /// answered since the failure and within [`LATELY`].
    ///
    /// # Errors
    /// Like [`combine`], if no job may start at any primary.
    pub async fn others_still_answer(
        &self,
        (link, finder): (&Link, &Finder),
        failed: Vec<(Arc<Primary>, GateError)>,
    ) -> Result<(), GateError> {
        let primaries = finder.all(link, false).await?;
        let (here, whys): (Vec<_>, Vec<_>) = failed.into_iter().unzip();
        let watches = self.over(&primaries);
        let others = primaries.iter().zip(&watches);
        let others = others.filter(|(primary, _)| !here.iter().any(|it| it.epoch == primary.epoch));
        let others: Vec<_> = others.collect();
        let since = {
            let inner = self.inner();
            let since = here.iter().filter_map(|it| inner.failing.get(&it.epoch));
            since.min().copied()
        };
        let lately = |(_, watch): &(_, &Arc<Watch>)| {
            let last = watch.last_pulse().filter(|last| last.elapsed() < LATELY);
            last > since
        };
        if others.iter().any(lately) {
            return Ok(());
        }
        let beats = others.into_iter().map(|(primary, watch)| {
            let others = self.others(&primaries, primary);
            Box::pin(async move {
                let at = at((link, finder), primary, &others);
                match watch.heartbeat(&at).await {
                    // The error ends the wait for the other primaries.
                    Ok(()) => Err(()),
                    Err(why) => Ok(why),
                }
            })
        });
        match try_join_all(beats).await {
            Err(()) => Ok(()),
            Ok(more) => combine(whys.into_iter().chain(more).map(Err).collect()),
        }
    }

    /// Checks all primaries, and shows each that this worker is alive.
    ///
    /// # Errors
    /// Like [`combine`], if no job may start at any primary.
    pub async fn heartbeat(&self, link: &Link, finder: &Finder) -> Result<(), GateError> {
        let primaries = finder.all(link, true).await?;
        let watches = self.over(&primaries);
        let beats = primaries.iter().zip(&watches).map(|(primary, watch)| {
            let others = self.others(&primaries, primary);
            async move {
                let at = at((link, finder), primary, &others);
                watch.heartbeat(&at).await
            }
        });
        let done = join_all(beats).await;
        let states = primaries.iter().zip(&done);
        self.inner().states = states
            .map(|(primary, beat)| (primary.epoch.clone(), PrimaryState::of(beat)))
            .collect();
        if link.is_cluster() {
            self.tidy(link, finder, &primaries, &watches).await;
        }
        combine(done)
    }

    /// Makes epochs give up slots that other epochs claim by now, and deletes epochs that belong to
    /// no primary any more.
    async fn tidy(
        &self,
        link: &Link,
        finder: &Finder,
        primaries: &AllPrimaries,
        current: &[Arc<Watch>],
    ) {
        for (primary, watch) in primaries.iter().zip(current) {
            let others = current
                .iter()
                .filter(|other| !Arc::ptr_eq(other, watch))
                .fold(Slots::default(), |all, other| all.either(&other.claimed()));
            watch.forget(link, &primary.shard, &others).await;
        }
        let old: Vec<Arc<Watch>> = {
            let inner = self.inner();
            let is_old =
                |watch: &&Arc<Watch>| !primaries.iter().any(|primary| primary.epoch == watch.key());
            inner.watches.values().filter(is_old).cloned().collect()
        };
        for watch in old {
            let at = primaries.iter().zip(current);
            let mut at = at.filter(|(primary, _)| primary.has(watch.key()));
            // A watch is removed only when nothing more can be learned from it.
            let Some((primary, _)) = at.find(|(_, current)| !current.claimed().is_empty()) else {
                continue;
            };
            if retire(link, finder, primary, watch.key()).await.is_ok() {
                self.inner().watches.remove(watch.key());
            }
        }
    }

    /// Removes this worker from all epochs, so that other workers don't wait for its heartbeats.
    ///
    /// # Errors
    /// The first error of any primary.
    pub async fn leave(&self, link: &Link, finder: &Finder) -> Result<(), GateError> {
        let primaries = finder.all(link, false).await?;
        let watches = self.over(&primaries);
        let left = primaries.iter().zip(&watches);
        let left = left.map(|(primary, watch)| watch.leave(link, &primary.shard));
        join_all(left).await.into_iter().collect()
    }
}

fn at<'a>(
    (link, finder): (&'a Link, &'a Finder),
    primary: &'a Primary,
    others: &'a [(Arc<Watch>, PrimaryLink)],
) -> WatchTarget<'a> {
    WatchTarget {
        link,
        finder,
        primary,
        others,
    }
}

/// Combines the answers of all primaries. The result is `Ok` if any primary may admit. If none may,
/// recovering primaries take precedence over failed ones, and the primary that opens first
/// determines the wait.
fn combine(each: Vec<Result<(), GateError>>) -> Result<(), GateError> {
    if each.iter().any(Result::is_ok) {
        return Ok(());
    }
    let rank = |why: &GateError| match why {
        GateError::Cold { wait, .. } => *wait,
        _ => Duration::MAX,
    };
    let whys = each.into_iter().filter_map(Result::err);
    whys.min_by_key(rank).map_or(Ok(()), Err)
}

/// Deletes the epoch `key` at `primary`, whose own epoch has another key, unless the primary itself
/// reports `key` as its own.
async fn retire(
    link: &Link,
    finder: &Finder,
    primary: &Primary,
    key: &str,
) -> Result<(), GateError> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("CLUSTER").arg("MYID");
    pipeline.cmd("CLUSTER").arg("SLOTS");
    let answers = link.on(&primary.shard, &pipeline).await?;
    let [id, slots] = answers.as_slice() else {
        return Ok(());
    };
    if primary.keeps_epoch_of(&finder.ours(&link::owned(id, slots)?)) {
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.cmd("PEXPIRE").arg(key).arg(1);
        link.on(&primary.shard, &pipeline).await?;
        return Ok(());
    }
    Err(primary.moving())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cold(secs: u64) -> Result<(), GateError> {
        Err(GateError::Cold {
            wait: Duration::from_secs(secs),
            why: "a test".to_owned(),
        })
    }

    #[test]
    fn one_admitting_primary_is_enough() {
        let away = || Err(GateError::Unreachable("a test".to_owned()));
        assert!(combine(vec![cold(9), away(), Ok(())]).is_ok());
        assert!(combine(Vec::new()).is_ok());
        let all_away = combine(vec![away(), away()]);
        assert!(matches!(all_away, Err(GateError::Unreachable(_))));
        match combine(vec![away(), cold(9), cold(2)]) {
            Err(GateError::Cold { wait, .. }) => assert_eq!(wait.as_secs(), 2),
            other => panic!("{other:?}"),
        }
    }
}
