//! Compares the fake Redis with a real one: random commands, and conversions between replies and
//! Lua values.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fake_redis::FakeRedis;
use kit::servers::Redis;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use redis::{Connection, Pipeline, Value, cmd};

const SEEDS: u64 = 40;
const BATCHES: usize = 25;
const COMMANDS_OF_A_BATCH: usize = 12;
/// Longer than a batch takes on any machine, and shorter than any expiry, in milliseconds.
const SLOW_MS: i64 = 3_600_000;

const KEYS: [&str; 6] = ["t1", "t2", "h1", "h2", "z1", "z2"];
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "", "ä\r\n"];
const TEXTS: [&str; 5] = ["", "0", "17", "text", "with space"];
const SCORES: [&str; 12] = [
    "0",
    "-1",
    "1",
    "2",
    "2.5",
    "3",
    "200000000",
    "1700000000000",
    "4102444800000123",
    "inf",
    "-inf",
    "x",
];
const BOUNDS: [&str; 10] = [
    "-inf",
    "+inf",
    "inf",
    "0",
    "(0",
    "1",
    "(2",
    "3",
    "(1700000000000",
    "(",
];
const RANKS: [&str; 9] = ["0", "1", "2", "-1", "-2", "-9", "9", "", "1.5"];
const COUNTS: [&str; 7] = ["0", "1", "2", "9", "-3", "x", "01"];
/// Times in milliseconds: past, far in the future, and invalid.
const TIMES: [&str; 7] = [
    "0",
    "-5",
    "90000000",
    "800000000000",
    "9223372036854775807",
    "1e9",
    "",
];

/// The kind of a command's word.
#[derive(Debug, Clone, Copy)]
enum Word {
    Key,
    Name,
    Text,
    Score,
    Bound,
    Rank,
    Count,
    Time,
    /// One of these, or nothing.
    Option(&'static [&'static [&'static str]]),
    /// This many of the last words, repeated up to twice.
    Again(usize),
}

use Word::{Again, Bound, Count, Key, Name, Option, Rank, Score, Text, Time};

const WITHSCORES: Word = Option(&[&["WITHSCORES"], &["withscores"], &["WHAT"]]);
const COMMANDS: [(&str, &[Word]); 26] = [
    ("DEL", &[Key, Again(1)]),
    ("EXISTS", &[Key, Again(1)]),
    ("TYPE", &[Key]),
    ("GET", &[Key]),
    (
        "SET",
        &[
            Key,
            Text,
            Option(&[&["NX"], &["XX"], &["nx", "xx"]]),
            Option(&[&["KEEPTTL"]]),
        ],
    ),
    ("SET", &[Key, Text, Option(&[&["PX"], &["PXAT"]]), Time]),
    (
        "SET",
        &[
            Key,
            Text,
            Option(&[&["EX"], &["EXAT"], &["PX", "90000000", "NX", "KEEPTTL"]]),
            Time,
        ],
    ),
    ("PEXPIRE", &[Key, Time]),
    ("PEXPIREAT", &[Key, Time]),
    ("PTTL", &[Key]),
    ("HSET", &[Key, Name, Text, Again(2)]),
    ("HGET", &[Key, Name]),
    ("HMGET", &[Key, Name, Again(1)]),
    ("HDEL", &[Key, Name, Again(1)]),
    ("HGETALL", &[Key]),
    ("HKEYS", &[Key]),
    (
        "HRANDFIELD",
        &[Key, Count, Option(&[&["WITHVALUES"], &["WHAT"]])],
    ),
    (
        "ZADD",
        &[
            Key,
            Option(&[&["CH"], &["NX"], &["XX", "CH"], &["NX", "XX"]]),
            Score,
            Name,
            Again(2),
        ],
    ),
    ("ZCARD", &[Key]),
    ("ZSCORE", &[Key, Name]),
    ("ZCOUNT", &[Key, Bound, Bound]),
    ("ZREM", &[Key, Name, Again(1)]),
    ("ZREMRANGEBYSCORE", &[Key, Bound, Bound]),
    ("ZRANGE", &[Key, Rank, Rank, WITHSCORES]),
    ("ZREVRANGE", &[Key, Rank, Rank, WITHSCORES]),
    (
        "ZRANGEBYSCORE",
        &[
            Key,
            Bound,
            Bound,
            WITHSCORES,
            Option(&[
                &["LIMIT", "0", "2"],
                &["LIMIT", "1", "-1"],
                &["LIMIT", "x", "1"],
                &["LIMIT"],
            ]),
        ],
    ),
];

/// Returns a random command that usually fits the type of its key.
fn command(random: &mut SmallRng) -> Vec<String> {
    let (name, shape) = *COMMANDS.choose(random).expect("some");
    let mut words = vec![name.to_owned()];
    let own = match name.as_bytes()[0] {
        b'H' => &KEYS[2..4],
        b'Z' => &KEYS[4..],
        b'G' | b'S' => &KEYS[..2],
        _ => &KEYS[..],
    };
    for word in shape {
        let pool: &[&str] = match word {
            Key if random.random_bool(0.95) => own,
            Key => &KEYS,
            Name => &NAMES,
            Text => &TEXTS,
            Score => &SCORES,
            Bound => &BOUNDS,
            Rank => &RANKS,
            Count => &COUNTS,
            Time => &TIMES,
            Option(some) => {
                if random.random_bool(0.4) {
                    let chosen = some.choose(random).expect("some");
                    words.extend(chosen.iter().map(|word| (*word).to_owned()));
                }
                continue;
            }
            Again(count) => {
                let last = words[words.len() - count..].to_vec();
                for _ in 0..random.random_range(0..3) {
                    words.extend(last.clone());
                    let at = words.len() - 1;
                    words[at] = (*NAMES.choose(random).expect("some")).to_owned();
                }
                continue;
            }
        };
        words.push((*pool.choose(random).expect("some")).to_owned());
    }
    if random.random_bool(0.01) {
        words.truncate(random.random_range(1..words.len()));
    }
    words
}

/// Formats a value, texts with numbers as numbers, because servers format those differently.
fn plain(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            let number = text.parse::<f64>().ok().filter(|_| !text.is_empty());
            number.map_or_else(|| format!("{text:?}"), |number| format!("{number:?}"))
        }
        Value::ServerError(error) => {
            format!("{} {}", error.code(), error.details().unwrap_or_default())
        }
        Value::Array(all) => format!("{:?}", all.iter().map(plain).collect::<Vec<_>>()),
        value => format!("{value:?}"),
    }
}

