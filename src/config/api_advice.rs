//! Advice on `dispatch.http.api`: what its API needs, and the configuration lacks.

use super::load::Config;
use super::sections::http::api_profiles::ApiProfile;
use rules::job::TenantField;
use rules::limit::Unit;
use rules::scope::Scope;

/// Adds a sentence for each thing that calls of the API need and the configuration lacks.
pub(super) fn missing(config: &Config, found: &mut Vec<String>) {
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
