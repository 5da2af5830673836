//! `dispatch.http.answers` and `dispatch.http.cost`: meanings of the API's answers that differ from
//! the defaults, as a list of rules or a mapping of statuses. API profiles have the same rules.

use std::fmt::Display;
use std::time::Duration;

use ::http::header::HeaderName;

use crate::reading::key::DAY;
use crate::reading::{
    ConfigInput, ConfigKey, ConfigProblem, Node, Raw, ValueError, closest, parse, shown, wrong,
};
use rules::answers::{
    AnswerPattern, AnswerRule, AnswerRules, Answers, BodyPointer, Conditions, Consequence,
    ExpectedValue, StatusPattern, TimeForm, ValueSource, ValueTest, WaitSource,
};
use rules::named::Named;

/// Maximum number of rules of one list.
pub(super) const MAX_RULES: usize = 64;
/// Maximum number of conditions, alternatives or sources of one rule.
pub(crate) const MAX_PARTS: usize = 16;
/// Maximum length of a text in a rule, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 256;
/// Minimum of `time`.
pub(super) const MIN_WAIT: Duration = Duration::from_millis(1);
/// Maximum of `time`.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(31 * DAY);

const MUST: &str = "a list of rules, or statuses with what they mean, such as {409: retry, \
    403+retry-after: throttle}";
const STATUS: &str = "a status (409), a class (4xx), or either with +retry-after";
const RULE: &str = "a rule, such as {when: {status: 409}, means: retry}";
const CONDITIONS: &str = "conditions, such as {status: 403, headers: {retry-after: {present: \
    true}}}";
const TEST: &str = "a text or a number, or one condition, such as {at-most: 0}";
const SOURCE: &str = "a source, such as {header: retry-after} or {body: /retry_after}";
const WAITS: &str = "sources, such as [{header: retry-after}, {time: 60s}]";
const COST: &str = "places, such as [{body: /extensions/cost}, {header: x-request-cost}]";
const COST_ITEM: &str = "a place, such as {body: /extensions/cost} or {header: x-request-cost}";
const POINTER: &str = "a JSON pointer such as /errors/*/code, with up to 16 parts";

/// Names of the conditions on a value.
const TESTS: [&str; 7] = [
    "equals",
    "one-of",
    "contains",
    "starts-with",
    "at-most",
    "at-least",
    "present",
];
/// Values of `scope`, and whether all tenants are stopped.
pub(super) const SCOPES: [(&str, bool); 2] = [("tenant", false), ("global", true)];

/// Reads rules and reports all mistakes in them.
pub(super) struct AnswersReader<'a> {
    pub(crate) problems: &'a mut Vec<ConfigProblem>,
}

