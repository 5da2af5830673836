//! A test's own certificates: an authority and the certificates it signed, as PEM files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::{Identity, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;

/// A temporary folder with `ca.pem` of an authority and the certificates it issued.
pub struct TestCertificates {
    folder: TempDir,
    /// The root of RabbitMQ's file tree, if not empty.
    tree: PathBuf,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Default for TestCertificates {
    fn default() -> Self {
        Self::new()
    }
}

impl TestCertificates {
    pub fn new() -> Self {
        // Differs from the names it signs, since otherwise their certificates would look
        // self-signed.
        Self::called("CA of a test")
    }

    pub fn called(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let tree: PathBuf = std::env::var_os("TEST_RABBITMQ_CHROOT")
            .unwrap_or_default()
            .into();
        let folder = match tree.as_os_str().is_empty() {
            true => TempDir::new(),
            false => TempDir::new_in(tree.join("tmp")),
        };
        let papers = Self {
            folder: folder.expect("a folder"),
            tree,
            ca: CertifiedIssuer::self_signed(params, key).expect("a CA"),
        };
        papers.write("ca.pem", &papers.ca.pem());
        papers
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a folder to write to");
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("a file")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of `name` as RabbitMQ sees it, relative to its tree if it has one.
    pub fn inside(&self, name: &str) -> String {
        let path = self.path(name);
        let inside = match path.strip_prefix(&self.tree) {
            Ok(rest) if !self.tree.as_os_str().is_empty() => Path::new("/").join(rest),
            _ => path,
        };
        inside.display().to_string()
    }

    /// Issues `NAME.pem` and `NAME.key` for a server or a client with these names.
    pub fn issue(&self, name: &str, hosts: &[&str]) {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).expect("good names");
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        self.sign(name, params);
    }

    /// Writes the authority's own certificate as `NAME.pem` and `NAME.key`, like a server's that
    /// was made by `openssl req -x509`.
    pub fn issue_itself(&self, name: &str) {
        self.write(&format!("{name}.pem"), &self.ca.pem());
        self.write(&format!("{name}.key"), &self.ca.key().serialize_pem());
    }

    /// Issues `NAME.pem` and `NAME.key` for `host` that have expired.
    pub fn issue_expired(&self, name: &str, host: &str) {
        let mut params = CertificateParams::new([host.to_owned()]).expect("a good name");
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 2);
        self.sign(name, params);
    }

    fn sign(&self, name: &str, params: CertificateParams) {
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.ca).expect("a certificate");
        self.write(&format!("{name}.pem"), &cert.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// Returns settings that trust this authority and show no certificate.
    pub fn trusted(&self) -> Tls {
        Tls {
            ca_file: Some(self.path("ca.pem")),
            identity: None,
        }
    }

    /// Returns the certificate `name`, to be shown.
    pub fn identity(&self, name: &str) -> Identity {
        Identity {
            cert_file: self.path(&format!("{name}.pem")),
            key_file: self.path(&format!("{name}.key")),
        }
    }

    /// Returns settings that trust this authority and show the certificate `name`.
    pub fn tls(&self, name: &str) -> Tls {
        Tls {
            identity: Some(self.identity(name)),
            ..self.trusted()
        }
    }

    /// Returns the configuration keys for these files, each after a comma.
    pub fn keys(&self, ca: Option<&str>, client: Option<&str>) -> String {
        let path = |file: &str| self.path(file).display().to_string();
        let ca = ca.map(|file| format!(", ca-file: '{}'", path(file)));
        let client = client.map(|name| {
            let (cert, key) = (path(&format!("{name}.pem")), path(&format!("{name}.key")));
            format!(", cert-file: '{cert}', key-file: '{key}'")
        });
        [ca, client].into_iter().flatten().collect()
    }

    /// Returns a server that shows the certificate `name`, and requires a certificate of `clients`,
    /// if given.
    pub fn acceptor(&self, name: &str, clients: Option<&Self>) -> TlsAcceptor {
        self.acceptor_with(name, clients, &[])
    }

    /// Like [`TestCertificates::acceptor`], offering these protocols (ALPN).
    pub fn acceptor_with(
        &self,
        name: &str,
        clients: Option<&Self>,
        protocols: &[&str],
    ) -> TlsAcceptor {
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&ring))
            .with_safe_default_protocol_versions()
            .expect("TLS 1.2 and 1.3");
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(papers) => {
                let mut roots = RootCertStore::empty();
                roots.add(papers.ca.der().clone()).expect("a certificate");
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), ring);
                config.with_client_cert_verifier(verifier.build().expect("a verifier"))
            }
        };
        let Identity {
            cert_file,
            key_file,
        } = self.identity(name);
        let cert = CertificateDer::from_pem_file(cert_file).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(key_file).expect("a key");
        let config = config.with_single_cert(vec![cert], key);
        let mut config = config.expect("a certificate and its key");
        config.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().into())
            .collect();
        TlsAcceptor::from(Arc::new(config))
    }
}
