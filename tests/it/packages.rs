//! The files in `distribution` match the program: configurations are valid, probes ask existing
//! paths, and names agree. scripts/test-packages installs and runs the packages.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use admin::{PipelineState, PipelineStates, serve};
use config::{Config, parse_duration};
use kit::root;
use serde_json::Value;

use crate::admin::get_with;
use crate::cli::sluicegate;

const SECRETS: &str = "/run/secrets/sluicegate";

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

/// Returns the documents of `text`.
fn documents(text: &str) -> Vec<Value> {
    let parts = format!("\n{text}");
    let parts = parts
        .split("\n---\n")
        .filter(|part| !part.trim().is_empty());
    parts.map(yaml).collect()
}

/// Returns the manifests as `kubectl apply -k` applies them.
fn manifests() -> Vec<Value> {
    let folder = "distribution/kubernetes";
    let listed = yaml(&read(&format!("{folder}/kustomization.yaml")));
    let files = listed["resources"].as_array().expect("a list").iter();
    let files: BTreeSet<_> = files
        .map(|file| file.as_str().expect("a name").to_owned())
        .collect();
    let there = fs::read_dir(root().join(folder)).expect("the folder");
    let mut there: BTreeSet<_> = there
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    assert!(there.remove("kustomization.yaml"));
    assert_eq!(files, there, "all are applied");
    let all = files.iter().map(|file| read(&format!("{folder}/{file}")));
    all.flat_map(|text| documents(&text)).collect()
}

/// Renders the chart with `set`.
fn render(set: &[&str]) -> Output {
    let cache = tempfile::tempdir().expect("a folder");
    Command::new("go")
        .args(["run", "tests/chart/main.go", "distribution/helm/sluicegate"])
        .args(set)
        .current_dir(root())
        .env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode")
        .env("GOCACHE", cache.path())
        .output()
        .unwrap_or_else(|why| panic!("go: {why} (scripts/test installs what is missing)"))
}

/// Returns the chart rendered with `set`.
fn chart(set: &[&str]) -> Vec<Value> {
    let output = render(set);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{errors} (scripts/test installs what is missing)"
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(!text.contains("<no value>"), "{text}");
    documents(&text)
}

fn of_kind<'a>(all: &'a [Value], kind: &str) -> &'a Value {
    let mut found = all.iter().filter(|document| document["kind"] == kind);
    match (found.next(), found.next()) {
        (Some(only), None) => only,
        _ => panic!("one {kind}"),
    }
}

/// Returns the configuration that a worker in a pod finds, in a folder of the test. `secrets` are
/// its files.
fn config(all: &[Value], secrets: &[(&str, &str)]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in secrets {
        fs::write(folder.path().join(name), text).expect("written");
    }
    let text = &of_kind(all, "ConfigMap")["data"]["sluicegate.yaml"];
    let text = text.as_str().expect("a text");
    assert!(text.contains(SECRETS));
    let here = folder.path().to_str().expect("UTF-8");
    let text = text.replace(SECRETS, here);
    (folder, text)
}

/// Secrets as an operator would set them.
const SET: [(&str, &str); 3] = [
    ("amqp-url", "amqp://worker:secret@rabbitmq/%2f"),
    ("redis-url", "redis://worker:secret@redis:6379"),
    ("admin-token", "0123456789abcdef"),
];

