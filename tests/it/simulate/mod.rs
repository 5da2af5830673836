//! `simulate` and `test` as a user meets them, without servers.

use kit::Says;

mod live;
mod stories;

use std::path::Path;

use crate::cli::{CommandResult, sluicegate, sluicegate_in, sluicegate_with};

const LIMITS: &str = "rate-limiter: {use-algo: sliding-window-algo, max-requests: 10, window-size: 1s, guard: 0ms}\n";

/// Returns the arguments in `text`, separated by blanks.
fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn simulate(args: &str) -> CommandResult {
    sluicegate(LIMITS, &words(&format!("simulate {args}")))
}

fn written(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("written");
}

#[test]
fn the_same_seed_gives_the_same_output_byte_by_byte() {
    let of = |seed: u32| {
        let load = "--rate poisson:30/s --for 20s --tenants 5 --skew zipf";
        let api = "--api-latency lognormal:20ms,0.5 --api-errors 2% --api-throttles 1%";
        simulate(&format!("{load} {api} --seed {seed} --workers 2 --json")).exited(0)
    };
    let (one, two) = (of(7), of(7));
    assert_eq!(one.out, two.out);
    assert_ne!(one.out, of(8).out);
    let json = one.json();
    let figures = &json["configurations"][0];
    assert_eq!(figures["config"], "sluicegate.yaml");
    let number = |key: &str| figures[key].as_f64().expect("a number");
    assert!(
        number("jobs") > 400.0 && number("calls") > number("jobs"),
        "{json}"
    );
    assert!(
        number("throttled") > 0.0 && number("retries") > 0.0,
        "{json}"
    );
    assert_eq!(
        (number("unfinished"), figures["dead"].to_string()),
        (0.0, "{}".to_owned())
    );
    let limit = &figures["limits"][0];
    assert_eq!(
        (limit["fullest"].as_u64(), limit["allowance"].as_u64()),
        (Some(10), Some(10))
    );
}

#[test]
fn several_configurations_are_compared_in_a_table_and_a_chart() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    written(folder, "old.yaml", LIMITS);
    written(
        folder,
        "new.yaml",
        &LIMITS.replace("max-requests: 10", "max-requests: 5"),
    );
    let args = "simulate --config old.yaml --config new.yaml --burst 100 --svg a.svg";
    let done = sluicegate_in(folder, &words(args), b"").exited(0);
    let lines: Vec<Vec<&str>> = done
        .out
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0], ["old.yaml", "new.yaml"]);
    let makespan = lines
        .iter()
        .find(|line| line[0] == "makespan")
        .expect("a line");
    // 100 jobs are ten windows, and twenty. The first window begins at once.
    assert_eq!(makespan[1..], ["9.05", "s", "19.1", "s"]);
    let svg = std::fs::read_to_string(folder.join("a.svg")).expect("a picture");
    assert_eq!(
        svg.matches("<polyline").count(),
        4,
        "used and backlog of each"
    );
    assert!(svg.starts_with("<svg ") && svg.contains("new.yaml: makespan 19.1 s"));
    // The second configuration's lines have gaps that show the first one's, and so does its line in
    // the legend.
    let dashed = |begin: &str| {
        let lines = svg.lines().filter(|line| line.starts_with(begin));
        lines
            .filter(|line| line.contains("stroke-width"))
            .map(|line| line.contains("stroke-dasharray"))
            .collect::<Vec<_>>()
    };
    assert_eq!(dashed("<line"), [false, true]);
    assert_eq!(dashed("<polyline"), [false, true, false, true]);
}

#[test]
fn adaptive_limits_have_a_row_of_learned_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let limits = LIMITS.replace("}", ", adaptive: {within: 20%..100%}}");
    written(folder, "learns.yaml", &limits);
    written(folder, "fixed.yaml", LIMITS);
    let args = "simulate --config learns.yaml --config fixed.yaml --burst 40 --api-limit 5/1s";
    let done = sluicegate_in(folder, &words(args), b"").exited(0);
    let learned = done
        .out
        .lines()
        .find(|line| line.contains("learned limit at the end"));
    let columns: Vec<&str> = learned.expect("a row").split_whitespace().collect();
    let [learns, fixed] = columns[columns.len() - 2..] else {
        panic!("two configurations: {columns:?}");
    };
    let learns: u32 = learns.parse().expect("a number");
    assert!((2..10).contains(&learns) && fixed == "-", "{columns:?}");
    let none = words("simulate --config fixed.yaml --burst 1");
    let none = sluicegate_in(folder, &none, b"");
    assert!(!none.exited(0).out.contains("learned"), "no limit learns");
}

