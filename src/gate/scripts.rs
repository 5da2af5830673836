//! The Lua scripts, assembled from the files in `lua/` and called by their SHA or with their text. Constants that
//! rules and scripts share are defined in the rules.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use ::redis::{Cmd, Pipeline};
use include_dir::{Dir, File, include_dir};

use config::ScriptCommand;
use rules::algorithms::{bucket, held, product};
use rules::gate::{fair_queue, forecast, model, shadow, waitlist};
use rules::layout::Layout;
use rules::limit::{Algorithm, Limit};
use rules::{calendar, learned};

/// Constants of the rules that scripts use as well. No file in `lua/` sets them.
pub const SHARED: [(&str, u64); 38] = [
    ("AGAIN", shadow::REPEATED_FLAG),
    ("AHEAD_MS", waitlist::AHEAD_MS),
    ("CALLS", learned::CALLS),
    ("DEBT", bucket::DEBT),
    ("DEBT_MS", bucket::DEBT_MS),
    ("EIGHTH", fair_queue::EIGHTH),
    ("EXPLAINED_MS", learned::EXPLAINED_MS),
    ("FAR", learned::FAR),
    ("GRACE_MS", waitlist::GRACE_MS),
    ("IDLE", fair_queue::IDLE as u64),
    ("KEEP_MS", waitlist::KEEP_MS),
    ("KNOWN_WINDOWS", calendar::KNOWN_WINDOWS as u64),
    ("LATEST_MS", product::LATEST_MS),
    ("LEARNED_MS", learned::LEARNED_MS),
    ("LEASE_MS", held::LEASE_MS),
    ("LOOK_MS", held::MAX_CHECK_DELAY_MS),
    ("MANY", fair_queue::MANY),
    ("MARK_MS", model::MARK_MS),
    ("MAX_REACH", waitlist::MAX_REACH),
    ("MAX_TAG", fair_queue::MAX_TAG),
    ("MAX_TICKET", waitlist::MAX_TICKET),
    ("MAX_WINDOWS_AHEAD", calendar::MAX_WINDOWS_AHEAD),
    ("MOST_BEHIND_MS", shadow::MAX_BEHIND_MS),
    ("NEEDED_MS", model::NEEDED_MS),
    ("NEVER", learned::NEVER),
    ("PAST", learned::PAST as u64),
    ("PATIENCE", learned::PATIENCE),
    ("PERIOD_MS", bucket::PERIOD_MS),
    ("POINTS", forecast::POINTS),
    ("PURGE", fair_queue::PURGE as u64),
    ("RESET_MS", model::RESET_MS),
    ("SINKS", learned::SINKS),
    ("STEP", fair_queue::STEP),
    ("STEPS", learned::STEPS),
    ("TOLD_MS", learned::ADVERTISED_MS),
    ("TRIAL_MS", shadow::TRIAL_MS),
    ("TRIES", shadow::TRIES),
    ("WIDE", fair_queue::WIDE as u64),
];

/// The files of `lua/`.
static FILES: Dir = include_dir!("$CARGO_MANIFEST_DIR/lua");

/// Returns the text of `lua/NAME.lua`.
///
/// # Panics
/// Panics if there is no such file. A unit test assembles all scripts.
fn text(name: &str) -> &'static str {
    let file = FILES.get_file(format!("{name}.lua"));
    file.and_then(File::contents_utf8)
        .unwrap_or_else(|| panic!("lua/{name}.lua is missing"))
}

/// Returns a constant that `line` of a script defines, and its value, which is a number or a text.
fn constant(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.strip_prefix("local ")?.split_once(" = ")?;
    let text = value
        .strip_prefix('\'')
        .and_then(|rest| rest.strip_suffix('\''));
    let is_literal = value.parse::<u64>().is_ok() || text.is_some_and(|it| !it.contains('\''));
    let is_upper = |c: char| c.is_ascii_uppercase() || c == '_';
    (is_literal && name.chars().all(is_upper)).then_some((name, value))
}

