//! Replies to commands.

use redis::Value;

/// A RESP2 reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Nil,
    Integer(i64),
    Text(Vec<u8>),
    Array(Vec<Reply>),
    Status(String),
    /// Code and text, without the leading `-`.
    Error(String),
}

/// A reply, or the text of an error.
pub type Result = std::result::Result<Reply, String>;

impl Reply {
    pub fn ok() -> Self {
        Self::Status("OK".to_owned())
    }

    /// Returns a number as an integer reply.
    pub fn count(number: usize) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }

    pub fn text(text: impl Into<Vec<u8>>) -> Self {
        Self::Text(text.into())
    }

    /// Returns the text, or nil.
    pub fn or_nil(text: Option<&[u8]>) -> Self {
        text.map_or(Self::Nil, Self::text)
    }

    pub fn into_value(self) -> Value {
        match self {
            Self::Nil => Value::Nil,
            Self::Integer(number) => Value::Int(number),
            Self::Text(text) => Value::BulkString(text),
            Self::Array(all) => Value::Array(all.into_iter().map(Self::into_value).collect()),
            Self::Status(words) if words == "OK" => Value::Okay,
            Self::Status(words) => Value::SimpleString(words),
            // Only the client's parser can build this value.
            Self::Error(words) => {
                let line = format!("-{}\r\n", words.replace(['\r', '\n'], " "));
                redis::parse_redis_value(line.as_bytes()).unwrap_or(Value::Nil)
            }
        }
    }
}
