//! Reads values from YAML and from the environment, each with its position, collects problems, and
//! shows the values that were read.

pub(super) mod error;
pub(super) mod input;
pub(super) mod key;
pub(super) mod parse;
pub(super) mod shown_value;
pub(super) mod tree;
pub(super) mod yaml;
