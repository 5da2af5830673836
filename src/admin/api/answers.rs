//! Answers that only the HTTP API gives.

use operator::answer::{answers, words};
use operator::hold::HeldWord;
use operator::letters::{LetterAnswer, LetterRow};
use operator::limits::LimitAnswer;

answers! {
    /// The pipelines of this worker.
    pub struct PipelinesAnswer {
        pub pipelines: Vec<PipelineAnswer>,
    }

    /// A pipeline, and its missing parts while it is not ready.
    pub struct PipelineAnswer {
        pub pipeline: String,
        pub ready: bool,
        pub lines: Vec<String>,
        pub queue: Option<String>,
    }

    /// The limits of the configuration, and a page of the tenants with their own.
    pub struct LimitsAnswer {
        pub limits: Vec<LimitAnswer>,
        pub plan_header: Option<String>,
        pub plans: Vec<PlanLimits>,
        pub tenants: Vec<TenantLimits>,
        pub tenants_in_all: u64,
        pub next_offset: Option<u64>,
        pub in_force: bool,
        pub other_configurations: u64,
        pub differing_keys: Vec<String>,
    }

    /// The limits of a plan.
    pub struct PlanLimits {
        pub plan: String,
        pub limits: Vec<LimitAnswer>,
    }

    /// A tenant's own limits, or its plan.
    pub struct TenantLimits {
        pub tenant: String,
        pub plan: Option<String>,
        pub limits: Option<Vec<LimitAnswer>>,
    }

    /// Operators' current instructions to all workers.
    pub struct InstructionsAnswer {
        pub now_ms: Option<u64>,
        pub held: Option<HeldWord>,
        pub held_until_ms: Option<u64>,
        pub diverted: Vec<DivertedTenant>,
        pub canceled: Vec<CanceledJob>,
        pub tried: Vec<TriedLimit>,
    }

    /// A diverted tenant.
    pub struct DivertedTenant {
        pub tenant: String,
        pub queue: String,
        pub until_ms: u64,
    }

    /// A canceled job.
    pub struct CanceledJob {
        pub tenant: String,
        pub id: String,
        pub until_ms: u64,
    }

    /// A trial of a limit.
    pub struct TriedLimit {
        pub tenant: String,
        pub limit: String,
        pub max_requests: u64,
        pub until_ms: u64,
    }

    /// The queues.
    pub struct QueuesAnswer {
        pub queues: Vec<QueueAnswer>,
    }

    /// A queue, and its number of ready jobs.
    pub struct QueueAnswer {
        pub queue: String,
        pub holds: QueueKind,
        pub jobs: u64,
    }

    /// A page of the dead letters.
    pub struct LettersAnswer {
        pub letters: Vec<LetterRow>,
        pub found: u64,
        pub not_looked_at: u64,
        pub next_offset: Option<u64>,
    }

    /// A dead letter, and whether its body was cut.
    pub struct ShownLetter: LetterAnswer {
        /// Size of the whole body.
        pub bytes: u64,
        pub truncated: bool,
    }
}
words! {
    /// The kind of jobs that a queue holds.
    pub struct QueueKind = ["new", "due", "recheck", "delay", "dead"];
}
