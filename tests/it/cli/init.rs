//! `sluicegate init`: the file exists, is private and valid, and is never overwritten without
//! --force.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use kit::Says;

use crate::cli::{CommandResult, sluicegate_in};

fn init(folder: &Path, args: &[&str]) -> CommandResult {
    sluicegate_in(folder, &[&["init"], args].concat(), b"")
}

const API: [&str; 4] = [
    "--url",
    "https://api.example.com/",
    "--limit",
    "100/min, 5 at once",
];

#[test]
fn init_writes_a_private_file_that_check_accepts() {
    let folder = tempfile::tempdir().expect("a folder");
    let done = init(folder.path(), &API).exited(0);
    let summary = "sluicegate.yaml: 100 calls in 1m, 5 at once for each tenant. Next:";
    done.out.begins(summary);
    let file = folder.path().join("sluicegate.yaml");
    let mode = file.metadata().expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let check = sluicegate_in(folder.path(), &["check", "--offline"], b"").exited(0);
    let findings: Vec<&str> = check
        .out
        .lines()
        .filter(|line| line.starts_with("warn"))
        .collect();
    assert_eq!(findings, [""; 0]);
}

#[test]
fn the_printed_commands_fit_where_a_job_names_its_tenant() {
    let folder = tempfile::tempdir().expect("a folder");
    for (tenant, publish, inspect) in [
        (
            "header:x-shop",
            "publish --tenant acme '{\"order\": 7}' ",
            "inspect acme ",
        ),
        (
            "json:/shop/id",
            "publish '{\"shop\":{\"id\":\"acme\"}}' ",
            "inspect acme ",
        ),
        ("all", "publish '{\"order\": 7}' ", "inspect all "),
        ("routing-key", "", "inspect acme "),
    ] {
        let args = [&API[..], &["--tenant", tenant, "--force"]].concat();
        let done = init(folder.path(), &args).exited(0);
        for command in [publish, inspect].into_iter().filter(|it| !it.is_empty()) {
            let command = format!("  sluicegate {command}");
            assert!(done.out.contains(&command), "{tenant}: {}", done.out);
        }
        assert_eq!(done.out.contains("sluicegate publish"), !publish.is_empty());
    }
    let args = ["--api", "zendesk", "--tenant", "all", "--force"];
    let done = init(folder.path(), &args).exited(0);
    done.out.says("> secrets/all ");
}

#[test]
fn an_existing_file_is_kept_unless_forced() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sluicegate.yaml");
    std::fs::write(&file, "mine").expect("written");
    let done = init(folder.path(), &API).exited(2);
    done.err.says("already exists; --force");
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "mine");
    let printed = init(folder.path(), &[&API[..], &["--output", "-"]].concat()).exited(0);
    init(folder.path(), &[&API[..], &["--force"]].concat()).exited(0);
    let written = std::fs::read_to_string(&file).expect("it is there");
    assert_eq!(printed.out, written);
}

#[test]
fn without_a_terminal_no_question_is_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let done = init(folder.path(), &["--limit", "3/s"]).exited(2);
    done.err.says("--url is required");
    assert!(!folder.path().join("sluicegate.yaml").exists());
}

#[test]
fn a_known_api_is_written_with_its_limits_and_check_tells_its_rules() {
    let folder = tempfile::tempdir().expect("a folder");
    let listed = init(folder.path(), &["--api"]).exited(0).out;
    listed.says("\n  shopify-graphql  Shopify");
    let unknown = init(folder.path(), &["--api", "shopfy", "--url", "https://h/"]).exited(2);
    unknown.err.says("did you mean shopify?");
    unknown.err.says("shopify-graphql");
    let url = ["--url", "https://acme.myshopify.com/admin/api/graphql.json"];
    let args = [&["--api", "shopify-graphql", "--plan", "plus"], &url[..]].concat();
    let done = init(folder.path(), &args).exited(0);
    done.out.says("plan plus. Next:");
    let file = std::fs::read_to_string(folder.path().join("sluicegate.yaml")).expect("a file");
    for part in [
        "    api: shopify-graphql",
        "burst: 20000",
        "#   https://shopify.dev/",
        "  cost: header:x-cost",
    ] {
        assert!(file.contains(part), "{part}: {file}");
    }
    let check = sluicegate_in(folder.path(), &["check", "--offline"], b"")
        .exited(0)
        .out;
    for part in [
        "ok    answers   shopify-graphql is in force: Shopify Admin API (GraphQL), read on 20",
        "ok    answers   shopify-graphql: 200 or 429 if body /errors/*/extensions/code is THROTTLED: \
        throttle, for (body /extensions/cost/requestedQueryCost - ",
    ] {
        assert!(check.contains(part), "{part}: {check}");
    }
}

/// The user states no URL and no token, and needs no key that only the schema shows.
#[test]
fn an_api_with_a_host_and_a_token_per_tenant_is_written_completely() {
    let folder = tempfile::tempdir().expect("a folder");
    let done = init(folder.path(), &["--api", "shopify-graphql"]).exited(0);
    for part in [
        "printf %s TOKEN > secrets/acme ",
        "sluicegate publish --tenant acme --cost 10 'BODY' ",
    ] {
        assert!(done.out.contains(part), "{part}: {}", done.out);
    }
    let secrets = folder.path().join("secrets");
    let mode = secrets.metadata().expect("a folder").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let check = sluicegate_in(folder.path(), &["check", "--offline"], b"").exited(0);
    for part in [
        "url: \"https://{tenant}.myshopify.com/admin/api/",
        "x-shopify-access-token",
        "secrets-folder: ",
    ] {
        assert!(check.out.contains(part), "{part}: {}", check.out);
    }
    let warns = |text: &str| text.lines().filter(|line| line.starts_with("warn")).count();
    assert_eq!(warns(&check.out), 0, "{}", check.out);
    // Another file uses the same folder.
    let other = ["--api", "zendesk", "--output", "other.yaml"];
    init(folder.path(), &other).exited(0);
    let help = init(folder.path(), &["--help"]).exited(0).out;
    help.says("secrets");

    let config = "rate-limiter: {limits: [{name: points, unit: cost}]}\n\
        dispatch: {http: {url: 'https://acme.myshopify.com/', api: shopify-graphql}}\n";
    std::fs::write(folder.path().join("sluicegate.yaml"), config).expect("written");
    let check = sluicegate_in(folder.path(), &["check", "--offline"], b"").exited(0);
    assert_eq!(warns(&check.out), 3, "{}", check.out);
}

/// The log of a sliding window would take 10 GB.
#[test]
fn a_quota_of_millions_of_tokens_is_written_as_a_limit_in_little_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let of = |limit: &'static str| [&API[..2], &["--limit", limit, "--force"]].concat();
    for limit in ["90M TPM", "1000 billion tokens per minute"] {
        init(folder.path(), &of(limit)).exited(0);
        let check = sluicegate_in(folder.path(), &["check", "--offline"], b"").exited(0);
        assert!(!check.out.contains("warn"), "{}", check.out);
        check.out.says("sliding-segments-algo");
    }
    let refused = init(folder.path(), &of("1000000000001 TPM")).exited(2);
    let why = "1000000000001; it must be a whole number from 1 to 1000000000000";
    refused.err.says(why);
}
