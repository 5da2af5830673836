//! The commands, and how many words each takes.

use crate::db::Db;
use crate::reply::{Reply, Result};
use crate::{hashes, keys, sorted_sets};

/// The words after a command's name.
pub type Words<'a> = &'a [&'a [u8]];

type Run = fn(&mut Db, Words<'_>) -> Result;

/// Commands: name, minimum and maximum number of words after it, and implementation.
const COMMANDS: [(&str, usize, usize, Run); 25] = [
    ("DEL", 1, MANY, keys::del),
    ("EXISTS", 1, MANY, keys::exists),
    ("GET", 1, 1, keys::get),
    ("HDEL", 2, MANY, hashes::hdel),
    ("HGET", 2, 2, hashes::hget),
    ("HGETALL", 1, 1, hashes::hgetall),
    ("HKEYS", 1, 1, hashes::hkeys),
    ("HMGET", 2, MANY, hashes::hmget),
    ("HSET", 3, MANY, hashes::hset),
    ("PEXPIRE", 2, 2, keys::pexpire),
    ("PEXPIREAT", 2, 2, keys::pexpireat),
    ("PTTL", 1, 1, keys::pttl),
    ("SET", 2, MANY, keys::set),
    ("TIME", 0, 0, keys::time),
    ("TYPE", 1, 1, keys::kind),
    ("ZADD", 3, MANY, sorted_sets::zadd),
    ("ZCARD", 1, 1, sorted_sets::zcard),
    ("ZCOUNT", 3, 3, sorted_sets::zcount),
    ("ZRANGE", 3, MANY, sorted_sets::zrange),
    ("ZRANGEBYSCORE", 3, MANY, sorted_sets::zrangebyscore),
    ("ZREM", 2, MANY, sorted_sets::zrem),
    ("ZREMRANGEBYSCORE", 3, 3, sorted_sets::zremrangebyscore),
    ("ZREVRANGE", 3, MANY, sorted_sets::zrevrange),
    ("ZSCORE", 2, 2, sorted_sets::zscore),
    ("PING", 0, 0, |_, _| Ok(Reply::Status("PONG".to_owned()))),
];
const MANY: usize = usize::MAX;

/// Runs a command that needs only the keys. Returns `None` if no such command has this name.
pub fn run(db: &mut Db, name: &[u8], words: Words<'_>) -> Option<Result> {
    let known = |(known, ..): &&(&str, usize, usize, Run)| is_option(name, known);
    let (name, min, max, run) = COMMANDS.iter().find(known)?;
    Some(match (*min..=*max).contains(&words.len()) {
        true => run(db, words),
        false => Err(wrong_number(name)),
    })
}

/// Removes and returns the first word.
pub fn next<'a>(words: &mut Words<'a>) -> Option<&'a [u8]> {
    let (first, rest) = words.split_first()?;
    *words = rest;
    Some(first)
}

/// Reports whether `word` is `name`, in upper or lower case.
pub fn is_option(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

pub fn syntax_error() -> String {
    "ERR syntax error".to_owned()
}

pub fn wrong_number(name: &str) -> String {
    let name = name.to_lowercase();
    format!("ERR wrong number of arguments for '{name}' command")
}

pub fn unknown(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    format!("ERR unknown command '{name}'")
}
