//! What can be broken, and when it is: a schedule that a seed decides. Pure.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use crate::moments::Moment;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// SIGKILL of a worker, which is started anew
    WorkerKill,
    /// SIGSTOP of a worker, and SIGCONT
    WorkerStop,
    /// SIGTERM of a worker, which is started anew when it has ended
    WorkerRestart,
    /// All workers get other limits by a changed file, one after the other
    WorkerConfig,
    /// All workers end by SIGTERM and are started with other limits, one after the other
    WorkerRolling,
    /// A worker's wall clock is stepped by an hour, one way or the other
    WorkerClock,
    /// SIGKILL of a worker that has asked for permits, before the question is at Redis
    KillAtGate,
    /// SIGKILL of a worker that has permits, before it knows
    KillAtPermit,
    /// SIGKILL of a worker while the downstream has its call
    KillAtCall,
    /// SIGKILL of a worker that has published, before it knows of the confirm
    KillAtPublish,
    /// SIGKILL of a worker that has the confirm, before its acks are at RabbitMQ
    KillAtConfirm,
    /// SIGSTOP of a worker that has asked for permits, before the question is at Redis
    StopAtGate,
    /// SIGSTOP of a worker that has permits, before it knows
    StopAtPermit,
    /// SIGSTOP of a worker while the downstream has its call
    StopAtCall,
    /// SIGSTOP of a worker that has published, before it knows of the confirm
    StopAtPublish,
    /// SIGSTOP of a worker that has the confirm, before its acks are at RabbitMQ
    StopAtConfirm,
    /// SIGKILL of RabbitMQ, which is started again with its data
    RabbitKill,
    /// SIGSTOP of RabbitMQ, and SIGCONT
    RabbitStop,
    /// RabbitMQ ends in order and is started again
    RabbitRestart,
    /// RabbitMQ closes all its connections
    RabbitCut,
    /// RabbitMQ's memory alarm blocks all publishers
    RabbitMemory,
    /// RabbitMQ's disk alarm blocks all publishers
    RabbitDisk,
    /// RabbitMQ takes no login, and closes all its connections
    RabbitLogin,
    /// All channels of RabbitMQ die, each with an error
    RabbitChannels,
    /// The work queue or a delay queue is deleted, when it is empty
    RabbitDelete,
    /// A worker's connections to RabbitMQ carry nothing: one direction, the other, or both, and then they are cut
    RabbitHole,
    /// A worker's connections to RabbitMQ carry everything late
    RabbitSlow,
    /// SIGKILL of Redis, which is started again with its data
    RedisKill,
    /// Redis ends in order and is started again
    RedisRestart,
    /// SIGSTOP of Redis, and SIGCONT
    RedisStop,
    /// SIGKILL of Redis, which is started again without its data
    RedisWipe,
    /// Redis closes all its connections (CLIENT KILL)
    RedisCut,
    /// Redis is full (maxmemory), and gets room again
    RedisFull,
    /// FLUSHALL
    RedisFlush,
    /// SCRIPT FLUSH
    RedisScripts,
    /// Redis becomes a replica of nobody, which takes no writes, and a primary again
    RedisReadonly,
    /// Redis takes no login, and closes all its connections
    RedisLogin,
    /// Redis's wall clock is stepped back by as long as a fault may last, and stays so
    RedisClock,
    /// A worker's connections to Redis carry nothing: one direction, the other, or both, and then they are cut
    RedisHole,
    /// A worker's connections to Redis carry everything late
    RedisSlow,
    /// All workers' connections to Redis carry everything late: a round trip takes up to half a second
    RedisFar,
    /// Redis evicts all keys that expire, which it may do in the whole run: not in `all`, since then each of its restarts
    /// may have forgotten something, too
    RedisEvict,
    /// The downstream answers nobody until the workers give up
    DownstreamHang,
    /// The way to the downstream takes long: a round trip up to 0.8 s
    DownstreamFar,
    /// The downstream refuses connections, and ends those that are there
    DownstreamRefuse,
    /// The downstream reads nothing until the workers give up, and then all of it (not in `all` yet)
    DownstreamStill,
    /// SIGKILL of one node of RabbitMQ's cluster, which is started again
    RabbitNodeKill,
    /// SIGSTOP of one node of RabbitMQ's cluster, and SIGCONT
    RabbitNodeStop,
    /// One node of RabbitMQ's cluster ends in order and is started again
    RabbitNodeRestart,
    /// One node of RabbitMQ's cluster is cut off from the others and not from its clients: both directions, or one
    RabbitNodeCut,
    /// The same with the node that leads the queue of the jobs that are due: another must take over
    RabbitLeaderCut,
    /// SIGKILL of a primary, which is started again when a replica has taken over
    RedisPrimaryKill,
    /// SIGSTOP of a primary, and SIGCONT when a replica has taken over
    RedisPrimaryStop,
    /// A primary's replicas hear it no more; then as redis-primary-kill: writes are lost
    RedisPrimaryLag,
    /// SIGKILL of a replica, which is started again
    RedisReplicaKill,
    /// A replica takes over as it is told to: in a cluster with all writes, behind Sentinel maybe not
    RedisHandover,
}

