//! `amqps://`: who is trusted, on a RabbitMQ with a certificate for `localhost` alone.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sluicegate::broker::amqp::Client;
use sluicegate::broker::{BrokerError, Outgoing};
use sluicegate::config::{Amqp, QueueType};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::broker_bed::{PATIENCE, amqp, ladder, message};
use crate::servers::{Rabbit, unique};

/// An authority of our own.
fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("signed");
    (certificate.pem(), Issuer::new(params, key))
}

/// Files that RabbitMQ can read: inside its tree, when it runs in one.
struct Files {
    folder: TempDir,
    tree: PathBuf,
}

impl Files {
    fn new() -> Self {
        let tree: PathBuf = std::env::var_os("TEST_RABBITMQ_CHROOT")
            .unwrap_or_default()
            .into();
        let folder = match tree.as_os_str().is_empty() {
            true => TempDir::new(),
            false => TempDir::new_in(tree.join("tmp")),
        };
        let folder = folder.expect("a folder");
        Self { folder, tree }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("written");
        path
    }

    /// `path` as RabbitMQ sees it.
    fn inside(&self, path: &Path) -> String {
        let inside = match path.strip_prefix(&self.tree) {
            Ok(rest) if !self.tree.as_os_str().is_empty() => Path::new("/").join(rest),
            _ => path.to_owned(),
        };
        inside.display().to_string()
    }
}

/// A free port where neither the kernel nor our scripts look for one.
fn free_port() -> u16 {
    (0..1000)
        .map(|_| rand::random_range(10_000..20_000))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}

async fn refusal(amqp: &Amqp) -> String {
    let Err(error) = Client::connect(amqp, &ladder()).await else {
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
async fn amqps_trusts_the_authority_that_it_is_told_and_no_other_name() {
    let files = Files::new();
    let (ca, issuer) = authority("ours");
    let (other, _) = authority("another");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &issuer).expect("signed");
    let ca_file = files.write("ca.pem", &ca);
    let port = free_port();
    let setting = |name: &str, file: &Path| format!("ssl_options.{name} = {}", files.inside(file));
    let settings = [
        format!("listeners.ssl.1 = 127.0.0.1:{port}"),
        setting("cacertfile", &ca_file),
        setting("certfile", &files.write("cert.pem", &certificate.pem())),
        setting("keyfile", &files.write("key.pem", &key.serialize_pem())),
    ];
    let _rabbit = Rabbit::start_with(&settings.each_ref().map(String::as_str));
    // It greets at its other port before it listens at this one.
    let listens = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    (tokio::time::timeout(PATIENCE, listens).await).expect("it listens for TLS");

    let to = |host: &str, ca_file: Option<&Path>| Amqp {
        ca_file: ca_file.map(Path::to_owned),
        ..amqp(
            &format!("amqps://guest:guest@{host}:{port}/%2f"),
            &unique("tls"),
            QueueType::Quorum,
        )
    };
    let client = (Client::connect(&to("localhost", Some(&ca_file)), &ladder()).await)
        .expect("our authority signed it for this name");
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

    let error = refusal(&to("127.0.0.1", Some(&ca_file))).await;
    assert!(error.contains("not valid for name"), "{error}");
    let other = files.write("other.pem", &other);
    for unknown in [None, Some(other.as_path())] {
        let error = refusal(&to("localhost", unknown)).await;
        assert!(error.contains("UnknownIssuer"), "{error}");
    }
    let error = refusal(&to("localhost", Some(Path::new("/nowhere/ca.pem")))).await;
    assert!(error.contains("amqp.ca-file /nowhere/ca.pem"), "{error}");
}
