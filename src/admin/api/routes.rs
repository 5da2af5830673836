//! The routes of `/api/v1` in one table, from which requests are parsed and docs/openapi.json is
//! generated.

use super::actions::ActionKind;
use super::reads::ApiRead;

/// Type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// A text with at most this number of bytes.
    Text(usize),
    /// A duration, such as `1h`.
    Span,
    /// A rate, such as `10/s`.
    Rate,
    /// A whole number. It starts at 1, or at 0 for a number of rows to skip.
    Number {
        /// Minimum.
        least: u64,
        /// Maximum.
        most: u64,
    },
    /// True or false.
    Flag,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// Location of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamLocation {
    /// A segment of the path.
    Path,
    /// The query.
    Query,
    /// A field of the body's JSON object.
    Body,
}

/// A parameter of a request.
#[derive(Debug)]
pub struct Param {
    /// Name.
    pub name: &'static str,
    /// Location.
    pub place: ParamLocation,
    /// Type.
    pub kind: ParamKind,
    /// Whether it may occur several times.
    pub repeats: bool,
    /// Description in the OpenAPI document.
    pub about: &'static str,
}

const fn param(
    name: &'static str,
    place: ParamLocation,
    kind: ParamKind,
    about: &'static str,
) -> Param {
    Param {
        name,
        place,
        kind,
        repeats: false,
        about,
    }
}

/// Effect of a route.
#[derive(Debug, Clone, Copy)]
pub enum Effect {
    /// Shows something (GET).
    Reads(ApiRead),
    /// Changes something (POST).
    Acts(ActionKind),
}

/// A route.
#[derive(Debug)]
pub struct ApiRoute {
    /// Path below `/api/v1`; `{…}` is a parameter.
    pub path: &'static str,
    /// Effect.
    pub effect: Effect,
    /// Description in the OpenAPI document.
    pub about: &'static str,
    /// Parameters, in groups.
    pub params: &'static [&'static [Param]],
    /// Schema of the answer.
    pub answer: &'static str,
    /// Whether the requested object may not exist.
    pub misses: bool,
    /// Whether the route asks Redis or RabbitMQ, which may be unavailable.
    pub asks_servers: bool,
}

impl ApiRoute {
    /// Iterates over the parameters.
    pub fn params(&self) -> impl Iterator<Item = &'static Param> {
        self.params.iter().copied().flatten()
    }

    /// Returns true if a request can name a pipeline.
    pub fn takes_pipeline(&self) -> bool {
        self.params().any(|param| param.name == "pipeline")
    }

    /// Returns the values of the path's parameters, in order and still percent-encoded, or `None`
    /// if `path` does not match.
    pub fn fits<'a>(&self, path: &'a str) -> Option<Vec<&'a str>> {
        let (mut own, mut given) = (self.path.split('/'), path.split('/'));
        let mut values = Vec::new();
        loop {
            match (own.next(), given.next()) {
                (None, None) => return Some(values),
                (Some(own), Some(given)) if own.starts_with('{') && !given.is_empty() => {
                    values.push(given);
                }
                (Some(own), Some(given)) if own == given => {}
                _ => return None,
            }
        }
    }
}