/// What is done to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT.
    Stop,
}

/// What a fault is done to; two faults at once are done to two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Worker,
    Rabbit,
    Redis,
    Downstream,
}

impl Kind {
    /// Every kind.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// What it is done to.
    pub fn part(self) -> Part {
        match self {
            Self::WorkerKill
            | Self::WorkerStop
            | Self::WorkerRestart
            | Self::WorkerConfig
            | Self::WorkerRolling
            | Self::WorkerClock
            | Self::KillAtGate
            | Self::KillAtPermit
            | Self::KillAtCall
            | Self::KillAtPublish
            | Self::KillAtConfirm
            | Self::StopAtGate
            | Self::StopAtPermit
            | Self::StopAtCall
            | Self::StopAtPublish
            | Self::StopAtConfirm => Part::Worker,
            Self::RabbitKill
            | Self::RabbitStop
            | Self::RabbitRestart
            | Self::RabbitCut
            | Self::RabbitMemory
            | Self::RabbitDisk
            | Self::RabbitLogin
            | Self::RabbitChannels
            | Self::RabbitDelete
            | Self::RabbitHole
            | Self::RabbitSlow
            | Self::RabbitNodeKill
            | Self::RabbitNodeStop
            | Self::RabbitNodeRestart
            | Self::RabbitNodeCut
            | Self::RabbitLeaderCut => Part::Rabbit,
            Self::RedisKill
            | Self::RedisRestart
            | Self::RedisStop
            | Self::RedisWipe
            | Self::RedisCut
            | Self::RedisFull
            | Self::RedisFlush
            | Self::RedisScripts
            | Self::RedisReadonly
            | Self::RedisLogin
            | Self::RedisClock
            | Self::RedisHole
            | Self::RedisSlow
            | Self::RedisFar
            | Self::RedisEvict
            | Self::RedisPrimaryKill
            | Self::RedisPrimaryStop
            | Self::RedisPrimaryLag
            | Self::RedisReplicaKill
            | Self::RedisHandover => Part::Redis,
            Self::DownstreamHang
            | Self::DownstreamFar
            | Self::DownstreamRefuse
            | Self::DownstreamStill => Part::Downstream,
        }
    }

    /// A job may run again after it though it had ended: its ack, or the worker that owed it, may be lost. A worker that
    /// ends in order, a Redis in any state and a downstream that hangs or is far away are no excuse.
    pub fn repeats_jobs(self) -> bool {
        let keeps_connections = matches!(self, Self::RabbitMemory | Self::RabbitDisk);
        // What a worker gave up may be read, and done, when the downstream goes on; an answer ends with the connection.
        matches!(self, Self::DownstreamStill | Self::DownstreamRefuse)
            || self.kills()
            || self.stops()
            || (self.part() == Part::Rabbit && !keeps_connections)
    }

    /// A worker may give back jobs that it has not looked at: it ends in order, or can't ask Redis, or agree with the others there.
    pub fn gives_jobs_back(self) -> bool {
        matches!(self, Self::WorkerRestart | Self::WorkerRolling) || self.part() == Part::Redis
    }