/// Formats the part of a reply that is the same on all servers.
fn comparable(words: &[String], value: &Value) -> String {
    let Value::Array(all) = value else {
        return match (words[0].as_str(), value) {
            ("PTTL", Value::Int(left @ 0..)) => {
                format!("about {}", (left + SLOW_MS / 2) / SLOW_MS / 24)
            }
            ("HRANDFIELD", Value::BulkString(_)) => "any".to_owned(),
            _ => plain(value),
        };
    };
    let mut texts: Vec<String> = match words[0].as_str() {
        "HGETALL" => all
            .chunks(2)
            .map(|pair| format!("{:?}", pair.iter().map(plain).collect::<Vec<_>>()))
            .collect(),
        "HKEYS" => all.iter().map(plain).collect(),
        "HRANDFIELD" => return all.len().to_string(),
        _ => return plain(value),
    };
    texts.sort();
    format!("{texts:?}")
}

/// A real server, and a fake one with the real one's time.
struct Both {
    real: Connection,
    fake: FakeRedis,
    now_us: Arc<AtomicU64>,
}

impl Both {
    fn on(redis: &Redis) -> Self {
        let client = redis::Client::open(redis.url()).expect("a good url");
        let now_us = Arc::<AtomicU64>::default();
        let read = Arc::clone(&now_us);
        Self {
            real: client.get_connection().expect("Redis answers"),
            fake: FakeRedis::new(move || read.load(Ordering::Relaxed)),
            now_us,
        }
    }

    /// Runs the pipeline on both servers.
    fn run(&mut self, pipeline: &Pipeline) -> (Vec<Value>, Vec<Value>) {
        let time = cmd("TIME").query::<(u64, u64)>(&mut self.real);
        let (seconds, micros) = time.expect("Redis tells the time");
        self.now_us
            .store(seconds * 1_000_000 + micros, Ordering::Relaxed);
        let packed = pipeline.get_packed_pipeline();
        let count = pipeline.cmd_iter().count();
        let real = redis::ConnectionLike::req_packed_commands(&mut self.real, &packed, 0, count);
        (real.expect("Redis answers"), self.fake.run(pipeline))
    }

    /// Runs one command on both servers.
    fn one<'a>(&mut self, words: impl IntoIterator<Item = &'a [u8]>) -> (Value, Value) {
        let mut pipeline = Pipeline::new();
        let command = pipeline.add_command(redis::Cmd::new());
        for word in words {
            command.arg(word);
        }
        let (mut real, mut fake) = self.run(&pipeline);
        (real.remove(0), fake.remove(0))
    }

    /// Runs a script without keys on both servers.
    fn eval(&mut self, script: &str, arguments: &[&[u8]]) -> (Value, Value) {
        let head: [&[u8]; 3] = [b"EVAL", script.as_bytes(), b"0"];
        self.one(head.into_iter().chain(arguments.iter().copied()))
    }
}

