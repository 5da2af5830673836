//! The differences between two policies.

use rules::policy::{Policy, differing};

use super::parse;

fn policy(yaml: &str) -> Policy {
    let config = parse(&format!("rate-limiter: {{{yaml}}}"));
    config.expect("valid").rate_limiter.policy
}

#[test]
fn keys_have_their_configuration_names() {
    let two = "limits: [{name: minute, max-requests: 5}, {name: hour, max-requests: 50, window-size: 1h}]";
    for (one, other, expected) in [
        ("max-requests: 5", "max-requests: 5", &[][..]),
        ("max-requests: 5", "max-requests: 6", &["max-requests"]),
        (
            "max-requests: 5",
            "max-requests: 5, window-size: 2m",
            &["window-size"],
        ),
        (
            "max-requests: 5",
            "max-requests: 5, use-algo: token-bucket-algo",
            &["use-algo"],
        ),
        (
            "max-requests: 5",
            "max-requests: 5, guard: strict",
            &["guard"],
        ),
        ("max-requests: 5", "max-requests: 5, unit: calls", &["unit"]),
        (
            "max-requests: 5",
            "max-requests: 5, scope: global",
            &["scope"],
        ),
        ("max-requests: 5", two, &["default", "minute", "hour"]),
        (
            two,
            "limits: [{name: minute, max-requests: 7}, {name: hour, max-requests: 50, window-size: 1h, shadow: true}]",
            &["minute.max-requests", "hour.shadow"],
        ),
        (
            "plans: {pro: {max-requests: 9}}, plan-header: x-plan",
            "plans: {pro: {max-requests: 8}, max: {max-requests: 8}}",
            &["plan-header", "plans.max", "plans.pro.max-requests"],
        ),
        (
            "tenants: {acme: {max-requests: 9}, globex: {max-requests: 9}}",
            "tenants: {acme: {max-requests: 8}, 'a*': {max-requests: 8}}",
            &["tenants.a*", "tenants.acme.max-requests", "tenants.globex"],
        ),
        (
            "plans: {pro: {max-requests: 9}}, tenants: {acme: {plan: pro}}",
            "plans: {pro: {max-requests: 9}}, tenants: {acme: {max-requests: 9}}",
            &["tenants.acme"],
        ),
        (
            "tenants: {'a*': {max-requests: 9}, 'ab*': {max-requests: 8}}",
            "tenants: {'ab*': {max-requests: 8}, 'a*': {max-requests: 9}}",
            &["tenants"],
        ),
    ] {
        let (one, other) = (policy(one), policy(other));
        let keys = differing(&one, &other);
        assert_eq!(keys, expected, "{one:?} {other:?}");
        let mut back = differing(&other, &one);
        let mut keys = keys;
        back.sort_unstable();
        keys.sort_unstable();
        assert_eq!(back, keys, "they differ both ways");
    }
}
