//! What somebody may have meant by a name that is not known.

/// The one of `names` that is a typing error away from `name`, without regard to case, `_` and `-`.
pub fn closest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    let wanted = plain(name);
    names
        .into_iter()
        .map(|known| {
            let distance = strsim::damerau_levenshtein(&wanted, &plain(known));
            (distance, known)
        })
        // A third of the letters may differ, so that short names do not match anything.
        .filter(|(distance, known)| *distance <= (known.len() / 3).clamp(1, 6))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// The end of an error: which of `names` may be meant by `name`, or nothing.
pub(super) fn hint<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    closest(name, names)
        .map(|meant| format!("; did you mean {meant}?"))
        .unwrap_or_default()
}
