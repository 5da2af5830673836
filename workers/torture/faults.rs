//! The kinds of faults, and the consequences that each may have.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use crate::moments::Moment;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// SIGKILL of a worker, which is restarted
    WorkerKill,
    /// SIGSTOP of a worker, and SIGCONT
    WorkerStop,
    /// SIGTERM of a worker, which is restarted when it has ended
    WorkerRestart,
    /// Other limits for all workers, one after the other, by a changed file
    WorkerConfig,
    /// SIGTERM of all workers, one after the other, which are restarted with other limits
    WorkerRolling,
    /// A step of a worker's wall clock by an hour, forward or backward
    WorkerClock,
    /// SIGKILL of a worker that has asked for permits, before Redis gets the request
    KillAtGate,
    /// SIGKILL of a worker that has permits, before it gets them
    KillAtPermit,
    /// SIGKILL of a worker while the downstream has its call
    KillAtCall,
    /// SIGKILL of a worker that has published, before it gets the confirm
    KillAtPublish,
    /// SIGKILL of a worker that has the confirm, before RabbitMQ gets its acks
    KillAtConfirm,
    /// SIGSTOP of a worker that has asked for permits, before Redis gets the request
    StopAtGate,
    /// SIGSTOP of a worker that has permits, before it gets them
    StopAtPermit,
    /// SIGSTOP of a worker while the downstream has its call
    StopAtCall,
    /// SIGSTOP of a worker that has published, before it gets the confirm
    StopAtPublish,
    /// SIGSTOP of a worker that has the confirm, before RabbitMQ gets its acks
    StopAtConfirm,
    /// SIGKILL of RabbitMQ, which is restarted with its data
    RabbitKill,
    /// SIGSTOP of RabbitMQ, and SIGCONT
    RabbitStop,
    /// An orderly restart of RabbitMQ
    RabbitRestart,
    /// RabbitMQ closes all its connections
    RabbitCut,
    /// RabbitMQ's memory alarm blocks all publishers
    RabbitMemory,
    /// RabbitMQ's disk alarm blocks all publishers
    RabbitDisk,
    /// RabbitMQ accepts no login, and closes all its connections
    RabbitLogin,
    /// All channels of RabbitMQ die, each with an error
    RabbitChannels,
    /// The work queue or a delay queue is deleted, when it is empty
    RabbitDelete,
    /// A worker's connections to RabbitMQ carry nothing in one or both directions, and then are cut
    RabbitHole,
    /// Delays on a worker's connections to RabbitMQ
    RabbitSlow,
    /// SIGKILL of Redis, which is restarted with its data
    RedisKill,
    /// An orderly restart of Redis
    RedisRestart,
    /// SIGSTOP of Redis, and SIGCONT
    RedisStop,
    /// SIGKILL of Redis, which is restarted without its data
    RedisWipe,
    /// Redis closes all its connections (CLIENT KILL)
    RedisCut,
    /// Redis is full (maxmemory) for a time
    RedisFull,
    /// FLUSHALL
    RedisFlush,
    /// SCRIPT FLUSH
    RedisScripts,
    /// Redis becomes a replica without a primary, which accepts no writes, and a primary again
    RedisReadonly,
    /// Redis accepts no login, and closes all its connections
    RedisLogin,
    /// A permanent step back of Redis's wall clock by up to the longest fault
    RedisClock,
    /// A worker's connections to Redis carry nothing in one or both directions, and then are cut
    RedisHole,
    /// Delays on a worker's connections to Redis
    RedisSlow,
    /// Delays on all workers' connections to Redis: a round trip takes up to half a second
    RedisFar,
    /// Redis evicts all keys that expire. Not in `all`, since eviction is then possible in the
    /// whole run, and each restart may lose data
    RedisEvict,
    /// The downstream answers no call until the workers give up
    DownstreamHang,
    /// High latency to the downstream: a round trip takes up to 0.8 s
    DownstreamFar,
    /// The downstream refuses connections, and closes open ones
    DownstreamRefuse,
    /// The downstream reads nothing until the workers give up, and then everything (not in `all`
    /// yet)
    DownstreamStill,
    /// The downstream refuses connections of all workers but one, and closes open ones (not in
    /// `all`)
    DownstreamRefuseMost,
    /// Rude tenants request results in queues that close connections, refuse messages or confirm
    /// nothing (not in `all`)
    RudeReplies,
    /// A rude publisher publishes invalid jobs, while the queue of dead letters is full (not in
    /// `all`)
    RudeJobs,
    /// Rude tenants have many jobs and get no access token or no answer (not in `all`)
    RudeTenant,
    /// A rude tenant has many jobs (not in `all`)
    RudeFlood,
    /// A rude tenant has many calls that end just before their timeout (not in `all`)
    RudeSlow,
    /// SIGKILL of one node of RabbitMQ's cluster, which is restarted
    RabbitNodeKill,
    /// SIGSTOP of one node of RabbitMQ's cluster, and SIGCONT
    RabbitNodeStop,
    /// An orderly restart of one node of RabbitMQ's cluster
    RabbitNodeRestart,
    /// One node of RabbitMQ's cluster is cut off from the other nodes, in one or both directions,
    /// but not from clients
    RabbitNodeCut,
    /// The same for the node that leads the queue of due jobs: another node must take over
    RabbitLeaderCut,
    /// SIGKILL of a primary, which is restarted when a replica has taken over
    RedisPrimaryKill,
    /// SIGSTOP of a primary, and SIGCONT when a replica has taken over
    RedisPrimaryStop,
    /// A primary is cut off from its replicas, then killed as by redis-primary-kill: writes are
    /// lost
    RedisPrimaryLag,
    /// SIGKILL of a replica, which is restarted
    RedisReplicaKill,
    /// A requested failover to a replica, in a cluster with all writes, behind Sentinel maybe
    /// without
    RedisHandover,
}

