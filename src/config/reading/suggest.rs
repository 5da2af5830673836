//! Suggestions for unknown names.

/// Returns the name in `names` that is a typing error away from `name`, ignoring case, `_` and `-`.
pub fn closest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    let wanted = plain(name);
    let length = wanted.chars().count();
    names
        .into_iter()
        .filter_map(|known| {
            let plain = plain(known);
            // A third of the letters may differ, so that short names do not match anything. The
            // distance is at least the difference in length, so a long name is not compared.
            let max = (known.len() / 3).clamp(1, 6);
            if length.abs_diff(plain.chars().count()) > max {
                return None;
            }
            let distance = strsim::damerau_levenshtein(&wanted, &plain);
            (distance <= max).then_some((distance, known))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Returns the end of an error that suggests one of `names` for `name`; may be empty.
pub(crate) fn hint<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    closest(name, names)
        .map(|meant| format!("; did you mean {meant}?"))
        .unwrap_or_default()
}