#[test]
fn fake_redis_answers_random_commands_like_a_server() {
    let redis = Redis::start();
    let mut errors = 0;
    for seed in 0..SEEDS {
        let mut both = Both::on(&redis);
        both.one([b"FLUSHALL".as_slice()]);
        let mut random = SmallRng::seed_from_u64(seed);
        for _ in 0..BATCHES {
            let commands: Vec<_> = (0..COMMANDS_OF_A_BATCH)
                .map(|_| command(&mut random))
                .collect();
            let mut pipeline = Pipeline::new();
            for words in &commands {
                let command = pipeline.cmd(&words[0]);
                for word in &words[1..] {
                    command.arg(word);
                }
            }
            let (real, fake) = both.run(&pipeline);
            for (at, words) in commands.iter().enumerate() {
                let (real, fake) = (comparable(words, &real[at]), comparable(words, &fake[at]));
                errors += usize::from(real.starts_with("ERR"));
                assert_eq!(
                    fake,
                    real,
                    "seed {seed}: {words:?} after {:?}",
                    &commands[..at]
                );
            }
        }
    }
    // Enough commands fail, and enough succeed.
    let all = usize::try_from(SEEDS).expect("few") * BATCHES * COMMANDS_OF_A_BATCH;
    assert!((all / 40..all / 3).contains(&errors), "{errors} of {all}");
}

#[test]
fn random_fields_are_fields() {
    let redis = Redis::start();
    let mut both = Both::on(&redis);
    let hset = "HSET h a 1 b 2 c 3 d 4".split(' ').map(str::as_bytes);
    both.one(hset);
    for (count, distinct) in [
        ("2", true),
        ("4", true),
        ("9", true),
        ("-9", false),
        ("0", true),
    ] {
        let words = ["HRANDFIELD", "h", count, "WITHVALUES"].map(str::as_bytes);
        let (real, fake) = both.one(words);
        let pairs = [real, fake].map(|value| {
            let pairs: Vec<(String, u32)> = redis::from_redis_value(value).expect("pairs");
            assert!(
                pairs
                    .iter()
                    .all(|(field, value)| "abcd".find(field) == Some(*value as usize - 1))
            );
            let mut fields: Vec<_> = pairs.into_iter().map(|(field, _)| field).collect();
            let all = fields.len();
            fields.sort();
            fields.dedup();
            assert!(!distinct || fields.len() == all, "{fields:?}");
            all
        });
        assert_eq!(pairs[0], pairs[1], "{count}");
    }
}

/// A script's reply is the same on both. If it is an error, its code is the same.
#[test]
fn lua_behaves_as_on_a_server() {
    let redis = Redis::start();
    let mut both = Both::on(&redis);
    let scripts = [
        "return {1, 2.9, -2.9, 'x', true, false, {4, {}}, nil, 5}",
        "return {ok = 'fine'}",
        "return {err = 'MINE it is wrong'}",
        "return nil",
        "return",
        "return 2^53",
        "return {'1', n = 2}",
        "return tostring(2^53) .. ' ' .. 200000000 .. ' ' .. 0.1 .. ' ' .. 1e15",
        "return string.format('%d %.0f %.17g %5.2f %q', 2^53, 2^53, 0.1, 3.14159, 'a')",
        "return {tonumber('2e+8'), tonumber('0x10'), tonumber('') == nil, tonumber(' 7 ')}",
        "return {redis.call('SET', 'n', 12345678901234567), redis.call('GET', 'n')}",
        "return {redis.call('SET', 'n', 0.1), redis.call('GET', 'n')}",
        "return {redis.call('ZADD', 'z', 3, 'c', 1, 'a', 2.5, 'b'), redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')}",
        "return redis.call('HMGET', 'none', 'a', 'b')",
        "return redis.call('HGET', 'none', 'a') == false",
        "return redis.call('SET', 's', 'x').ok",
        "return redis.call('GET', 'z')",
        "return redis.pcall('GET', 'z').err",
        "return redis.pcall('GET', 'z')",
        "return redis.call('NONE')",
        "return redis.call('GET')",
        "return redis.call()",
        "return redis.call('GET', {})",
        "return redis.call('TIME')[1] + 0 > 1700000000",
        "return type(redis.call('TIME')[2])",
        "return KEYS[1] == nil and #ARGV == 0",
        "error('MINE with words')",
        "error('WRONGTYPE KEYS[2] holds not a leaky bucket;')",
        "return none.field",
        "return not_there",
        "not_there = 1",
        "local x = nil return x.y",
        "return #nil",
        "return 1 +",
        "return struct.unpack('>I8', 'short')",
        "return struct.unpack('>J', 'short')",
        "return string.match(redis.call('INFO', 'replication'), 'role:(%a+)')",
        "return string.match(redis.call('INFO', 'stats'), '\\nevicted_keys:(%d+)')",
        "local t = {} for i = 1, 40 do t['k' .. i * 7] = i end \
         local all = {} for k in pairs(t) do all[#all + 1] = k end return all",
        "local t = {} for w, n in string.gmatch('a=1;b=22;', '([%w-]+)=(%d+);') do t[#t + 1] = w .. n end return t",
        "return {string.byte('az', 1, -1), string.rep('ab', 3), string.find('a.b', '.', 2, true), ('x'):rep(2)}",
        "return {math.floor(-2.5), math.ceil(2.1), math.max(1, 7, 3), math.sqrt(81), math.huge == 1 / 0, -7 % 3, 7 % -3}",
        "local t = {3, 1, 2} table.insert(t, 1, 9) table.remove(t) return {table.concat(t, ','), unpack(t, 2, 3)}",
        "return {select(2, 'a', 'b', 'c'), select('#', nil, nil)}",
    ];
    for script in scripts {
        let (real, fake) = both.eval(script, &[]);
        let both = [real, fake].map(|value| match value {
            Value::ServerError(error) => {
                let details = error.details().unwrap_or_default();
                let reasons = ["attempt to ", "bad argument ", "holds not a leaky bucket;"];
                let reasons = reasons.map(|words| details.contains(words));
                format!("{} {reasons:?}", error.code())
            }
            value => plain(&value),
        });
        assert_eq!(both[1], both[0], "{script}");
    }
}

