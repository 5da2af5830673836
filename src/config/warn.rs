//! What is valid and hardly meant.

use super::admin::Admin;
use super::http_secrets::Sign;
use super::load::Config;
use crate::rules::limit::Limits;
use crate::rules::policy::{Own, Policy, Source};

impl Config {
    /// What is valid but has no effect, a sentence each: `check` prints them, and a worker logs them when it starts.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = self.renamed.0.clone();
        let policy = &self.rate_limiter.policy;
        idle_limits(&Source::Common, policy.default_limits(), &mut found);
        for (name, limits) in policy.plans() {
            idle_limits(&Source::Plan(name), limits, &mut found);
        }
        for (pattern, own) in policy.tenants() {
            if let Own::Limits(limits) = own {
                idle_limits(&Source::Tenant(pattern), limits, &mut found);
            }
        }
        idle_tenants(policy, &mut found);
        idle_plans(policy, &mut found);
        open_admin(&self.admin, &mut found);
        let http = self.dispatch.http.as_ref();
        if http.is_some_and(|http| http.sign == Sign::None && http.sign_secrets.is_some()) {
            found.push(
                "dispatch.http.sign-secrets: no call is signed: dispatch.http.sign is none"
                    .to_owned(),
            );
        }
        found
    }
}

/// Others than this machine may ask the admin port. That is no error: it tells figures and changes nothing, and in a
/// container it must listen on all addresses, with the network as its door.
fn open_admin(admin: &Admin, found: &mut Vec<String>) {
    if admin.token.is_none() && !admin.listen.ip().to_canonical().is_loopback() {
        found.push(format!(
            "admin.listen: {} can be reached by other machines, and shows everybody the metrics; set admin.token, unless the network lets only those in who may see them",
            admin.listen
        ));
    }
}

/// Limits that can never bind, since another one that holds beside them is stricter in every respect.
fn idle_limits(source: &Source<'_>, limits: &Limits, found: &mut Vec<String>) {
    for (at, idle) in limits.iter().enumerate() {
        // What all tenants share stands with the common limits, wherever it holds.
        if idle.is_global() && *source != Source::Common {
            continue;
        }
        let stricter = limits.iter().enumerate().find(|(other, limit)| {
            // Of two that say the same, the first one stays.
            *other != at && limit.implies(idle) && (*other < at || !idle.implies(limit))
        });
        if let Some((_, stricter)) = stricter {
            let scope = match stricter.scope() {
                scope if scope == idle.scope() => String::new(),
                scope => format!(" (scope: {scope})"),
            };
            found.push(format!(
                "{source}: the limit {} can never bind: {}{scope} is stricter in every respect",
                idle.name(),
                stricter.name()
            ));
        }
    }
}

/// Entries that stand behind one that fits all of their tenants.
fn idle_tenants(policy: &Policy, found: &mut Vec<String>) {
    let tenants = policy.tenants();
    for (at, (pattern, _)) in tenants.iter().enumerate() {
        let before = &tenants[..at];
        if let Some((first, _)) = before.iter().find(|(first, _)| first.covers(pattern)) {
            found.push(format!(
                "{} never counts: {first} comes before it, and the first that fits counts",
                Source::Tenant(pattern)
            ));
        }
    }
}

/// Plans that nobody can have.
fn idle_plans(policy: &Policy, found: &mut Vec<String>) {
    if let Some(header) = policy.plan_header() {
        if policy.plans().is_empty() {
            found.push(format!(
                "rate-limiter.plan-header: there are no rate-limiter.plans, so every job with {header} is a dead letter"
            ));
        }
        return;
    }
    for name in policy.plans().keys() {
        let mut owners = policy.tenants().iter();
        if !owners.any(|(_, own)| *own == Own::Plan(name.clone())) {
            found.push(format!(
                "{}: no tenant has this plan: no entry of rate-limiter.tenants names it, and rate-limiter.plan-header is not set",
                Source::Plan(name)
            ));
        }
    }
}
