//! The examples in docs/LIMITS.md behave as docs/sluicegate.test.yaml says.

use kit::sources::page;
use serde_json::Value;
use simulator::cases;

const CASES: &str = "docs/sluicegate.test.yaml";

#[test]
fn the_cases_of_the_pages_hold() {
    let all = cases::read(CASES, &page(CASES), None).unwrap_or_else(|why| panic!("{why}"));
    for case in all {
        let found = case.differences();
        assert!(found.is_empty(), "{}: {}", case.name, found.join("\n"));
    }
}

#[test]
fn each_example_of_the_limits_has_a_case() {
    let text = page("docs/LIMITS.md");
    let blocks = text.split("```yaml\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split("```").next());
    let examples: Vec<Value> = blocks
        .map(|block| serde_saphyr::from_str(block).expect("it is YAML"))
        .filter(|example: &Value| example.get("rate-limiter").is_some())
        .collect();
    assert!(examples.len() >= 4, "{}", examples.len());
    let cases: Value = serde_saphyr::from_str(&page(CASES)).expect("it is YAML");
    let cases = cases["cases"].as_array().expect("a list");
    for example in examples {
        let has_it = cases.iter().any(|case| case["config"] == example);
        assert!(has_it, "{CASES} has no case of\n{example:#}");
    }
}
