//! Warnings about valid keys without effect, and advice.

use std::time::Duration;

use super::load::Config;
use super::sections::admin::Admin;
use super::sections::forward::{Forward, TIMEOUT};
use super::sections::http::Http;
use super::sections::http::api_profiles::ApiProfile;
use super::sections::http::secrets::Sign;
use super::sections::results::ResultsTo;
use rules::answers::{AnswerRule, Conditions, StatusPattern};
use rules::job::TenantField;
use rules::limit::{Algorithm, LargeLog, Limit, Limits, Unit};
use rules::policy::{EntryLimits, LimitsSource, Policy};
use rules::scope::Scope;
use rules::text::show_duration;

impl Config {
    /// Returns a sentence for each valid key without effect. `check` prints them, and a worker logs
    /// them when it starts.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        let policy = &self.rate_limiter.policy;
        for (source, limits) in sources(policy) {
            idle_limits(&source, limits, &mut found);
        }
        idle_tenants(policy, &mut found);
        idle_plans(policy, &mut found);
        open_admin(&self.admin, &mut found);
        let (http, forward) = (&self.dispatch.http, self.dispatch.forward.as_ref());
        if let Some(http) = http {
            idle_rules(&http.answers.rules().rules, &mut found);
            literal_variables(http, &mut found);
        }
        let is_unsigned = |http: &Http| http.sign == Sign::None && http.sign_secrets.is_some();
        let keeps_keys = |to: &Forward| to.exchange.is_empty() && to.routing_key.is_none();
        let without_reports = forward.filter(|forward| !forward.done);
        let has_timeout = |forward: &Forward| TIMEOUT.changed(&forward.timeout).is_some();
        let hands_over = without_reports.is_some();
        let is_concurrent = |limit: &Limit| limit.algorithm() == Algorithm::Concurrency;
        let counts_running = sources(policy).any(|(_, limits)| limits.iter().any(is_concurrent));
        let results = &self.dispatch.results;
        let is_told = results.to != ResultsTo::None;
        let has_no_headers = self.dispatch.exec.is_some() || forward.is_some();
        let warnings = [
            (
                http.as_ref().is_some_and(is_unsigned),
                "dispatch.http.sign-secrets: has no effect, since dispatch.http.sign is none",
            ),
            (
                hands_over && counts_running,
                "max-concurrent: counts a job only until it is forwarded, since \
                dispatch.forward.done is false",
            ),
            (
                forward.is_some_and(keeps_keys),
                "dispatch.forward.exchange: is the default exchange, and jobs keep their routing \
                keys, so jobs that were published directly to amqp.queue would come back and \
                become dead letters; set dispatch.forward.routing-key",
            ),
            (
                without_reports.is_some_and(has_timeout),
                "dispatch.forward.timeout: has no effect, since dispatch.forward.done is false",
            ),
            (
                is_told && hands_over,
                "dispatch.results: a result means that its job was forwarded, not that it is \
                done, since dispatch.forward.done is false",
            ),
            (
                is_told && has_no_headers && !results.headers.is_empty(),
                "dispatch.results.headers: has no effect, since only dispatch.http receives \
                answers with headers",
            ),
            (
                results.to != ResultsTo::Exchange && results.exchange.is_some(),
                "dispatch.results.exchange: has no effect, since dispatch.results.to is not \
                exchange",
            ),
        ];
        let warnings = warnings.into_iter().filter(|(applies, _)| *applies);
        found.extend(warnings.map(|(_, words)| words.to_owned()));
        found
    }

    /// Returns a sentence for each setting that works as intended but could use fewer resources, or
    /// that the called API seems to need. `check` prints them.
    #[doc(hidden)]
    pub fn advice(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (source, limits) in sources(&self.rate_limiter.policy) {
            // Limits that all tenants share are reported with the common limits.
            let mut large: Vec<_> = limits.large().collect();
            large.retain(|large| source == LimitsSource::Common || !large.limit.is_global());
            found.extend(large.iter().map(|large| large_log(&source, large)));
        }
        self.small_shares(&mut found);
        missing_for_api(self, &mut found);
        found
    }

    /// Adds the queues whose share of the prefetch is too small for all worker slots.
    fn small_shares(&self, found: &mut Vec<String>) {
        let (slots, prefetch) = (self.dispatch.concurrency, self.amqp.prefetch);
        // A single queue has the prefetch that was asked for.
        let shares = self.amqp.shares();
        let small = shares
            .iter()
            .filter(|(_, share)| shares.len() > 1 && usize::from(*share) < slots);
        found.extend(small.map(|(queue, share)| {
            format!(
                "amqp.queues: even if the other queues are empty, {queue:?} has only {share} of \
                amqp.prefetch ({prefetch}) and can't fill dispatch.concurrency ({slots}); raise \
                amqp.prefetch or the queue's weight"
            )
        }));
    }
}

