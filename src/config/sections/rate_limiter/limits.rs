//! Reads the limits below `rate-limiter`: common limits, and limits of plans and of single tenants.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::limit_keys::{self, CONCURRENT, FLAT, LIST_ONLY, MAX_CONCURRENT, limit_name};
use super::limit_layer::{self, LimitLayer, build};
use crate::reading::error::{ConfigProblem, Origin, shown};
use crate::reading::input::Tree;
use crate::reading::parse::{self, closest, describe_value, hint};
use crate::reading::yaml::{Item, Raw, YamlField};
use rules::limit::{Algorithm, DEFAULT_LIMIT, Limit, LimitError, Limits, MAX_LIMITS, Unit};
use rules::policy::{EntryLimits, Pattern, Policy};
use rules::scope::Scope;
use rules::tenant::MAX_TENANT_BYTES;

const LIMITS: &str = limit_keys::LIMITS.key.path;
const PLANS: &str = limit_keys::PLANS.key.path;
const TENANTS: &str = limit_keys::TENANTS.key.path;
/// Example of a list of limits, for errors.
const LIST_EXAMPLE: &str = "such as [{name: second, max-requests: 10, window-size: 1}]";

/// Returns the path of the key `name` below `path` for errors. Replaces a name that may contain a
/// secret, such as a URL, with `…`.
fn below(path: &str, name: &str) -> String {
    if name.contains("://") || name.len() > MAX_TENANT_BYTES {
        return format!("{path}.…");
    }
    format!("{path}.{name}")
}

/// A mapping in the configuration: its name, keys, position, and its path for errors.
struct Mapping<'a> {
    name: &'a str,
    fields: &'a [YamlField],
    at: Origin,
    path: String,
}

impl Mapping<'_> {
    fn field(&self, name: &str) -> Option<&YamlField> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// The items of a list of limits that are mappings.
struct ListedLimits {
    /// Their names, or `None` for an item without a usable name.
    names: Vec<Option<String>>,
    layers: Vec<LimitLayer>,
    /// Whether all items are mappings with usable names.
    is_whole: bool,
}

/// Reads the lists and mappings below `rate-limiter`.
pub(super) struct LimitsReader<'a> {
    /// Problems found so far.
    pub problems: &'a mut Vec<ConfigProblem>,
    /// The limit keys directly below `rate-limiter`, or their defaults.
    pub flat: &'a LimitLayer,
    /// Names of the common limits that all tenants share; `None` while the common limits themselves
    /// are read.
    pub global: Option<Vec<String>>,
    /// Unit of limits that do not state it.
    pub unit: Unit,
}

