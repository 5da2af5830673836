//! Files for TLS: trusted authorities, and our own certificate. Only paths are kept. The files are
//! read when they are used, so that no value of the configuration contains a private key.

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::reading::{read_bounded, shown};

/// Maximum size of a PEM file in bytes. A bundle of all public authorities has about 250,000.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// `ca-file`, `cert-file` and `key-file` of a server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tls {
    /// `ca-file`: the trusted authorities, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// `cert-file` and `key-file`: our own certificate.
    pub identity: Option<Identity>,
}

/// Location of our own certificate.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// `cert-file`: our certificate, followed by the certificates that sign it.
    pub cert_file: PathBuf,
    /// `key-file`: its private key, without a passphrase.
    pub key_file: PathBuf,
}

/// Contents of the files of [`Tls`], in PEM form. They may include a private key.
#[derive(Default)]
pub struct Pems {
    /// `ca-file`
    pub ca: Option<Vec<u8>>,
    /// `cert-file` and `key-file`, which belong together.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Pems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pems")
    }
}

/// A file that can't be used, and why. It contains nothing of the file's content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct TlsError {
    /// `ca-file`, `cert-file` or `key-file`.
    pub key: &'static str,
    /// Sentence that follows the key.
    pub message: String,
}

impl TlsError {
    fn new(key: &'static str, file: &Path, words: &str) -> Self {
        let message = format!("{} {words}", name(file));
        Self { key, message }
    }
}

impl Tls {
    /// Reads the files and checks that they can be used. Blocks, but the files are small.
    ///
    /// # Errors
    /// [`TlsError`] for the first file that is missing, too large, not PEM, or of the wrong kind.
    pub fn read(&self) -> Result<Pems, TlsError> {
        let ca = self.ca_file.as_deref();
        let ca = ca.map(|file| certificates("ca-file", file)).transpose()?;
        let identity = self.identity.as_ref().map(Identity::read).transpose()?;
        Ok(Pems { ca, identity })
    }
}

impl Identity {
    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
        let cert = certificates("cert-file", &self.cert_file)?;
        let key = pem("key-file", &self.key_file)?;
        let wrong = |words: &str| TlsError::new("key-file", &self.key_file, words);
        let Ok(der) = PrivateKeyDer::from_pem_slice(&key) else {
            let words =
                "contains no readable private key; it must be a PEM file without a passphrase";
            return Err(wrong(words));
        };
        let chain = CertificateDer::pem_slice_iter(&cert)
            .collect::<Result<Vec<_>, _>>()
            .unwrap_or_default();
        let of = format!("the certificate in cert-file {}", name(&self.cert_file));
        // Errors of rustls about keys describe their form and never contain them.
        match CertifiedKey::from_der(chain, der, &ring::default_provider()) {
            Ok(_) => Ok((cert, key)),
            Err(rustls::Error::InconsistentKeys(_)) => {
                Err(wrong(&format!("is not the key of {of}")))
            }
            Err(why) => Err(wrong(&format!("can't be used with {of}: {why}"))),
        }
    }
}

/// Returns the text of `file`, which must contain at least one certificate and no damaged one.
fn certificates(key: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    let text = pem(key, file)?;
    let mut all = CertificateDer::pem_slice_iter(&text).peekable();
    if all.peek().is_some() && all.all(|each| each.is_ok()) {
        return Ok(text);
    }
    let words = "contains no readable certificate; it must be a PEM file";
    Err(TlsError::new(key, file, words))
}

fn pem(key: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    let text = read_bounded(file, MAX_PEM_BYTES);
    text.map(String::into_bytes)
        .map_err(|why| TlsError::new(key, file, &format!("can't be read: {why}")))
}

fn name(file: &Path) -> String {
    shown(&file.display().to_string())
}