/// Returns each set of limits, with its place in the configuration.
fn sources(policy: &Policy) -> impl Iterator<Item = (LimitsSource<'_>, &Limits)> {
    let plans = policy.plans().iter();
    let plans = plans.map(|(name, limits)| (LimitsSource::Plan(name), limits));
    let own = policy
        .tenants()
        .iter()
        .filter_map(|(pattern, own)| match own {
            EntryLimits::Limits(limits) => Some((LimitsSource::Tenant(pattern), limits)),
            EntryLimits::Plan(_) => None,
        });
    std::iter::once((LimitsSource::Common, policy.default_limits()))
        .chain(plans)
        .chain(own)
}

/// Describes a limit that keeps an entry for each of many calls.
fn large_log(source: &LimitsSource<'_>, large: &LargeLog<'_>) -> String {
    let limit = large.limit;
    let of_scope = match limit.scope() {
        Scope::Tenant => "for a tenant that uses it up",
        Scope::Global => "when it is used up",
        Scope::RoutingKey => "for a routing key that uses it up",
        Scope::Header(_) => "for a value of its header that uses it up",
    };
    let less = describe(large.bytes_instead());
    let bytes = match limit.unit() {
        Unit::Calls => describe(large.bytes),
        // If each call costs one unit.
        Unit::Cost => format!("up to {}", describe(large.bytes)),
    };
    let longer = match large.longer_ms() {
        ms @ 10_000.. => Duration::from_secs(ms.div_ceil(1_000)),
        ms => Duration::from_millis(ms),
    };
    let longer = show_duration(longer);
    let also = match limit.algorithm() {
        Algorithm::Strict => {
            "it requires a guard other than strict and does not count calls in flight"
        }
        _ => "it does not count calls that come later than the guard from their arrival",
    };
    format!(
        "{source}: the limit {} keeps an entry for each call: {bytes} of Redis {of_scope}; use-algo: \
        {} takes {less}, with the same worst case ({} in any window) and the same burst ({} at \
        once). It loses {:.1} % of the quota, since a call counts for up to {longer} longer, and \
        {also}",
        limit.name(),
        large.instead.algorithm().name(),
        large.instead.worst_case(),
        large.instead.capacity(),
        large.lost() * 100.0,
    )
}

/// Formats a number of bytes with two digits: `3.2 kB`.
fn describe(bytes: u64) -> String {
    let (size, unit) = match bytes {
        1_000_000_000.. => (bytes as f64 / 1e9, "GB"),
        1_000_000.. => (bytes as f64 / 1e6, "MB"),
        _ => (bytes as f64 / 1e3, "kB"),
    };
    match size {
        10.0.. => format!("{size:.0} {unit}"),
        _ => format!("{size:.1} {unit}"),
    }
}

/// Warns if other machines can reach the admin port. This is not an error: they see figures and
/// can't change anything, and in a container the port must listen on all addresses, with the
/// network restricting access.
fn open_admin(admin: &Admin, found: &mut Vec<String>) {
    if admin.token.is_none() && !admin.listen.ip().to_canonical().is_loopback() {
        found.push(format!(
            "admin.listen: {} can be reached from other machines, and the metrics need no token; \
            set admin.token, unless the network restricts access",
            admin.listen
        ));
    }
}

/// Adds limits that can never bind because another limit enforced with them is stricter in every
/// respect.
fn idle_limits(source: &LimitsSource<'_>, limits: &Limits, found: &mut Vec<String>) {
    // Limits that all tenants share are reported with the common limits only.
    let is_ours = |limit: &Limit| *source == LimitsSource::Common || !limit.is_global();
    let own = limits.iter().enumerate();
    for (at, idle) in own.filter(|(_, limit)| is_ours(limit)) {
        let stricter = limits.iter().enumerate().find(|(other, limit)| {
            // The first of two equal limits is kept.
            *other != at && limit.implies(idle) && (*other < at || !idle.implies(limit))
        });
        if let Some((_, stricter)) = stricter {
            let scope = match stricter.scope() {
                scope if scope == idle.scope() => String::new(),
                scope => format!(" (scope: {scope})"),
            };
            found.push(format!(
                "{source}: the limit {} never has an effect: {}{scope} is stricter in every \
                respect",
                idle.name(),
                stricter.name()
            ));
        }
    }
    for shadow in limits.shadows().iter().filter(|limit| is_ours(limit)) {
        if let Some(stricter) = limits.iter().find(|limit| limit.implies(shadow)) {
            found.push(format!(
                "{source}: the shadow limit {} would never make a job wait: the enforced limit {} \
                is stricter in every respect",
                shadow.name(),
                stricter.name()
            ));
        }
    }
}

