//! The text of a policy, which workers store for each other.

use gate::fleet::text::{read, write};
use rules::limit::{MAX_REQUESTS, MAX_WINDOW};
use rules::tenant::Tenant;

/// Checks a policy. A valid policy must have limits within their bounds, give limits to each
/// tenant, and be read as it is written.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(policy) = read(text) else { return };
    let written = write(&policy);
    assert_eq!(read(&written).as_ref(), Ok(&policy), "{written}");
    assert_eq!(read(&written).map(|again| write(&again)), Ok(written));
    for limits in policy.all() {
        assert!(!limits.is_empty());
        for limit in limits.iter() {
            assert!((1..=MAX_REQUESTS).contains(&limit.max()));
            assert!((1..=MAX_REQUESTS).contains(&limit.burst()));
            assert!(u128::from(limit.span()) <= 2 * MAX_WINDOW.as_millis());
        }
        assert!(limits.max_cost() > 0);
    }
    let memory = policy.memory();
    let plans: Vec<&String> = policy.plans().keys().collect();
    let named = policy
        .tenants()
        .iter()
        .map(|(pattern, _)| pattern.to_string());
    let ids = named.chain(["acme".to_owned()]);
    for tenant in ids.filter_map(|id| Tenant::parse(&id).ok()) {
        for plan in plans
            .iter()
            .map(|plan| Some(plan.as_str()))
            .chain([None, Some("none")])
        {
            let limits = policy.limits(&tenant, plan);
            assert!(u128::from(limits.memory_ms()) <= memory.as_millis());
        }
    }
}