/// Checks a Deployment and everything that belongs to it.
async fn fit(all: &[Value], has_secret: bool) {
    let deployment = of_kind(all, "Deployment");
    let pod = &deployment["spec"]["template"];
    let selected = &deployment["spec"]["selector"]["matchLabels"];
    let budget = of_kind(all, "PodDisruptionBudget");
    // A node with the only worker can be drained, too.
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    // A node with paused workers, or with workers that wait for a server, can be drained, too.
    assert_eq!(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    assert_eq!(&budget["spec"]["selector"]["matchLabels"], selected);
    let selected = selected.as_object().expect("labels");
    assert!(!selected.is_empty());
    for (name, value) in selected {
        assert_eq!(&pod["metadata"]["labels"][name], value, "{name}");
    }

    // The configuration is valid once the secrets are set, and all of them exist.
    let (_folder, text) = config(all, &SET);
    let done = sluicegate(&text, &["check", "--offline"]).exited(0);
    assert!(!done.out.contains("error"), "{done:?}");
    let spec = &pod["spec"];
    let volume = |name: &str| {
        let all = spec["volumes"].as_array().expect("volumes");
        all.iter()
            .find(|volume| volume["name"] == name)
            .expect("it is there")
    };
    let name = &of_kind(all, "ConfigMap")["metadata"]["name"];
    assert_eq!(&volume("config")["configMap"]["name"], name);
    if has_secret {
        let secret = of_kind(all, "Secret");
        assert_eq!(
            volume("secrets")["secret"]["secretName"],
            secret["metadata"]["name"]
        );
        let names = secret["stringData"].as_object().expect("files").keys();
        let names: Vec<_> = names.map(String::as_str).collect();
        assert_eq!(names.len(), SET.len());
        assert!(
            SET.iter().all(|(name, _)| names.contains(name)),
            "{names:?}"
        );
        // The supplied value is a placeholder, so no worker accepts it.
        let texts = secret["stringData"].as_object().expect("files").iter();
        let texts: Vec<_> = texts
            .map(|(name, text)| (&**name, text.as_str().expect("a text")))
            .collect();
        let (_folder, text) = config(all, &texts);
        let done = sluicegate(&text, &["check", "--offline"]).exited(2);
        assert!(done.err.contains("admin.token-file"), "{done:?}");
    }

    let container = &spec["containers"][0];
    let mounted = |path: &str| {
        let mounts = container["volumeMounts"].as_array().expect("mounts");
        let mount = mounts.iter().find(|mount| mount["mountPath"] == path);
        mount.unwrap_or_else(|| panic!("{path}"))["name"]
            .as_str()
            .expect("a name")
            .to_owned()
    };
    assert_eq!(mounted(SECRETS), "secrets");
    assert_eq!(mounted("/etc/sluicegate"), "config");
    let image = format!("sluicegate:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(container["image"], image);
    // Runs as the image's user with no further rights.
    let dockerfile = read("Dockerfile");
    let user = &spec["securityContext"]["runAsUser"];
    assert!(dockerfile.contains(&format!("\nUSER {user}:{user}\n")));
    let rights = &container["securityContext"];
    assert_eq!(rights["readOnlyRootFilesystem"], true);
    assert_eq!(rights["capabilities"]["drop"][0], "ALL");

    // The grace period suffices for a graceful end.
    let parsed = Config::parse("c.yaml", &text, std::iter::empty()).expect("valid");
    let grace = spec["terminationGracePeriodSeconds"]
        .as_u64()
        .expect("seconds");
    assert!(grace >= parsed.dispatch.shutdown_timeout.as_secs() + 5);

    // Probes use an existing port, and paths that a worker answers without the token.
    let port = &container["ports"][0];
    assert_eq!(port["containerPort"], parsed.admin.listen.port());
    assert!(
        parsed.admin.listen.ip().is_unspecified(),
        "kubelets ask from outside"
    );
    let mut admin = parsed.admin.clone();
    admin.listen = "127.0.0.1:0".parse().expect("an address");
    let board = PipelineStates::only(PipelineState::default());
    let server = serve(&admin, Arc::new(board)).await.expect("a free port");
    for (probe, status) in [("livenessProbe", 200), ("readinessProbe", 503)] {
        let get = &container[probe]["httpGet"];
        assert_eq!(get["port"], port["name"]);
        let path = get["path"].as_str().expect("a path");
        let answer = get_with(server.listen, path, "").await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{probe}: {answer}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn the_manifests_fit_the_program() {
    fit(&manifests(), true).await;
}

#[tokio::test]
async fn the_chart_fits_the_program() {
    fit(&chart(&[]), true).await;
    let other = chart(&["secret.existing=other", "image.tag=0.1.0"]);
    fit(&other, false).await;
    assert!(other.iter().all(|document| document["kind"] != "Secret"));
    let pod = &of_kind(&other, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"][1]["secret"]["secretName"], "other");
    let about = yaml(&read("distribution/helm/sluicegate/Chart.yaml"));
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(about["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_chart_refuses_values_that_do_not_fit_the_configuration() {
    let timeout = "config.dispatch.shutdown-timeout";
    for (set, words) in [
        (
            vec![format!("{timeout}=41s")],
            "must exceed dispatch.shutdown-timeout (41s) by 5 s",
        ),
        (
            vec![format!("{timeout}=1 m")],
            "must exceed dispatch.shutdown-timeout (1 m)",
        ),
        (
            vec![format!("{timeout}=40001ms")],
            "must exceed dispatch.shutdown-timeout (40001ms)",
        ),
        (
            vec!["terminationGracePeriodSeconds=30".to_owned()],
            "must exceed",
        ),
        (
            vec!["adminPort=9465".to_owned()],
            "must be the port of config.admin.listen",
        ),
    ] {
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        let output = render(&set);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(words),
            "{set:?}: {errors}"
        );
    }
    for set in ["40s", "40000ms", "7"].map(|time| format!("{timeout}={time}")) {
        chart(&[&set]);
    }
    chart(&["adminPort=80", "config.admin.listen=[::]:80"]);
    let scaled = chart(&["replicas=null", "imagePullSecrets=[{name: registry}]"]);
    let deployment = &of_kind(&scaled, "Deployment")["spec"];
    assert!(deployment["replicas"].is_null());
    let pod = &deployment["template"]["spec"];
    assert_eq!(pod["imagePullSecrets"][0]["name"], "registry");
}

/// The configuration that packages install, unchanged and with the changes in its comments.
#[test]
fn the_packaged_configuration_is_valid() {
    let text = read("distribution/sluicegate.yaml");
    let done = sluicegate(&text, &["check", "--offline"]).exited(0);
    let nowhere = "jobs have no destination";
    assert!(done.out.contains(nowhere), "{done:?}");
    let (head, http) = text.split_once("# dispatch:").expect("the part to fill in");
    let text = format!("{head}dispatch:{}", http.replace("\n# ", "\n"));
    let done = sluicegate(&text, &["check", "--offline"]).exited(0);
    assert!(!done.out.contains(nowhere), "{done:?}");
}

/// The unit, the packages and the image name the same file, and the unit waits for a worker's
/// graceful end.
#[test]
fn the_configuration_is_at_the_default_path() {
    let file = read("distribution/debian/conffiles");
    let file = file.trim();
    let set = format!("SLUICEGATE_CONFIG={file}\n");
    let unit = read("distribution/systemd/sluicegate.service");
    assert!(unit.contains(&set));
    assert!(read("Dockerfile").contains(&set));
    assert!(read("compose.yaml").contains(&format!("target: {file}\n")));
    // The demo in Docker takes it from the image.
    assert!(!read("scripts/demo").contains("--config /etc/"));
    assert!(
        read("distribution/rpm/sluicegate.spec").contains(&format!("%config(noreplace) {file}\n"))
    );
    assert_eq!(Path::new(file).parent(), Some(Path::new("/etc/sluicegate")));

    let set = |key: &str| {
        let mut lines = unit
            .lines()
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        lines.next().unwrap_or_else(|| panic!("{key}")).to_owned()
    };
    assert_eq!(set("Type"), "notify");
    let stops_within = parse_duration(&set("TimeoutStopSec")).expect("a duration");
    let config = Config::parse("c.yaml", "{}", std::iter::empty()).expect("valid");
    assert!(stops_within > config.dispatch.shutdown_timeout);
    assert!(parse_duration(&set("WatchdogSec")).is_some());
    // The default also sends SIGTERM to the programs of dispatch.exec, which then end in mid-job.
    assert_eq!(set("KillMode"), "mixed");
    // They inherit the restrictions, and a JIT compiler needs memory of this kind.
    assert!(!unit.contains("MemoryDenyWriteExecute=yes"));
}
