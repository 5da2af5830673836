//! Checks the text of the scripts: headers are complete, and no script builds a key that it was not
//! passed.

use kit::root;
use kit::sources::documented_rule;
use sluicegate::gate::scripts::SHARED;

const ENTRIES: [&str; 12] = [
    "acquire", "settle", "inspect", "block", "change", "quota", "policies", "report", "dedupe",
    "steer", "sighting", "audit",
];
const PARTS: [&str; 18] = [
    "formats",
    "shortcut",
    "sliding_shortcut",
    "fixed_shortcut",
    "sliding_segments",
    "clock",
    "breaker",
    "waitlist",
    "limits",
    "fair_queue",
    "shared_partitions",
    "fixed_window",
    "corrections",
    "sliding_window",
    "sliding_settle",
    "sliding_counter",
    "bucket",
    "held",
];
/// The names of keys in code.
const KEYS_IN_CODE: [&str; 22] = [
    "key",
    "control.key",
    "partition.key",
    "q.fronts",
    "q.ends",
    "q.wides",
    "q.idles",
    "KEYS[first]",
    "log.key",
    "corrections.key",
    "beside",
    "KEYS[limit.key + 1]",
    "waitlist.key",
    "limit.window_key",
    "KEYS[1]",
    "KEYS[3]",
    "KEYS[key]",
    "KEYS[key + ahead]",
    "log",
    "KEYS[2]",
    "KEYS[#KEYS]",
    "KEYS[limit.key]",
];

fn read(name: &str) -> String {
    let path = root().join("lua").join(format!("{name}.lua"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
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

#[test]
fn every_entry_names_its_keys_arguments_and_reply() {
    for name in ENTRIES {
        let text = read(name);
        let (header, code) = (header(&text), &text[header(&text).len()..]);
        for array in ["KEYS", "ARGV"] {
            let (mut named, used) = (indices(&header, array), indices(code, array));
            if header.contains("as limits.lua says") {
                named.extend(indices(&self::header(&read("limits")), array));
            }
            assert!(!used.is_empty(), "{name} uses no {array}");
            for index in used {
                assert!(
                    named.contains(&index),
                    "{name}: the header does not name {array}[{index}]"
                );
            }
        }
        assert!(
            header.contains("Reply:"),
            "{name}: the header does not say what the reply is"
        );
    }
}

#[test]
fn what_a_rule_sets_no_script_sets_and_some_script_uses() {
    let files = std::fs::read_dir(root().join("lua")).expect("the folder of scripts");
    let texts: Vec<_> = files
        .map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("a script"))
        .collect();
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
fn every_part_says_what_it_is() {
    for name in PARTS {
        assert!(header(&read(name)).len() > 60, "{name}");
    }
}

#[test]
fn keys_are_passed_never_built() {
    for name in PARTS.into_iter().chain(ENTRIES) {
        for (number, line) in read(name).lines().enumerate() {
            for call in line.split("redis.call(").skip(1) {
                let mut arguments = call.split([',', ')']).map(str::trim);
                let command = arguments.next();
                let key = arguments.next().unwrap_or_default();
                assert!(
                    command == Some("'TIME'") || KEYS_IN_CODE.contains(&key),
                    "{name}.lua:{}: {line}",
                    number + 1
                );
            }
            let kept = ["key = ", "fronts = ", "ends = KEYS"];
            if let Some((_, value)) = kept.iter().find_map(|name| line.split_once(name)) {
                let value = value.split(',').next().unwrap_or_default().trim();
                assert!(
                    value == "key" || (value.starts_with("KEYS[") && !value.contains("..")),
                    "{name}.lua:{}: {line}",
                    number + 1
                );
            }
        }
    }
}

/// Returns the commands that the scripts run.
fn commands_of_scripts() -> Vec<String> {
    let folder = root().join("lua");
    let mut commands = Vec::new();
    for file in std::fs::read_dir(folder).expect("lua/") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        for call in text
            .split("redis.call(")
            .chain(text.split("redis.pcall("))
            .skip(1)
        {
            if let Some(name) = call.trim_start().strip_prefix('\'') {
                let name = name.split('\'').next().expect("a name");
                commands.push(format!("+{}", name.to_lowercase()));
            }
        }
    }
    commands.sort();
    commands.dedup();
    commands
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