impl LimitsReader<'_> {
    /// Reads the whole policy. Returns `None` after a problem.
    pub(crate) fn policy(
        &mut self,
        limits: &Tree,
        plans: &Tree,
        tenants: &Tree,
        plan_header: Option<String>,
    ) -> Option<Policy> {
        let common = match limits {
            Some((raw, at)) => self.list(raw, at, LIMITS, &[self.flat]),
            None => self.single_limit(&[self.flat]),
        };
        let global = common.iter().flat_map(Limits::global);
        self.global = Some(global.map(|limit| limit.name().to_owned()).collect());
        let plans = self.plans(plans);
        let tenants = self.tenants(tenants, &plans);
        let plans = plans.into_iter().map(|(name, set)| Some((name, set?)));
        let mut policy = Policy::common(common?)
            .with_plans(plans.collect::<Option<_>>()?)
            .with_tenants(tenants?);
        if let Some(header) = plan_header {
            policy = policy.with_plan_header(header);
        }
        Some(policy)
    }

    fn plans(&mut self, tree: &Tree) -> BTreeMap<String, Option<Limits>> {
        let mut plans = BTreeMap::new();
        for plan in self.mappings(tree, PLANS, "{free: {max-requests: 5}}") {
            let name = plan.name.to_owned();
            if name.is_empty() || name.len() > 64 {
                let words = format!("has {} bytes; a plan's name must have 1 to 64", name.len());
                self.wrong::<()>(&plan.at, &plan.path, words);
            }
            let set = self.set(&plan, &[]);
            plans.insert(name, set);
        }
        plans
    }

    fn tenants(
        &mut self,
        tree: &Tree,
        plans: &BTreeMap<String, Option<Limits>>,
    ) -> Option<Vec<(Pattern, EntryLimits)>> {
        let mut tenants = Some(Vec::new());
        for entry in self.mappings(tree, TENANTS, "{acme: {max-requests: 50}}") {
            let pattern = self.pattern(&entry);
            let own = if entry.field("plan").is_some() {
                self.plan_of(&entry, plans).map(EntryLimits::Plan)
            } else {
                self.set(&entry, &["plan"]).map(EntryLimits::Limits)
            };
            match (&mut tenants, pattern, own) {
                (Some(list), Some(pattern), Some(own)) => list.push((pattern, own)),
                _ => tenants = None,
            }
        }
        tenants
    }

    fn pattern(&mut self, entry: &Mapping<'_>) -> Option<Pattern> {
        let text = entry.name;
        let wrong = if text.is_empty() || text.len() > MAX_TENANT_BYTES {
            format!("it must have 1 to {MAX_TENANT_BYTES} bytes")
        } else if text.contains(char::is_control) {
            "it must not contain control characters".to_owned()
        } else if text.strip_suffix('*').unwrap_or(text).contains('*') {
            "it can have a * only at its end, which matches all ids with that prefix".to_owned()
        } else {
            return Some(Pattern::parse(text));
        };
        self.wrong(
            &entry.at,
            &entry.path,
            format!("is not a tenant id: {wrong}"),
        )
    }

    /// Returns the plan that an entry of `tenants` names. It is a problem if the plan does not
    /// exist, or if the entry has another key.
    fn plan_of(
        &mut self,
        entry: &Mapping<'_>,
        plans: &BTreeMap<String, Option<Limits>>,
    ) -> Option<String> {
        let plan = entry.field("plan")?;
        let (at, key) = (entry.at.inside(plan.at), format!("{}.plan", entry.path));
        if let Some(other) = entry.fields.iter().find(|field| field.name != "plan") {
            let at = entry.at.inside(other.at);
            let words = format!(
                "is set next to a plan, which defines all limits; keep the plan or {}",
                shown(&other.name)
            );
            return self.wrong(&at, &below(&entry.path, &other.name), words);
        }
        match parse::text(&plan.raw, "the name of a plan") {
            Err(words) => self.wrong(&at, &key, words),
            Ok(name) if plans.contains_key(name) => Some(name.to_owned()),
            Ok(name) => {
                let hint = hint(name, plans.keys().map(String::as_str));
                let words = format!("is {}, but {PLANS} has no such plan{hint}", shown(name));
                self.wrong(&at, &key, words)
            }
        }
    }

    /// Reads a mapping of names to mappings.
    fn mappings<'t>(&mut self, tree: &'t Tree, path: &str, example: &str) -> Vec<Mapping<'t>> {
        let Some((raw, at)) = tree else {
            return Vec::new();
        };
        let fields = match raw {
            Raw::Map(fields) => fields,
            Raw::Null => return Vec::new(),
            other => {
                let words = format!(
                    "is {}; it must contain names, such as {example}",
                    describe_value(other)
                );
                self.wrong::<()>(at, path, words);
                return Vec::new();
            }
        };
        let mut found = Vec::new();
        for field in fields {
            let (at, path) = (at.inside(field.at), below(path, &field.name));
            match &field.raw {
                Raw::Map(fields) if !fields.is_empty() => found.push(Mapping {
                    name: &field.name,
                    fields,
                    at,
                    path,
                }),
                Raw::Map(_) | Raw::Null => {
                    let words = "sets nothing; give it keys, such as max-requests, or limits";
                    self.wrong::<()>(&at, &path, words);
                }
                other => {
                    let words = format!("is {}; it must contain keys", describe_value(other));
                    self.wrong::<()>(&at, &path, words);
                }
            }
        }
        found
    }

    /// Reads the limits of a plan or of a tenant's entry.
    fn set(&mut self, mapping: &Mapping<'_>, more: &[&str]) -> Option<Limits> {
        let layer = self.layer(mapping, &[&["limits"], more].concat());
        let layers = [&layer, self.flat];
        match mapping.field("limits") {
            Some(field) => {
                let (at, path) = (mapping.at.inside(field.at), &mapping.path);
                self.list(&field.raw, &at, &format!("{path}.limits"), &layers)
            }
            None if self.is_global(DEFAULT_LIMIT) => {
                let words = format!(
                    "its limit would have the name {DEFAULT_LIMIT}, like the global limit that is \
                    enforced with it; name one of them, such as limits: [{{name: minute}}]"
                );
                self.wrong(&mapping.at, &mapping.path, words)
            }
            None => self.single_limit(&layers),
        }
    }

    /// Builds a set of limits from the one limit that `layers` describe.
    fn single_limit(&mut self, layers: &[&LimitLayer]) -> Option<Limits> {
        let limit = self.limit(DEFAULT_LIMIT, layers, self.unit)?;
        match Limits::new(vec![limit]) {
            Ok(limits) => Some(limits),
            Err(error) => {
                let (at, key) = limit_layer::shadow(layers)?;
                self.wrong(at, key, error)
            }
        }
    }

    /// Returns true if a common limit that all tenants share has this name. It is enforced together
    /// with the limits that are being read.
    fn is_global(&self, name: &str) -> bool {
        let mut names = self.global.iter().flatten();
        names.any(|known| known == name)
    }

    /// Reads the limit keys of `mapping`. Keys in `more` are valid, too, and are read elsewhere.
    fn layer(&mut self, mapping: &Mapping<'_>, more: &[&str]) -> LimitLayer {
        let mut layer = LimitLayer::default();
        for YamlField { name, at, raw } in mapping.fields {
            let at = mapping.at.inside(*at);
            let key = format!("{}.{name}", mapping.path);
            let flat = FLAT.iter().find(|setting| setting.key().name() == name);
            if let Some(setting) = flat {
                if let Err(words) = layer.set(*setting, raw, &at, &key) {
                    self.wrong::<()>(&at, &key, words);
                } else if name == "scope" && layer.is_global() && self.global.is_some() {
                    layer.broken = true;
                    let words = format!(
                        "is global, but the quota of all tenants can't differ by plan or tenant; \
                        move this limit to {LIMITS}, where it is enforced together with limits of \
                        plans and tenants"
                    );
                    self.wrong::<()>(&at, &key, words);
                }
            } else if name == MAX_CONCURRENT && more.contains(&MAX_CONCURRENT) {
                let beside = mapping.fields.iter().map(|field| field.name.as_str());
                let fits = [MAX_CONCURRENT, "name", "scope"];
                let mut beside = beside.filter(|other| !fits.contains(other));
                if let Some(other) = beside.next() {
                    let words = if other == limit_keys::SHADOW.key.name() {
                        LimitError::Shadow(Algorithm::Concurrency).to_string()
                    } else {
                        format!(
                            "is set next to {other}; a limit of calls in flight has only a name \
                            and a scope"
                        )
                    };
                    layer.broken = true;
                    self.wrong::<()>(&at, &key, words);
                } else if let Err(words) = layer.set(&CONCURRENT, raw, &at, &key) {
                    self.wrong::<()>(&at, &key, words);
                }
            } else if name == MAX_CONCURRENT {
                self.wrong::<()>(&at, &key, LIST_ONLY);
            } else if !more.contains(&name.as_str()) {
                let flat = FLAT.iter().map(|setting| setting.key().name());
                let known = flat.chain(more.iter().copied());
                let hint = match closest(name, known) {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => "docs/CONFIGURATION.md lists all keys".to_owned(),
                };
                let words = format!("unknown key {} in {}; {hint}", shown(name), mapping.path);
                self.problems.push(ConfigProblem::new(at, words));
            }
        }
        layer
    }

    /// Reads a list of limits. A value that an item lacks comes from the first layer in `outer`
    /// that has it.
    fn list(
        &mut self,
        raw: &Raw,
        at: &Origin,
        path: &str,
        outer: &[&LimitLayer],
    ) -> Option<Limits> {
        let items = self.items(raw, at, path)?;
        let ListedLimits {
            names,
            layers,
            is_whole,
        } = self.listed_limits(items, at, path);
        // If one limit counts cost, the default unit of the others is calls. The default of the
        // common limits also applies to the limits of plans and tenants that replace them.
        let tokens = layers.iter().any(LimitLayer::counts_cost);
        let unit = if tokens { Unit::Calls } else { self.unit };
        if path == LIMITS {
            self.unit = unit;
        }
        let limits: Vec<_> = (names.iter().zip(&layers))
            .map(|(name, layer)| {
                // An item without a usable name is rejected later. It is read anyway, to report its
                // other problems.
                let name = name.as_deref().unwrap_or(DEFAULT_LIMIT);
                self.limit(name, &[&[layer], outer].concat(), unit)
            })
            .collect();
        if !is_whole {
            return None;
        }
        let limits: Vec<Limit> = limits.into_iter().collect::<Option<_>>()?;
        match Limits::new(limits.clone()) {
            Ok(limits) => Some(limits),
            Err(error @ LimitError::Parts(_)) => {
                let up_to = |index: usize| Limits::new(limits[..=index].to_vec());
                let mut indexes = 0..limits.len();
                let index =
                    indexes.find(|index| matches!(up_to(*index), Err(LimitError::Parts(_))))?;
                let item = format!("{path}[{index}]");
                let (at, key) = match layers[index].own_scope() {
                    Some((at, key)) => (at.clone(), key.to_owned()),
                    None => (at.inside(items[index].at), item),
                };
                self.wrong(&at, &key, error)
            }
            Err(error) => self.wrong(at, path, error),
        }
    }

    /// Returns the items of a list of limits, which must not be empty or too long.
    fn items<'t>(&mut self, raw: &'t Raw, at: &Origin, path: &str) -> Option<&'t [Item]> {
        let items = match raw {
            Raw::List(items) if !items.is_empty() => items,
            Raw::List(_) => {
                return self.wrong(
                    at,
                    path,
                    format!("is an empty list; it must contain limits, {LIST_EXAMPLE}"),
                );
            }
            other => {
                let words = format!(
                    "is {}; it must be a list of limits, {LIST_EXAMPLE}",
                    describe_value(other)
                );
                return self.wrong(at, path, words);
            }
        };
        let global = self.global.as_ref().map_or(0, Vec::len);
        if items.len() + global > MAX_LIMITS {
            let beside = match global {
                0 => String::new(),
                global => format!(", and {global} global limits are enforced with them"),
            };
            let words = format!(
                "has {} limits{beside}; at most {MAX_LIMITS} are enforced together",
                items.len()
            );
            return self.wrong(at, path, words);
        }
        Some(items)
    }

    /// Reads the name and the keys of each item.
    fn listed_limits(&mut self, items: &[Item], at: &Origin, path: &str) -> ListedLimits {
        let mut listed = ListedLimits {
            names: Vec::new(),
            layers: Vec::new(),
            is_whole: true,
        };
        for (index, item) in items.iter().enumerate() {
            let (at, path) = (at.inside(item.at), format!("{path}[{index}]"));
            let Raw::Map(fields) = &item.raw else {
                let words = format!(
                    "is {}; it must be a limit, {LIST_EXAMPLE}",
                    describe_value(&item.raw)
                );
                self.wrong::<()>(&at, &path, words);
                listed.is_whole = false;
                continue;
            };
            let mapping = Mapping {
                name: "",
                fields,
                at,
                path,
            };
            let name = self.name(&mapping, items.len() == 1, &listed.names);
            let layer = self.layer(&mapping, &["name", MAX_CONCURRENT]);
            listed.layers.push(layer);
            listed.is_whole &= name.is_some();
            listed.names.push(name);
        }
        listed
    }

    /// Returns the name of an item. It is a problem if it is one of `others`. An item may omit its
    /// name if it `is_single`.
    fn name(
        &mut self,
        item: &Mapping<'_>,
        is_single: bool,
        others: &[Option<String>],
    ) -> Option<String> {
        let taken = |name: &str| {
            format!(
                "is {name}, the name of a global limit of {LIMITS} that is enforced with this \
                one; use another name"
            )
        };
        let Some(field) = item.field("name") else {
            if is_single && self.is_global(DEFAULT_LIMIT) {
                let key = format!("{}.name", item.path);
                return self.wrong(&item.at, &key, taken(DEFAULT_LIMIT));
            }
            if is_single {
                return Some(DEFAULT_LIMIT.to_owned());
            }
            let words = "has no name; each of several limits needs its own name";
            return self.wrong(&item.at, &item.path, words);
        };
        let (at, key) = (item.at.inside(field.at), format!("{}.name", item.path));
        match limit_name(&field.raw) {
            Ok(name) if others.iter().flatten().any(|other| *other == name) => {
                self.wrong(&at, &key, LimitError::SameName(name))
            }
            Ok(name) if self.is_global(&name) => self.wrong(&at, &key, taken(&name)),
            Ok(name) => Some(name),
            Err(words) => self.wrong(&at, &key, words),
        }
    }

    /// Builds the limit that `layers` describe. The first layer that has a value wins. `unit` is
    /// the default unit.
    fn limit(&mut self, name: &str, layers: &[&LimitLayer], unit: Unit) -> Option<Limit> {
        let scope = match limit_layer::scope(layers) {
            // A `scope: global` directly below `rate-limiter` applies only to the common limits.
            // The limits of a plan or a tenant, which replace them, are each tenant's own.
            Scope::Global if self.global.is_some() => Scope::Tenant,
            scope => scope,
        };
        match build(name, layers, unit, scope)? {
            Ok(limit) => return Some(limit),
            // A problem that several limits share, such as one in a common layer, is reported once.
            Err(problem) if !self.problems.contains(&problem) => self.problems.push(problem),
            Err(_) => {}
        }
        None
    }

    fn wrong<T>(&mut self, at: &Origin, key: &str, words: impl Display) -> Option<T> {
        self.problems.push(ConfigProblem::of(at, key, words));
        None
    }
}
