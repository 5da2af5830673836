//! The secrets of tenants, each in a file that may change at any time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::requests::NoRequest;
use config::SecretFiles;
use rules::tenant::Tenant;
use rules::text;
use runtime::shortage;

/// Age from which a secret is read again.
const SECRET_MAX_AGE: Duration = Duration::from_secs(1);
/// Maximum number of tenants whose secrets are kept.
const MAX_TENANTS: usize = 10_000;
/// Maximum size of a secret in bytes.
const MAX_FILE_BYTES: u64 = 16 << 10;
/// Characters that are not percent-encoded in the name of a tenant's file.
const UNESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// Maximum time that a call waits for a secret.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of reads in progress, each in a thread. A file on a file system that hangs
/// occupies one for as long as it hangs.
const MAX_READS: usize = 64;

/// Reads the secrets of tenants.
pub(super) struct Secrets {
    files: SecretFiles,
    known: Mutex<HashMap<Tenant, Arc<CachedSecret>>>,
    reads: Arc<Semaphore>,
}

/// Latest secret of a tenant, and when it was read. It is locked while it is read again, so at most
/// one read per tenant is in progress.
type CachedSecret = AsyncMutex<Option<(Arc<str>, Instant)>>;

impl Secrets {
    pub(super) fn new(files: SecretFiles) -> Self {
        Self {
            files,
            known: Mutex::default(),
            reads: Arc::new(Semaphore::new(MAX_READS)),
        }
    }

    /// Returns the secret of `tenant`. A thread reads its file at most once a second.
    ///
    /// # Errors
    /// [`NoRequest`] with the reason, which contains no secret: it is permanent if the folder has no
    /// file and there is no default, a shortage if this machine lacks a resource, and else temporary.
    pub(super) async fn of(&self, tenant: &Tenant) -> Result<Arc<str>, NoRequest> {
        let read = timeout(READ_TIMEOUT, self.read(tenant)).await;
        read.unwrap_or_else(|_| {
            let why = format!("its file system did not answer within {READ_TIMEOUT:?}");
            Err(unreadable(&why))
        })
    }

    async fn read(&self, tenant: &Tenant) -> Result<Arc<str>, NoRequest> {
        let mut known = self.known(tenant).lock_owned().await;
        if let Some((text, read)) = &*known
            && read.elapsed() < SECRET_MAX_AGE
        {
            return Ok(Arc::clone(text));
        }
        // The semaphore is never closed.
        let turn = Arc::clone(&self.reads).acquire_owned().await;
        let (files, tenant) = (self.files.clone(), tenant.clone());
        // A read whose caller has gone keeps its permit and the lock until it ends.
        let reading = spawn_blocking(move || {
            let _turn = turn;
            let text: Arc<str> = secret_in(&files, &tenant)?.into();
            // A file that takes long to read would otherwise be read for each call.
            *known = Some((Arc::clone(&text), Instant::now()));
            Ok(text)
        });
        let ended = reading.await;
        ended.unwrap_or_else(|why| Err(unreadable(&why.to_string())))
    }

    fn known(&self, tenant: &Tenant) -> Arc<CachedSecret> {
        // The map is consistent at any time.
        let mut known: MutexGuard<'_, HashMap<_, _>> =
            self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(tenant) {
            return Arc::clone(known);
        }
        if known.len() >= MAX_TENANTS {
            known.clear();
        }
        Arc::clone(known.entry(tenant.clone()).or_default())
    }
}

fn unreadable(why: &str) -> NoRequest {
    NoRequest::Temporary(format!("the secret of this tenant can't be read: {why}"))
}

/// Reads the secret of `tenant`, or the default one. Blocks.
fn secret_in(files: &SecretFiles, tenant: &Tenant) -> Result<String, NoRequest> {
    let mut place = "dispatch.http.secrets-folder".to_owned();
    if let Some(folder) = &files.folder {
        let path = folder.join(file_name(tenant));
        match text_of(&path) {
            // A folder that is gone does not show that the tenant has no secret of its own.
            Err(why) if is_absent(&why) && !folder.is_dir() => {
                let why = format!("there is no folder {} ({place})", folder.display());
                return Err(unreadable(&why));
            }
            Err(why) if is_absent(&why) => place = format!("{place}: {}", path.display()),
            read => return read.map_err(|why| no_text(&path, &why)),
        }
    }
    match &files.default {
        Some(path) => text_of(path).map_err(|why| no_text(path, &why)),
        None => Err(NoRequest::Permanent(format!(
            "there is no secret for this tenant ({place})"
        ))),
    }
}

fn no_text(path: &Path, why: &io::Error) -> NoRequest {
    match shortage::of(why) {
        Some(missing) => NoRequest::Shortage(format!(
            "the secret of this tenant can't be read: {why} ({missing})"
        )),
        None => unreadable(&format!("{}: {why}", path.display())),
    }
}

/// Returns the name of a tenant's file. It is percent-encoded, so it stays in the folder, and does
/// not begin with a dot, so it is neither another folder nor a hidden file.
fn file_name(tenant: &Tenant) -> String {
    let name = utf8_percent_encode(tenant.as_str(), UNESCAPED).to_string();
    match name.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None => name,
    }
}

/// Returns true if there is no readable file, now or later.
fn is_absent(why: &io::Error) -> bool {
    matches!(
        why.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory | io::ErrorKind::InvalidFilename
    )
}

