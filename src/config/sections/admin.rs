//! `admin`: metrics, health and the HTTP API.

use std::net::SocketAddr;

use serde_json::{Value as Json, json};

use super::section::section;
use crate::reading::key::{file, text};
use crate::reading::{Raw, ValueError, keys, parse, wrong};
use crate::shape;
use crate::values::secret::Secret;

/// Form of a token that [`token`] accepts.
const MUST: &str = "16 to 512 letters, digits and -._~+/=, such as the output of openssl rand \
    -hex 32";

keys! {
    LISTEN: SocketAddr = text(
        "admin.listen",
        "address:port",
        || shape::pattern("^([0-9.]+|\\[[0-9A-Fa-f:.%]+\\]):[0-9]{1,5}$"),
        listen,
    )
        .default("127.0.0.1:9464")
        .about("Address of /metrics, /livez, /readyz, /api/v1 and the page (/ui).")
        .note("Port 0 uses any free port and logs it.");
    TOKEN: Secret = text(
        "admin.token",
        "16 to 512 letters, digits and `-._~+/=`, such as the output of `openssl rand -hex 32`",
        token_schema,
        |raw| token(parse::secret(raw, MUST)?),
    )
        .secret()
        .or_file(&TOKEN_FILE)
        .about("Token that requests must carry, as Authorization: Bearer TOKEN.")
        .note("Without it, all clients that can connect see the metrics, and /api/v1 answers only \
            this machine.");
    TOKEN_FILE: String = file("admin.token-file").about("File that contains `admin.token`.");
    OPERATOR: Secret = text(
        "admin.operator-token",
        "16 to 512 letters, digits and `-._~+/=`, different from `admin.token`",
        token_schema,
        |raw| token(parse::secret(raw, MUST)?),
    )
        .secret()
        .or_file(&OPERATOR_FILE)
        .about("Token for requests to /api/v1 that change something: pause, limit, replay. It can \
            read, too.")
        .note("Without it, nothing can be changed over HTTP.");
    OPERATOR_FILE: String =
        file("admin.operator-token-file").about("File that contains `admin.operator-token`.");
}

section! {
    /// `admin`
    #[derive(Debug, Clone, PartialEq)]
    pub struct Admin {
        /// `admin.listen`
        pub listen: SocketAddr = LISTEN,
        /// `admin.token`: needed to see details, or `None` if everyone may see them.
        pub token: Option<Secret> = TOKEN,
        /// `admin.operator-token`: needed to change something, or `None` if no one may.
        pub operator_token: Option<Secret> = OPERATOR,
    }
    |input| {
        let same = matches!(&token, Some(Some(_))) && token == operator_token;
        let words = "equals admin.token, so read-only clients could change everything; use a \
            different token";
        input.check(&OPERATOR.key, same.then_some(words))?;
    }
}

fn listen(raw: &Raw) -> Result<SocketAddr, ValueError> {
    const MUST: &str = "an address and a port, such as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:0";
    let address = match raw {
        Raw::Text(text) => text.parse().ok(),
        _ => None,
    };
    address.ok_or_else(|| wrong(raw, MUST))
}

/// Parses a token: characters that can follow `Bearer` (RFC 6750, 2.1), in a number that can't be
/// guessed. No error shows any part of it.
fn token(text: &str) -> Result<Secret, ValueError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._~+/=".contains(c);
    if !text.chars().all(fits) {
        return Err(format!(
            "has a character that is invalid in a Bearer token; it must be {MUST}"
        ));
    }
    if !(16..=512).contains(&text.len()) {
        return Err(format!("has {} bytes; it must be {MUST}", text.len()));
    }
    Ok(Secret::new(text))
}

fn token_schema() -> Json {
    json!({"type": "string", "pattern": "^[-A-Za-z0-9._~+/=]*$", "minLength": 16, "maxLength": 512})
}