/// The values of [`SHARED`] and of the constants of all files, by their names.
static CONSTANTS: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let shared = SHARED.map(|(name, value)| (name, value.to_string()));
    let texts = FILES.files().filter_map(File::contents_utf8);
    let lines = texts.flat_map(str::lines).map(str::trim_start);
    let own = lines.filter_map(constant);
    let mut constants = HashMap::new();
    for (name, value) in (shared.into_iter()).chain(own.map(|(name, value)| (name, value.into()))) {
        let earlier = constants.insert(name, value);
        assert_eq!(earlier, None, "{name} is defined twice");
    }
    constants
});

/// Returns a script without comment lines and indentation: half of it, which calls by text send each
/// time. No script has a text of several lines. Constants are replaced by their values: a name would
/// be bound to every function that uses it in each call, which took 6 % of a decision.
fn code(script: &str) -> String {
    let lines = script.lines().map(str::trim_start);
    let is_code =
        |line: &&str| !line.is_empty() && !line.starts_with("--") && constant(line).is_none();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut code = String::with_capacity(script.len());
    for line in lines.filter(is_code) {
        for word in line.split_inclusive(|c| !is_name(c)) {
            let name = word.trim_end_matches(|c| !is_name(c));
            code.push_str(CONSTANTS.get(name).map_or(name, String::as_str));
            code.push_str(&word[name.len()..]);
        }
        code.push('\n');
    }
    code
}

/// One script as Redis receives it.
#[derive(Debug)]
pub struct Script {
    /// The name of its entry file without `.lua`, for messages.
    pub name: &'static str,
    /// The source text.
    pub source: String,
    /// The SHA-1 of the source in hex, by which Redis caches it.
    pub sha: String,
}

impl Script {
    /// Assembles a script from the files with the names `parts`.
    fn new(name: &'static str, parts: &[&str]) -> Self {
        let parts: Vec<String> = parts.iter().map(|part| code(text(part))).collect();
        let source = parts.concat();
        let sha = ::redis::Script::new(&source).get_hash().to_owned();
        Self { name, source, sha }
    }

    /// Returns the beginning of a call: the command, and the script's SHA or text.
    pub fn call(&self, command: ScriptCommand) -> [&str; 2] {
        match command {
            ScriptCommand::EvalSha => ["EVALSHA", &self.sha],
            ScriptCommand::Eval => ["EVAL", &self.source],
        }
    }

    /// Adds `call`, a call of this script, to `pipeline`. By SHA the script is loaded first, so the
    /// call has [`answers_per_call`] answers, and the last one is its own.
    pub fn add(&self, pipeline: &mut Pipeline, command: ScriptCommand, call: Cmd) {
        if command == ScriptCommand::EvalSha {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(&self.source);
        }
        pipeline.add_command(call);
    }
}

/// Returns the number of answers to a call that [`Script::add`] added.
pub fn answers_per_call(command: ScriptCommand) -> usize {
    match command {
        ScriptCommand::EvalSha => 2,
        ScriptCommand::Eval => 1,
    }
}

/// The first parts of every script that uses the waitlist: all that a shortcut needs of it.
const WAITLIST_READ: [&str; 2] = ["clock", "waitlist_read"];

/// The other parts of every script that uses the waitlist.
const WAITLIST: [&str; 3] = ["breaker", "learned", "waitlist"];

/// One script per set of algorithms, so that a call pays only for what it needs.
struct Family {
    name: &'static str,
    /// The last files of the script.
    entry: &'static [&'static str],
    /// The script in front of it, if all limits have the same algorithm and it has a shortcut.
    shortcut: Option<&'static str>,
    /// Indexed by one bit per entry of [`Algorithm::EVERY`], one for shared partitions and one for
    /// shadows.
    members: LazyLock<Vec<OnceLock<Script>>>,
}