/// Returns the text of the file at `path` without its final line break.
fn text_of(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    let wrong = |words: &str| io::Error::other(words.to_owned());
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong("it is larger than 16 KiB"));
    }
    let text = text::decode(&bytes).map_err(io::Error::other)?;
    let line = text.strip_suffix('\n').unwrap_or(text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    match line.is_empty() || line.contains(char::is_control) {
        true => Err(wrong("it is empty or has control characters")),
        false => Ok(line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;

    use super::*;
    use kit::gate::tenant;

    async fn describe(secrets: &Secrets, tenant: &Tenant) -> String {
        match secrets.of(tenant).await {
            Ok(text) => text.to_string(),
            Err(NoRequest::Permanent(why)) => format!("absent: {why}"),
            Err(NoRequest::Temporary(why)) => format!("unreadable: {why}"),
            Err(NoRequest::Shortage(why)) => format!("short: {why}"),
        }
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
        assert_eq!(describe(&secrets, &acme).await, "one");
        write("acme", "two");
        assert_eq!(describe(&secrets, &acme).await, "one");
        tokio::time::advance(SECRET_MAX_AGE).await;
        assert_eq!(describe(&secrets, &acme).await, "two");
        for (text, part) in [("", "it is empty"), ("a\nb", "control characters")] {
            write("acme", text);
            tokio::time::advance(SECRET_MAX_AGE).await;
            let words = describe(&secrets, &acme).await;
            assert!(
                words.starts_with("unreadable: ") && words.contains(part),
                "{words}"
            );
        }
        std::fs::remove_file(folder.path().join("acme")).expect("it is there");
        let words = describe(&secrets, &acme).await;
        assert!(
            words.starts_with("absent: ") && words.ends_with("acme)"),
            "{words}"
        );

        write("theirs", "default");
        let secrets = Secrets::new(SecretFiles {
            default: Some(folder.path().join("theirs")),
            ..secrets.files
        });
        assert_eq!(describe(&secrets, &acme).await, "default");
    }

    #[tokio::test(start_paused = true)]
    async fn without_its_folder_no_tenant_gets_the_default_secret() {
        let place = tempfile::tempdir().expect("a folder");
        let [folder, away, default] =
            ["folder", "away", "default"].map(|name| place.path().join(name));
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::write(folder.join("acme"), "one").expect("written");
        std::fs::write(&default, "default").expect("written");
        let acme = tenant("acme");
        for is_set in [true, false] {
            let secrets = Secrets::new(SecretFiles {
                folder: Some(folder.clone()),
                default: is_set.then(|| default.clone()),
            });
            std::fs::rename(&folder, &away).expect("it is there");
            let words = describe(&secrets, &acme).await;
            assert!(words.starts_with("unreadable: "), "{words}");
            assert!(words.ends_with("(dispatch.http.secrets-folder)"), "{words}");
            std::fs::rename(&away, &folder).expect("it is there");
            assert_eq!(describe(&secrets, &acme).await, "one");
        }
        // The default file also existed at the start.
        std::fs::remove_file(&default).expect("it is there");
        let secrets = Secrets::new(SecretFiles {
            folder: None,
            default: Some(default),
        });
        let words = describe(&secrets, &acme).await;
        assert!(
            words.starts_with("unreadable: ") && words.contains("default:"),
            "{words}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_takes_long_to_read_is_kept_for_a_second_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let slow = folder.path().join("slow");
        let made = std::process::Command::new("mkfifo").arg(&slow).status();
        assert!(made.expect("it runs").success());
        let secrets = Secrets::new(SecretFiles {
            folder: Some(folder.path().to_owned()),
            default: None,
        });
        let tenant = tenant("slow");
        let answers = async {
            tokio::time::advance(SECRET_MAX_AGE + Duration::from_millis(500)).await;
            std::fs::write(&slow, "one").expect("a thread reads it");
        };
        let (text, ()) = tokio::join!(describe(&secrets, &tenant), answers);
        assert_eq!(text, "one");
        std::fs::remove_file(&slow).expect("it is there");
        std::fs::write(&slow, "two").expect("written");
        assert_eq!(describe(&secrets, &tenant).await, "one");
    }

    /// The clock stands still while a thread reads, so no time passes unless the test says so.
    #[tokio::test(start_paused = true)]
    async fn a_hanging_file_delays_only_its_tenant() {
        let folder = tempfile::tempdir().expect("a folder");
        let hangs = folder.path().join("hangs");
        let made = std::process::Command::new("mkfifo").arg(&hangs).status();
        assert!(made.expect("it runs").success());
        std::fs::write(folder.path().join("acme"), "one").expect("written");
        // Ends a read that blocks this thread, so that the test fails instead of hanging.
        let (_ended, ends) = std::sync::mpsc::channel::<()>();
        let blocked = hangs.clone();
        std::thread::spawn(move || {
            if ends.recv_timeout(10 * READ_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                let pipe = blocked.with_extension("pipe");
                std::fs::rename(&blocked, &pipe).expect("it is there");
                std::fs::write(&blocked, "late").expect("written");
                std::fs::write(&pipe, "late").expect("a thread reads it");
            }
        });
        let secrets = Secrets::new(SecretFiles {
            folder: Some(folder.path().to_owned()),
            default: None,
        });
        // The default number of simultaneous calls.
        let pipe = tenant("hangs");
        let all = (0..64).map(|_| describe(&secrets, &pipe));
        let all = futures_util::future::join_all(all);
        let other = async {
            let text = describe(&secrets, &tenant("acme")).await;
            tokio::time::advance(READ_TIMEOUT).await;
            text
        };
        let (words, text) = tokio::join!(all, other);
        assert_eq!(text, "one");
        let why = "unreadable: the secret of this tenant can't be read: its file system did not \
            answer within 2s";
        assert!(words.iter().all(|words| words == why), "{words:?}");
        assert_eq!(secrets.reads.available_permits(), MAX_READS - 1);

        // The file system answers after all.
        std::fs::write(&hangs, "two").expect("somebody reads it");
        while secrets.reads.available_permits() < MAX_READS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
