//! The keys `ca-file`, `cert-file` and `key-file` of a server: reads them, and reports files that
//! can't be used.

use crate::reading::{ConfigInput, KeyEntry, Setting};
use crate::values::tls::{Identity, Tls};

/// The keys of one server: `ca-file`, `cert-file` and `key-file`.
pub(super) type TlsKeys = [&'static Setting<String>; 3];

/// Returns the source of the files that `keys` name.
pub(super) fn tls(keys: TlsKeys) -> impl Fn(&mut ConfigInput) -> Option<Tls> {
    move |input| input.tls(keys)
}

impl ConfigInput {
    /// Returns the files that `keys` name. Reads them once, to report mistakes early.
    pub(crate) fn tls(&mut self, keys: TlsKeys) -> Option<Tls> {
        let [ca_key, cert_key, key_key] = keys;
        let [ca_file, cert_file, key_file] = keys.map(|key| self.path(key, |_| Ok(())));
        let identity = match (cert_file?, key_file?) {
            (Some(cert_file), Some(key_file)) => Some(Identity {
                cert_file,
                key_file,
            }),
            (None, None) => None,
            (Some(_), None) => {
                let words = format!("requires its private key: set {}", key_key.key.path);
                return self.wrong(&cert_key.key, words);
            }
            (None, Some(_)) => {
                let words = format!("requires its certificate: set {}", cert_key.key.path);
                return self.wrong(&key_key.key, words);
            }
        };
        let tls = Tls {
            ca_file: ca_file?,
            identity,
        };
        match tls.read() {
            Ok(_) => Some(tls),
            Err(why) => {
                let mut named = keys.into_iter();
                let key = named.find(|key| key.key.name() == why.key);
                self.wrong(&key.unwrap_or(ca_key).key, &why.message)
            }
        }
    }

    /// Reports certificates for a server without TLS, since the user believes that TLS is used.
    /// Skips keys with a problem.
    pub(super) fn tls_unused(&mut self, keys: TlsKeys, begin: &str) -> Option<()> {
        let is_sound = |entry: &KeyEntry| !self.has_problem(&entry.at);
        let mut keys = keys.into_iter();
        let unused = keys.find(|key| self.entry(&key.key).is_some_and(is_sound));
        match unused {
            None => Some(()),
            Some(key) => {
                let words = format!("has no effect without TLS; let {begin}");
                self.wrong(&key.key, words)
            }
        }
    }
}
