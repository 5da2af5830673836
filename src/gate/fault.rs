//! Sorts errors in Redis's answers by their cause: the request, the server, the connection or the
//! address.
//!
//! The old primary keeps its connections after a failover behind one name, and answers each call
//! with an error. As with a broken connection, such an answer means that the next call must go
//! elsewhere. Only [`Fault::of`] decides this; `link` acts on it.

use ::redis::{ServerError, Value};

/// The cause of an error. Later variants take precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The request. Others may succeed on the same connection.
    Request,
    /// The server. It is the right one but can't do this now. A new connection would not help.
    Server,
    /// The connection. A new one to the same address may help, since it logs in again.
    Connection,
    /// The address. Another server may be the primary by now. A new connection resolves the name
    /// again, or asks Sentinel or the cluster again.
    Address,
}

/// Text of an error without a code of its own: the server refuses the connection.
const TOO_MANY_CLIENTS: &str = "max number of clients";
/// Text of an error without a code of its own: a command of more than ten arguments arrived before
/// the password.
const UNAUTHENTICATED: &str = "unauthenticated multibulk length";

impl Fault {
    /// Returns the cause of `error`.
    pub fn of(error: &ServerError) -> Self {
        match code(error) {
            "ERR" => match error.details() {
                Some(details) if details.contains(TOO_MANY_CLIENTS) => Self::Connection,
                _ => Self::Request,
            },
            "WRONGTYPE" | "NOSCRIPT" | "NOPERM" => Self::Request,
            // Another server has the slot, and the error names it.
            "MOVED" | "ASK" | "CROSSSLOT" => Self::Request,
            // Envoy does not pass the command on: `unsupported command 'script'`.
            "unsupported" => Self::Request,
            "OOM" | "MISCONF" | "TRYAGAIN" => Self::Server,
            // The user, its password, or the need for one has changed.
            "NOAUTH" | "WRONGPASS" => Self::Connection,
            // The server is a replica, with or without a link to its primary; Valkey names the
            // primary.
            "READONLY" | "MASTERDOWN" | "REDIRECT" => Self::Address,
            // The server is a primary that was cut off from its replicas. One of them may have
            // taken over.
            "NOREPLICAS" => Self::Address,
            // The server has restarted, or is a former primary that copies the new one's data.
            "LOADING" | "CLUSTERDOWN" => Self::Address,
            // The server is stuck in a script. Once the script has written, only a restart or a
            // failover ends it, and the server can't become a replica.
            "BUSY" | "UNKILLABLE" => Self::Address,
            // The error comes from a proxy or a newer server. A new connection does no harm.
            _ => Self::Address,
        }
    }

    /// Returns the cause that takes precedence in `answers`, or [`Fault::Request`] if there is no
    /// error.
    pub fn among(answers: &[Value]) -> Self {
        let faults = answers.iter().filter_map(|answer| match answer {
            Value::ServerError(error) => Some(Self::of(error)),
            _ => None,
        });
        faults.max().unwrap_or(Self::Request)
    }

    /// Returns true if a new connection may help.
    pub fn wants_connection(self) -> bool {
        self >= Self::Connection
    }
}

/// Returns the error code. Before Redis 7, a script command's code is in the details: `ERR Error
/// running script (...): -READONLY ...`. A long command without the required password is a protocol
/// error.
pub fn code(error: &ServerError) -> &str {
    let own = error.code();
    let is_code =
        |word: &&str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let inner = || {
        let mut words = error.details()?.split_whitespace();
        words.find_map(|word| word.strip_prefix('-').filter(is_code))
    };
    match own {
        "ERR" if (error.details()).is_some_and(|text| text.contains(UNAUTHENTICATED)) => "NOAUTH",
        "ERR" => inner().unwrap_or(own),
        _ => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses an error as the client reads it from the wire.
    fn error(line: &str) -> ServerError {
        let parsed = ::redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        match parsed.expect("an error") {
            Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_error_describes_the_problem() {
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
                "ERR Protocol error: unauthenticated multibulk length",
                Connection,
            ),
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
            ("unsupported command 'script'", Request),
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
    fn the_worst_answer_counts() {
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