impl AnswersReader<'_> {
    pub(crate) fn wrong<T>(&mut self, node: &Node<'_>, words: impl Display) -> Option<T> {
        self.problems.push(node.wrong(words));
        None
    }

    pub(crate) fn value<T>(&mut self, node: &Node<'_>, read: Result<T, ValueError>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(words) => self.wrong(node, words),
        }
    }

    /// Returns the fields of a mapping with any names, which may have `max` fields.
    pub(crate) fn names<'r>(
        &mut self,
        node: &Node<'r>,
        max: usize,
        must: &str,
    ) -> Option<Vec<Node<'r>>> {
        let Raw::Map(fields) = node.raw else {
            return self.wrong(node, wrong(node.raw, must));
        };
        if fields.len() > max {
            let words = format!("has {} entries; the maximum is {max}", fields.len());
            return self.wrong(node, words);
        }
        Some(node.fields())
    }

    /// Returns the fields of a mapping, which have names in `known`. Reports other names.
    pub(crate) fn fields<'r>(
        &mut self,
        node: &Node<'r>,
        known: &[&str],
        must: &str,
    ) -> Option<Vec<Node<'r>>> {
        let fields = self.names(node, usize::MAX, must)?;
        let mut good = true;
        for field in fields.iter().filter(|field| !known.contains(&field.name)) {
            let hint = match closest(field.name, known.iter().copied()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("known are {}", known.join(", ")),
            };
            let (name, inside) = (shown(field.name), &node.path);
            let words = format!("unknown key {name} in {inside}; {hint}");
            self.problems
                .push(ConfigProblem::new(field.at.clone(), words));
            good = false;
        }
        good.then_some(fields)
    }

    /// Returns the items of a list, which may have `max` items.
    pub(crate) fn items<'r>(
        &mut self,
        node: &Node<'r>,
        max: usize,
        must: &str,
    ) -> Option<Vec<Node<'r>>> {
        match node.raw {
            Raw::List(items) if items.len() <= max => Some(node.items()),
            Raw::List(items) => {
                let words = format!("has {} items; the maximum is {max}", items.len());
                self.wrong(node, words)
            }
            other => self.wrong(node, wrong(other, format_args!("a list of {must}"))),
        }
    }

    /// Reads each item with `read`. Returns `None` after a problem.
    pub(crate) fn each<'r, T>(
        &mut self,
        nodes: Vec<Node<'r>>,
        mut read: impl FnMut(&mut Self, &Node<'r>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let all: Vec<Option<T>> = nodes.iter().map(|node| read(self, node)).collect();
        all.into_iter().collect()
    }

    /// Reads the field `name` of `node` with `read`. Returns the default of a missing field, and
    /// `None` after a problem.
    pub(crate) fn optional<'r, T: Default>(
        &mut self,
        node: &Node<'r>,
        name: &str,
        read: impl FnOnce(&mut Self, &Node<'r>) -> Option<T>,
    ) -> Option<T> {
        match node.field(name) {
            Some(field) => read(self, &field),
            None => Some(T::default()),
        }
    }

    /// Reads the field of `node` that `needed` begins with. Reports that it is missing in the words
    /// of `needed`.
    pub(crate) fn needed<'r, T>(
        &mut self,
        node: &Node<'r>,
        needed: &str,
        read: impl FnOnce(&mut Self, &Node<'r>) -> Option<T>,
    ) -> Option<T> {
        let name = needed.split(':').next().unwrap_or_default();
        match node.field(name) {
            Some(field) => read(self, &field),
            None => self.wrong(node, format_args!("needs {needed}")),
        }
    }

    /// Reads the name of a value.
    fn choice<T: Copy>(&mut self, node: &Node<'_>, names: &[(&str, T)]) -> Option<T> {
        self.value(node, parse::choice(node.raw, names))
    }

    /// Reads a mapping of statuses to meanings.
    fn lines(&mut self, node: &Node<'_>) -> Option<Answers> {
        let fields = self.names(node, usize::MAX, MUST)?;
        let mut answers = Answers::default();
        let mut good = true;
        for field in fields {
            let called = shown(field.name);
            let read = match AnswerPattern::parse(field.name) {
                None => Err(format!("{called} is not a status; it must be {STATUS}")),
                Some(which) => parse::choice(field.raw, &Consequence::all())
                    .map(|meaning| (which, meaning))
                    .map_err(|words| format!("{called} {words}")),
            };
            let set = read.and_then(|(which, meaning)| match answers.set(which, meaning) {
                true => Ok(()),
                false => Err(format!("{called} is set twice")),
            });
            let field = Node {
                path: node.path.clone(),
                ..field
            };
            good &= self.value(&field, set).is_some();
        }
        good.then_some(answers)
    }

    /// Reads a list of rules.
    pub(crate) fn rules(&mut self, node: &Node<'_>) -> Option<Vec<AnswerRule>> {
        let items = self.items(node, MAX_RULES, "rules")?;
        self.each(items, Self::rule)
    }

    fn rule(&mut self, node: &Node<'_>) -> Option<AnswerRule> {
        self.fields(node, &["when", "means", "scope", "wait", "why"], RULE)?;
        let when = self.needed(node, &format!("when: {CONDITIONS}"), Self::conditions);
        let means = "means: done, retry, throttle or reject";
        let means = self.needed(node, means, |reader, means| {
            reader.choice(means, &Consequence::all())
        });
        let stops_all = self.optional(node, "scope", |reader, scope| {
            reader.choice(scope, &SCOPES).map(Some)
        });
        let wait = self.optional(node, "wait", Self::waits);
        let why = self.optional(node, "why", |reader, why| {
            reader.value(why, text(why.raw, "a short sentence"))
        });
        let means = means?;
        if let Some(wait) = (node.field("wait")).filter(|_| means == Consequence::Reject) {
            let words = "has no effect, since a rejected job does not run again";
            return self.wrong(&wait, words);
        }
        Some(AnswerRule {
            when: when?,
            means,
            stops_all: stops_all?,
            wait: wait?,
            why: why?,
        })
    }

    fn conditions(&mut self, node: &Node<'_>) -> Option<Conditions> {
        let fields = self.fields(node, &["status", "headers", "body"], CONDITIONS)?;
        if fields.is_empty() {
            return self.wrong(node, format_args!("is empty; it must have {CONDITIONS}"));
        }
        // Each part is read before the first `?`, so that one run reports all problems.
        let status = self.optional(node, "status", Self::statuses);
        let headers = self.optional(node, "headers", |reader, node| reader.tests(node, header));
        let body = self.optional(node, "body", |reader, node| reader.tests(node, pointer));
        Some(Conditions {
            status: status?,
            headers: headers?,
            body: body?,
        })
    }

    fn statuses(&mut self, node: &Node<'_>) -> Option<Vec<StatusPattern>> {
        let nodes = match node.raw {
            Raw::List(items) if items.is_empty() => {
                let words = "is an empty list; it must have statuses (409) or classes (4xx)";
                return self.wrong(node, words);
            }
            Raw::List(_) => self.items(node, MAX_PARTS, "statuses")?,
            _ => vec![node.clone()],
        };
        self.each(nodes, |reader, node| {
            let text = match node.raw {
                Raw::Int(status) => status.to_string(),
                Raw::Text(text) => text.clone(),
                _ => String::new(),
            };
            let must = "a status (409), a class (4xx), or a list of them";
            let read = StatusPattern::parse(&text).ok_or_else(|| wrong(node.raw, must));
            reader.value(node, read)
        })
    }

    /// Reads conditions on values, whose places `place` reads.
    fn tests<P>(
        &mut self,
        node: &Node<'_>,
        place: fn(&str) -> Result<P, ValueError>,
    ) -> Option<Vec<(P, ValueTest)>> {
        let must = "names or places with conditions, such as x-remaining: {at-most: 0}";
        let fields = self.names(node, MAX_PARTS, must)?;
        if fields.is_empty() {
            return self.wrong(node, format_args!("is empty; it must be {must}"));
        }
        self.each(fields, |reader, field| {
            let place = reader.value(field, place(field.name));
            let test = reader.test(field);
            Some((place?, test?))
        })
    }

    fn test(&mut self, node: &Node<'_>) -> Option<ValueTest> {
        if !matches!(node.raw, Raw::Map(_)) {
            let expected =
                expected_value(node.raw, TEST).map(|value| ValueTest::OneOf(vec![value]));
            return self.value(node, expected);
        }
        let fields = self.fields(node, &TESTS, TEST)?;
        let [field] = fields.as_slice() else {
            let words = format!("has {} conditions; it must have one", fields.len());
            return self.wrong(node, words);
        };
        let number = || match field.raw {
            Raw::Int(number) => i64::try_from(*number).map_err(|_| "is too large".to_owned()),
            raw => Err(wrong(raw, "a whole number")),
        };
        let read = match field.name {
            "equals" => expected_value(field.raw, "a text or a number")
                .map(|value| ValueTest::OneOf(vec![value])),
            "one-of" => {
                let items = self.items(field, MAX_PARTS, "texts or numbers")?;
                if items.is_empty() {
                    return self.wrong(field, "is an empty list; it must have texts or numbers");
                }
                let read = |reader: &mut Self, item: &Node<'_>| {
                    reader.value(item, expected_value(item.raw, "a text or a number"))
                };
                return self.each(items, read).map(ValueTest::OneOf);
            }
            "contains" => text(field.raw, "a text").map(ValueTest::Contains),
            "starts-with" => text(field.raw, "a text").map(ValueTest::StartsWith),
            "at-most" => number().map(ValueTest::AtMost),
            "at-least" => number().map(ValueTest::AtLeast),
            _ => parse::boolean(field.raw).map(ValueTest::Present),
        };
        self.value(field, read)
    }

    fn waits(&mut self, node: &Node<'_>) -> Option<Vec<WaitSource>> {
        let items = self.items(node, MAX_PARTS, WAITS)?;
        self.each(items, Self::wait)
    }

    fn wait(&mut self, node: &Node<'_>) -> Option<WaitSource> {
        const REFILL: [&str; 3] = ["needed", "left", "per-second"];
        let known = [&["header", "body", "as"], &REFILL[..], &["time"]].concat();
        let fields = self.fields(node, &known, SOURCE)?;
        let field = |name: &str| fields.iter().find(|field| field.name == name);
        let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
        match names.as_slice() {
            ["time"] => {
                let time = parse::duration(fields[0].raw, MIN_WAIT, MAX_WAIT);
                self.value(&fields[0], time).map(WaitSource::Time)
            }
            [_] | [_, _] if field("header").is_some() != field("body").is_some() => {
                let source = self.source(&fields);
                let form = match field("as") {
                    Some(form) => self.choice(form, &TimeForm::all()).map(Some),
                    None if fields.len() == 1 => Some(None),
                    None => self.wrong(node, format_args!("must be {SOURCE}")),
                };
                Some(WaitSource::At(source?, form?))
            }
            // A mapping has each key once, so these are the three different fields.
            [_, _, _] if names.iter().all(|name| REFILL.contains(name)) => {
                let mut place = |name| field(name).and_then(|place| self.pointer(place));
                let (needed, left, rate) = (place("needed"), place("left"), place("per-second"));
                Some(WaitSource::Refill {
                    needed: needed?,
                    left: left?,
                    per_second: rate?,
                })
            }
            _ => {
                let others = "{time: 60s}, or needed, left and per-second together";
                self.wrong(node, format_args!("must be {SOURCE}, {others}"))
            }
        }
    }

    /// Reads the header or pointer among `fields`.
    fn source(&mut self, fields: &[Node<'_>]) -> Option<ValueSource> {
        let source = fields.iter().find(|field| field.name != "as")?;
        match source.name {
            "header" => {
                let name = parse::text(source.raw, "the name of a header").and_then(header);
                self.value(source, name).map(ValueSource::Header)
            }
            _ => self.pointer(source).map(ValueSource::Body),
        }
    }

    fn pointer(&mut self, node: &Node<'_>) -> Option<BodyPointer> {
        self.value(node, parse::text(node.raw, POINTER).and_then(pointer))
    }

    /// Reads the sources of a call's cost.
    pub(crate) fn cost(&mut self, node: &Node<'_>) -> Option<Vec<ValueSource>> {
        let items = self.items(node, MAX_PARTS, COST)?;
        self.each(items, |reader, item| {
            let fields = reader.fields(item, &["header", "body"], COST_ITEM)?;
            match fields.as_slice() {
                [_] => reader.source(&fields),
                _ => reader.wrong(item, format_args!("must be {COST_ITEM}")),
            }
        })
    }
}