    /// A worker dies of it, and takes with it what it knew.
    pub fn kills(self) -> bool {
        matches!(self.strikes(), Some((Strike::Kill, _)))
    }

    fn stops(self) -> bool {
        matches!(self.strikes(), Some((Strike::Stop, _)))
    }

    /// What is done to a worker, at once or at a moment of a job; `None`: something else.
    pub fn strikes(self) -> Option<(Strike, Option<Moment>)> {
        let (strike, moment) = match self {
            Self::WorkerKill => (Strike::Kill, None),
            Self::KillAtGate => (Strike::Kill, Some(Moment::Gate)),
            Self::KillAtPermit => (Strike::Kill, Some(Moment::Permit)),
            Self::KillAtCall => (Strike::Kill, Some(Moment::Call)),
            Self::KillAtPublish => (Strike::Kill, Some(Moment::Publish)),
            Self::KillAtConfirm => (Strike::Kill, Some(Moment::Confirm)),
            Self::WorkerStop => (Strike::Stop, None),
            Self::StopAtGate => (Strike::Stop, Some(Moment::Gate)),
            Self::StopAtPermit => (Strike::Stop, Some(Moment::Permit)),
            Self::StopAtCall => (Strike::Stop, Some(Moment::Call)),
            Self::StopAtPublish => (Strike::Stop, Some(Moment::Publish)),
            Self::StopAtConfirm => (Strike::Stop, Some(Moment::Confirm)),
            _ => return None,
        };
        Some((strike, moment))
    }

    /// A call may have been given up, and an attempt used, though the downstream never saw it: whoever is stopped while
    /// it connects finds its time over.
    pub fn uses_attempts(self) -> bool {
        // All workers are stopped while a delay queue is deleted.
        self.stops() || self == Self::RabbitDelete
    }

    /// Calls are not seen, or not in their order, or were cut by the downstream itself: how many attempts there were is not known.
    pub fn hides_attempts(self) -> bool {
        matches!(self, Self::DownstreamRefuse | Self::DownstreamStill)
    }

    /// It is done only where it is named: it makes the whole run another one, or is more than what is promised.
    pub fn is_named(self) -> bool {
        matches!(self, Self::RedisEvict | Self::DownstreamStill)
    }

    /// Redis may not know what has started: nothing starts until nothing of it counts any more.
    pub fn forgets(self) -> bool {
        matches!(
            self,
            Self::RedisWipe
                | Self::RedisFlush
                | Self::RedisEvict
                | Self::RedisPrimaryKill
                | Self::RedisPrimaryStop
                | Self::RedisPrimaryLag
                | Self::RedisHandover
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("skipped", |value| value.get_name()))
    }
}

/// One fault of the schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    pub kind: Kind,
    /// The worker that it is done to, where it is done to one.
    pub worker: usize,
    /// How long it lasts, where that is free.
    pub lasts: Duration,
    /// A choice of three, where a kind has several ways.
    pub way: u8,
}

/// Faults that begin together, after a pause.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub pause: Duration,
    pub faults: Vec<Fault>,
}

/// The endless schedule of a seed.
pub struct Schedule {
    random: StdRng,
    kinds: Vec<Kind>,
    /// Kinds that have not had their turn in this round: each kind comes once in a round, but for those that are rare.
    round: Vec<Kind>,
    pace: Pace,
}

/// How a schedule is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Workers that it is done to.
    pub workers: usize,
    /// The longest pause before a step.
    pub pause: Duration,
    /// The longest that a fault lasts.
    pub longest: Duration,
    /// After a loss of memory nothing starts for a minute, and other faults have nothing to break: such faults come
    /// in one round of four only.
    pub losses_are_rare: bool,
}

/// A quarter of the steps has two faults at once.
const TWO_AT_ONCE: f64 = 0.25;

