//! Merges the metrics of several pipelines into one text.

/// Last line of the format.
const END: &str = "# EOF\n";

/// Merges texts in the OpenMetrics format: each family has its header once, followed by the series
/// of all texts. No two `texts` may have a series in common.
pub fn merge(texts: &[String]) -> String {
    let mut families: Vec<(&str, Vec<&str>)> = Vec::new();
    for text in texts {
        let text = text.strip_suffix(END).unwrap_or(text);
        for (at, (head, series)) in split(text).enumerate() {
            // All texts have the same families in the same order, except for families without a
            // series yet.
            let known = match families.get(at) {
                Some((known, _)) if *known == head => Some(at),
                _ => families.iter().position(|(known, _)| *known == head),
            };
            match known {
                Some(known) => families[known].1.push(series),
                None => families.push((head, vec![series])),
            }
        }
    }
    let mut whole = String::with_capacity(texts.iter().map(String::len).sum());
    for (head, series) in families {
        whole.push_str(head);
        whole.extend(series);
    }
    whole.push_str(END);
    whole
}

/// Iterates over the families of `text`: the lines that describe each, and its series.
fn split(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let is_head = |line: &&str| line.starts_with('#');
        let length = |lines: &mut dyn Iterator<Item = &str>| lines.map(str::len).sum::<usize>();
        let lines = || rest.split_inclusive('\n');
        let head = length(&mut lines().take_while(is_head));
        let series = length(
            &mut lines()
                .skip_while(is_head)
                .take_while(|line| !is_head(line)),
        );
        let (family, others) = rest.split_at(head + series);
        rest = others;
        (!family.is_empty()).then(|| family.split_at(head))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::Metrics;
    use super::*;

    #[test]
    fn each_family_has_its_head_once_and_the_series_of_all() {
        let [a, b] = ["a", "b"].map(|name| Metrics::of(Some(name)));
        a.pipeline_restarts.inc();
        b.gate_seconds.observe(0.002);
        let alone = Metrics::new().encode();
        let text = merge(&[a.encode(), b.encode()]);
        let heads: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
        let of_one: Vec<&str> = alone.lines().filter(|line| line.starts_with('#')).collect();
        assert_eq!(heads, of_one);
        assert!(text.ends_with(END));
        let series = |text: &str| text.lines().count() - of_one.len();
        assert_eq!(series(&text), 2 * series(&alone));
        let names: HashSet<&str> = (text.lines())
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, _)| name)
            .collect();
        assert!(names.len() >= series(&text));
        for line in [
            "sluicegate_pipeline_restarts_total{pipeline=\"a\"} 1",
            "sluicegate_pipeline_restarts_total{pipeline=\"b\"} 0",
            "sluicegate_gate_seconds_count{pipeline=\"b\"} 1",
            "sluicegate_deliveries_total{pipeline=\"a\",queue=\"due\"} 0",
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "{line} is missing in\n{text}"
            );
        }
        // Each series must be below its own header.
        let mut family = "";
        for line in text.lines() {
            match line
                .strip_prefix("# HELP ")
                .or(line.strip_prefix("# TYPE "))
            {
                Some(head) => family = head.split(' ').next().unwrap_or_default(),
                None if line.starts_with('#') => {}
                None => assert!(line.starts_with(family), "{line} below {family}"),
            }
        }
        assert_eq!(merge(std::slice::from_ref(&alone)), alone);
        assert_eq!(merge(&[]), END);
    }
}