/// Maximum length of the name of a tenant, a job or a queue, in bytes.
const NAME: ParamKind = ParamKind::Text(255);
/// Maximum number of rows of a page.
pub const MAX_ROWS: u64 = 500;
const PIPELINE: &[Param] = &[param(
    "pipeline",
    ParamLocation::Query,
    NAME,
    "The pipeline, where the configuration has several",
)];
const OF_ALL: &[Param] = &[param(
    "pipeline",
    ParamLocation::Query,
    NAME,
    "The pipeline; without it all of them",
)];
const TENANT: &[Param] = &[param(
    "tenant",
    ParamLocation::Path,
    NAME,
    "The tenant, percent-encoded",
)];
const JOB: &[Param] = &[param(
    "id",
    ParamLocation::Path,
    NAME,
    "The message's id, percent-encoded",
)];
const LIMIT: &[Param] = &[param(
    "limit",
    ParamLocation::Query,
    ParamKind::Number {
        least: 1,
        most: MAX_ROWS,
    },
    "So many rows at most; without it 100",
)];
const OFFSET: &[Param] = &[param(
    "offset",
    ParamLocation::Query,
    ParamKind::Number {
        least: 0,
        most: 1_000_000,
    },
    "So many rows are passed over",
)];
const BEFORE: &[Param] = &[param(
    "before",
    ParamLocation::Query,
    ParamKind::Number {
        least: 0,
        most: 1 << 53,
    },
    "Entries below this number: next of the page before",
)];
const SORT: &[Param] = &[param(
    "sort",
    ParamLocation::Query,
    ParamKind::Word(&["waiting", "denied", "closed", "starts"]),
    "Whose jobs, denials, suspension or starts come first: those with most; without it waiting",
)];
const SEARCH: &[Param] = &[param(
    "search",
    ParamLocation::Query,
    NAME,
    "Only those whose name contains this, in whatever case",
)];
const TENANTS_OFFSET: &[Param] = &[param(
    "offset",
    ParamLocation::Query,
    ParamKind::Number {
        least: 0,
        most: 100_000,
    },
    "So many rows are passed over",
)];
const PLAN: &[Param] = &[param(
    "plan",
    ParamLocation::Query,
    NAME,
    "The plan that the jobs name (rate-limiter.plan-header)",
)];
const LABELS: &[Param] = &[
    Param {
        name: "header",
        place: ParamLocation::Query,
        kind: ParamKind::Text(1_024),
        repeats: true,
        about: "NAME=VALUE: what the jobs have in a header by which limits tell them apart",
    },
    param(
        "routing-key",
        ParamLocation::Query,
        NAME,
        "The routing key that the jobs are published with",
    ),
];
const WHAT_IF: &[Param] = &[Param {
    name: "what-if",
    place: ParamLocation::Query,
    kind: ParamKind::Text(255),
    repeats: true,
    about: "When the backlog would end if this were so, which it is not: max-requests=N, window-size=DURATION (after NAME. where there are several limits), plan=NAME, pause=DURATION, resume",
}];
const WAIT: &str = "How long to wait until a worker has seen the job, 5s at most; without it 2s";
const WAIT_QUERY: &[Param] = &[param("wait", ParamLocation::Query, ParamKind::Span, WAIT)];
const WAIT_BODY: &[Param] = &[param("wait", ParamLocation::Body, ParamKind::Span, WAIT)];
const FOR: &[Param] = &[param(
    "for",
    ParamLocation::Body,
    ParamKind::Span,
    "For how long: 90s, 30m, 1h, 7d; without it 365d, and 24h for a job",
)];
const MAX: &[Param] = &[
    param(
        "max",
        ParamLocation::Body,
        ParamKind::Number {
            least: 1,
            most: crate::rules::limit::MAX_REQUESTS as u64,
        },
        "What the limit's max-requests is meanwhile",
    ),
    param(
        "limit",
        ParamLocation::Body,
        NAME,
        "Which limit, where a tenant has several",
    ),
    param(
        "clear",
        ParamLocation::Body,
        ParamKind::Flag,
        "True, in place of max: the configuration counts again",
    ),
    param(
        "shadow",
        ParamLocation::Body,
        ParamKind::Flag,
        "True: max is tried, which counts and denies nothing; with clear: it is tried no more",
    ),
];
const TO: &[Param] = &[param(
    "to",
    ParamLocation::Body,
    NAME,
    "The queue that they go to; without it that of the work queue's name and .diverted",
)];
const BACK: &[Param] = &[
    param(
        "back",
        ParamLocation::Body,
        ParamKind::Flag,
        "True: the jobs that went there are put back into the work queue, as new jobs",
    ),
    param(
        "from",
        ParamLocation::Body,
        NAME,
        "The queue that they went to, where it is not the one of the divert that ends",
    ),
];
const UNDO: &[Param] = &[param(
    "undo",
    ParamLocation::Body,
    ParamKind::Flag,
    "True: the job is not to be cancelled any more",
)];
const FILTER: &[Param] = &[
    param(
        "reason",
        ParamLocation::Query,
        ParamKind::Text(1_024),
        "Only those whose reason contains this",
    ),
    param(
        "tenant",
        ParamLocation::Query,
        NAME,
        "Only those of this tenant",
    ),
    param(
        "id",
        ParamLocation::Query,
        NAME,
        "Only the one with this id",
    ),
];
const CHOSEN: &[Param] = &[
    param(
        "reason",
        ParamLocation::Body,
        ParamKind::Text(1_024),
        "Only those whose reason contains this",
    ),
    param(
        "tenant",
        ParamLocation::Body,
        NAME,
        "Only those of this tenant",
    ),
    param("id", ParamLocation::Body, NAME, "Only the one with this id"),
    param(
        "all",
        ParamLocation::Body,
        ParamKind::Flag,
        "True, in place of reason, tenant and id: all of them",
    ),
    param(
        "limit",
        ParamLocation::Body,
        ParamKind::Number {
            least: 1,
            most: u32::MAX as u64,
        },
        "So many at most",
    ),
];
const RATE: &[Param] = &[param(
    "rate",
    ParamLocation::Body,
    ParamKind::Rate,
    "So many at most in a second, a minute or an hour: 10/s, 100/m, 5/h",
)];

