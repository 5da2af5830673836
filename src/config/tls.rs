//! The files that TLS needs: whose certificates are accepted, and what we show. Paths are kept and the files read
//! where they are used, so no value of the configuration holds a private key.

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::error::shown;
use super::input::read_bounded;

/// The largest PEM file, in bytes: a bundle of all public CAs has some 250,000.
const LONGEST_PEM: u64 = 1 << 20;

/// `ca-file`, `cert-file` and `key-file` of a server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tls {
    /// `ca-file`: whose certificates are accepted, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// `cert-file` and `key-file`: what we show.
    pub identity: Option<Identity>,
}

/// Where a certificate of our own is.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// `cert-file`: ours first, then those that sign it.
    pub cert_file: PathBuf,
    /// `key-file`: its private key, without a passphrase.
    pub key_file: PathBuf,
}

/// What the files of [`Tls`] hold, in PEM form; a private key may be among it.
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

/// Which file can't be used, and why; it holds nothing of what stands in the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {words}")]
pub struct TlsError {
    /// `ca-file`, `cert-file` or `key-file`.
    pub key: &'static str,
    /// A sentence that goes on after the key.
    pub words: String,
}

impl Tls {
    /// Reads the files and sees that they can be used. Blocks; a file is small.
    ///
    /// # Errors
    /// [`TlsError`] for the first file that is missing, too large, not PEM, or not what it should be.
    pub fn read(&self) -> Result<Pems, TlsError> {
        let ca = match &self.ca_file {
            Some(file) => Some(certificates("ca-file", file)?),
            None => None,
        };
        let identity = match &self.identity {
            Some(identity) => Some(identity.read()?),
            None => None,
        };
        Ok(Pems { ca, identity })
    }
}

impl Identity {
    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
        let cert = certificates("cert-file", &self.cert_file)?;
        let wrong = |words: String| TlsError {
            key: "key-file",
            words,
        };
        let key = pem("key-file", &self.key_file)?;
        let Ok(der) = PrivateKeyDer::from_pem_slice(&key) else {
            return Err(wrong(format!(
                "{} holds no private key that can be read; it must be a PEM file without a passphrase",
                name(&self.key_file)
            )));
        };
        let chain = CertificateDer::pem_slice_iter(&cert)
            .collect::<Result<Vec<_>, _>>()
            .unwrap_or_default();
        // What rustls says of keys is about their form, and never holds them.
        match CertifiedKey::from_der(chain, der, &ring::default_provider()) {
            Ok(_) => Ok((cert, key)),
            Err(rustls::Error::InconsistentKeys(_)) => Err(wrong(format!(
                "{} is not the key of the certificate in cert-file {}",
                name(&self.key_file),
                name(&self.cert_file)
            ))),
            Err(why) => Err(wrong(format!(
                "{} can't be used with the certificate in cert-file {}: {why}",
                name(&self.key_file),
                name(&self.cert_file)
            ))),
        }
    }
}

/// The text of `file`, in which one certificate stands at least and none that is damaged.
fn certificates(key: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    let text = pem(key, file)?;
    let mut all = CertificateDer::pem_slice_iter(&text).peekable();
    if all.peek().is_some() && all.all(|each| each.is_ok()) {
        return Ok(text);
    }
    let words = format!(
        "{} holds no certificate that can be read; it must be a PEM file",
        name(file)
    );
    Err(TlsError { key, words })
}

fn pem(key: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    read_bounded(file, LONGEST_PEM)
        .map(String::into_bytes)
        .map_err(|why| TlsError {
            key,
            words: format!("{} can't be read: {why}", name(file)),
        })
}

fn name(file: &Path) -> String {
    shown(&file.display().to_string())
}
