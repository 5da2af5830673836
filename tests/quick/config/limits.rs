//! Several limits, plans, and overrides of single tenants.

use config::Config;
use kit::Says;
use rules::limit::{Algorithm, Limit, Unit};
use rules::named::Named;
use rules::scope::Scope;
use rules::tenant::Tenant;

use kit::sources::page;

fn parse_with(yaml: &str, vars: &[(&str, &str)]) -> Result<Config, String> {
    let vars: Vec<_> = (vars.iter())
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Config::parse("c.yaml", yaml, vars.into_iter()).map_err(|errors| errors.to_string())
}

#[track_caller]
fn parse(yaml: &str) -> Config {
    parse_with(yaml, &[]).unwrap_or_else(|errors| panic!("{errors}\n{yaml}"))
}

/// Formats a limit as `name algorithm max/window unit burst guard`, with `-` for no burst, and the
/// scope unless it is the tenant.
fn shown(limit: &Limit) -> String {
    let burst = match limit.algorithm().has_burst() {
        true => limit.burst().to_string(),
        false => "-".to_owned(),
    };
    let scope = match limit.scope() {
        Scope::Tenant => String::new(),
        scope => format!(" {scope}"),
    };
    format!(
        "{} {} {}/{} {} {burst} {}{scope}",
        limit.name(),
        limit.algorithm().name().trim_end_matches("-algo"),
        limit.max(),
        limit.window_ms(),
        limit.unit().name(),
        limit.guard_ms()
    )
}

/// Returns the limits of `tenant` for a job that names `plan`.
#[track_caller]
fn limits(config: &Config, tenant: &str, plan: Option<&str>) -> Vec<String> {
    let tenant = Tenant::parse(tenant).expect("a tenant");
    let limits = config.rate_limiter.policy.limits(&tenant, plan);
    limits.iter().map(shown).collect()
}

#[track_caller]
fn check_common(yaml: &str, expected: &[&str]) {
    assert_eq!(limits(&parse(yaml), "anybody", None), expected, "{yaml}");
}

/// Checks that lines below `rate-limiter:` are refused with exactly these lines.
#[track_caller]
fn check_errors(lines: &str, expected: &[&str]) {
    let yaml = format!("rate-limiter:\n{lines}\n");
    let errors = parse_with(&yaml, &[]).expect_err(&yaml);
    assert_eq!(errors.lines().collect::<Vec<_>>(), expected, "{yaml}");
}

#[track_caller]
fn check_warnings(lines: &str, expected: &[&str]) {
    let config = parse(&format!("rate-limiter:\n{lines}\n"));
    assert_eq!(config.warnings(), expected, "{lines}");
}

#[test]
fn limits_end_at_10_to_the_12_units() {
    check_common(
        "rate-limiter: {use-algo: token-bucket-algo, max-requests: 1000000000000, burst: 1000000000000}\n",
        &["default token-bucket 1000000000000/60000 cost 1000000000000 50"],
    );
    for key in ["max-requests", "burst"] {
        let wrong = format!("  use-algo: token-bucket-algo\n  {key}: 1000000000001");
        let why = format!(
            "c.yaml:3:3: rate-limiter.{key}: is 1000000000001; it must be a whole number from 1 to \
            1000000000000"
        );
        check_errors(&wrong, &[&why]);
    }
}

#[test]
fn strict_windows_and_calls_at_once_are_limits_like_the_others() {
    let text = "rate-limiter:\n  guard: strict\n  limits:\n    - {name: second, max-requests: 3, window-size: 1}\n    - {name: running, max-concurrent: 2}\n";
    let config = parse(text);
    let limits = config.rate_limiter.policy.default_limits();
    assert_eq!(limits[0].algorithm(), Algorithm::Strict);
    assert_eq!((limits[0].max(), limits[0].window_ms()), (3, 1000));
    assert_eq!(limits[1].algorithm(), Algorithm::Concurrency);
    assert_eq!((limits[1].max(), limits[1].unit()), (2, Unit::Calls));
    let again = parse(&config.to_string());
    assert_eq!(again.rate_limiter, config.rate_limiter);
}

#[test]
fn flat_keys_alone_are_one_limit() {
    check_common("", &["default sliding-window 5/60000 cost - 50"]);
    // A short window has a short guard.
    check_common(
        "rate-limiter: {window-size: 100ms}",
        &["default sliding-window 5/100 cost - 25"],
    );
    check_common(
        "rate-limiter: {use-algo: token-bucket-algo, max-requests: 7, unit: calls}",
        &["default token-bucket 7/60000 calls 7 50"],
    );
    check_common(
        "rate-limiter: {use-algo: leaky-bucket-algo, burst: 3, scope: tenant}",
        &["default leaky-bucket 5/60000 cost 3 50"],
    );
    for algorithm in Algorithm::ALL {
        let yaml = format!("rate-limiter: {{use-algo: {}}}", algorithm.name());
        let policy = parse(&yaml).rate_limiter.policy;
        assert_eq!(policy.default_limits()[0].algorithm(), algorithm);
    }
}

#[test]
fn omitted_keys_of_an_item_come_from_the_flat_keys() {
    check_common(
        "
rate-limiter:
  max-requests: 100
  guard: 10ms
  burst: 4
  limits:
    - {name: second, max-requests: 10, window-size: 1}
    - {name: minute}
    - {name: bucket, use-algo: token-bucket-algo, guard: 0, window-size: 1h}
    - {name: own, use-algo: leaky-bucket-algo, burst: 2}
",
        &[
            "second sliding-window 10/1000 cost - 10",
            "minute sliding-window 100/60000 cost - 10",
            "bucket token-bucket 100/3600000 cost 4 0",
            "own leaky-bucket 100/60000 cost 2 10",
        ],
    );
    check_common(
        "rate-limiter: {limits: [{max-requests: 9}]}",
        &["default sliding-window 9/60000 cost - 50"],
    );
}