impl Family {
    const fn new(name: &'static str, entry: &'static [&'static str]) -> Self {
        Self::with_shortcut(name, None, entry)
    }

    const fn with_shortcut(
        name: &'static str,
        shortcut: Option<&'static str>,
        entry: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            entry,
            shortcut,
            members: LazyLock::new(|| {
                let count = 4 << Algorithm::EVERY.len();
                std::iter::repeat_with(OnceLock::new).take(count).collect()
            }),
        }
    }

    /// Returns the shortcut of the algorithm and of the script, if all `limits` have the same one.
    fn shortcut_of(&self, limits: &[Limit]) -> Option<[&'static str; 2]> {
        let algorithm = limits.first()?.algorithm();
        let is_alone = limits.iter().all(|limit| limit.algorithm() == algorithm);
        let both = [algorithm.facts().shortcut?.entry, self.shortcut?];
        is_alone.then_some(both)
    }

    /// Returns the script for `limits` and `layout`. The parts for shared partitions are included
    /// only if [`shared_argument`](crate::reply::shared_argument) sends any, and those for
    /// shadows only if there are shadows.
    fn member(&self, limits: &[Limit], layout: &Layout) -> &Script {
        let is_used = |algorithm| limits.iter().any(|limit| limit.algorithm() == algorithm);
        let bits = Algorithm::EVERY.iter().enumerate();
        let used = bits.fold(0, |used, (bit, algorithm)| {
            used | usize::from(is_used(*algorithm)) << bit
        });
        let shares = !layout.shared.is_empty();
        let shadows = limits.iter().any(Limit::is_shadow);
        let of_both = usize::from(shares) | usize::from(shadows) << 1;
        let member = used | of_both << Algorithm::EVERY.len();
        self.members[member].get_or_init(|| {
            let mut parts = WAITLIST_READ.to_vec();
            let algorithms = Algorithm::EVERY.into_iter().filter(|a| is_used(*a));
            let usages = algorithms.clone().filter_map(|a| a.facts().shortcut);
            parts.extend(usages.map(|shortcut| shortcut.usage));
            if let Some(shortcut) = self.shortcut_of(limits).filter(|_| of_both == 0) {
                parts.extend(shortcut);
            }
            parts.extend(WAITLIST);
            parts.push("limits");
            if shares {
                parts.extend(["fair_queue", "shared_partitions"]);
            }
            if shadows {
                parts.push("shadows");
            }
            let scripts = algorithms.flat_map(|algorithm| algorithm.facts().scripts);
            for script in scripts.chain(self.entry) {
                // Some algorithms share a file.
                if !parts.contains(script) {
                    parts.push(script);
                }
            }
            Script::new(self.name, &parts)
        })
    }
}

/// Decides for the jobs of one tenant with the partitions in `layout`.
pub fn acquire(limits: &[Limit], layout: &Layout) -> &'static Script {
    static FAMILY: Family = Family::with_shortcut("acquire", Some("shortcut"), &["acquire"]);
    FAMILY.member(limits, layout)
}

/// Corrects charges by actual costs, and renews or releases leases.
pub fn settle(limits: &[Limit], layout: &Layout) -> &'static Script {
    static FAMILY: Family = Family::new("settle", &["sliding_settle", "settle"]);
    FAMILY.member(limits, layout)
}

/// Reads the state of one tenant.
pub fn inspect(limits: &[Limit], layout: &Layout) -> &'static Script {
    static FAMILY: Family = Family::new("inspect", &["inspect"]);
    FAMILY.member(limits, layout)
}

/// Feeds adaptive limits with answers of the API.
pub fn learn(limits: &[Limit], layout: &Layout) -> &'static Script {
    static FAMILY: Family = Family::new("learn", &["learn"]);
    FAMILY.member(limits, layout)
}

/// Computes when the units of a waitlist have their turns.
pub fn forecast(limits: &[Limit], layout: &Layout) -> &'static Script {
    static FAMILY: Family = Family::new("forecast", &["muldiv", "forecast"]);
    FAMILY.member(limits, layout)
}

