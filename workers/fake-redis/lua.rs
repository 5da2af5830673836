//! Scripts: Lua 5.1 as in Redis, with `redis.call`, `struct`, and the conversions between Lua
//! values and replies.
//!
//! Scripts keep nothing in Lua between calls, so all servers of a thread share one interpreter and
//! its compiled scripts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use foldhash::fast::FixedState;
use mlua::chunk::ChunkMode;
use mlua::state::{GcIncParams, GcMode};
use mlua::string::BorrowedBytes;
use mlua::{Function, IntoLua, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};

use crate::command::Words;
use crate::number;
use crate::packed::{self, Field, PackError};
use crate::reply::{Reply, Result};
use crate::server::Server;

/// Redis's name for a script in error messages.
const CHUNK: &str = "@user_script";

thread_local! {
    static ENGINE: mlua::Result<Engine> = Engine::new();
    /// SHA-1s by text. Clients load the same scripts repeatedly, and a hash costs more than a call.
    static SHAS: RefCell<HashMap<Vec<u8>, Vec<u8>, FixedState>> = RefCell::default();
}

struct Engine {
    lua: Lua,
    /// Compiled scripts by SHA-1.
    functions: RefCell<HashMap<Vec<u8>, Function, FixedState>>,
    /// The server of the running script.
    server: Rc<RefCell<Server>>,
}

/// The error of a command inside a script. `redis.call` ends the script with it.
#[derive(Debug)]
struct CommandError {
    words: String,
    line: Option<usize>,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for CommandError {}

/// Returns the name of a script: the SHA-1 of its text, in hex.
pub fn sha(source: &[u8]) -> Vec<u8> {
    SHAS.with_borrow_mut(|shas| {
        if let Some(sha) = shas.get(source) {
            return sha.clone();
        }
        let text = String::from_utf8_lossy(source);
        let sha = redis::Script::new(&text).get_hash().as_bytes().to_vec();
        shas.insert(source.to_owned(), sha.clone());
        sha
    })
}

/// Compiles a script.
///
/// # Errors
/// Returns the text of an error reply.
pub fn compile(sha: &[u8], source: &[u8]) -> std::result::Result<(), String> {
    ENGINE.with(|engine| {
        let engine = engine.as_ref().map_err(|why| format!("ERR {why}"))?;
        let compiled = engine.function(sha, source).map(drop);
        compiled.map_err(|why| {
            format!(
                "ERR Error compiling script (new function): {}",
                message(&why)
            )
        })
    })
}

/// Runs a script on `server`.
pub fn run(
    server: &mut Server,
    sha: &[u8],
    source: &[u8],
    keys: Words<'_>,
    arguments: Words<'_>,
) -> Result {
    ENGINE.with(|engine| {
        let engine = engine.as_ref().map_err(|why| format!("ERR {why}"))?;
        std::mem::swap(&mut *engine.server.borrow_mut(), server);
        let reply = engine.run(sha, source, keys, arguments);
        std::mem::swap(&mut *engine.server.borrow_mut(), server);
        match reply {
            Ok(Reply::Error(words)) => Err(words),
            Ok(reply) => Ok(reply),
            Err(why) => Err(error(&why, sha)),
        }
    })
}

impl Engine {
    fn new() -> mlua::Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
        // Collects half as often as by default: calls leave much garbage, and scripts stay.
        lua.gc_set_mode(GcMode::Incremental(GcIncParams::default().pause(400)));
        let server = Rc::<RefCell<Server>>::default();
        let globals = lua.globals();
        for name in ["dofile", "loadfile", "print"] {
            globals.raw_remove(name)?;
        }
        globals.raw_set("redis", redis_table(&lua, &server)?)?;
        globals.raw_set("struct", struct_table(&lua)?)?;
        let guard = lua.create_table()?;
        guard.raw_set("__index", lua.create_function(no_global)?)?;
        guard.raw_set("__newindex", lua.create_function(no_global)?)?;
        globals.set_metatable(Some(guard))?;
        Ok(Self {
            lua,
            functions: RefCell::default(),
            server,
        })
    }

