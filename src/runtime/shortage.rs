//! Detects from system errors which resource this process or machine has run out of. Such a
//! shortage is no failure of a server, the API or a job.

use std::error::Error;
use std::fs::File;
use std::io;

use rustix::io::Errno;

/// A file that can always be opened unless no descriptor is left.
const ANY_FILE: &str = "/dev/null";

/// Returns the shortage behind `why` and how to fix it, or `None` if this machine lacked nothing.
pub fn of(why: &(dyn Error + 'static)) -> Option<&'static str> {
    let (mut at, mut in_other_words) = (Some(why), false);
    while let Some(error) = at {
        at = match error.downcast_ref::<io::Error>() {
            None => error.source(),
            Some(error) => {
                if let Some(errno) = Errno::from_io_error(error) {
                    return describe(errno);
                }
                in_other_words |= error.get_ref().is_some();
                error.get_ref().map(|inner| inner as &(dyn Error + 'static))
            }
        };
    }
    // The system's resolver does not report why it found no name. It may have had no descriptor:
    // opening a file shows whether one is left.
    let opened = in_other_words.then(|| File::open(ANY_FILE))?;
    opened
        .err()
        .and_then(|why| describe(Errno::from_io_error(&why)?))
}

fn describe(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::MFILE => {
            "this process has no file descriptor left: raise its limit (LimitNOFILE, ulimit -n), or lower dispatch.concurrency"
        }
        Errno::NFILE => "this machine has no file descriptor left: raise fs.file-max",
        Errno::AGAIN => {
            "this process can't start more processes or threads: raise its limit (TasksMax, \
            ulimit -u)"
        }
        Errno::NOMEM | Errno::NOBUFS => "this machine or container has no memory left",
        Errno::NOSPC | Errno::DQUOT => "this machine has no disk space left",
        Errno::ADDRNOTAVAIL => {
            "this machine has no free local port or no address to connect from: see \
            net.ipv4.ip_local_port_range"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    fn errno(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.raw_os_error())
    }

    #[test]
    fn a_shortage_is_seen_behind_other_errors() {
        for (error, word) in [
            (Errno::MFILE, "LimitNOFILE"),
            (Errno::NFILE, "fs.file-max"),
            (Errno::NOBUFS, "memory"),
            (Errno::NOSPC, "disk"),
            (Errno::ADDRNOTAVAIL, "port"),
        ] {
            let words = of(&Outer(errno(error))).unwrap_or_default();
            assert!(words.contains(word), "{words}");
            let words = of(&Outer(io::Error::other(errno(error)))).unwrap_or_default();
            assert!(words.contains(word), "{words}");
        }
    }

    #[test]
    fn a_peers_failure_is_not_a_shortage() {
        for error in [Errno::CONNREFUSED, Errno::CONNRESET, Errno::HOSTUNREACH] {
            assert_eq!(of(&Outer(errno(error))), None);
        }
        assert_eq!(of(&Outer(io::Error::other("no such name"))), None);
        assert_eq!(of(&Outer(io::ErrorKind::TimedOut.into())), None);
    }
}