#[test]
fn jobs_come_from_a_file_or_from_standard_input() {
    let jobs = b"{\"at\": 0, \"tenant\": \"a\"}\n{\"at\": 2.5, \"tenant\": \"b\", \"cost\": 3}\n";
    let args = ["simulate", "--jobs", "-", "--json"];
    let done = sluicegate_with(Some(LIMITS), &args, jobs).exited(0);
    assert_eq!(done.json()["configurations"][0]["makespan"], 2.55);
}

#[test]
fn hostile_files_and_absurd_numbers_are_refused_with_a_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    written(folder, "sluicegate.yaml", LIMITS);
    written(folder, "typo.jsonl", "\n{\"at\": 1, \"tennant\": \"a\"}\n");
    written(folder, "long.jsonl", &"x".repeat(1 << 20));
    written(folder, "empty.jsonl", "");
    std::fs::write(folder.join("binary.jsonl"), b"caf\xe9\n").expect("written");
    for (args, why) in [
        ("--jobs typo.jsonl", "typo.jsonl: line 2: unknown key"),
        ("--jobs typo.jsonl", "did you mean tenant?"),
        ("--jobs long.jsonl", "line 1: it is longer than"),
        ("--jobs empty.jsonl", "there are no jobs in it"),
        ("--jobs binary.jsonl", "line 1: it is not UTF-8 text"),
        ("--jobs gone.jsonl", "can't be read"),
        ("--jobs typo.jsonl --rate 1/s", "cannot be used with"),
        ("", "there are no jobs"),
        ("--rate=-1/s", "it must be a rate of jobs"),
        ("--rate NaN/s", "it must be a rate of jobs"),
        ("--rate 1000/s --for 30d", "the maximum is 2000000"),
        ("--burst 99999999999999", "the maximum is 2000000"),
        ("--burst 1 --tenants 0", "--tenants is 0"),
        ("--burst 1 --workers 1000000", "--workers is 1000000"),
        ("--burst 1 --api-errors 101%", "from 0% to 100%"),
        ("--burst 1 --api-errors 5", "write 5%"),
        ("--rate poisson:0/s", "so no job would be published"),
        ("--burst 1 --api-latency 30d", "at most 1h"),
        ("--burst 1 --redis-latency 30d", "up to 1900ms"),
        ("--burst 1 --api-limit 0/1s", "100/60s"),
        ("--burst 1 --api-limiter shopfy", "did you mean shopify?"),
        ("--burst 1 --cost uniform:5-1", "uniform:1-5"),
        (
            "--burst 1 --api-latency lognormal:1s,99",
            "lognormal:80ms,0.5",
        ),
        ("--burst 1 --config gone.yaml", "gone.yaml"),
    ] {
        let args = format!("simulate {args}");
        let done = sluicegate_in(folder, &words(&args), b"").exited(2);
        assert!(
            done.err.contains(why) && done.out.is_empty(),
            "{args:?}: {done:?}"
        );
    }
}

/// Shopify's REST API has a bucket of 40 calls that gains 2 per second.
#[test]
fn the_limits_of_a_known_api_are_played() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = "rate-limiter: {max-requests: 1000, window-size: 1s}\n\
        dispatch: {http: {url: 'http://h/', api: shopify}}";
    std::fs::write(folder.path().join("a.yaml"), config).expect("written");
    let args = words("simulate --config a.yaml --burst 60 --api-limiter shopify --json");
    let figures = sluicegate_in(folder.path(), &args, b"").exited(0).json();
    let figures = &figures["configurations"][0];
    assert_eq!(
        figures["calls"].as_u64().unwrap_or(0) - 60,
        figures["throttled"],
        "{figures}"
    );
    let makespan = figures["makespan"].as_f64().expect("seconds");
    assert!((10.0..20.0).contains(&makespan), "{figures}");
}