const fn read(
    path: &'static str,
    read: ApiRead,
    params: &'static [&'static [Param]],
    answer: &'static str,
    about: &'static str,
) -> ApiRoute {
    ApiRoute {
        path,
        effect: Effect::Reads(read),
        about,
        params,
        answer,
        misses: false,
        asks_servers: true,
    }
}

const fn act(
    path: &'static str,
    act: ActionKind,
    params: &'static [&'static [Param]],
    answer: &'static str,
    about: &'static str,
) -> ApiRoute {
    ApiRoute {
        path,
        effect: Effect::Acts(act),
        about,
        params,
        answer,
        misses: false,
        asks_servers: true,
    }
}

/// The routes.
#[rustfmt::skip]
pub const ROUTES: &[ApiRoute] = &[
    ApiRoute { asks_servers: false, ..read("/openapi.json", ApiRead::OpenApi, &[], "OpenApi",
        "What can be asked here") },
    ApiRoute { asks_servers: false, ..read("/pipelines", ApiRead::Pipelines, &[], "Pipelines",
        "The pipelines of this worker, whether each is ready, and what is missing") },
    read("/limits", ApiRead::Limits, &[LIMIT, OFFSET, PIPELINE], "Limits",
        "The limits and plans of the configuration in force, and a page of the tenants that have others"),
    read("/workers", ApiRead::Workers, &[PIPELINE], "Workers",
        "The workers that run and what each does, as they say it every 2 s; as `sluicegate workers --json`"),
    read("/tenants", ApiRead::Tenants, &[SORT, SEARCH, LIMIT, TENANTS_OFFSET, PIPELINE], "Tenants",
        "The busiest tenants at all workers, and what is not known of others; as `sluicegate tenants --json`"),
    read("/tenants/{tenant}", ApiRead::Tenant, &[TENANT, PLAN, LABELS, WHAT_IF, PIPELINE], "Tenant",
        "A tenant's limits: what is used, how much waits, why, and until when; as `sluicegate inspect --json`"),
    read("/tenants/{tenant}/jobs/{id}", ApiRead::Job, &[TENANT, JOB, WAIT_QUERY, PIPELINE], "Job",
        "How a job stands that a worker has in its memory; as `sluicegate job show --json`"),
    read("/tenants/{tenant}/jobs/{id}/explanation", ApiRead::Explanation, &[TENANT, JOB, WAIT_QUERY, PIPELINE], "Explanation",
        "What a job waits for, its place in the line, when it starts and how sure that is; as `sluicegate explain --json`"),
    read("/instructions", ApiRead::Instructions, &[PIPELINE], "Instructions",
        "What operators ask of all workers now: pause or drain, diverted tenants, cancelled jobs"),
    read("/queues", ApiRead::Queues, &[PIPELINE], "Queues",
        "The queues and how many jobs are ready in each"),
    read("/dead/letters", ApiRead::Letters, &[FILTER, LIMIT, OFFSET, PIPELINE], "Letters",
        "A page of the dead letters, the newest first; as `sluicegate dead list --json`"),
    ApiRoute { misses: true, ..read("/dead/letters/{id}", ApiRead::Letter, &[JOB, PIPELINE], "Letter",
        "A dead letter with its headers and its body; as `sluicegate dead show --json`") },
    read("/audit", ApiRead::Audit, &[LIMIT, BEFORE, PIPELINE], "Audit",
        "What operators did, by this interface and by commands, the newest first"),
    act("/tenants/{tenant}/pause", ActionKind::Pause, &[TENANT, FOR, PIPELINE], "Changed",
        "Admits no job of the tenant; as `sluicegate tenant pause`"),
    act("/tenants/{tenant}/resume", ActionKind::Resume, &[TENANT, PIPELINE], "Changed",
        "Ends a pause, a throttle, and what a breaker stopped; as `sluicegate tenant resume`"),
    act("/tenants/{tenant}/limit", ActionKind::Limit, &[TENANT, MAX, FOR, PIPELINE], "Changed",
        "Sets another max-requests, or the configured one again; as `sluicegate tenant limit`"),
    act("/tenants/{tenant}/reset", ActionKind::Reset, &[TENANT, PIPELINE], "Changed",
        "Empties the waitlist; as `sluicegate tenant reset`"),
    act("/tenants/{tenant}/divert", ActionKind::Divert, &[TENANT, TO, FOR, PIPELINE], "Diverted",
        "Lets the tenant's jobs go to another queue instead of being called; as `sluicegate tenant divert`"),
    act("/tenants/{tenant}/undivert", ActionKind::Undivert, &[TENANT, BACK, PIPELINE], "Undiverted",
        "Ends that, and brings jobs back; as `sluicegate tenant undivert`"),
    act("/tenants/{tenant}/jobs/{id}/cancel", ActionKind::Cancel, &[TENANT, JOB, FOR, WAIT_BODY, UNDO, PIPELINE], "Cancelling",
        "Calls the job no more; as `sluicegate job cancel`"),
    act("/pause", ActionKind::PauseAll, &[FOR, OF_ALL], "Held",
        "Pauses all workers; as `sluicegate pause --all`"),
    act("/drain", ActionKind::Drain, &[FOR, OF_ALL], "Held",
        "Lets all workers take no new jobs; as `sluicegate drain`"),
    act("/resume", ActionKind::ResumeAll, &[OF_ALL], "Held",
        "Ends both; as `sluicegate resume --all`"),
    act("/calls/resume", ActionKind::ResumeCalls, &[PIPELINE], "Changed",
        "Ends what stops the calls of all tenants; as `sluicegate tenant resume --all`"),
    act("/dead/replay", ActionKind::Replay, &[CHOSEN, RATE, PIPELINE], "Replayed",
        "Puts dead letters back into the work queue, as new jobs; as `sluicegate dead replay`"),
    act("/dead/drop", ActionKind::Drop, &[CHOSEN, PIPELINE], "Dropped",
        "Deletes dead letters; as `sluicegate dead drop`"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_fits_one_route_and_nothing_between_slashes_is_empty() {
        let fit = |path: &str| {
            ROUTES
                .iter()
                .filter(|route| route.fits(path).is_some())
                .count()
        };
        for route in ROUTES {
            let path = route
                .path
                .replace("{tenant}", "a%2Fb")
                .replace("{id}", "pause");
            assert_eq!(fit(&path), 1, "{path}");
            let own: Vec<_> = (route.params())
                .filter(|it| it.place == ParamLocation::Path)
                .collect();
            assert_eq!(
                route.fits(&path).expect("it fits").len(),
                own.len(),
                "{path}"
            );
        }
        for path in [
            "",
            "/",
            "/tenants/",
            "/tenants//pause",
            "/pause/",
            "/tenants/a/b/c",
        ] {
            assert_eq!(fit(path), 0, "{path}");
        }
    }
}
