//! Reads how TLS is done with a server, and reports files that can't be used.

use std::path::PathBuf;

use super::tls::{Identity, Tls};
use super::values::Values;

/// The keys of one server: `ca-file`, `cert-file` and `key-file`.
pub(super) type TlsKeys = [&'static str; 3];

impl Values {
    /// The files that `keys` name. They are read once, to tell mistakes early.
    pub(super) fn tls(&mut self, keys: TlsKeys) -> Option<Tls> {
        let [ca_key, cert_key, key_key] = keys;
        let ca_file = self.pem_file(ca_key);
        let cert_file = self.pem_file(cert_key);
        let key_file = self.pem_file(key_key);
        let identity = match (cert_file?, key_file?) {
            (Some(cert_file), Some(key_file)) => Some(Identity {
                cert_file,
                key_file,
            }),
            (None, None) => None,
            (Some(_), None) => {
                return self.wrong(cert_key, format_args!("needs its key too: set {key_key}"));
            }
            (None, Some(_)) => {
                return self.wrong(
                    key_key,
                    format_args!("needs its certificate too: set {cert_key}"),
                );
            }
        };
        let tls = Tls {
            ca_file: ca_file?,
            identity,
        };
        match tls.read() {
            Ok(_) => Some(tls),
            Err(why) => {
                let of = |key: &&&str| key.ends_with(why.key);
                let key = keys.iter().find(of).unwrap_or(&ca_key);
                self.wrong(key, &why.words)
            }
        }
    }

    /// Certificates for a server without TLS are a mistake: somebody believes that there is TLS.
    pub(super) fn tls_unused(&mut self, keys: TlsKeys, begin: &str) -> Option<()> {
        let unused = keys.into_iter().find(|key| self.entry(key).is_some());
        match unused {
            None => Some(()),
            Some(key) => self.wrong(key, format_args!("is of no use without TLS; let {begin}")),
        }
    }

    /// The path at `key`, if it is set.
    fn pem_file(&mut self, key: &'static str) -> Option<Option<PathBuf>> {
        let Some(entry) = self.entry(key) else {
            return Some(None);
        };
        match self.path_of(entry, "the path of a PEM file") {
            Ok(path) => Some(Some(path)),
            Err(words) => self.wrong(key, words),
        }
    }
}