impl Schedule {
    /// Faults of `kinds`.
    pub fn new(seed: u64, kinds: &[Kind], pace: Pace) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed ^ 0xfa_017),
            kinds: kinds.to_vec(),
            round: Vec::new(),
            pace,
        }
    }

    fn kind(&mut self, beside: Option<Part>) -> Option<Kind> {
        let only_losses = self.kinds.iter().all(|kind| kind.forgets());
        while self.round.is_empty() && !self.kinds.is_empty() {
            let rare = self.pace.losses_are_rare && !only_losses;
            let skipped = rare && self.random.random_ratio(3, 4);
            self.round = self.kinds.clone();
            self.round.retain(|kind| !(skipped && kind.forgets()));
        }
        let fits: Vec<Kind> = (self.round.iter().copied())
            .filter(|kind| beside.is_none_or(|part| part != kind.part()))
            .collect();
        let kind = *fits.choose(&mut self.random)?;
        self.round.retain(|other| *other != kind);
        Some(kind)
    }

    fn fault(&mut self, kind: Kind) -> Fault {
        // Mostly short; a tenth as long as it may be.
        let part = self.random.random_range(0.0..1.0_f64);
        let shortest = Duration::from_millis(500).min(self.pace.longest);
        let lasts = shortest + (self.pace.longest - shortest).mul_f64(part * part * part);
        Fault {
            kind,
            worker: self.random.random_range(0..self.pace.workers),
            lasts,
            way: self.random.random_range(0..3),
        }
    }
}

impl Iterator for Schedule {
    type Item = Step;

    /// The next step; `None` only if there are no kinds.
    fn next(&mut self) -> Option<Step> {
        let pause = (self.pace.pause).mul_f64(self.random.random_range(0.1..=1.0));
        let first = self.kind(None)?;
        let mut faults = vec![self.fault(first)];
        if self.random.random_bool(TWO_AT_ONCE)
            && let Some(second) = self.kind(Some(first.part()))
        {
            faults.push(self.fault(second));
        }
        Some(Step { pause, faults })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const PACE: Pace = Pace {
        workers: 3,
        pause: Duration::from_secs(5),
        longest: Duration::from_secs(30),
        losses_are_rare: true,
    };

    fn steps(seed: u64, kinds: &[Kind]) -> Vec<Step> {
        Schedule::new(seed, kinds, PACE).take(200).collect()
    }

    #[test]
    fn a_seed_decides_everything() {
        assert_eq!(steps(7, Kind::all()), steps(7, Kind::all()));
        assert_ne!(steps(7, Kind::all()), steps(8, Kind::all()));
    }

    #[test]
    fn every_kind_has_its_turn_and_two_at_once_are_done_to_two_parts() {
        let steps = steps(1, Kind::all());
        let seen: HashSet<_> = steps
            .iter()
            .flat_map(|s| &s.faults)
            .map(|f| f.kind)
            .collect();
        assert_eq!(seen.len(), Kind::all().len());
        let pairs: Vec<_> = steps.iter().filter(|step| step.faults.len() == 2).collect();
        assert!(!pairs.is_empty());
        for pair in pairs {
            assert_ne!(pair.faults[0].kind.part(), pair.faults[1].kind.part());
        }
        for fault in steps.iter().flat_map(|step| &step.faults) {
            assert!(
                fault.worker < 3 && fault.lasts <= PACE.longest && fault.way < 3,
                "{fault:?}"
            );
        }
    }

    #[test]
    fn losses_of_memory_are_rare_where_they_cost_a_minute() {
        let losses = |losses_are_rare| {
            let pace = Pace {
                losses_are_rare,
                ..PACE
            };
            let all = Schedule::new(3, Kind::all(), pace)
                .take(2000)
                .flat_map(|step| step.faults);
            all.filter(|fault| fault.kind.forgets()).count()
        };
        let (rare, often) = (losses(true), losses(false));
        assert!(rare > 0 && rare * 2 < often, "{rare} {often}");
        let steps = steps(1, &[Kind::RedisFlush, Kind::RedisWipe]);
        assert_eq!(steps.len(), 200, "alone they are not left out");
    }

    #[test]
    fn one_kind_comes_alone_and_none_never() {
        let steps = steps(1, &[Kind::RedisCut]);
        assert!(steps.iter().all(|step| step.faults.len() == 1));
        assert_eq!(Schedule::new(1, &[], PACE).next(), None);
    }
}
