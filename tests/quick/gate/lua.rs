//! Checks the text of the scripts: headers are complete, and no script builds a key that it was not
//! passed.

use std::collections::BTreeSet;

use gate::scripts::SHARED;
use kit::sources::{File, documented_rule, files};

/// Commands whose first argument is no key.
const KEYLESS: [&str; 2] = ["TIME", "INFO"];
/// Commands of whose arguments each is a key.
const ALL_KEYS: [&str; 2] = ["DEL", "EXISTS"];

/// All scripts, in the order of their names.
fn scripts() -> Vec<File> {
    let mut scripts = files(&["lua"], ".lua");
    scripts.sort_by(|a, b| a.path.cmp(&b.path));
    scripts
}

/// Whether Redis gets its reply: a part of a script returns from its functions only.
fn is_entry(script: &File) -> bool {
    script.text.lines().any(|line| line.starts_with("return"))
}

/// Returns the comment lines at the top.
fn header(text: &str) -> String {
    text.lines()
        .take_while(|line| line.starts_with("--"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns all numbers in `text` at positions `array[NUMBER`.
fn indices(text: &str, array: &str) -> Vec<u32> {
    text.split(&format!("{array}["))
        .skip(1)
        .filter_map(|rest| {
            rest.split(|c: char| !c.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        })
        .collect()
}

/// The header of a script whose arguments limits.lua alone reads.
const ONLY_LIMITS: &str = "\n-- ARGV     the limits, described in limits.lua\n";

/// Lists the keys and arguments that an entry's header doesn't explain. The header may refer to
/// those of `others`.
fn unexplained(script: &File, others: &[File]) -> Vec<String> {
    let (header, code) = (
        header(&script.text),
        &script.text[header(&script.text).len()..],
    );
    let is_referred = |other: &&File| {
        let name = other.path.rsplit('/').next().expect("a name");
        let words = ["described in NAME", "as NAME has them", "those of NAME"];
        words
            .map(|words| words.replace("NAME", name))
            .iter()
            .any(|words| header.contains(words))
    };
    let mut headers = vec![header.clone()];
    headers.extend(
        others
            .iter()
            .filter(is_referred)
            .map(|other| self::header(&other.text)),
    );
    let mut missing = Vec::new();
    for array in ["KEYS", "ARGV"] {
        let named: Vec<u32> = headers
            .iter()
            .flat_map(|header| indices(header, array))
            .collect();
        let used = indices(code, array);
        let takes_only_limits = array == "ARGV" && header.contains(ONLY_LIMITS);
        if used.is_empty() && !takes_only_limits {
            missing.push(format!("{}: it uses no {array}", script.path));
        }
        let unnamed = used.iter().filter(|index| !named.contains(index));
        missing.extend(unnamed.map(|index| format!("{}: {array}[{index}]", script.path)));
    }
    if !header.contains("Reply:") {
        missing.push(format!("{}: Reply", script.path));
    }
    missing
}

#[test]
fn every_entry_explains_its_keys_arguments_and_reply() {
    let scripts = scripts();
    let entries: Vec<&File> = scripts.iter().filter(|script| is_entry(script)).collect();
    assert!(
        (15..scripts.len()).contains(&entries.len()),
        "{}",
        entries.len()
    );
    let missing = entries
        .into_iter()
        .flat_map(|entry| unexplained(entry, &scripts));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0]);
    let header = "-- KEYS[1], KEYS[2]  a\n-- ARGV[1]  b, described in other.lua\n-- Reply: c\n";
    let other = File::new("lua/other.lua", "-- ARGV[2]  d\n");
    for (header, code, expected) in [
        (header, "return f(KEYS[2], ARGV[1], ARGV[2])", ""),
        (header, "return f(KEYS[3], ARGV[1])", "a.lua: KEYS[3]"),
        (header, "return f(KEYS[1], ARGV[3])", "a.lua: ARGV[3]"),
        (header, "return ARGV[1]", "a.lua: it uses no KEYS"),
        (
            "-- KEYS[1], ARGV[1]\n",
            "return f(KEYS[1], ARGV[1])",
            "a.lua: Reply",
        ),
    ] {
        let script = File::new("a.lua", &format!("{header}\n{code}"));
        let found = unexplained(&script, std::slice::from_ref(&other)).join("\n");
        assert_eq!(found, expected);
    }
}

#[test]
fn values_set_by_rules_are_only_read_by_scripts() {
    let texts: Vec<String> = scripts().into_iter().map(|script| script.text).collect();
    for (name, _) in SHARED {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let of = |text: &&String| text.split(|c| !is_name(c)).any(|word| word == name);
        assert!(texts.iter().any(|text| of(&text)), "nothing uses {name}");
        let set = format!("{name} = ");
        assert!(
            !texts.iter().any(|text| text.contains(&set)),
            "{name} is set twice"
        );
    }
}

#[test]
fn every_script_has_a_description() {
    for script in scripts() {
        assert!(header(&script.text).len() > 60, "{}", script.path);
    }
}

/// Splits `text` at its commas, up to the bracket that closes an earlier one.
fn arguments(text: &str) -> Vec<&str> {
    let (mut found, mut begin, mut depth, mut quote) = (Vec::new(), 0, 0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') if depth == 0 => {
                found.push(text[begin..at].trim());
                return found;
            }
            (None, ')' | ']' | '}') => depth -= 1,
            (None, ',') if depth == 0 => {
                found.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(text[begin..].trim());
    found
}

/// The code's lines, from 1, without lines of comments.
fn code(script: &File) -> impl Iterator<Item = (usize, &str)> {
    let lines = script.text.lines().enumerate();
    lines
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, line)| !line.trim_start().starts_with("--"))
}

/// Returns the keys in the calls of `line`.
fn keys_of_calls(line: &str) -> Vec<&str> {
    let calls = line.split("redis.call(").skip(1);
    let calls = calls
        .chain(line.split("redis.pcall(").skip(1))
        .map(arguments);
    let keys = calls.flat_map(|arguments| {
        let command = arguments[0].trim_matches('\'');
        let is_literal = arguments[0].starts_with('\'');
        let keys = match (is_literal, command) {
            (true, command) if KEYLESS.contains(&command) => 0,
            (true, command) if ALL_KEYS.contains(&command) => arguments.len() - 1,
            _ => 1,
        };
        arguments.into_iter().skip(1).take(keys).collect::<Vec<_>>()
    });
    keys.collect()
}

/// A variable or a field of a table that holds keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    /// A variable of the script at this path.
    Variable(String, String),
    /// A field, in any script: tables are passed on.
    Field(String),
}

