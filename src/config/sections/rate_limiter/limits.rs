//! Reads the limits below `rate-limiter`: common limits, and limits of plans and of single tenants.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::limit_keys::{
    self, CONCURRENT, FLAT, LIST_ONLY, MAX_CONCURRENT, SCOPE, SHADOW, limit_name,
};
use super::limit_layer::{self, LimitLayer, build};
use crate::reading::{
    ConfigProblem, Node, Raw, Tree, closest, describe_value, hint, parse, shown, wrong,
};
use rules::limit::{Algorithm, DEFAULT_LIMIT, Limit, LimitError, Limits, MAX_LIMITS, Unit};
use rules::policy::{EntryLimits, Pattern, Policy};
use rules::scope::Scope;
use rules::tenant::MAX_TENANT_BYTES;

const LIMITS: &str = limit_keys::LIMITS.key.path;
const PLANS: &str = limit_keys::PLANS.key.path;
const TENANTS: &str = limit_keys::TENANTS.key.path;
/// Example of a list of limits, for errors.
const LIST_EXAMPLE: &str = "such as [{name: second, max-requests: 10, window-size: 1}]";

/// Reads the lists and mappings below `rate-limiter`.
pub(super) struct LimitsReader<'a> {
    /// Problems found so far.
    pub problems: &'a mut Vec<ConfigProblem>,
    /// The limit keys directly below `rate-limiter`, or their defaults.
    pub flat: &'a LimitLayer<'a>,
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
            Some((raw, at)) => self.list(&Node::new(raw, at.clone(), LIMITS), &[self.flat]),
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
                self.wrong::<()>(&plan, words);
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

    fn pattern(&mut self, entry: &Node<'_>) -> Option<Pattern> {
        let text = entry.name;
        let why = if text.is_empty() || text.len() > MAX_TENANT_BYTES {
            format!("it must have 1 to {MAX_TENANT_BYTES} bytes")
        } else if text.contains(char::is_control) {
            "it must not contain control characters".to_owned()
        } else if text.strip_suffix('*').unwrap_or(text).contains('*') {
            "it can have a * only at its end, which matches all ids with that prefix".to_owned()
        } else {
            return Some(Pattern::parse(text));
        };
        self.wrong(entry, format!("is not a tenant id: {why}"))
    }

    /// Returns the plan that an entry of `tenants` names. It is a problem if the plan does not
    /// exist, or if the entry has another key.
    fn plan_of(
        &mut self,
        entry: &Node<'_>,
        plans: &BTreeMap<String, Option<Limits>>,
    ) -> Option<String> {
        let plan = entry.field("plan")?;
        if let Some(other) = entry.fields().iter().find(|field| field.name != "plan") {
            let words = format!(
                "is set next to a plan, which defines all limits; keep the plan or {}",
                shown(other.name)
            );
            return self.wrong(other, words);
        }
        match parse::text(plan.raw, "the name of a plan") {
            Err(words) => self.wrong(&plan, words),
            Ok(name) if plans.contains_key(name) => Some(name.to_owned()),
            Ok(name) => {
                let hint = hint(name, plans.keys().map(String::as_str));
                let words = format!("is {}, but {PLANS} has no such plan{hint}", shown(name));
                self.wrong(&plan, words)
            }
        }
    }

    /// Reads a mapping of names to mappings.
    fn mappings<'t>(&mut self, tree: &'t Tree, path: &str, example: &str) -> Vec<Node<'t>> {
        let Some((raw, at)) = tree else {
            return Vec::new();
        };
        let node = Node::new(raw, at.clone(), path);
        if !matches!(raw, Raw::Map(_) | Raw::Null) {
            let value = describe_value(raw);
            let words = format!("is {value}; it must contain names, such as {example}");
            self.wrong::<()>(&node, words);
        }
        let mut found = node.fields();
        found.retain(|field| {
            let words = match field.raw {
                Raw::Map(fields) if !fields.is_empty() => return true,
                Raw::Map(_) | Raw::Null => {
                    "sets nothing; give it keys, such as max-requests, or limits".to_owned()
                }
                other => format!("is {}; it must contain keys", describe_value(other)),
            };
            self.wrong::<()>(field, words).is_some()
        });
        found
    }

    /// Reads the limits of a plan or of a tenant's entry.
    fn set(&mut self, mapping: &Node<'_>, more: &[&str]) -> Option<Limits> {
        let layer = self.layer(mapping, &[&["limits"], more].concat());
        let layers = [&layer, self.flat];
        match mapping.field("limits") {
            Some(limits) => self.list(&limits, &layers),
            None if self.is_global(DEFAULT_LIMIT) => {
                let words = format!(
                    "its limit would have the name {DEFAULT_LIMIT}, like the global limit that is \
                    enforced with it; name one of them, such as limits: [{{name: minute}}]"
                );
                self.wrong(mapping, words)
            }
            None => self.single_limit(&layers),
        }
    }

    /// Builds a set of limits from the one limit that `layers` describe.
    fn single_limit(&mut self, layers: &[&LimitLayer<'_>]) -> Option<Limits> {
        let limit = self.limit(DEFAULT_LIMIT, layers, self.unit)?;
        match Limits::new(vec![limit]) {
            Ok(limits) => Some(limits),
            Err(error) => {
                let (_, shadow) = limit_layer::first(layers, &SHADOW)?;
                self.problems.push(shadow.wrong(error));
                None
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
    fn layer<'r>(&mut self, mapping: &Node<'r>, more: &[&str]) -> LimitLayer<'r> {
        let mut layer = LimitLayer::default();
        let fields = mapping.fields();
        for field in &fields {
            let name = field.name;
            let flat = FLAT.iter().find(|setting| setting.key().name() == name);
            let listed = more.contains(&name);
            let read = match flat {
                Some(setting) => layer.set(*setting, field).and_then(|()| {
                    match name == "scope" && layer.is_global() && self.global.is_some() {
                        false => Ok(()),
                        true => layer.refuse(format!(
                            "is global, but the quota of all tenants can't differ by plan or \
                            tenant; move this limit to {LIMITS}, where it is enforced together \
                            with limits of plans and tenants"
                        )),
                    }
                }),
                None if name == MAX_CONCURRENT && listed => {
                    let fits = [MAX_CONCURRENT, "name", "scope"];
                    let mut beside = fields.iter().map(|field| field.name);
                    match beside.find(|other| !fits.contains(other)) {
                        None => layer.set(&CONCURRENT, field),
                        Some(other) if other == SHADOW.key.name() => {
                            layer.refuse(LimitError::Shadow(Algorithm::Concurrency).to_string())
                        }
                        Some(other) => layer.refuse(format!(
                            "is set next to {other}; a limit of calls in flight has only a name \
                            and a scope"
                        )),
                    }
                }
                None if name == MAX_CONCURRENT => Err(LIST_ONLY.to_owned()),
                None if listed => Ok(()),
                None => {
                    let flat = FLAT.iter().map(|setting| setting.key().name());
                    let hint = match closest(name, flat.chain(more.iter().copied())) {
                        Some(meant) => format!("did you mean {meant}?"),
                        None => "docs/CONFIGURATION.md lists all keys".to_owned(),
                    };
                    let words = format!("unknown key {} in {}; {hint}", shown(name), mapping.path);
                    (self.problems).push(ConfigProblem::new(field.at.clone(), words));
                    Ok(())
                }
            };
            if let Err(words) = read {
                self.wrong::<()>(field, words);
            }
        }
        layer
    }

    /// Reads a list of limits. A value that an item lacks comes from the first layer in `outer`
    /// that has it.
    fn list(&mut self, node: &Node<'_>, outer: &[&LimitLayer<'_>]) -> Option<Limits> {
        let items = self.items(node)?;
        let (mut names, mut layers) = (Vec::new(), Vec::new());
        for item in &items {
            let is_mapping = matches!(item.raw, Raw::Map(_));
            names.push(match is_mapping {
                true => self.name(item, items.len() == 1, &names),
                false => self.wrong(
                    item,
                    wrong(item.raw, format_args!("a limit, {LIST_EXAMPLE}")),
                ),
            });
            let mut layer = self.layer(item, &["name", MAX_CONCURRENT]);
            layer.broken |= !is_mapping;
            layers.push(layer);
        }
        // If one limit counts cost, the default unit of the others is calls. The default of the
        // common limits also applies to the limits of plans and tenants that replace them.
        let tokens = layers.iter().any(LimitLayer::counts_cost);
        let unit = if tokens { Unit::Calls } else { self.unit };
        if node.path == LIMITS {
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
        if names.contains(&None) {
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
                self.problems.push(match layers[index].value(&SCOPE) {
                    Some(scope) => scope.wrong(error),
                    None => items[index].wrong(error),
                });
                None
            }
            Err(error) => self.wrong(node, error),
        }
    }

    /// Returns the items of a list of limits, which must not be empty or too long.
    fn items<'r>(&mut self, node: &Node<'r>) -> Option<Vec<Node<'r>>> {
        let items = node.items();
        if items.is_empty() {
            let words = match node.raw {
                Raw::List(_) => format!("is an empty list; it must contain limits, {LIST_EXAMPLE}"),
                other => wrong(other, format_args!("a list of limits, {LIST_EXAMPLE}")),
            };
            return self.wrong(node, words);
        }
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
            return self.wrong(node, words);
        }
        Some(items)
    }

    /// Returns the name of an item. It is a problem if it is one of `others`. An item may omit its
    /// name if it `is_single`.
    fn name(
        &mut self,
        item: &Node<'_>,
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
                let problem = ConfigProblem::of(&item.at, &key, taken(DEFAULT_LIMIT));
                self.problems.push(problem);
                return None;
            }
            if is_single {
                return Some(DEFAULT_LIMIT.to_owned());
            }
            let words = "has no name; each of several limits needs its own name";
            return self.wrong(item, words);
        };
        match limit_name(field.raw) {
            Ok(name) if others.iter().flatten().any(|other| *other == name) => {
                self.wrong(&field, LimitError::SameName(name))
            }
            Ok(name) if self.is_global(&name) => self.wrong(&field, taken(&name)),
            Ok(name) => Some(name),
            Err(words) => self.wrong(&field, words),
        }
    }

    /// Builds the limit that `layers` describe. The first layer that has a value wins. `unit` is
    /// the default unit.
    fn limit(&mut self, name: &str, layers: &[&LimitLayer<'_>], unit: Unit) -> Option<Limit> {
        let scope = match limit_layer::scope(layers) {
            // A `scope: global` directly below `rate-limiter` applies only to the common limits.
            // The limits of a plan or a tenant, which replace them, are each tenant's own.
            Scope::Global if self.global.is_some() => Scope::Tenant,
            scope => scope,
        };
        // A problem of a broken layer has been reported.
        if layers.iter().any(|layer| layer.broken) {
            return None;
        }
        match build(name, layers, unit, scope) {
            Ok(limit) => return Some(limit),
            // A problem that several limits share, such as one in a common layer, is reported once.
            Err(problem) if !self.problems.contains(&problem) => self.problems.push(problem),
            Err(_) => {}
        }
        None
    }

    fn wrong<T>(&mut self, node: &Node<'_>, words: impl Display) -> Option<T> {
        self.problems.push(node.wrong(words));
        None
    }
}
