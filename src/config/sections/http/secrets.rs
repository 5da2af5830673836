//! Secrets of tenants in calls: `dispatch.http.secrets-folder`, `default-secret-file`, and how
//! calls are signed.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use strum::{IntoStaticStr, VariantArray};

use crate::reading::{ConfigInput, ConfigKey, Setting, ShownValue, show};
use rules::named::Named;

/// Value of `dispatch.http.sign-secrets` or `dispatch.http.oauth2.client-secret` if each tenant has
/// its own.
pub const OF_TENANTS: &str = "{secret:tenant}";
/// Maximum number of keys that sign a call: the current one and, during a rotation, the next one.
const MAX_KEYS: usize = 2;
/// Length of a signing key in bytes (Standard Webhooks).
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Prefix of a key.
const KEY_PREFIX: &str = "whsec_";

/// Location of the tenants' secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretFiles {
    /// `dispatch.http.secrets-folder`: the folder with a file for each tenant.
    pub folder: Option<PathBuf>,
    /// `dispatch.http.default-secret-file`: the file for tenants without their own.
    pub default: Option<PathBuf>,
}

/// `dispatch.http.sign`
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Sign {
    /// `none`
    None,
    /// `standard-webhooks`: <https://github.com/standard-webhooks/standard-webhooks>
    StandardWebhooks,
}

impl Named for Sign {}
show!(ShownValue::named => Sign);

/// Parses keys in `text`, `whsec_…`, separated by white space.
///
/// # Errors
/// The mistake in the text, without any part of it.
pub fn signing_keys(text: &str) -> Result<Vec<Vec<u8>>, &'static str> {
    const MUST: &str =
        "must contain one or two keys such as whsec_… in base64, of 24 to 64 bytes each";
    let key = |word: &str| {
        let bytes = BASE64_STANDARD.decode(word.strip_prefix(KEY_PREFIX)?);
        bytes.ok().filter(|key| KEY_BYTES.contains(&key.len()))
    };
    let keys: Option<Vec<_>> = text.split_whitespace().map(key).collect();
    let fits = |keys: &Vec<Vec<u8>>| (1..=MAX_KEYS).contains(&keys.len());
    keys.filter(fits).ok_or(MUST)
}

impl ConfigInput {
    /// Reads the paths of the secrets' files.
    pub(super) fn secret_files(
        &mut self,
        folder: &Setting<String>,
        default: &Setting<String>,
    ) -> Option<SecretFiles> {
        let is_folder = |path: &Path| {
            path.is_dir()
                .then_some(())
                .ok_or("is not a readable folder")
        };
        let is_file = |path: &Path| match std::fs::File::open(path) {
            Ok(_) => Ok(()),
            Err(_) => Err("is not a readable file"),
        };
        let folder = self.path(folder, is_folder);
        let default = self.path(default, is_file);
        Some(SecretFiles {
            folder: folder?,
            default: default?,
        })
    }

    /// Checks that `files` are set if and only if calls need secrets. `used` is the key by which
    /// calls need them.
    pub(super) fn used_secrets(
        &mut self,
        (folder, default): (&Setting<String>, &Setting<String>),
        files: SecretFiles,
        used: Option<&ConfigKey>,
    ) -> Option<Option<SecretFiles>> {
        let is_set = files.folder.is_some() || files.default.is_some();
        match (is_set, used) {
            (false, Some(used)) => {
                let (folder, default) = (folder.key.path, default.key.path);
                let words = format!(
                    "{{secret:tenant}} has no value: set {folder} to a folder with a file for \
                    each tenant, or {default}"
                );
                self.wrong(used, words)
            }
            (true, None) => {
                let key = self.set_key_of(folder, default);
                self.wrong(
                    key,
                    "has no effect: use {secret:tenant} in dispatch.http.url, \
                    headers, sign-secrets or oauth2.client-secret, or remove this key",
                )
            }
            (is_set, _) => Some(is_set.then_some(files)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_sign_are_one_or_two_in_base64() {
        let key = |bytes: usize| format!("whsec_{}", BASE64_STANDARD.encode(vec![7; bytes]));
        assert_eq!(signing_keys(&key(24)), Ok(vec![vec![7; 24]]));
        let two = format!("{} {}\n", key(24), key(64));
        assert_eq!(signing_keys(&two).map(|keys| keys.len()), Ok(2));
        for wrong in [
            String::new(),
            "hunter2".to_owned(),
            key(23),
            key(65),
            key(24).replace("whsec_", ""),
            format!("{two} {}", key(24)),
        ] {
            assert!(signing_keys(&wrong).is_err(), "{wrong}");
        }
    }
}