impl Holder {
    /// Returns the holder that `expression` names, or `None` if it is no name.
    fn of(script: &File, expression: &str) -> Option<Self> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_.()".contains(c);
        if !expression.chars().all(is_name) || expression.contains("..") || expression.is_empty() {
            return None;
        }
        Some(match expression.rsplit_once('.') {
            Some((_, field)) => Self::Field(field.to_owned()),
            None => Self::Variable(script.path.clone(), expression.to_owned()),
        })
    }
}

/// Whether `expression` is one of KEYS.
fn is_passed(expression: &str) -> bool {
    (expression.strip_prefix("KEYS[")).is_some_and(|index| index.find(']') == Some(index.len() - 1))
}

/// Returns the assignments in `line`, with their values. `depth` is the number of braces that are
/// open before it.
fn assignments<'a>(script: &File, line: &'a str, depth: usize) -> Vec<(Holder, &'a str)> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices(" = ") {
        let (before, after) = (&line[..at], &line[at + 3..]);
        let braces = |brace| before.matches(brace).count();
        if depth + braces('{') > braces('}') {
            let name = before
                .rsplit([' ', '{', ',', '('])
                .next()
                .unwrap_or_default();
            found.push((Holder::Field(name.to_owned()), arguments(after)[0]));
            continue;
        }
        let (targets, values) = (before.trim(), arguments(after));
        let targets = targets
            .strip_prefix("local ")
            .unwrap_or(targets)
            .split(", ");
        for (target, number) in targets.zip(0..) {
            // The last value may be a call with several results.
            let value = values.get(number).or(values.last()).expect("a value");
            found.extend(Holder::of(script, target).map(|holder| (holder, *value)));
        }
    }
    found
}

