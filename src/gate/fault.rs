//! What an error in an answer of Redis says is wrong.
//!
//! After a failover behind one name the old primary keeps its connections and answers each call with an error. So an answer can say, as a
//! broken connection does, that the next call must go elsewhere. [`Fault::of`] is the only place that decides it; `link` acts on it.

use ::redis::{ServerError, Value};

/// What is wrong; the later ones count for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The request: others may succeed on the same connection.
    Request,
    /// The server: it is the right one and can't do this now. A new connection would not help.
    Server,
    /// The connection: a new one to the same address may help, since it logs in again.
    Connection,
    /// The address: another server may be the primary by now. A new connection resolves the name again, or asks Sentinel or the
    /// cluster again.
    Address,
}

/// In an error without a code of its own: the server refuses the connection.
const TOO_MANY_CLIENTS: &str = "max number of clients";

impl Fault {
    /// Returns what `error` says is wrong.
    pub fn of(error: &ServerError) -> Self {
        match code(error) {
            "ERR" => match error.details() {
                Some(details) if details.contains(TOO_MANY_CLIENTS) => Self::Connection,
                _ => Self::Request,
            },
            "WRONGTYPE" | "NOSCRIPT" | "NOPERM" => Self::Request,
            // The slot is elsewhere, and the server says where.
            "MOVED" | "ASK" | "CROSSSLOT" => Self::Request,
            "OOM" | "MISCONF" | "TRYAGAIN" => Self::Server,
            // The user, its password, or whether one is needed, has changed.
            "NOAUTH" | "WRONGPASS" => Self::Connection,
            // A replica, with or without a link to its primary; Valkey names the primary.
            "READONLY" | "MASTERDOWN" | "REDIRECT" => Self::Address,
            // A primary that was cut off from its replicas, one of which may have taken over.
            "NOREPLICAS" => Self::Address,
            // A server that restarted, or a former primary that copies the new one's data.
            "LOADING" | "CLUSTERDOWN" => Self::Address,
            // Stuck in a script. Once the script has written, only a restart or a failover ends it, and the server can't become a
            // replica.
            "BUSY" | "UNKILLABLE" => Self::Address,
            // A proxy's words, or a newer server's: a new connection does no harm.
            _ => Self::Address,
        }
    }

    /// Returns the one of `answers` that counts most.
    pub fn among(answers: &[Value]) -> Self {
        let faults = answers.iter().filter_map(|answer| match answer {
            Value::ServerError(error) => Some(Self::of(error)),
            _ => None,
        });
        faults.max().unwrap_or(Self::Request)
    }

    /// Reports whether a new connection may help.
    pub fn wants_connection(self) -> bool {
        self >= Self::Connection
    }
}

/// Returns the error's code. Servers before Redis 7 put that of a script's command into the details: `ERR Error running script (...): -READONLY ...`.
pub fn code(error: &ServerError) -> &str {
    let own = error.code();
    let is_code =
        |word: &&str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let inner = || {
        let mut words = error.details()?.split_whitespace();
        words.find_map(|word| word.strip_prefix('-').filter(is_code))
    };
    match own {
        "ERR" => inner().unwrap_or(own),
        _ => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the client reads it from the wire.
    fn error(line: &str) -> ServerError {
        let parsed = ::redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        match parsed.expect("an error") {
            Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_error_says_what_is_wrong() {
        use Fault::{Address, Connection, Request, Server};
        for (line, fault) in [
            (
                "READONLY You can't write against a read only replica.",
                Address,
            ),
            (
                "READONLY You can't write against a read only replica. script: 9d7b, on @user_script:12.",
                Address,
            ),
            (
                "ERR Error running script (call to f_9d7b): @user_script:1: @user_script: 1: -READONLY You can't write against a read only slave.",
                Address,
            ),
            (
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                Address,
            ),
            ("NOREPLICAS Not enough good replicas to write.", Address),
            ("LOADING Redis is loading the dataset in memory", Address),
            (
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                Address,
            ),
            (
                "UNKILLABLE Sorry the script already executed write commands against the dataset.",
                Address,
            ),
            ("CLUSTERDOWN Hash slot not served", Address),
            ("REDIRECT 10.0.0.2:6379", Address),
            ("upstream failure", Address),
            ("NOAUTH Authentication required.", Connection),
            (
                "WRONGPASS invalid username-password pair or user is disabled.",
                Connection,
            ),
            ("ERR max number of clients reached", Connection),
            (
                "ERR max number of clients + cluster connections reached",
                Connection,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Server,
            ),
            (
                "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
                Server,
            ),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                Server,
            ),
            ("MOVED 3999 10.0.0.1:6381", Request),
            ("ASK 3999 10.0.0.1:6381", Request),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                Request,
            ),
            ("NOSCRIPT No matching script. Please use EVAL.", Request),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                Request,
            ),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                Request,
            ),
            (
                "ERR WRONGTYPE KEYS[1] holds not usage; delete it script: 9d7b, on @user_script:3.",
                Request,
            ),
            (
                "ERR value is not an integer or out of range - READONLY",
                Request,
            ),
        ] {
            assert_eq!(Fault::of(&error(line)), fault, "{line}");
        }
    }

    #[test]
    fn the_worst_of_several_answers_counts() {
        let answers = |lines: &[&str]| {
            let errors = lines.iter().map(|line| Value::ServerError(error(line)));
            errors.chain([Value::Okay]).collect::<Vec<_>>()
        };
        assert_eq!(Fault::among(&answers(&[])), Fault::Request);
        assert!(!Fault::among(&answers(&["OOM x", "NOSCRIPT x"])).wants_connection());
        let mixed = answers(&["READONLY x", "NOAUTH x", "ERR x"]);
        assert_eq!(Fault::among(&mixed), Fault::Address);
        assert!(Fault::among(&answers(&["NOAUTH x"])).wants_connection());
    }
}