/// Defines functions that return scripts of these parts for all tenants alike.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident: $parts:expr;)+) => {
        $($(#[$doc])*
        pub fn $name() -> &'static Script {
            static SCRIPT: LazyLock<Script> =
                LazyLock::new(|| Script::new(stringify!($name), &$parts));
            &SCRIPT
        })+

        /// All of these functions.
        #[cfg(test)]
        const FIXED: &[fn() -> &'static Script] = &[$($name),+];
    };
}

scripts! {
    /// Suspends one tenant, or all tenants.
    block: with_waitlist(&["block"]);
    /// Stores the limits that the API advertises.
    quota: with_waitlist(&["quota"]);
    /// Reports the end of a call to a breaker.
    report: with_waitlist(&["report"]);
    /// Applies an operator's change to one tenant.
    change: with_waitlist(&["fair_queue", "change"]);
    /// Writes a note about a suspect's call, or asks whether the suspect may be called.
    crash: ["clock", "crash"];
    /// Asks whether a job is the first with its dedupe key.
    dedupe: ["clock", "dedupe"];
    /// Registers a worker's policies, and reads those of all workers.
    policies: ["clock", "policies"];
    /// Reads or changes operators' instructions.
    steer: ["clock", "steer"];
    /// Writes or reads the audit log.
    audit: ["clock", "audit"];
    /// Stores a worker's answer about a job.
    sighting: ["sighting"];
    /// Ends a batch: decides whether its decisions count.
    pulse: ["clock", "pulse"];
    /// Reads the epoch, the clock and the server's identity.
    server: ["server"];
    /// Changes the epoch.
    epoch: ["epoch"];
}

/// Returns the parts of a script that reads or changes a waitlist.
fn with_waitlist(parts: &[&'static str]) -> Vec<&'static str> {
    [&WAITLIST_READ[..], &WAITLIST, parts].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use kit::SECOND;
    use kit::gate::{named_limit, tenant};
    use rules::scope::{Labels, Scope};

    /// Returns limits of each algorithm: alone, and beside a shared limit and a shadow.
    fn limit_sets() -> Vec<Vec<Limit>> {
        let sliding = |name| named_limit(name, Algorithm::SlidingWindow, 5, SECOND);
        let all = sliding("all").with_scope(Scope::Global);
        let shadow = sliding("shadow").in_shadow().expect("no lease");
        let alone = Algorithm::EVERY.map(|algorithm| match algorithm {
            Algorithm::Concurrency => Limit::concurrent("own", 5).expect("in range"),
            _ => named_limit("own", algorithm, 5, SECOND),
        });
        let beside = |own: &Limit| vec![own.clone(), all.clone(), shadow.clone()];
        let both = alone.iter().map(|own| [vec![own.clone()], beside(own)]);
        both.flatten().collect()
    }

    #[test]
    fn all_scripts_can_be_assembled_and_every_file_is_used() {
        let mut scripts: Vec<&Script> = FIXED.iter().map(|script| script()).collect();
        for limits in limit_sets() {
            let labels = Labels::of(&limits, |_| String::new());
            let layout = Layout::of(&limits, &tenant("t"), &labels);
            let families = [acquire, settle, inspect, learn, forecast];
            scripts.extend(families.map(|family| family(&limits, &layout)));
        }
        for file in FILES.files() {
            let part = code(file.contents_utf8().expect("text"));
            let is_used = scripts.iter().any(|script| script.source.contains(&part));
            assert!(is_used, "{} is in no script", file.path().display());
        }
        let texts = FILES.files().filter_map(File::contents_utf8);
        let lines = texts.flat_map(str::lines).map(str::trim_start);
        let rest = lines.filter(|line| constant(line).is_none() && !line.starts_with("--"));
        let names = rest.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
        let names: HashSet<&str> = names.collect();
        for name in CONSTANTS.keys() {
            assert!(names.contains(name), "no script uses {name}");
        }
    }
}