/// A way to strike a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT.
    Stop,
}

/// The target of a fault. Two faults at the same time have different targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultTarget {
    Worker,
    Rabbit,
    Redis,
    Downstream,
}

impl FaultKind {
    /// Returns every kind.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Returns the target of the fault, which the first word of its name determines.
    pub fn part(self) -> FaultTarget {
        let name = self.to_string();
        match name.split('-').next() {
            Some("worker" | "kill" | "stop") => FaultTarget::Worker,
            Some("rabbit" | "rude") => FaultTarget::Rabbit,
            Some("redis") => FaultTarget::Redis,
            Some("downstream") => FaultTarget::Downstream,
            _ => panic!("{name} names no target"),
        }
    }

    /// Returns true if a job may run again after this fault although it had ended: its ack, or the
    /// worker that owed it, may be lost. An orderly end of a worker, Redis in any state, and a
    /// downstream that hangs or is far away are no excuse.
    pub fn repeats_jobs(self) -> bool {
        let refuses = matches!(self, Self::DownstreamRefuse | Self::DownstreamRefuseMost);
        let alarms = matches!(self, Self::RabbitMemory | Self::RabbitDisk);
        let keeps_connections = alarms || self.is_rude();
        // A downstream that resumes may process calls that workers gave up. Closing a connection
        // loses the answer.
        self == Self::DownstreamStill
            || refuses
            || self.kills()
            || self.stops()
            || (self.part() == FaultTarget::Rabbit && !keeps_connections)
    }

    /// Returns true if a worker may return jobs that it has not checked: it ends in order, or can't
    /// ask Redis, or can't agree with the other workers there.
    pub fn gives_jobs_back(self) -> bool {
        matches!(self, Self::WorkerRestart | Self::WorkerRolling)
            || self.part() == FaultTarget::Redis
    }

    /// Returns true if the fault kills a worker, which loses its memory.
    pub fn kills(self) -> bool {
        matches!(self.strikes(), Some((Strike::Kill, _)))
    }

    fn stops(self) -> bool {
        matches!(self.strikes(), Some((Strike::Stop, _)))
    }

    /// Returns how a worker is struck, and at which moment of a job; `None` for other faults.
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

    /// Returns true if a worker is struck at a moment of a job, or at another one if that moment
    /// does not come.
    pub fn has_moment(self) -> bool {
        matches!(self.strikes(), Some((_, Some(_))))
    }

    /// Returns true if a call may have been given up, and an attempt used, without reaching the
    /// downstream: a worker that is stopped while it connects finds its timeout over.
    pub fn uses_attempts(self) -> bool {
        // Deleting a delay queue stops all workers.
        self.stops() || self == Self::RabbitDelete
    }

    /// Returns true if the number of attempts becomes unknown: calls are not seen or come in
    /// another order, or the downstream cuts them.
    pub fn hides_attempts(self) -> bool {
        matches!(
            self,
            Self::DownstreamRefuse | Self::DownstreamRefuseMost | Self::DownstreamStill
        )
    }

    /// Returns true if one participant misbehaves, which other tenants must not feel.
    pub fn is_rude(self) -> bool {
        matches!(
            self,
            Self::DownstreamRefuseMost
                | Self::RudeReplies
                | Self::RudeJobs
                | Self::RudeTenant
                | Self::RudeFlood
                | Self::RudeSlow
        )
    }

    /// Returns true if the fault must be named in `--faults`: it changes the character of the whole
    /// run, or exceeds the promises.
    pub fn is_named(self) -> bool {
        matches!(self, Self::RedisEvict | Self::DownstreamStill) || self.is_rude()
    }

    /// Returns true if Redis may have lost usage: no job starts until the lost usage no longer
    /// counts.
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

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("skipped", |value| value.get_name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_target() {
        for kind in FaultKind::all() {
            kind.part();
        }
        for (kind, target) in [
            (FaultKind::StopAtConfirm, FaultTarget::Worker),
            (FaultKind::RudeFlood, FaultTarget::Rabbit),
            (FaultKind::RedisHandover, FaultTarget::Redis),
            (FaultKind::DownstreamRefuseMost, FaultTarget::Downstream),
        ] {
            assert_eq!(kind.part(), target, "{kind}");
        }
    }
}
