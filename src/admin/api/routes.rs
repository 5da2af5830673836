//! The table of the routes of `/api/v1`. It determines how requests are parsed, and
//! docs/openapi.json is generated from it.

use super::actions::ActionKind;
use super::reads::ApiRead;
use rules::report::view::Sort;

/// Type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// A text of at most this many bytes.
    Text(usize),
    /// A duration, such as `1h`.
    Span,
    /// A rate, such as `10/s`.
    Rate,
    /// A whole number.
    Number {
        /// Smallest valid value.
        min: u64,
        /// Largest valid value.
        max: u64,
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
    /// Type.
    pub kind: ParamKind,
    /// Whether it may occur several times.
    pub repeats: bool,
    /// Description in the OpenAPI document.
    pub about: &'static str,
}

const fn param(name: &'static str, kind: ParamKind, about: &'static str) -> Param {
    Param {
        name,
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
    /// Parameters, in groups that routes share.
    pub params: &'static [&'static [Param]],
    /// Schema of the answer.
    pub answer: &'static str,
    /// Whether the requested object may not exist.
    pub misses: bool,
    /// Whether the route asks Redis or RabbitMQ, which may be unavailable.
    pub asks_servers: bool,
}

impl ApiRoute {
    /// Returns the parameters of all groups.
    pub fn params(&self) -> impl Iterator<Item = &'static Param> {
        self.params.iter().copied().flatten()
    }

    /// Returns the parameters in `location`, in order.
    pub fn params_in(&self, location: ParamLocation) -> impl Iterator<Item = &'static Param> {
        (self.params()).filter(move |param| self.location(param) == location)
    }

    /// Returns the location of a parameter. An action has all but the pipeline in its body.
    fn location(&self, param: &Param) -> ParamLocation {
        match self.effect {
            _ if self.path.contains(&format!("{{{}}}", param.name)) => ParamLocation::Path,
            Effect::Acts(_) if param.name != "pipeline" => ParamLocation::Body,
            _ => ParamLocation::Query,
        }
    }

    /// Returns true if a request can name a pipeline.
    pub fn accepts_pipeline(&self) -> bool {
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

/// The name of a tenant, a job or a queue.
const NAME: ParamKind = ParamKind::Text(255);
/// Maximum number of rows in one answer.
pub const MAX_ROWS: u64 = 500;
const PIPELINE: &[Param] = &[param(
    "pipeline",
    NAME,
    "Pipeline, if the configuration has several",
)];
const OF_ALL: &[Param] = &[param(
    "pipeline",
    NAME,
    "Pipeline; all pipelines if omitted",
)];
const TENANT: &[Param] = &[param("tenant", NAME, "Tenant, percent-encoded")];
const JOB: &[Param] = &[param("id", NAME, "Message id, percent-encoded")];
const NO_TENANT: Param = param(
    "no-tenant",
    ParamKind::Flag,
    "True, instead of tenant: only dead letters without a tenant",
);
const OF_TENANT: &[Param] = &[
    param(
        "tenant",
        NAME,
        "Only a dead letter of this tenant, since two tenants may use one id",
    ),
    NO_TENANT,
];
const LIMIT: &[Param] = &[param(
    "limit",
    ParamKind::Number {
        min: 1,
        max: MAX_ROWS,
    },
    "Maximum number of rows; 100 if omitted",
)];
const OFFSET: &[Param] = &[param(
    "offset",
    ParamKind::Number {
        min: 0,
        max: 1_000_000,
    },
    "Number of rows to skip",
)];
const BEFORE: &[Param] = &[param(
    "before",
    ParamKind::Number {
        min: 0,
        max: 1 << 53,
    },
    "Only entries below this number: next of the previous page",
)];
const SORT: &[Param] = &[param(
    "sort",
    ParamKind::Word(&Sort::NAMES),
    "Sort order, most first; waiting if omitted",
)];
const SEARCH: &[Param] = &[param(
    "search",
    NAME,
    "Only tenants whose name contains this, ignoring case",
)];
const TENANTS_OFFSET: &[Param] = &[param(
    "offset",
    ParamKind::Number {
        min: 0,
        max: 100_000,
    },
    "Number of rows to skip",
)];
const PLAN: &[Param] = &[param(
    "plan",
    NAME,
    "Plan that the jobs name (rate-limiter.plan-header)",
)];
const LABELS: &[Param] = &[
    Param {
        name: "header",
        kind: ParamKind::Text(1_024),
        repeats: true,
        about: "NAME=VALUE: value of a header that separates a tenant's limits",
    },
    param("routing-key", NAME, "Routing key of the jobs"),
];
const WHAT_IF: &[Param] = &[Param {
    name: "what-if",
    kind: ParamKind::Text(255),
    repeats: true,
    about: "Show when the backlog would end after a change, without making it: max-requests=N, \
        window-size=DURATION (prefixed with NAME. if there are several limits), plan=NAME, \
        pause=DURATION, resume",
}];
const WAIT: &[Param] = &[param(
    "wait",
    ParamKind::Span,
    "How long to wait for a worker to see the job, at most 5s; 2s if omitted",
)];
const FOR: &[Param] = &[param(
    "for",
    ParamKind::Span,
    "How long the change lasts: 90s, 30m, 1h, 7d; if omitted 365d, or 24h for a job",
)];
const MAX: &[Param] = &[
    param(
        "max",
        ParamKind::Number {
            min: 1,
            max: rules::limit::MAX_REQUESTS,
        },
        "Temporary max-requests of the limit",
    ),
    param(
        "limit",
        NAME,
        "Name of the limit, if the tenant has several",
    ),
    param(
        "clear",
        ParamKind::Flag,
        "True, instead of max: return to the configured limit",
    ),
    param(
        "shadow",
        ParamKind::Flag,
        "True: try max, which counts but denies nothing; with clear: end the trial",
    ),
];
const TO: &[Param] = &[param(
    "to",
    NAME,
    "Queue for the diverted jobs; the work queue's name and .diverted if omitted",
)];
const BACK: &[Param] = &[
    param(
        "back",
        ParamKind::Flag,
        "True: return the diverted jobs to the workers with all their attempts",
    ),
    param(
        "from",
        NAME,
        "Queue that holds the diverted jobs, if it is not the one of the divert that ends",
    ),
];
const UNDO: &[Param] = &[param(
    "undo",
    ParamKind::Flag,
    "True: withdraw the cancellation",
)];
const FILTER: &[Param] = &[
    param(
        "reason",
        ParamKind::Text(1_024),
        "Only dead letters whose reason contains this text",
    ),
    param("tenant", NAME, "Only dead letters of this tenant"),
    NO_TENANT,
    param("id", NAME, "Only the dead letter with this id"),
];
const CHOSEN: &[Param] = &[
    param(
        "all",
        ParamKind::Flag,
        "True, instead of the fields above: all dead letters",
    ),
    param(
        "limit",
        ParamKind::Number {
            min: 1,
            max: u32::MAX as u64,
        },
        "Maximum number to change",
    ),
];
const RATE: &[Param] = &[param(
    "rate",
    ParamKind::Rate,
    "Maximum rate per second, minute or hour, at least 30/m: 10/s, 100/m, 2000/h",
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
        "Lists the paths of this interface") },
    ApiRoute { asks_servers: false, ..read("/pipelines", ApiRead::Pipelines, &[], "Pipelines",
        "Lists the pipelines of this worker, whether each is ready, and what is missing") },
    read("/limits", ApiRead::Limits, &[LIMIT, OFFSET, PIPELINE], "Limits",
        "Shows the limits and plans of the effective configuration, and a page of the tenants \
        with their own limits"),
    read("/workers", ApiRead::Workers, &[PIPELINE], "Workers",
        "Lists the running workers with their reports of every 2 s; same as `sluicegate workers \
        --json`"),
    read("/tenants", ApiRead::Tenants, &[SORT, SEARCH, LIMIT, TENANTS_OFFSET, PIPELINE], "Tenants",
        "Lists the busiest tenants at all workers, and what is unknown of others; same as \
        `sluicegate tenants --json`"),
    read("/tenants/{tenant}", ApiRead::Tenant, &[TENANT, PLAN, LABELS, WHAT_IF, PIPELINE], "Tenant",
        "Shows a tenant's limits, usage, backlog, and what its jobs wait for until when; same as \
        `sluicegate inspect --json`"),
    read("/tenants/{tenant}/jobs/{id}", ApiRead::Job, &[TENANT, JOB, WAIT, PIPELINE], "Job",
        "Shows the state of a job in a worker's memory; same as `sluicegate job show --json`"),
    read("/tenants/{tenant}/jobs/{id}/explanation", ApiRead::Explanation, &[TENANT, JOB, WAIT, PIPELINE], "Explanation",
        "Shows what a job waits for, its position, when it starts, and how certain that is; same \
        as `sluicegate explain --json`"),
    read("/instructions", ApiRead::Instructions, &[PIPELINE], "Instructions",
        "Lists operators' current instructions to all workers: pause or drain, diverted tenants, \
        canceled jobs"),
    read("/queues", ApiRead::Queues, &[PIPELINE], "Queues",
        "Lists the queues and the number of ready jobs in each"),
    read("/dead/letters", ApiRead::DeadLetters, &[FILTER, LIMIT, OFFSET, PIPELINE], "Letters",
        "Lists a page of the dead letters, newest first; same as `sluicegate dead list --json`"),
    ApiRoute { misses: true, ..read("/dead/letters/{id}", ApiRead::DeadLetter, &[JOB, OF_TENANT, PIPELINE], "Letter",
        "Shows a dead letter with its headers and body; same as `sluicegate dead show --json`") },
    read("/audit", ApiRead::Audit, &[LIMIT, BEFORE, PIPELINE], "Audit",
        "Lists operators' actions over this interface and by commands, newest first"),
    act("/tenants/{tenant}/pause", ActionKind::Pause, &[TENANT, FOR, PIPELINE], "Changed",
        "Stops admitting the tenant's jobs; same as `sluicegate tenant pause`"),
    act("/tenants/{tenant}/resume", ActionKind::Resume, &[TENANT, PIPELINE], "Changed",
        "Ends the tenant's pause and throttle, and closes its breaker; same as `sluicegate tenant \
        resume`"),
    act("/tenants/{tenant}/limit", ActionKind::Limit, &[TENANT, MAX, FOR, PIPELINE], "Changed",
        "Sets, tries or clears another max-requests; same as `sluicegate tenant limit`"),
    act("/tenants/{tenant}/reset", ActionKind::Reset, &[TENANT, PIPELINE], "Changed",
        "Empties the waitlist; same as `sluicegate tenant reset`"),
    act("/tenants/{tenant}/divert", ActionKind::Divert, &[TENANT, TO, FOR, PIPELINE], "Diverted",
        "Moves the tenant's jobs to another queue instead of calling them; same as `sluicegate \
        tenant divert`"),
    act("/tenants/{tenant}/undivert", ActionKind::Undivert, &[TENANT, BACK, PIPELINE], "Undiverted",
        "Ends a divert and can return its jobs; same as `sluicegate tenant undivert`"),
    act("/tenants/{tenant}/jobs/{id}/cancel", ActionKind::Cancel, &[TENANT, JOB, FOR, WAIT, UNDO, PIPELINE], "Canceling",
        "Cancels the job; same as `sluicegate job cancel`"),
    act("/pause", ActionKind::PauseAll, &[FOR, OF_ALL], "Held",
        "Pauses all workers; same as `sluicegate pause --all`"),
    act("/drain", ActionKind::Drain, &[FOR, OF_ALL], "Held",
        "Drains all workers: they take no new jobs; same as `sluicegate drain`"),
    act("/resume", ActionKind::ResumeAll, &[OF_ALL], "Held",
        "Ends a pause and a drain; same as `sluicegate resume --all`"),
    act("/calls/resume", ActionKind::ResumeCalls, &[PIPELINE], "Changed",
        "Resumes the calls of all tenants; same as `sluicegate tenant resume --all`"),
    act("/dead/replay", ActionKind::Replay, &[FILTER, CHOSEN, RATE, PIPELINE], "Replayed",
        "Returns dead letters to the work queue as new jobs; same as `sluicegate dead replay`"),
    act("/dead/drop", ActionKind::Drop, &[FILTER, CHOSEN, PIPELINE], "Dropped",
        "Deletes dead letters; same as `sluicegate dead drop`"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_matches_one_route_and_has_no_empty_segment() {
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
            let own = route.params_in(ParamLocation::Path).count();
            assert_eq!(route.fits(&path).expect("it fits").len(), own, "{path}");
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