/// Lists the places in `scripts` where a key is built, or may be.
fn built_keys(scripts: &[File]) -> Vec<String> {
    let (mut found, mut holders) = (BTreeSet::new(), BTreeSet::new());
    let place = |script: &File, number: usize, line: &str| {
        format!("{}:{number}: {}", script.path, line.trim())
    };
    for script in scripts {
        for (number, line) in code(script) {
            for key in keys_of_calls(line)
                .into_iter()
                .filter(|key| !is_passed(key))
            {
                match Holder::of(script, key) {
                    Some(holder) => drop(holders.insert(holder)),
                    None => drop(found.insert(place(script, number, line))),
                }
            }
        }
    }
    let is_key = |script: &File, expression: &str| {
        is_passed(expression)
            || Holder::of(script, expression).is_some_and(|holder| holders.contains(&holder))
    };
    for script in scripts {
        let mut depth = 0;
        for (number, line) in code(script) {
            let built = ["'", "\"", "..", "ARGV", "concat", "format"];
            let is_built = |(holder, value): (Holder, &str)| {
                let number = value.parse::<u64>().is_ok();
                holders.contains(&holder)
                    && !number
                    && built.iter().any(|word| value.contains(word))
            };
            let is_joined = line.match_indices(" .. ").any(|(at, joins)| {
                let left = line[..at]
                    .rsplit([' ', '(', ','])
                    .next()
                    .unwrap_or_default();
                let right = line[at + joins.len()..].split([' ', ')', ',']).next();
                is_key(script, left) || is_key(script, right.unwrap_or_default())
            });
            if is_joined || assignments(script, line, depth).into_iter().any(is_built) {
                found.insert(place(script, number, line));
            }
            depth = (depth + line.matches('{').count()).saturating_sub(line.matches('}').count());
        }
    }
    found.into_iter().collect()
}

#[test]
fn keys_are_passed_never_built() {
    let scripts = scripts();
    let calls: usize = (scripts.iter())
        .flat_map(code)
        .map(|(_, line)| keys_of_calls(line).len())
        .sum();
    assert!(calls > 150, "{calls}");
    assert_eq!(built_keys(&scripts), [""; 0]);
    for good in [
        "redis.call('GET', KEYS[first + 1])",
        "local key = KEYS[1]\nredis.call('SET', key, 'a' .. b)",
        "local a, key = ARGV[1], KEYS[1]\nredis.call('DEL', key, KEYS[2])",
        "q = { key = KEYS[first] }\nredis.call('GET', q.key)",
        "redis.call('TIME')",
    ] {
        assert_eq!(built_keys(&[File::new("a.lua", good)]), [""; 0], "{good}");
    }
    for bad in [
        "redis.call('GET', KEYS[1] .. ':x')",
        "redis.call('GET', 'x')",
        "redis.pcall('GET', ARGV[1])",
        "local key = KEYS[1] .. ':x'\nredis.call('GET', key)",
        "local a, key = KEYS[1], ARGV[1]\nredis.call('DEL', KEYS[1], key)",
        "q = { at = 1, key = prefix .. n }\nredis.call('GET', q.key)",
        "f(q.key .. n)\nredis.call('GET', q.key)",
        "f('x' .. KEYS[1])",
        "redis.call(command, f(KEYS[1], 'x'))",
    ] {
        assert_eq!(built_keys(&[File::new("a.lua", bad)]).len(), 1, "{bad}");
    }
}

/// Returns the commands that the scripts run.
fn commands_of_scripts() -> Vec<String> {
    let mut commands = BTreeSet::new();
    for File { text, .. } in scripts() {
        let calls = text.split("redis.call(").skip(1);
        for call in calls.chain(text.split("redis.pcall(").skip(1)) {
            let name = call.trim_start().strip_prefix('\'').expect("a command");
            let name = name.split('\'').next().expect("a name");
            commands.insert(format!("+{}", name.to_lowercase()));
        }
    }
    commands.into_iter().collect()
}

#[test]
fn the_documented_rights_are_those_of_the_scripts() {
    let mut rule: Vec<&str> = documented_rule()[3..].to_vec();
    rule.sort_unstable();
    let mut needed = commands_of_scripts();
    let others = ["ping", "evalsha", "script|load", "type"];
    needed.extend(others.map(|name| format!("+{name}")));
    needed.sort();
    assert_eq!(rule, needed);
}
