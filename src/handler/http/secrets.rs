//! The secrets of tenants: each in a file, which others may change at any time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::Instant;

use crate::config::SecretFiles;
use crate::rules::tenant::Tenant;
use crate::rules::text;
use crate::shortage;

/// A secret is read anew when it was read so long ago.
const FRESH: Duration = Duration::from_secs(1);
/// Tenants whose secrets are kept.
const MOST: usize = 10_000;
/// The largest secret, in bytes.
const LONGEST: u64 = 16 << 10;
/// What stands for itself in the name of a tenant's file.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// Reads the secrets of tenants.
pub(super) struct Secrets {
    files: SecretFiles,
    known: Mutex<HashMap<Tenant, Known>>,
}

struct Known {
    text: Arc<str>,
    read: Instant,
}

/// Why there is no secret; no text of it holds one.
pub(super) enum Missing {
    /// There is no file for it.
    Absent(String),
    /// There is one, and it can't be read now.
    Unreadable(String),
    /// This machine lacks a resource that is needed to read it.
    Short(String),
}

impl Secrets {
    pub(super) fn new(files: SecretFiles) -> Self {
        Self {
            files,
            known: Mutex::default(),
        }
    }

    /// The secret of `tenant`. Once a second it is read from its file: a small one on this machine, which takes some microseconds. What
    /// takes longer ends the permit, which is looked at afterwards.
    pub(super) fn of(&self, tenant: &Tenant) -> Result<Arc<str>, Missing> {
        let now = Instant::now();
        if let Some(known) = self.known().get(tenant)
            && now < known.read + FRESH
        {
            return Ok(Arc::clone(&known.text));
        }
        let text: Arc<str> = self.read(tenant)?.into();
        let mut known = self.known();
        if known.len() >= MOST && !known.contains_key(tenant) {
            known.clear();
        }
        let entry = Known {
            text: Arc::clone(&text),
            read: now,
        };
        known.insert(tenant.clone(), entry);
        Ok(text)
    }

    fn read(&self, tenant: &Tenant) -> Result<String, Missing> {
        let SecretFiles { folder, default } = &self.files;
        let own = folder.as_ref().map(|folder| folder.join(file_name(tenant)));
        for path in own.iter().chain(default) {
            match text_of(path) {
                Ok(text) => return Ok(text),
                Err(why) if is_absent(&why) => {}
                Err(why) => {
                    let words = format!("the secret of this tenant can't be read: {why}");
                    return Err(match shortage::of(&why) {
                        Some(missing) => Missing::Short(format!("{words} ({missing})")),
                        None => Missing::Unreadable(words),
                    });
                }
            }
        }
        let keys = "dispatch.http.secrets-folder";
        let named = own.map_or(keys.to_owned(), |path| {
            format!("{keys}: {}", path.display())
        });
        Err(Missing::Absent(format!(
            "there is no secret for this tenant ({named})"
        )))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Tenant, Known>> {
        // What it holds is whole at any time.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of a tenant's file: percent-encoded, so that it is one in the folder, and dots in front are no other folder and nothing hidden.
fn file_name(tenant: &Tenant) -> String {
    let name = utf8_percent_encode(tenant.as_str(), PLAIN).to_string();
    match name.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None => name,
    }
}

/// There is nothing that could be read, now or later.
fn is_absent(why: &io::Error) -> bool {
    matches!(
        why.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory | io::ErrorKind::InvalidFilename
    )
}

/// The text of the file at `path`, without the line's end behind it.
fn text_of(path: &PathBuf) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(LONGEST + 1)
        .read_to_end(&mut bytes)?;
    let wrong = |words: &str| io::Error::other(words.to_owned());
    if bytes.len() as u64 > LONGEST {
        return Err(wrong("it is larger than 16 KiB"));
    }
    let text = text::decode(&bytes).map_err(io::Error::other)?;
    let line = text.strip_suffix('\n').unwrap_or(text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    match line.is_empty() || line.contains(char::is_control) {
        true => Err(wrong("it is empty, or has control characters")),
        false => Ok(line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::parse(name).expect("a tenant")
    }

    #[test]
    fn a_tenants_file_is_one_in_its_folder() {
        for (name, file) in [
            ("acme-7_b.c", "acme-7_b.c"),
            ("a/b", "a%2Fb"),
            ("..", "%2E."),
            (".hidden", "%2Ehidden"),
            ("ü %", "%C3%BC%20%25"),
        ] {
            assert_eq!(file_name(&tenant(name)), file);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_is_the_one_in_its_file_a_second_ago() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("written");
        };
        write("acme", "one\n");
        let secrets = Secrets::new(SecretFiles {
            folder: Some(folder.path().to_owned()),
            default: None,
        });
        let acme = tenant("acme");
        let of = |secrets: &Secrets| match secrets.of(&acme) {
            Ok(text) => text.to_string(),
            Err(Missing::Absent(why)) => format!("absent: {why}"),
            Err(Missing::Unreadable(why)) => format!("unreadable: {why}"),
            Err(Missing::Short(why)) => format!("short: {why}"),
        };
        assert_eq!(of(&secrets), "one");
        write("acme", "two");
        assert_eq!(of(&secrets), "one");
        tokio::time::advance(FRESH).await;
        assert_eq!(of(&secrets), "two");
        for (text, part) in [("", "it is empty"), ("a\nb", "control characters")] {
            write("acme", text);
            tokio::time::advance(FRESH).await;
            let words = of(&secrets);
            assert!(
                words.starts_with("unreadable: ") && words.contains(part),
                "{words}"
            );
        }
        std::fs::remove_file(folder.path().join("acme")).expect("it is there");
        let words = of(&secrets);
        assert!(
            words.starts_with("absent: ") && words.ends_with("acme)"),
            "{words}"
        );

        write("theirs", "default");
        let secrets = Secrets::new(SecretFiles {
            default: Some(folder.path().join("theirs")),
            ..secrets.files
        });
        assert_eq!(of(&secrets), "default");
    }
}