#[test]
fn beside_a_limit_of_cost_the_others_count_calls() {
    let list = "limits: [{name: requests}, {name: tokens, unit: cost, max-requests: 900}]";
    check_common(
        &format!("rate-limiter: {{{list}}}"),
        &[
            "requests sliding-window 5/60000 calls - 50",
            "tokens sliding-window 900/60000 cost - 50",
        ],
    );
    // An explicit value wins.
    check_common(
        &format!("rate-limiter: {{unit: cost, {list}}}"),
        &[
            "requests sliding-window 5/60000 cost - 50",
            "tokens sliding-window 900/60000 cost - 50",
        ],
    );
    // Limits that replace these in plans and tenants count in the same unit.
    let config = parse(&format!(
        "rate-limiter: {{{list}, plans: {{p: {{limits: [{{name: a}}, {{name: b}}]}}}}, tenants: {{x: {{max-requests: 3}}, y: {{plan: p}}, z: {{unit: cost}}}}}}"
    ));
    assert_eq!(
        ["x", "y", "z"].map(|tenant| limits(&config, tenant, None).join(", ")),
        [
            "default sliding-window 3/60000 calls - 50",
            "a sliding-window 5/60000 calls - 50, b sliding-window 5/60000 calls - 50",
            "default sliding-window 5/60000 cost - 50",
        ]
    );
    check_common(
        "rate-limiter: {limits: [{name: a}, {name: b, unit: calls, window-size: 1}]}",
        &[
            "a sliding-window 5/60000 cost - 50",
            "b sliding-window 5/1000 calls - 50",
        ],
    );
}

const PLANS: &str = "
rate-limiter:
  max-requests: 5
  plans:
    free: {max-requests: 2}
    pro:
      guard: 20ms
      burst: 3
      limits:
        - {name: second, max-requests: 10, window-size: 1}
        - {name: tokens, unit: cost, use-algo: token-bucket-algo, max-requests: 1000, guard: 0}
  tenants:
    acme: {max-requests: 50, use-algo: token-bucket-algo}
    trial-1: {plan: pro}
    trial-*: {plan: free}
    '7': {limits: [{name: only}]}
  plan-header: x-plan
";

#[test]
fn a_tenant_has_its_own_limits_or_those_of_its_plan() {
    let config = parse(PLANS);
    let pro = [
        "second sliding-window 10/1000 calls - 20",
        "tokens token-bucket 1000/60000 cost 3 0",
    ];
    for (tenant, plan, expected) in [
        (
            "anybody",
            None,
            &["default sliding-window 5/60000 cost - 50"][..],
        ),
        (
            "anybody",
            Some("free"),
            &["default sliding-window 2/60000 cost - 50"],
        ),
        ("anybody", Some("pro"), &pro),
        (
            "acme",
            Some("pro"),
            &["default token-bucket 50/60000 cost 50 50"],
        ),
        ("trial-1", None, &pro),
        (
            "trial-2",
            Some("pro"),
            &["default sliding-window 2/60000 cost - 50"],
        ),
        ("7", None, &["only sliding-window 5/60000 cost - 50"]),
    ] {
        assert_eq!(limits(&config, tenant, plan), expected, "{tenant} {plan:?}");
    }
    assert_eq!(config.rate_limiter.policy.plan_header(), Some("x-plan"));
}

