//! Runs the examples of docs/publishers as written. `scripts/test` installs their clients.

use std::path::Path;
use std::process::{Command, Output};

use kit::servers::{shared_rabbit, unique};
use kit::sources::page;
use kit::{client, drain};
use rules::job::{self, Field};

use crate::cli::servers::{config, yaml};

/// An example and its command.
struct Example {
    /// The page, and the beginning of its code there.
    page: &'static str,
    fence: &'static str,
    file: &'static str,
    /// The path of its client from Debian's packages, or empty if `npm` installs it.
    client: &'static str,
    command: &'static [&'static str],
}

const CLASSES: &str = "/usr/share/java/amqp-client.jar:/usr/share/java/slf4j-api.jar";
const EXAMPLES: [Example; 8] = [
    Example {
        page: "docs/publishers/python.md",
        fence: "```python pika\n",
        file: "publish.py",
        client: "/usr/lib/python3/dist-packages/pika",
        command: &["/usr/bin/python3", "publish.py"],
    },
    Example {
        page: "docs/publishers/python.md",
        fence: "```python aio-pika\n",
        file: "publish.py",
        client: "/usr/lib/python3/dist-packages/aio_pika",
        command: &["/usr/bin/python3", "publish.py"],
    },
    Example {
        page: "docs/publishers/python.md",
        fence: "```python kombu\n",
        file: "publish.py",
        client: "/usr/lib/python3/dist-packages/kombu",
        command: &["/usr/bin/python3", "publish.py"],
    },
    Example {
        page: "docs/publishers/node.md",
        fence: "```javascript amqplib\n",
        file: "publish.js",
        client: "",
        command: &["node", "publish.js"],
    },
    Example {
        page: "docs/publishers/go.md",
        fence: "```go amqp091-go\n",
        file: "publish.go",
        client: "/usr/share/gocode/src/github.com/rabbitmq/amqp091-go",
        command: &["go", "run", "publish.go"],
    },
    Example {
        page: "docs/publishers/java.md",
        fence: "```java Publish\n",
        file: "Publish.java",
        client: "/usr/share/java/amqp-client.jar",
        command: &["java", "-cp", CLASSES, "Publish.java"],
    },
    Example {
        page: "docs/publishers/php.md",
        fence: "```php php-amqplib\n",
        file: "publish.php",
        client: "/usr/share/php/PhpAmqpLib",
        command: &["php", "publish.php"],
    },
    Example {
        page: "docs/publishers/ruby.md",
        fence: "```ruby bunny\n",
        file: "publish.rb",
        client: "/usr/share/doc/ruby-bunny",
        command: &["ruby", "publish.rb"],
    },
];

impl Example {
    fn code(&self) -> String {
        let text = page(self.page);
        let code = text.split_once(self.fence).map(|(_, rest)| rest);
        let code = code.and_then(|rest| Some(rest.split_once("```\n")?.0));
        code.unwrap_or_else(|| panic!("{} has no {:?}", self.page, self.fence))
            .to_owned()
    }

    fn run(&self, folder: &Path, url: &str, queue: &str) -> Output {
        let [program, arguments @ ..] = self.command else {
            panic!("a program");
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(folder)
            .env("AMQP_URL", url)
            .env("QUEUE", queue)
            .env("AUTOLOAD", "/usr/share/php/PhpAmqpLib/autoload.php")
            .env("GO111MODULE", "off")
            .env("GOPATH", "/usr/share/gocode")
            .env("GOCACHE", folder.join("cache"));
        output(&mut command)
    }
}

fn output(command: &mut Command) -> Output {
    let output = command.output();
    output
        .unwrap_or_else(|why| panic!("{command:?}: {why} (scripts/test installs what is missing)"))
}

async fn try_out(example: &Example, url: &str) {
    let what = example.fence.trim_end();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    std::fs::write(path.join(example.file), example.code()).expect("written");
    if example.client.is_empty() {
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "amqplib"]);
        let installed = output(npm.current_dir(path));
        assert!(installed.status.success(), "{what}: {installed:?}");
    } else {
        let is_there = Path::new(example.client).exists();
        assert!(
            is_there,
            "{what}: its client is missing; scripts/test installs it"
        );
    }
    let yaml = yaml();
    let config = config(&yaml);
    let client = client(&yaml).await;
    let queue = &client.names().fresh;
    let done = example.run(path, url, queue);
    assert!(done.status.success(), "{what}: {done:?}");
    let messages = drain(&client, queue).await;
    let [message] = messages.as_slice() else {
        panic!("{what}: one job, not {messages:?}");
    };
    assert_eq!(message.id(), Some("order-7"), "{what}");
    assert_eq!(*message.properties.delivery_mode(), Some(2), "{what}");
    assert_eq!(message.content_type(), Some("application/json"), "{what}");
    assert!(
        matches!(message.header("x-tenant"), Field::Text("acme")),
        "{what}"
    );
    let body: serde_json::Value = serde_json::from_slice(&message.body).expect("JSON");
    assert_eq!(body, serde_json::json!({"order": 7}), "{what}");
    let policy = &config.rate_limiter.policy;
    let claims = job::read(message, false, &config.job, policy).expect("a job");
    assert_eq!((claims.tenant.as_str(), claims.cost), ("acme", 3), "{what}");

    let failed = example.run(path, url, "a queue that does not exist");
    assert!(
        !failed.status.success(),
        "{what} does not notice that there is no queue: {failed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_example_publishes_a_job_and_notices_a_missing_queue() {
    // The URL has the special characters of the password in percent-encoding.
    let (rabbit, user) = (shared_rabbit(), unique("publisher"));
    rabbit.ctl(&["add_user", &user, "p@ss+/%"]);
    rabbit.ctl(&["set_permissions", &user, "", ".*", ""]);
    let login = format!("//{user}:p%40ss%2B%2F%25@");
    let url = rabbit.url().replace("//guest:guest@", &login);
    for example in &EXAMPLES {
        try_out(example, &url).await;
    }
}
