//! Reads values from YAML and from the environment, each with its position, collects problems, and
//! shows the values that were read.

pub(super) mod error;
pub(super) mod input;
pub(super) mod key;
pub(super) mod parse;
pub(super) mod shown_value;
pub(super) mod tree;
pub(super) mod yaml;

pub(crate) use self::error::{ConfigErrors, ConfigProblem, Origin, Position, shown};
pub(crate) use self::input::{ConfigInput, KeyEntry, Tree, read_bounded};
pub(crate) use self::key::{AnySetting, AppliesAt, ConfigKey, Setting, ValueKind, keys};
pub(crate) use self::parse::{ValueError, closest, describe_value, hint, wrong};
pub(crate) use self::shown_value::{Show, ShownValue, ShownValues, show};
pub(crate) use self::tree::Node;
pub(crate) use self::yaml::{Item, Raw, YamlField};