#[test]
fn the_shown_limits_are_an_equivalent_file() {
    for yaml in [
        PLANS,
        "rate-limiter: {plans: {}, tenants: {}}",
        "rate-limiter: {plans: , tenants: }",
        "rate-limiter: {use-algo: leaky-bucket-algo, unit: calls}",
        "rate-limiter: {limits: [{name: a, unit: cost}, {name: b}]}",
        "rate-limiter: {limits: [{max-concurrent: 3, scope: global}]}",
        SCOPES,
        "rate-limiter: {tenants: {'*': {plan: 'a \"b\"'}}, plans: {'a \"b\"': {guard: 0}}}",
        "rate-limiter: {tenants: {yes: {max-requests: 1}, 0x1: {max-requests: 2}, 'é\u{301}': {burst: 2, use-algo: token-bucket-algo}}}",
    ] {
        // Passwords are not shown, and the default URL has one.
        let config = parse(&format!("amqp: {{url: 'amqp://h'}}\n{yaml}"));
        assert_eq!(parse(&config.to_string()), config, "{yaml}\n{config}");
    }
    let text = parse(PLANS).to_string();
    for line in [
        "  max-requests: 5\n  unit: cost\n",
        "    \"free\":\n      use-algo: sliding-window-algo\n",
        "        - name: second\n          use-algo: sliding-window-algo\n",
        "    \"trial-*\":\n      plan: \"free\"\n",
        "  plan-header: \"x-plan\"\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

const SCOPES: &str = "
rate-limiter:
  scope: routing-key
  limits:
    - {name: all, max-requests: 100, scope: global}
    - {name: running, max-concurrent: 9, scope: global}
    - {name: key}
    - {name: path, scope: 'header:x-\"path\": 1'}
    - {name: calls, max-concurrent: 3}
    - {name: tenant, scope: tenant}
  plans:
    pro: {max-requests: 9}
  tenants:
    acme: {limits: [{name: a, scope: tenant}, {name: b}]}
    globex: {plan: pro}
";

#[test]
fn a_limit_shows_its_scope() {
    let config = parse(SCOPES);
    let global = [
        "all sliding-window 100/60000 cost - 50 global",
        "running max-concurrent 9/0 calls - 0 global",
    ];
    let beside = |own: &[&'static str]| [own, &global].concat();
    let common = [
        "key sliding-window 5/60000 cost - 50 routing-key",
        "path sliding-window 5/60000 cost - 50 header:x-\"path\": 1",
        "calls max-concurrent 3/0 calls - 0 routing-key",
        "tenant sliding-window 5/60000 cost - 50",
    ];
    assert_eq!(
        limits(&config, "anybody", None),
        [&global[..], &common].concat()
    );
    let pro = beside(&["default sliding-window 9/60000 cost - 50 routing-key"]);
    assert_eq!(limits(&config, "anybody", Some("pro")), pro);
    assert_eq!(limits(&config, "globex", None), pro);
    let acme = beside(&[
        "a sliding-window 5/60000 cost - 50",
        "b sliding-window 5/60000 cost - 50 routing-key",
    ]);
    assert_eq!(limits(&config, "acme", None), acme);

    // All common limits may be global. Tenants without a plan then have no other limits.
    let yaml = "rate-limiter: {scope: global, limits: [{name: all}], tenants: {acme: {limits: [{name: own, max-requests: 1}]}}}";
    let all = "all sliding-window 5/60000 cost - 50 global";
    check_common(yaml, &[all]);
    let config = parse(yaml);
    let own = "own sliding-window 1/60000 cost - 50";
    assert_eq!(limits(&config, "acme", None), [own, all], "not inherited");
    assert_eq!(config.warnings(), [""; 0]);
    check_common(
        "rate-limiter: {scope: header:x-path}",
        &["default sliding-window 5/60000 cost - 50 header:x-path"],
    );
}

#[test]
fn a_limit_of_all_tenants_is_allowed_only_among_common_ones() {
    let elsewhere = "is global, but the quota of all tenants can't differ by plan or tenant; move \
        this limit to rate-limiter.limits, where it is enforced together with limits of plans and \
        tenants";
    let taken = "the name of a global limit of rate-limiter.limits that is enforced with this \
        one; use another name";
    check_errors(
        "  limits: [{name: all, scope: global}]\n  plans: {a: {scope: global}}\n  tenants: {b: {limits: [{name: c, scope: global}]}}",
        &[
            &format!("c.yaml:3:15: rate-limiter.plans.a.scope: {elsewhere}"),
            &format!("c.yaml:4:36: rate-limiter.tenants.b.limits[0].scope: {elsewhere}"),
        ],
    );
    check_errors(
        "  limits: [{name: all, scope: global}, {name: b}]\n  plans: {p: {limits: [{name: b}, {name: all}]}}",
        &[&format!(
            "c.yaml:3:36: rate-limiter.plans.p.limits[1].name: is all, {taken}"
        )],
    );
    check_errors(
        "  scope: global\n  plans: {p: {max-requests: 1}}\n  tenants: {t: {limits: [{max-requests: 1}]}}",
        &[
            "c.yaml:3:11: rate-limiter.plans.p: its limit would have the name default, like the \
            global limit that is enforced with it; name one of them, such as limits: [{name: \
            minute}]",
            &format!("c.yaml:4:26: rate-limiter.tenants.t.limits[0].name: is default, {taken}"),
        ],
    );
    let list = |letter: &str, scope: &str, count: usize| {
        let item = |n| format!("{{name: {letter}{n}, scope: {scope}}}");
        let items: Vec<String> = (0..count).map(item).collect();
        format!("[{}]", items.join(", "))
    };
    let (all, own) = (list("a", "global", 9), list("b", "tenant", 8));
    check_errors(
        &format!("  limits: {all}\n  plans: {{p: {{limits: {own}}}}}"),
        &[
            "c.yaml:3:15: rate-limiter.plans.p.limits: has 8 limits, and 9 global limits are \
            enforced with them; at most 16 are enforced together",
        ],
    );
    let parts: Vec<String> = (0..5)
        .map(|n| format!("{{name: p{n}, scope: 'header:h{n}'}}"))
        .collect();
    let four = format!("rate-limiter: {{limits: [{}]}}", parts[..4].join(", "));
    assert_eq!(limits(&parse(&four), "a", None).len(), 4);
    check_errors(
        &format!("  limits: [{}]", parts.join(", ")),
        &[
            "c.yaml:2:151: rate-limiter.limits[4].scope: the scopes of limits that are enforced \
            together use 5 different headers or the routing key; the maximum is 4",
        ],
    );
    // A limit with the scope of the flat keys, and one before it that repeats another's.
    check_errors(
        &format!(
            "  scope: routing-key\n  limits:\n    - {}\n    - {{name: again, scope: 'header:h0'}}\n    - {{name: key}}",
            parts[..4].join("\n    - ")
        ),
        &[
            "c.yaml:9:7: rate-limiter.limits[5]: the scopes of limits that are enforced together \
            use 5 different headers or the routing key; the maximum is 4",
        ],
    );
}

#[test]
fn a_limit_of_all_tenants_takes_one_slot_of_a_cluster() {
    let yaml = |redis: &str, limiter: &str| {
        format!("redis: {{url: 'redis://h', {redis}}}\nrate-limiter: {{{limiter}}}\n")
    };
    let refused = |redis: &str, limiter: &str| {
        let yaml = yaml(redis, limiter);
        parse_with(&yaml, &[]).expect_err(&yaml)
    };
    let why = "global, so in a Redis Cluster its keys and the keys of all tenants must share a \
        slot: give redis.prefix a hash tag, such as {rlaas}:rate_limit (one primary then decides \
        for all tenants, and the others are idle), or use a single Redis";
    assert_eq!(
        refused("cluster: true", "scope: global"),
        format!("c.yaml:2:16: rate-limiter.scope: the limit default is {why}")
    );
    let listed = "limits: [{name: a}, {name: all, scope: global}]";
    assert_eq!(
        refused("cluster: true", listed),
        format!("c.yaml:2:16: rate-limiter.limits: the limit all is {why}")
    );
    for (redis, limiter) in [
        ("cluster: true, prefix: '{x}:y'", listed),
        ("cluster: true", "scope: routing-key"),
        ("cluster: false", listed),
    ] {
        parse(&yaml(redis, limiter));
    }
}

#[test]
fn lists_and_maps_can_be_set_by_the_environment() {
    let list = "SLUICEGATE_RATE_LIMITER__LIMITS";
    let config = parse_with(
        PLANS,
        &[
            (list, "[{name: a, window-size: 1}, {name: b}]"),
            ("SLUICEGATE_RATE_LIMITER__TENANTS", "acme: {plan: free}"),
            // Only for limits with a burst.
            ("SLUICEGATE_RATE_LIMITER__BURST", "9"),
        ],
    )
    .expect("valid");
    assert_eq!(
        limits(&config, "anybody", None),
        [
            "a sliding-window 5/1000 cost - 50",
            "b sliding-window 5/60000 cost - 50"
        ]
    );
    assert_eq!(
        limits(&config, "acme", None),
        ["default sliding-window 2/60000 cost - 50"]
    );
    for (value, expected) in [
        (
            "[{name: a}, {name: a}]",
            "rate-limiter.limits[1].name: two limits have the name \"a\"; give each its own name",
        ),
        (
            "[{window: 5}]",
            "unknown key \"window\" in rate-limiter.limits[0]; docs/CONFIGURATION.md lists all keys",
        ),
        (
            "5",
            "rate-limiter.limits: is 5; it must be a list of limits, such as [{name: second, max-requests: 10, window-size: 1}]",
        ),
        (
            "",
            "rate-limiter.limits: is empty; set a value or unset the variable",
        ),
    ] {
        let error = parse_with("", &[(list, value)]).expect_err(value);
        assert_eq!(error, format!("environment variable {list}: {expected}"));
    }
    let error = parse_with("", &[(list, "[{name: a}")]).expect_err("no YAML");
    error.begins(&format!(
        "environment variable {list}: rate-limiter.limits: is not valid YAML"
    ));
    let error = parse_with("", &[("SLUICEGATE_RATE_LIMITER__TENANTS__ACME", "5")]);
    assert_eq!(
        error.expect_err("no key"),
        "environment variable SLUICEGATE_RATE_LIMITER__TENANTS__ACME: sets no key; set \
        rate-limiter.tenants as a whole, as YAML text in SLUICEGATE_RATE_LIMITER__TENANTS"
    );
}

#[test]
fn each_mistake_in_a_limit_has_its_own_message_and_place() {
    let of =
        "it must be a list of limits, such as [{name: second, max-requests: 10, window-size: 1}]";
    for (item, place, words) in [
        (
            "{name: b, windw-size: 1}",
            "4:17",
            "unknown key \"windw-size\" in rate-limiter.limits[1]; did you mean window-size?",
        ),
        (
            "{name: b, window-size: 0}",
            "4:17",
            "rate-limiter.limits[1].window-size: is 0; it must be from 100ms to 31d",
        ),
        (
            "{name: b, max-requests: 0}",
            "4:17",
            "rate-limiter.limits[1].max-requests: is 0; it must be a whole number from 1 to 1000000000000",
        ),
        (
            "{name: b, max-requests: [1]}",
            "4:17",
            "rate-limiter.limits[1].max-requests: is a list; it must be a whole number from 1 to 1000000000000",
        ),
        (
            "{name: b, window-size: {s: 1}}",
            "4:17",
            "rate-limiter.limits[1].window-size: is a mapping; it must be a duration, such as 500ms, 10s, 5m, 1h or 7d; day, week or month",
        ),
        (
            "{name: b, window-size: 100ms, guard: 50ms}",
            "4:37",
            "rate-limiter.limits[1].guard: the guard is 50ms and the window is 100ms; the guard \
            must be shorter than half the window",
        ),
        (
            "{name: b, guard: 30s}",
            "4:17",
            "rate-limiter.limits[1].guard: the guard is 30s and the window is 1m; the guard must \
            be shorter than half the window",
        ),
        (
            "{name: b, guard: [1]}",
            "4:17",
            "rate-limiter.limits[1].guard: is a list; it must be auto, strict, or a whole number \
            with a unit, such as 50ms or 1s",
        ),
        (
            "{name: b, guard: strict, use-algo: leaky-bucket-algo}",
            "4:17",
            "rate-limiter.limits[1].guard: is strict, which only sliding-window-algo supports, \
            not leaky-bucket-algo; use a duration, such as 50ms",
        ),
        (
            "{name: b, use-algo: token-bucket-algo, burst: 0}",
            "4:46",
            "rate-limiter.limits[1].burst: is 0; it must be a whole number from 1 to 1000000000000",
        ),
        (
            "{name: b, burst: 5}",
            "4:17",
            "rate-limiter.limits[1].burst: burst has no meaning for sliding-window-algo; use it \
            with token-bucket-algo or leaky-bucket-algo",
        ),
        (
            "{name: b, use-algo: fixed-window-algo, burst: 5}",
            "4:46",
            "rate-limiter.limits[1].burst: burst has no meaning for fixed-window-algo; use it \
            with token-bucket-algo or leaky-bucket-algo",
        ),
        (
            "{name: b, scope: 'header:'}",
            "4:17",
            "rate-limiter.limits[1].scope: must name a header of 1 to 255 bytes after `header:`, without control characters and spaces at its ends",
        ),
        (
            "{name: b, scope: \"header:a\\u0001\"}",
            "4:17",
            "rate-limiter.limits[1].scope: must name a header of 1 to 255 bytes after `header:`, without control characters and spaces at its ends",
        ),
        (
            "{name: b, scope: 5}",
            "4:17",
            "rate-limiter.limits[1].scope: is read as 5 by YAML; put it in quotes",
        ),
        (
            "{name: b, scope: team}",
            "4:17",
            "rate-limiter.limits[1].scope: is \"team\", an unknown scope; use tenant, global, \
            header:NAME or routing-key",
        ),
        (
            "{name: b, max-concurrent: 2, window-size: 1}",
            "4:17",
            "rate-limiter.limits[1].max-concurrent: is set next to window-size; a limit of calls \
            in flight has only a name and a scope",
        ),
        (
            "{name: a}",
            "4:8",
            "rate-limiter.limits[1].name: two limits have the name \"a\"; give each its own name",
        ),
        (
            "{name: B}",
            "4:8",
            "rate-limiter.limits[1].name: is \"B\"; it must be 1 to 32 characters a-z, 0-9 and -, \
            beginning with a letter",
        ),
        (
            "{name: 5}",
            "4:8",
            "rate-limiter.limits[1].name: is read as 5 by YAML; put it in quotes",
        ),
        (
            "{max-requests: 5}",
            "4:7",
            "rate-limiter.limits[1]: has no name; each of several limits needs its own name",
        ),
        (
            "{name: b, limits: []}",
            "4:17",
            "unknown key \"limits\" in rate-limiter.limits[1]; docs/CONFIGURATION.md lists all keys",
        ),
        (
            "5",
            "4:7",
            "rate-limiter.limits[1]: is 5; it must be a limit, such as [{name: second, max-requests: 10, window-size: 1}]",
        ),
    ] {
        check_errors(
            &format!("  limits:\n    - {{name: a}}\n    - {item}"),
            &[&format!("c.yaml:{place}: {words}")],
        );
    }
    check_errors(
        "  limits: []",
        &[&format!(
            "c.yaml:2:3: rate-limiter.limits: is an empty list; it must contain limits, {}",
            of.trim_start_matches("it must be a list of limits, ")
        )],
    );
    check_errors(
        "  limits:",
        &[&format!("c.yaml:2:3: rate-limiter.limits: is empty; {of}")],
    );
    check_errors(
        "  limits: {a: {}}",
        &[&format!(
            "c.yaml:2:3: rate-limiter.limits: is a mapping; {of}"
        )],
    );
    let many: Vec<String> = (0..17).map(|n| format!("{{name: l{n}}}")).collect();
    check_errors(
        &format!("  limits: [{}]", many.join(", ")),
        &["c.yaml:2:3: rate-limiter.limits: has 17 limits; at most 16 are enforced together"],
    );
    // A mistake in a key that several limits share is reported once, at its position.
    check_errors(
        "  guard: 40s\n  limits: [{name: a}, {name: b}]",
        &[
            "c.yaml:2:3: rate-limiter.guard: the guard is 40s and the window is 1m; the guard \
            must be shorter than half the window",
        ],
    );
    check_errors(
        "  guard: 1s\n  limits: [{name: a}, {name: b, window-size: 2}]",
        &[
            "c.yaml:3:33: rate-limiter.limits[1].window-size: the guard is 1s and the window is \
            2s; the guard must be shorter than half the window",
        ],
    );
    check_errors(
        "  name: a",
        &["c.yaml:2:3: unknown key \"name\" in rate-limiter; docs/CONFIGURATION.md lists all keys"],
    );
}

#[test]
fn each_mistake_in_a_plan_or_an_entry_has_its_own_message_and_place() {
    let stands = "is set next to a plan, which defines all limits; keep the plan or";
    for (entry, place, words) in [
        ("acme: {plan: fre}", "4:12", "rate-limiter.tenants.acme.plan: is \"fre\", but \
            rate-limiter.plans has no such plan; did you mean free?".to_owned()),
        ("acme: {plan: gold}", "4:12", "rate-limiter.tenants.acme.plan: is \"gold\", but \
            rate-limiter.plans has no such plan".to_owned()),
        ("acme: {plan: 5}", "4:12", "rate-limiter.tenants.acme.plan: is read as 5 by YAML; put it \
            in quotes".to_owned()),
        ("acme: {plan: free, max-requests: 5}", "4:24", format!("rate-limiter.tenants.acme.max-requests: {stands} \"max-requests\"")),
        ("acme: {max-request: 5}", "4:12", "unknown key \"max-request\" in rate-limiter.tenants.acme; did you mean max-requests?".to_owned()),
        ("acme: {max-requests: 0}", "4:12", "rate-limiter.tenants.acme.max-requests: is 0; it must be a whole number from 1 to 1000000000000".to_owned()),
        ("acme: {burst: 5}", "4:12", "rate-limiter.tenants.acme.burst: burst has no meaning for \
            sliding-window-algo; use it with token-bucket-algo or leaky-bucket-algo".to_owned()),
        ("acme: {limits: [{name: a}, {name: a}]}", "4:33", "rate-limiter.tenants.acme.limits[1].name: \
            two limits have the name \"a\"; give each its own name".to_owned()),
        ("acme: {}", "4:5", "rate-limiter.tenants.acme: sets nothing; give it keys, such as max-requests, or limits".to_owned()),
        ("acme:", "4:5", "rate-limiter.tenants.acme: sets nothing; give it keys, such as max-requests, or limits".to_owned()),
        ("acme: 5", "4:5", "rate-limiter.tenants.acme: is 5; it must contain keys".to_owned()),
        ("'a*b': {plan: free}", "4:5", "rate-limiter.tenants.a*b: is not a tenant id: it can have \
            a * only at its end, which matches all ids with that prefix".to_owned()),
        ("'': {plan: free}", "4:5", "rate-limiter.tenants.: is not a tenant id: it must have 1 to \
            255 bytes".to_owned()),
    ] {
        check_errors(
            &format!("  plans: {{free: {{max-requests: 1}}}}\n  tenants:\n    {entry}"),
            &[&format!("c.yaml:{place}: {words}")],
        );
    }
    check_errors(
        "  plans: {free: {windowsize: 1}, pro: {plan: free}}",
        &[
            "c.yaml:2:18: unknown key \"windowsize\" in rate-limiter.plans.free; did you mean window-size?",
            "c.yaml:2:40: unknown key \"plan\" in rate-limiter.plans.pro; docs/CONFIGURATION.md lists all keys",
        ],
    );
    check_errors(
        "  plans: [free]\n  tenants: acme",
        &[
            "c.yaml:2:3: rate-limiter.plans: is a list; it must contain names, such as {free: \
            {max-requests: 5}}",
            "c.yaml:3:3: rate-limiter.tenants: is \"acme\"; it must contain names, such as {acme: \
            {max-requests: 50}}",
        ],
    );
    let long = "p".repeat(65);
    check_errors(
        &format!("  plans: {{{long}: {{max-requests: 1}}}}"),
        &[&format!(
            "c.yaml:2:11: rate-limiter.plans.{long}: has 65 bytes; a plan's name must have 1 to 64"
        )],
    );
}

#[test]
fn all_mistakes_of_the_limits_are_reported_at_once() {
    check_errors(
        "  window-size: 0\n  limits: [{name: a, burst: x}, {unit: x}]\n  tenants: {a: {plan: x}}",
        &[
            "c.yaml:2:3: rate-limiter.window-size: is 0; it must be from 100ms to 31d",
            "c.yaml:3:22: rate-limiter.limits[0].burst: is \"x\"; it must be a whole number from 1 to 1000000000000",
            "c.yaml:3:33: rate-limiter.limits[1]: has no name; each of several limits needs its \
            own name",
            "c.yaml:3:34: rate-limiter.limits[1].unit: is \"x\"; it must be calls or cost",
            "c.yaml:4:17: rate-limiter.tenants.a.plan: is \"x\", but rate-limiter.plans has no \
            such plan",
        ],
    );
}

#[test]
fn a_missing_name_comes_before_other_mistakes_at_its_place() {
    check_errors(
        "  limits:\n    - max-requests: 0\n    - {name: a}",
        &[
            "c.yaml:3:7: rate-limiter.limits[0]: has no name; each of several limits needs its \
            own name",
            "c.yaml:3:7: rate-limiter.limits[0].max-requests: is 0; it must be a whole number \
            from 1 to 1000000000000",
        ],
    );
}

#[test]
fn keys_without_effect_have_warnings() {
    check_warnings(
        "  limits: [{name: a, max-requests: 1000, window-size: 1}, {name: b, max-requests: 10, window-size: 1}]",
        &["rate-limiter: the limit a never has an effect: b is stricter in every respect"],
    );
    check_warnings(
        "  limits: [{name: a, max-requests: 100, window-size: 1h}, {name: b, max-requests: 1000, window-size: 1h}]",
        &["rate-limiter: the limit b never has an effect: a is stricter in every respect"],
    );
    check_warnings(
        "  limits: [{name: a}, {name: b}]",
        &["rate-limiter: the limit b never has an effect: a is stricter in every respect"],
    );
    check_warnings(
        "  scope: global\n  limits: [{name: a}, {name: b}]\n  tenants: {x: {limits: [{name: c, max-requests: 4}]}}",
        &["rate-limiter: the limit b never has an effect: a is stricter in every respect"],
    );
    check_warnings(
        "  limits: [{name: path, scope: 'header:x', max-requests: 6}, {name: own, max-requests: 10}, {name: all, scope: global}]\n  plans: {p: {limits: [{name: a}]}}\n  tenants: {x: {plan: p}, y: {limits: [{name: b, max-requests: 4}, {name: c, scope: routing-key}]}}",
        &[
            "rate-limiter: the limit path never has an effect: all (scope: global) is stricter in \
            every respect",
            "rate-limiter: the limit own never has an effect: all (scope: global) is stricter in \
            every respect",
            "rate-limiter.plans.p: the limit a never has an effect: all (scope: global) is \
            stricter in every respect",
            "rate-limiter.tenants.y: the limit c never has an effect: b (scope: tenant) is \
            stricter in every respect",
        ],
    );
    for fine in [
        "  limits: [{name: a, max-requests: 5}, {name: b, max-requests: 500, scope: global}, {name: c, max-requests: 4, scope: header:x}, {name: d, max-requests: 4, scope: routing-key}]",
        "  limits: [{name: all, scope: global}]\n  plans: {p: {limits: [{name: a, max-requests: 4}]}}\n  tenants: {x: {plan: p}}",
        "  limits: [{name: a, max-requests: 10, window-size: 1}, {name: b, max-requests: 100}, {name: c, max-requests: 1000, window-size: 1h}]",
        "  limits: [{name: a, max-requests: 5}, {name: b, max-requests: 500, unit: cost}]",
    ] {
        check_warnings(fine, &[]);
    }
    check_warnings(
        "  plans: {pro: {limits: [{name: a}, {name: b}]}}\n  tenants: {x: {limits: [{name: c}, {name: d}]}, a*: {plan: pro}, ab: {plan: pro}}",
        &[
            "rate-limiter.plans.pro: the limit b never has an effect: a is stricter in every \
            respect",
            "rate-limiter.tenants.x: the limit d never has an effect: c is stricter in every \
            respect",
            "rate-limiter.tenants.ab never applies: a* comes first and matches the same tenants",
        ],
    );
    check_warnings(
        "  plans: {pro: {max-requests: 1}}",
        &[
            "rate-limiter.plans.pro: no tenant can have this plan: no entry of \
            rate-limiter.tenants names it, and rate-limiter.plan-header is not set",
        ],
    );
    check_warnings(
        "  plan-header: x-plan",
        &[
            "rate-limiter.plan-header: rate-limiter.plans is empty, so every job with x-plan \
            becomes a dead letter",
        ],
    );
}

#[test]
fn documented_examples_are_valid_without_warnings() {
    let documents = ["docs/LIMITS.md", "docs/DEPLOYMENT.md", "docs/QUICKSTART.md"].map(page);
    fn examples(document: &str) -> impl Iterator<Item = &str> {
        document.split("```yaml\n").skip(1)
    }
    // The quickstart has one.
    for (document, least) in documents.iter().zip([2, 2, 1]) {
        assert!(examples(document).count() >= least, "{document}");
    }
    for example in documents.iter().flat_map(|document| examples(document)) {
        let (yaml, _) = example.split_once("```").expect("it ends");
        assert_eq!(parse(yaml).warnings(), [""; 0], "{yaml}");
    }
    // The sample, including its commented-out limits.
    let mut sample = String::new();
    for line in include_str!("../../../docs/sluicegate.yaml").lines() {
        let key = line.strip_prefix("  # ").filter(|rest| {
            let keys = ["limits:", "plans:", "tenants:", "plan-header:"];
            keys.iter().any(|key| rest.starts_with(key))
                || (rest.starts_with("  ") && rest.contains(": {"))
                || rest.starts_with("  - {")
        });
        match key {
            Some(key) => sample.push_str(&format!("  {key}\n")),
            None => sample.push_str(&format!("{line}\n")),
        }
    }
    let config = parse(&sample);
    assert_eq!(config.warnings(), [""; 0]);
    let api = "api sliding-window 5000/60000 calls - 50 global";
    assert_eq!(
        limits(&config, "anybody", None),
        [
            "second sliding-window 10/1000 calls - 50",
            "requests sliding-window 500/60000 calls - 50",
            "tokens token-bucket 90000/60000 cost 20000 50",
            "running max-concurrent 5/0 calls - 0",
            "endpoint sliding-window 100/60000 calls - 50 header:x-endpoint",
            api,
        ]
    );
    assert_eq!(limits(&config, "trial-7", None).len(), 3);
    assert_eq!(
        limits(&config, "trial-8", None),
        ["default sliding-window 2/60000 calls - 50", api]
    );
}

#[test]
fn each_algorithm_is_documented() {
    let read = |page: &str| {
        let path = kit::root().join("docs").join(page);
        std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
    };
    let [limits, sample] = ["LIMITS.md", "sluicegate.yaml"].map(read);
    for algorithm in Algorithm::ALL {
        let name = algorithm.name();
        let row = format!("| {name} | {} |", algorithm.facts().about);
        assert!(limits.contains(&row), "LIMITS has no {row}");
        assert!(limits.contains(&format!("`{name}`")), "{name}");
        assert!(sample.contains(&format!("  #   {name}")), "{name}");
    }
}

#[test]
fn a_shadow_accompanies_enforced_limits() {
    let config = parse(
        "rate-limiter:
  plans: {free: {limits: [{name: day, max-requests: 9, shadow: true}, {name: most}]}}
  limits: [{name: hour, max-requests: 3, shadow: true, scope: global}, {name: minute}]
",
    );
    let policy = &config.rate_limiter.policy;
    let tenant = Tenant::parse("anybody").expect("a tenant");
    let names = |plan: Option<&str>| {
        let limits = policy.limits(&tenant, plan);
        let names = |limits: &[Limit]| -> Vec<String> {
            limits.iter().map(|limit| limit.name().to_owned()).collect()
        };
        (names(limits), names(limits.shadows()))
    };
    let all = |names: [&str; 1]| names.map(str::to_owned).to_vec();
    assert_eq!(names(None), (all(["minute"]), all(["hour"])));
    let (enforced, mut shadows) = names(Some("free"));
    shadows.sort();
    assert_eq!(
        (enforced, shadows),
        (all(["most"]), vec!["day".to_owned(), "hour".to_owned()])
    );
}

#[test]
fn invalid_bands_are_refused() {
    for (limits, words) in [
        (
            "adaptive: {within: 120%..150%}",
            "ends at 150%; a band must end at 100%",
        ),
        (
            "adaptive: {within: 0%..100%}",
            "begins at 0%; a band must begin at 1% to 99%",
        ),
        ("adaptive: {within: 50}", "put it in quotes"),
        (
            "adaptive: {from: 50%}",
            "has \"from\", but `within` is its only key",
        ),
        ("adaptive: maybe", "is \"maybe\"; it must be off, or a band"),
        (
            "limits: [{name: path, scope: 'header:x-path', adaptive: 50%..100%}]",
            "a 429 concerns all of a tenant's jobs",
        ),
        (
            "throttle-scope: global, adaptive: 50%..100%",
            "the limit default is adaptive: a 429 concerns all tenants",
        ),
        (
            "limits: [{name: running, max-concurrent: 5, adaptive: 50%..100%}]",
            "is set next to adaptive",
        ),
    ] {
        let errors = parse_with(&format!("rate-limiter: {{{limits}}}"), &[]).expect_err(limits);
        assert!(errors.contains(words), "{limits}: {errors}");
    }
}

#[test]
fn a_band_that_the_old_throttle_scope_keeps_from_learning_is_a_conflict() {
    let old = parse("rate-limiter: {throttle-scope: tenant}");
    let learns = "adaptive: 50%..100%, scope: global";
    let new = parse(&format!("rate-limiter: {{{learns}}}"));
    assert_eq!((old.conflict(), new.conflict()), (None, None));
    let why = old.with_live(&new).conflict().expect("no 429 concerns it");
    why.begins("rate-limiter.throttle-scope: is tenant, but the limit default is adaptive");
}

#[test]
fn a_useless_shadow_is_refused_or_has_a_warning() {
    const NONE: &str = "each limit is a shadow, so nothing would be limited; add an enforced \
        limit, such as {name: most, max-requests: 1000000, window-size: 1, use-algo: \
        token-bucket-algo}";
    const LEASES: &str = "a job's wait would depend on the ends of earlier calls, which the \
        shadow limit did not delay";
    check_errors(
        "  shadow: true",
        &[&format!("c.yaml:2:3: rate-limiter.shadow: {NONE}")],
    );
    check_errors(
        "  limits: [{name: a, shadow: true}]",
        &[&format!("c.yaml:2:3: rate-limiter.limits: {NONE}")],
    );
    check_errors(
        "  limits: [{name: a}, {name: b, guard: strict, shadow: true}]",
        &[&format!(
            "c.yaml:2:48: rate-limiter.limits[1].shadow: shadow has no meaning for guard: strict: {LEASES}"
        )],
    );
    check_errors(
        "  limits: [{name: a}, {name: b, max-concurrent: 3, shadow: true}]",
        &[&format!(
            "c.yaml:2:33: rate-limiter.limits[1].max-concurrent: shadow has no meaning for max-concurrent: {LEASES}"
        )],
    );
    let config = parse(
        "rate-limiter: {limits: [{name: a, max-requests: 3}, {name: b, max-requests: 4, shadow: true}]}\n",
    );
    let warnings = config.warnings();
    let words = "rate-limiter: the shadow limit b would never make a job wait: the enforced limit \
        a is stricter in every respect";
    assert!(warnings.iter().any(|found| found == words), "{warnings:?}");
}

#[test]
fn a_calendar_window_has_a_time_zone_and_a_start() {
    let calendar = |lines: &str| {
        let algorithm = "use-algo: fixed-window-algo";
        let config = parse(&format!("rate-limiter: {{{algorithm}, {lines}}}"));
        assert_eq!(
            parse(&config.to_string()).rate_limiter,
            config.rate_limiter,
            "{lines}"
        );
        let limits = config.rate_limiter.policy.default_limits();
        let calendar = limits[0].calendar().map(ToString::to_string);
        calendar.unwrap_or_else(|| panic!("{lines}"))
    };
    for (lines, expected) in [
        ("window-size: day", "day from 00:00 UTC"),
        (
            "window-size: day, time-zone: america/los_angeles",
            "day from 00:00 America/Los_Angeles",
        ),
        (
            "window-size: day, starts: 08:00, time-zone: Asia/Kolkata",
            "day from 08:00 Asia/Kolkata",
        ),
        (
            "window-size: week, starts: friday",
            "week from friday 00:00 UTC",
        ),
        ("window-size: month, starts: 15", "month from 15 00:00 UTC"),
        (
            "window-size: month, starts: 31 23:59",
            "month from 31 23:59 UTC",
        ),
    ] {
        assert_eq!(calendar(lines), expected, "{lines}");
    }
    // Keys of an outer level apply to limits that can have them.
    let yaml = "rate-limiter: {time-zone: Europe/Berlin, use-algo: fixed-window-algo, limits: [
      {name: day, window-size: day, starts: 09:00}, {name: minute, window-size: 1m}]}";
    let config = parse(yaml);
    let limits = config.rate_limiter.policy.default_limits();
    let of = |at: usize| limits[at].calendar().map(ToString::to_string);
    assert_eq!(
        [of(0).as_deref(), of(1).as_deref()],
        [Some("day from 09:00 Europe/Berlin"), None]
    );
}

#[test]
fn a_calendar_window_that_is_none_is_reported_with_the_remedy() {
    for (lines, expected) in [
        (
            "  window-size: day",
            "c.yaml:2:3: rate-limiter.window-size: is day, which only fixed-window-algo supports, \
             not sliding-window-algo; set use-algo: fixed-window-algo",
        ),
        (
            "  use-algo: fixed-window-algo\n  window-size: day\n  starts: 15",
            "c.yaml:4:3: rate-limiter.starts: is \"15\"; for window-size: day it must be a time of \
             day, such as 08:00",
        ),
        (
            "  use-algo: fixed-window-algo\n  window-size: month\n  starts: monday",
            "c.yaml:4:3: rate-limiter.starts: is \"monday\"; for window-size: month it must be a day \
             from 1 to 31, a time of day or both, such as 15 08:00",
        ),
        (
            "  starts: 32",
            "c.yaml:2:3: rate-limiter.starts: is 32; it must be a time of day, such as 08:00; for a \
             week also a weekday, for a month a day from 1 to 31, alone or before the time: monday \
             08:00, 15",
        ),
        (
            "  use-algo: fixed-window-algo\n  time-zone: UTC",
            "c.yaml:3:3: rate-limiter.time-zone: has a meaning only with window-size: day, week or \
             month",
        ),
        (
            "  time-zone: America/Los_Angles",
            "c.yaml:2:3: rate-limiter.time-zone: is \"America/Los_Angles\", an unknown time zone; \
             use an IANA name, such as America/Los_Angeles; did you mean America/Los_Angeles?",
        ),
    ] {
        check_errors(lines, &[expected]);
    }
}