/// Parses the name of a header, in lower case.
fn header(name: &str) -> Result<String, ValueError> {
    let called = || format!("{} is not the name of a header", shown(name));
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| called())?;
    Ok(name.as_str().to_owned())
}

fn pointer(text: &str) -> Result<BodyPointer, ValueError> {
    let called = || format!("{} must be {POINTER}", shown(text));
    let fits = text.len() <= MAX_TEXT_BYTES && !text.contains(char::is_control);
    let pointer = BodyPointer::parse(text).filter(|_| fits);
    pointer.ok_or_else(called)
}

fn text(raw: &Raw, must: &str) -> Result<String, ValueError> {
    let text = parse::text(raw, must)?;
    if text.len() > MAX_TEXT_BYTES {
        return Err(format!("is longer than {MAX_TEXT_BYTES} bytes"));
    }
    match text.contains(char::is_control) {
        true => Err("has control characters".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn expected_value(raw: &Raw, must: &str) -> Result<ExpectedValue, ValueError> {
    match raw {
        Raw::Int(number) => {
            let number = i64::try_from(*number).map_err(|_| "is too large".to_owned());
            number.map(ExpectedValue::Number)
        }
        Raw::Bool(truth) => Ok(ExpectedValue::Truth(*truth)),
        raw => text(raw, must).map(ExpectedValue::Text),
    }
}

impl ConfigInput {
    /// Reads the meanings of answers. `profile` has the rules of the API's profile.
    pub(crate) fn answers(
        &mut self,
        answers_key: &ConfigKey,
        cost_key: &ConfigKey,
        profile: Option<AnswerRules>,
    ) -> Option<Answers> {
        let (own, sources) = (self.tree(answers_key), self.tree(cost_key));
        let mut reader = AnswersReader {
            problems: &mut self.problems,
        };
        let node = own
            .as_ref()
            .map(|(raw, at)| Node::new(raw, at.clone(), answers_key.path));
        let read = match node {
            None => Some((Answers::default(), Vec::new())),
            Some(node) if matches!(node.raw, Raw::List(_)) => {
                let rules = reader.rules(&node);
                rules.map(|rules| (Answers::default(), rules))
            }
            Some(node) => reader.lines(&node).map(|lines| (lines, Vec::new())),
        };
        let cost = match &sources {
            None => Some(Vec::new()),
            Some((raw, at)) => reader.cost(&Node::new(raw, at.clone(), cost_key.path)),
        };
        let ((answers, rules), cost) = (read?, cost?);
        self.shown.set(answers_key, &own.map(|(raw, _)| raw));
        self.shown.set(cost_key, &sources.map(|(raw, _)| raw));
        let answers = answers.with_rules(AnswerRules { rules, cost });
        Some(answers.with_profile(profile.unwrap_or_default()))
    }
}