#[test]
fn a_run_without_progress_ends_with_the_reason() {
    for (args, why) in [
        ("5 --api-errors 100%", "the API failed 100.0 % of"),
        (
            "5 --api-throttles 100%",
            "the API answered 429 to 100.0 % of",
        ),
        (
            "5 --api-latency 1h",
            "the API did not answer in time for 100.0 % of",
        ),
        ("1@2s --within 1s", "1 jobs were not done by"),
    ] {
        let done = simulate(&format!("--burst {args}")).exited(0);
        let last = done.out.lines().last().expect("a line");
        assert!(
            last.starts_with("sluicegate.yaml: ") && last.contains(why),
            "{args:?}: {}",
            done.out
        );
    }
    let json = simulate("--burst 5 --api-errors 100% --json").exited(0);
    let figures = &json.json()["configurations"][0];
    assert_eq!(
        (&figures["unfinished"], &figures["left"]["why"]),
        (&5.into(), &"still".into())
    );
    // Redis may be far away: a worker knows the measured latency.
    let far = "--burst 5 --redis-latency 400ms --json";
    let figures = &simulate(far).exited(0).json()["configurations"][0];
    assert_eq!(figures["unfinished"], 0, "{figures}");
    // Jobs that still wait at the end have waited until then.
    let some = simulate("--burst 500 --within 10s").exited(0).out;
    some.says("≥ 10.0 s");
    // Jobs that will have a turn are not given up.
    let args = "--burst 2 --api-limit 1/3h --json";
    let figures = &simulate(args).exited(0).json()["configurations"][0];
    assert_eq!(figures["unfinished"], 0, "{figures}");
    // A wait ends with the first call, and the job with its last.
    assert_eq!(figures["waits"]["max"], 0.0, "{figures}");
    assert!(
        figures["done_after"]["max"].as_f64() > Some(10_800.0),
        "{figures}"
    );
}

#[test]
fn a_chart_overwrites_only_charts() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    written(folder, "sluicegate.yaml", LIMITS);
    written(folder, "other.yaml", LIMITS);
    written(folder, "jobs.jsonl", "{\"at\": 0, \"tenant\": \"a\"}\n");
    written(folder, "notes.txt", "mine\n");
    written(folder, "empty.svg", "");
    std::os::unix::fs::symlink("jobs.jsonl", folder.join("link.svg")).expect("a link");
    let run = |more: &str| {
        let args = format!("simulate --jobs jobs.jsonl --svg {more}");
        sluicegate_in(folder, &words(&args), b"")
    };
    for (args, why) in [
        ("sluicegate.yaml", "is the input file"),
        ("./sluicegate.yaml --force", "is the input file"),
        ("jobs.jsonl --force", "is the input file"),
        ("link.svg --force", "is the input file jobs.jsonl"),
        (
            "other.yaml --config other.yaml --force",
            "is the input file",
        ),
        ("notes.txt", "is not an SVG"),
        (".", "is a folder"),
        ("gone/a.svg", "there is no folder gone"),
        ("-", "standard output is used for the figures"),
    ] {
        let done = run(args).exited(2);
        assert!(
            done.err.contains(why) && done.out.is_empty(),
            "{args:?}: {done:?}"
        );
    }
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a file");
    assert_eq!(
        (text("sluicegate.yaml").as_str(), text("notes.txt").as_str()),
        (LIMITS, "mine\n")
    );
    for name in ["new.svg", "new.svg", "empty.svg"] {
        run(name).exited(0);
        assert!(text(name).starts_with("<svg "), "{name}");
    }
    run("notes.txt --force").exited(0);
    assert!(text("notes.txt").starts_with("<svg "));
}

