//! `amqps://`: trust and client certificates, on a RabbitMQ with a certificate for `localhost`
//! only.

use std::path::Path;
use std::time::Duration;

use broker::amqp::{Client, inventory};
use broker::{BrokerError, Outgoing};
use config::{Amqp, QueueType, Tls};
use kit::PATIENCE;
use kit::certificates::TestCertificates;
use kit::servers::{Rabbit, free_port, unique};
use tokio::net::TcpStream;

use crate::broker::bed::{amqp, levels, message};

/// A RabbitMQ that also accepts TLS, on its own port.
pub struct Listening {
    pub rabbit: Rabbit,
    pub port: u16,
}

impl Listening {
    /// Starts it with `server.pem` of `papers` and `more` lines of rabbitmq.conf.
    pub async fn start(papers: &TestCertificates, more: &[&str]) -> Self {
        let port = free_port();
        let setting =
            |name: &str, file: &str| format!("ssl_options.{name} = {}", papers.inside(file));
        let settings = [
            format!("listeners.ssl.1 = 127.0.0.1:{port}"),
            setting("cacertfile", "ca.pem"),
            setting("certfile", "server.pem"),
            setting("keyfile", "server.key"),
        ];
        let mut all: Vec<&str> = settings.iter().map(String::as_str).collect();
        all.extend(more);
        let rabbit = Rabbit::start_with(&all);
        // It accepts connections at its other port before it listens at this one.
        let listens = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        (tokio::time::timeout(PATIENCE, listens).await).expect("it listens for TLS");
        Self { rabbit, port }
    }

    fn at(&self, host: &str, tls: Tls) -> Amqp {
        Amqp {
            tls,
            ..amqp(
                &format!("amqps://guest:guest@{host}:{}/%2f", self.port),
                &unique("tls"),
                QueueType::Quorum,
            )
        }
    }
}

async fn refusal(amqp: &Amqp) -> String {
    let Err(error) = Client::connect(amqp, &levels()).await else {
        panic!("{amqp:?} was accepted");
    };
    assert!(
        matches!(error, BrokerError::Unreachable { .. }),
        "{error:?}"
    );
    let error = error.to_string();
    assert!(!error.contains("guest:guest"), "{error}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn amqps_trusts_only_the_configured_authority_and_host_name() {
    let (papers, other) = (TestCertificates::new(), TestCertificates::called("another"));
    papers.issue("server", &["localhost"]);
    let rabbit = Listening::start(&papers, &[]).await;

    let client = Client::connect(&rabbit.at("localhost", papers.trusted()), &levels()).await;
    let client = client.expect("our authority signed it for this name");
    // Larger than a TLS record and an AMQP frame.
    let body = vec![7; 300_000];
    let mut sent = message("large");
    sent.body = body.clone().into();
    let queue = client.names().fresh.clone();
    let outgoing = [Outgoing {
        queue: queue.clone(),
        message: sent,
    }];
    assert_eq!(client.publish(&outgoing).await, Ok(vec![Ok(())]));
    let got = client
        .get(&queue)
        .await
        .expect("an answer")
        .expect("a message");
    assert!(got.message.body == body);
    client.close().await;
    let found = inventory(&rabbit.at("localhost", papers.trusted()), &levels()).await;
    let version = found.expect("an answer").version;
    assert!(version.is_some_and(|it| it.contains('.')));

    let error = refusal(&rabbit.at("127.0.0.1", papers.trusted())).await;
    assert!(error.contains("not valid for name"), "{error}");
    for unknown in [Tls::default(), other.trusted()] {
        let error = refusal(&rabbit.at("localhost", unknown)).await;
        assert!(error.contains("UnknownIssuer"), "{error}");
        assert!(error.contains("see amqp.ca-file"), "{error}");
    }
    let nowhere = Tls {
        ca_file: Some(Path::new("/nowhere/ca.pem").to_owned()),
        identity: None,
    };
    let error = refusal(&rabbit.at("localhost", nowhere)).await;
    let words = "amqp.ca-file: \"/nowhere/ca.pem\" can't be read";
    assert!(error.contains(words), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_accepts_client_certificates_of_its_authority_only() {
    let (papers, foreign) = (TestCertificates::new(), TestCertificates::called("another"));
    papers.issue("server", &["localhost"]);
    papers.issue("client", &["worker"]);
    foreign.issue("client", &["worker"]);
    for version in ["tlsv1.3", "tlsv1.2"] {
        let version = format!("ssl_options.versions.1 = {version}");
        let demands = [
            "ssl_options.verify = verify_peer",
            "ssl_options.fail_if_no_peer_cert = true",
            &version,
        ];
        let rabbit = Listening::start(&papers, &demands).await;

        let ours = rabbit.at("localhost", papers.tls("client"));
        let client = (Client::connect(&ours, &levels()).await).expect("a certificate it wants");
        client.close().await;

        let error = refusal(&rabbit.at("localhost", papers.trusted())).await;
        assert!(error.contains("amqp.cert-file"), "{version}: {error}");
        let theirs = Tls {
            identity: Some(foreign.identity("client")),
            ..papers.trusted()
        };
        let error = refusal(&rabbit.at("localhost", theirs)).await;
        assert!(error.contains("amqp.cert-file"), "{version}: {error}");
        let error = refusal(&rabbit.at("127.0.0.1", papers.tls("client"))).await;
        assert!(error.contains("not valid for name"), "{version}: {error}");

        // The next connection shows the file's certificate of that time.
        let (name, later) = ("later", papers.tls("later"));
        for suffix in ["pem", "key"] {
            papers.write(
                &format!("{name}.{suffix}"),
                &foreign.read(&format!("client.{suffix}")),
            );
        }
        let later = rabbit.at("localhost", later);
        refusal(&later).await;
        papers.issue(name, &["worker"]);
        let client = (Client::connect(&later, &levels()).await).expect("a new certificate");
        client.close().await;
    }
}