    fn function(&self, sha: &[u8], source: &[u8]) -> mlua::Result<Function> {
        if let Some(function) = self.functions.borrow().get(sha) {
            return Ok(function.clone());
        }
        let chunk = self.lua.load(source).set_name(CHUNK);
        let function = chunk.set_mode(ChunkMode::Text).into_function()?;
        let mut functions = self.functions.borrow_mut();
        functions.insert(sha.to_owned(), function.clone());
        Ok(function)
    }

    fn run(
        &self,
        sha: &[u8],
        source: &[u8],
        keys: Words<'_>,
        arguments: Words<'_>,
    ) -> mlua::Result<Reply> {
        let function = self.function(sha, source)?;
        let globals = self.lua.globals();
        for (name, words) in [("KEYS", keys), ("ARGV", arguments)] {
            let words = words.iter().map(|word| Text(word));
            globals.raw_set(name, self.lua.create_sequence_from(words)?)?;
        }
        to_reply(&function.call::<Value>(())?)
    }
}

fn no_global(_: &Lua, (_, name): (Table, String)) -> mlua::Result<()> {
    let why = format!("Script attempted to access nonexistent global variable '{name}'");
    Err(mlua::Error::RuntimeError(why))
}

/// Returns the table with `redis.call` and `redis.pcall`.
fn redis_table(lua: &Lua, server: &Rc<RefCell<Server>>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let on = Rc::clone(server);
    let call = lua.create_function(move |lua, words: MultiValue| match command(&on, &words) {
        Ok(reply) => Ok(LuaReply(reply)),
        Err(words) => {
            let line = lua.inspect_stack(1, |at| at.current_line()).flatten();
            Err(mlua::Error::external(CommandError { words, line }))
        }
    })?;
    let on = Rc::clone(server);
    let pcall = lua.create_function(move |_, words: MultiValue| {
        Ok(LuaReply(command(&on, &words).unwrap_or_else(Reply::Error)))
    })?;
    table.raw_set("call", call)?;
    table.raw_set("pcall", pcall)?;
    Ok(table)
}

/// A word of a command, as a script passes it.
enum Word {
    Text(BorrowedBytes),
    Number(String),
}

impl Word {
    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::Text(text.as_bytes())),
            value => as_number(value).map(|number| Self::Number(number::text(number))),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            Self::Number(text) => text.as_bytes(),
        }
    }
}

/// Returns a Lua number. Lua has one kind of numbers, which the bindings split in two.
fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

/// Runs a command that a script calls.
fn command(server: &RefCell<Server>, words: &MultiValue) -> Result {
    let words: Option<Vec<Word>> = words.iter().map(Word::of).collect();
    let words = words.ok_or_else(|| {
        "ERR Lua redis lib command arguments must be strings or integers".to_owned()
    })?;
    let words: Vec<&[u8]> = words.iter().map(Word::bytes).collect();
    match words.split_first() {
        Some((name, rest)) => server.borrow_mut().plain(name, rest),
        None => {
            Err("ERR Please specify at least one argument for this redis.call() call".to_owned())
        }
    }
}

/// Returns the table with `struct.pack` and `struct.unpack`.
fn struct_table(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let unpack = |lua: &Lua, (format, data, position): (LuaString, LuaString, Option<i64>)| {
        let (format, data) = (format.as_bytes(), data.as_bytes());
        let position = usize::try_from(position.unwrap_or(1)).unwrap_or(0);
        let (fields, next) =
            packed::unpack(&format, &data, position).map_err(|wrong| bad(lua, wrong, "unpack"))?;
        let mut values = MultiValue::with_capacity(fields.len() + 1);
        for field in fields {
            values.push_back(match field {
                Field::Number(number) => Value::Number(number),
                Field::Text(text) => Value::String(lua.create_string(text)?),
            });
        }
        values.push_back(next.into_lua(lua)?);
        Ok(values)
    };
    let pack = |lua: &Lua, mut words: MultiValue| {
        let Some((Value::String(format), rest)) = words.make_contiguous().split_first() else {
            return Err(bad(lua, (1, "string expected"), "pack"));
        };
        let texts: Vec<_> = rest
            .iter()
            .map(|value| value.as_string().map(LuaString::as_bytes))
            .collect();
        let fields = rest
            .iter()
            .zip(&texts)
            .map_while(|(value, text)| match text {
                Some(text) => Some(Field::Text(text)),
                None => as_number(value).map(Field::Number),
            });
        let fields: Vec<Field<'_>> = fields.collect();
        let packed = packed::pack(&format.as_bytes(), &fields);
        lua.create_string(packed.map_err(|wrong| bad(lua, wrong, "pack"))?)
    };
    table.raw_set("unpack", lua.create_function(unpack)?)?;
    table.raw_set("pack", lua.create_function(pack)?)?;
    Ok(table)
}

