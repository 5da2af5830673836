//! Reads values from YAML and from the environment, each with its position, and collects problems.

pub(super) mod error;
pub(super) mod input;
pub(super) mod key;
pub(super) mod parse;
pub(super) mod suggest;
pub(super) mod yaml;