#[test]
fn script_errors_match_those_of_the_server() {
    let redis = Redis::start();
    let mut both = Both::on(&redis);
    both.one("ZADD z 1 a".split(' ').map(str::as_bytes));
    for script in [
        "return redis.call('GET', 'z')",
        "error('WRONGTYPE KEYS[2] holds not a leaky bucket;')",
        "\n\nlocal x = nil return x.y",
    ] {
        let (real, fake) = both.eval(script, &[]);
        // Before Redis 7.0, a failed command's code is not the script's. All versions name the
        // line.
        let details = [real, fake].map(|value| match value {
            Value::ServerError(error) => {
                format!("{} {}", error.code(), error.details().unwrap_or_default())
            }
            value => panic!("{script}: {value:?}"),
        });
        let line = format!("user_script:{}", script.matches('\n').count() + 1);
        assert!(
            details.iter().all(|text| text.contains(&line)),
            "{details:?}"
        );
    }
}

#[test]
fn structs_are_packed_alike() {
    let redis = Redis::start();
    let mut both = Both::on(&redis);
    let mut random = SmallRng::seed_from_u64(7);
    let items = [
        "b", "B", "h", "H", "l", "L", "i", "I", "I6", "I8", "i6", "i8", "I3", ">", "<", " ",
    ];
    for _ in 0..200 {
        let format: Vec<&str> = (0..random.random_range(1..8))
            .map(|_| *items.choose(&mut random).expect("some"))
            .collect();
        let format = format.concat();
        let numbers: Vec<String> = (0..8)
            .map(|_| {
                let bits = random.random_range(0..53);
                let number = random.random_range(0..1_i64 << bits);
                (number * if random.random_bool(0.2) { -1 } else { 1 }).to_string()
            })
            .collect();
        let mut arguments: Vec<&[u8]> = vec![format.as_bytes()];
        arguments.extend(numbers.iter().map(String::as_bytes));
        let pack = "local n = {} for i = 2, #ARGV do n[i - 1] = tonumber(ARGV[i]) end return struct.pack(ARGV[1], unpack(n))";
        let (real, fake) = both.eval(pack, &arguments);
        assert_eq!(fake, real, "{format} {numbers:?}");
        let bytes: Vec<u8> = (0..random.random_range(0..70))
            .map(|_| random.random_range(0..4) * 85)
            .collect();
        let unpack = "local all = {struct.unpack(ARGV[1] .. ARGV[3], ARGV[2])} \
                      for i, v in ipairs(all) do all[i] = type(v) == 'number' and string.format('%.17g', v) or v end return all";
        let ends: &[u8] = if random.random_bool(0.5) { b"s" } else { b"" };
        let (real, fake) = both.eval(unpack, &[format.as_bytes(), &bytes, ends]);
        match (&real, &fake) {
            (Value::ServerError(_), Value::ServerError(_)) => {}
            _ => assert_eq!(fake, real, "{format} {bytes:?}"),
        }
    }
}