/// Returns an argument error, worded as Lua does.
fn bad(lua: &Lua, (argument, why): PackError, function: &str) -> mlua::Error {
    let line = lua.inspect_stack(1, |at| at.current_line()).flatten();
    let line = line.unwrap_or(0);
    mlua::Error::RuntimeError(format!(
        "user_script:{line}: bad argument #{argument} to '{function}' ({why})"
    ))
}

/// A text to pass to Lua.
struct Text<'a>(&'a [u8]);

impl IntoLua for Text<'_> {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        lua.create_string(self.0).map(Value::String)
    }
}

/// A reply to pass to Lua.
struct LuaReply(Reply);

impl IntoLua for LuaReply {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        let named = |name: &str, words: String| {
            let table = lua.create_table()?;
            table.raw_set(name, words)?;
            Ok(Value::Table(table))
        };
        match self.0 {
            Reply::Nil => Ok(Value::Boolean(false)),
            Reply::Integer(number) => Ok(Value::Number(number as f64)),
            Reply::Text(text) => lua.create_string(text).map(Value::String),
            Reply::Array(all) => lua
                .create_sequence_from(all.into_iter().map(LuaReply))
                .map(Value::Table),
            Reply::Status(words) => named("ok", words),
            Reply::Error(words) => named("err", words),
        }
    }
}

/// Converts a script's result to a reply.
fn to_reply(value: &Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Boolean(true) => Reply::Integer(1),
        Value::Integer(number) => Reply::Integer(*number),
        // Truncated, not rounded.
        Value::Number(number) => Reply::Integer(*number as i64),
        Value::String(text) => Reply::text(&*text.as_bytes()),
        Value::Table(table) => {
            let text = |name| table.raw_get::<Option<LuaString>>(name);
            if let Some(words) = text("err")? {
                return Ok(Reply::Error(words.to_string_lossy()));
            }
            if let Some(words) = text("ok")? {
                return Ok(Reply::Status(words.to_string_lossy()));
            }
            // The first nil ends the array.
            let all = table
                .sequence_values::<Value>()
                .map(|value| to_reply(&value?));
            Reply::Array(all.collect::<mlua::Result<_>>()?)
        }
        _ => Reply::Nil,
    })
}

/// Returns the error reply for a failed script, as worded by Redis 7.
fn error(why: &mlua::Error, sha: &[u8]) -> String {
    let sha = String::from_utf8_lossy(sha);
    let at = |line: &str| format!("script: {sha}, on {CHUNK}:{line}.");
    if let Some(CommandError { words, line }) = failed(why) {
        let line = line.map_or_else(String::new, |line| line.to_string());
        return format!("{words} {}", at(&line));
    }
    let words = message(why);
    let line = words
        .strip_prefix("user_script:")
        .and_then(|rest| rest.split_once(':'));
    let line = line.map_or("", |(line, _)| line);
    format!("ERR {words} {}", at(line))
}

fn failed(why: &mlua::Error) -> Option<&CommandError> {
    match why {
        mlua::Error::CallbackError { cause, .. } => failed(cause),
        why => why.downcast_ref(),
    }
}

/// Returns an error's message in Lua, without its location.
fn message(why: &mlua::Error) -> String {
    let words = match why {
        mlua::Error::CallbackError { cause, .. } => return message(cause),
        mlua::Error::RuntimeError(words) => words.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        why => why.to_string(),
    };
    let words = words
        .split_once("\nstack traceback:")
        .map_or(words.as_str(), |(words, _)| words);
    words.to_owned()
}