#[test]
fn limits_keep_their_order_and_shadows_and_long_names_fit() {
    let limits = "rate-limiter: {limits: [{name: z, max-requests: 10, window-size: 1s}, {name: a, max-requests: 100, window-size: 1m}, \
                  {name: tried, max-requests: 2, window-size: 1m, shadow: true}], tenants: {acme: {max-requests: 3}}}";
    let long = "x".repeat(250);
    let jobs = format!("{{\"at\": 0, \"tenant\": \"{long}\"}}\n").repeat(5);
    let args = ["simulate", "--jobs", "-"];
    let done = sluicegate_with(Some(limits), &args, jobs.as_bytes()).exited(0);
    let at = |words: &str| {
        done.out
            .find(words)
            .unwrap_or_else(|| panic!("{words}: {}", done.out))
    };
    assert!(at("limit z") < at("limit a") && at("limit a") < at("shadow tried"));
    done.out.says("3 of 5");
    assert!(
        done.out.lines().all(|line| line.chars().count() < 90),
        "{}",
        done.out
    );
    done.err.says("no job of 1 of the 1 name: acme");
}

#[test]
fn built_in_limits_are_reported() {
    let none = sluicegate_with(None, &["simulate", "--burst", "1"], b"").exited(0);
    assert!(
        none.out
            .lines()
            .next()
            .is_some_and(|line| line.trim() == "no configuration")
    );
    none.err
        .says("no configuration: the built-in limits apply: ");
    let other = sluicegate("amqp: {prefetch: 7}", &["simulate", "--burst", "1"]).exited(0);
    assert!(
        other
            .err
            .contains("sluicegate.yaml: has no limits; the built-in limits apply"),
        "{}",
        other.err
    );
}

const CASES: &str = "
cases:
  - name: ten a second
    config: sluicegate.yaml
    jobs:
      - {at: 0, count: 11, tenant: acme}
    expect:
      starts: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1s]
";

#[test]
fn cases_hold_or_show_the_actual_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    written(folder, "sluicegate.yaml", LIMITS);
    written(folder, "good.yaml", CASES);
    written(folder, "bad.yaml", &CASES.replace("1s]", "3s]"));
    written(
        folder,
        "typo.yaml",
        &CASES.replace("starts:", "start-times:"),
    );
    let good = sluicegate_in(folder, &["test", "good.yaml"], b"").exited(0);
    assert_eq!(good.out, "ok      ten a second\n1 case passed\n");
    let bad = sluicegate_in(folder, &["test", "good.yaml", "bad.yaml"], b"").exited(1);
    for words in [
        "FAILED  ten a second (bad.yaml:3)",
        "the 11th differs",
        "- 0.000",
        "3.000 s",
        "1 case passed, 1 failed",
    ] {
        assert!(bad.out.contains(words), "{words}: {}", bad.out);
    }
    // Errors in a file are reported before any case is played.
    let typo = sluicegate_in(folder, &["test", "good.yaml", "typo.yaml"], b"").exited(2);
    assert!(
        typo.out.is_empty() && typo.err.contains("typo.yaml:"),
        "{typo:?}"
    );
    let piped = sluicegate_in(folder, &["test", "-"], CASES.as_bytes()).exited(0);
    assert_eq!(piped.out, good.out);
    let failing = CASES.replace("expect:", "api: {errors: 100%}\n    expect:");
    let failing = sluicegate_in(folder, &["test", "-"], failing.as_bytes()).exited(1);
    failing.out.says("11 of 11 jobs were not done by");
    let gone = sluicegate_in(folder, &["test", "gone.yaml"], b"").exited(2);
    assert!(gone.err.contains("gone.yaml can't be read"), "{gone:?}");
}

#[test]
fn the_pipeline_comes_from_the_case_or_the_command_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let one = |name: &str, max: u32| {
        format!(
            "  {name}: {{rate-limiter: {{use-algo: sliding-window-algo, max-requests: {max}, window-size: 1s, guard: 0ms}}}}\n"
        )
    };
    let both = format!("pipelines:\n{}{}", one("ten", 10), one("five", 5));
    written(folder, "sluicegate.yaml", &both);
    written(folder, "ten.yaml", CASES);
    let run = |args: &str| sluicegate_in(folder, &words(&format!("test ten.yaml {args}")), b"");
    let neither = run("").exited(2);
    assert!(
        neither.err.contains("or with `pipeline: NAME` in the case"),
        "{neither:?}"
    );
    run("--pipeline ten").exited(0);
    run("--pipeline five").exited(1);
    let case = CASES.replace("    jobs:", "    pipeline: five\n    jobs:");
    written(folder, "ten.yaml", &case);
    run("--pipeline ten").exited(1);
}