/// Adds entries that never apply because an earlier entry matches all of their tenants.
fn idle_tenants(policy: &Policy, found: &mut Vec<String>) {
    let tenants = policy.tenants();
    for (at, (pattern, _)) in tenants.iter().enumerate() {
        let before = &tenants[..at];
        if let Some((first, _)) = before.iter().find(|(first, _)| first.covers(pattern)) {
            found.push(format!(
                "{} never applies: {first} comes first and matches the same tenants",
                LimitsSource::Tenant(pattern)
            ));
        }
    }
}

/// Adds rules on answers that never apply, or not to one of their statuses, because an earlier rule
/// matches all of these answers.
fn idle_rules(rules: &[AnswerRule], found: &mut Vec<String>) {
    const KEY: &str = "dispatch.http.answers";
    for (at, AnswerRule { when, .. }) in rules.iter().enumerate() {
        let of_status = |status: &StatusPattern| Conditions {
            status: vec![*status],
            ..when.clone()
        };
        let parts: Vec<Conditions> = match when.status.as_slice() {
            [] => vec![when.clone()],
            statuses => statuses.iter().map(of_status).collect(),
        };
        for part in parts {
            let mut before = rules[..at].iter().enumerate();
            if let Some((first, rule)) = before.find(|(_, rule)| rule.when.covers(&part)) {
                found.push(format!(
                    "{KEY}[{at}] never applies to {part}: {KEY}[{first}] ({}) comes first and \
                    matches the same answers; move it behind, or remove one",
                    rule.when
                ));
            }
        }
    }
}

/// Adds headers whose value contains the name of an environment variable, such as `${TOKEN}`.
fn literal_variables(http: &Http, found: &mut Vec<String>) {
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        !name.is_empty() && bytes.all(|b| matches!(b, b'A'..=b'Z' | b'0'..=b'9' | b'_'))
    };
    for (name, text) in http.headers.expose() {
        let mut ends = text.split("${").skip(1).filter_map(|it| it.split_once('}'));
        if ends.any(|(variable, _)| is_name(variable)) {
            // The value is secret, also in part.
            found.push(format!(
                "dispatch.http.headers: {name} contains ${{…}}, which is sent unchanged, since \
                environment variables are not inserted; write the value itself, for example in \
                dispatch.http.headers-file"
            ));
        }
    }
}

/// Adds plans that no tenant can have.
fn idle_plans(policy: &Policy, found: &mut Vec<String>) {
    if let Some(header) = policy.plan_header() {
        if policy.plans().is_empty() {
            found.push(format!(
                "rate-limiter.plan-header: rate-limiter.plans is empty, so every job with \
                {header} becomes a dead letter"
            ));
        }
        return;
    }
    for name in policy.plans().keys() {
        let mut owners = policy.tenants().iter();
        if !owners.any(|(_, own)| *own == EntryLimits::Plan(name.clone())) {
            found.push(format!(
                "{}: no tenant can have this plan: no entry of rate-limiter.tenants names it, and \
                rate-limiter.plan-header is not set",
                LimitsSource::Plan(name)
            ));
        }
    }
}

/// Adds a sentence for each thing that calls of the API need and the configuration lacks.
fn missing_for_api(config: &Config, found: &mut Vec<String>) {
    let Some(http) = &config.dispatch.http else {
        return;
    };
    let Some(profile) = http.api.map(ApiProfile::of) else {
        return;
    };
    let title = &profile.title;
    let limits = config.rate_limiter.policy.default_limits();
    let has_tenants = config.job.tenant != TenantField::All
        && limits.iter().any(|limit| *limit.scope() == Scope::Tenant);
    if let Some(url) = profile
        .url
        .as_ref()
        .filter(|_| has_tenants && http.host.is_none())
    {
        found.push(format!(
            "dispatch.http.url: has one host for all tenants, but {title} limits each tenant at a \
            host of its own; use a URL such as {url}, or job.tenant: all for a single one"
        ));
    }
    let is_sent = |(name, _): &(String, String)| http.headers.has_named(name);
    let has_credentials = http.oauth2.is_some() || http.secrets.is_some();
    if let Some((name, value)) = profile.headers.first()
        && !has_credentials
        && !profile.headers.iter().any(is_sent)
    {
        found.push(format!(
            "dispatch.http.headers: has no {name}, by which {title} knows a tenant; set \
            {{{name}: \"{value}\"}}, and dispatch.http.secrets-folder to a folder with a file for \
            each tenant"
        ));
    }
    let counts_cost = limits.iter().any(|limit| limit.unit() == Unit::Cost);
    if http.lacks_cost && counts_cost && profile.prices_calls() {
        found.push(format!(
            "job.cost: is not set, so a job without x-cost costs 1 unit, but {title} counts what \
            each call costs; set header:x-cost, or a pointer such as json:/cost"
        ));
    }
}
