//! Charts as SVG paths. They are drawn by the worker, so they need no script.

use askama::Template;

use super::history::{MAX_POINTS, Ring, SERIES};
use super::text;

/// Size of the picture.
const WIDTH: f32 = 240.0;
const HEIGHT: f32 = 56.0;
/// Number of points that are drawn as one, by their mean.
const POINTS_PER_STEP: u64 = 6;

/// Titles of the charts; the last one shows a share.
const NAMES: [&str; SERIES] = [
    "Starts per second",
    "Waiting in memory",
    "Denied per second",
    "Calls in flight",
    "Saturation",
];
const SATURATION: usize = SERIES - 1;

/// A chart.
#[derive(Debug, Template)]
#[template(path = "chart.html")]
pub struct Chart {
    name: &'static str,
    now: String,
    most: String,
    /// Path of the line; empty if there are no points.
    line: String,
    /// Path of the area below the line; empty if there are no points.
    area: String,
}

/// Returns all charts.
pub fn charts(ring: &Ring) -> Vec<Chart> {
    let all = NAMES.iter().enumerate();
    all.map(|(series, name)| chart(ring, series, name))
        .collect()
}

fn chart(ring: &Ring, series: usize, name: &'static str) -> Chart {
    let values: Vec<f32> = ring.points.iter().map(|point| point[series]).collect();
    let most = values.iter().copied().fold(0.0, f32::max);
    let shown = |value: f32| match series {
        SATURATION => format!("{:.0} %", value * 100.0),
        _ => text::decimal(value.into()),
    };
    let top = match series {
        SATURATION => 1.0_f32.max(most),
        _ => top(most),
    };
    let (line, area) = paths(&values, ring.number, top);
    Chart {
        name,
        now: values
            .last()
            .map_or_else(|| "–".to_owned(), |value| shown(*value)),
        most: shown(most),
        line,
        area,
    }
}

/// Returns the value at the upper edge: a round number that is at least `most`.
fn top(max: f32) -> f32 {
    let mut step = 1.0_f32;
    while step < max && step < 1e12 {
        step *= 10.0;
    }
    let rounds = [0.1, 0.2, 0.5, 1.0];
    let fits = rounds.into_iter().find(|part| step * part >= max);
    step * fits.unwrap_or(1.0)
}

/// Returns the line through `values` and the area below it. The last value is point `number`.
fn paths(values: &[f32], number: u64, top: f32) -> (String, String) {
    let first = number.saturating_sub(values.len() as u64);
    // Groups depend on the numbers of points only, so the chart moves without flickering when
    // points are added.
    let mut groups: Vec<(u64, f32, f32)> = Vec::new();
    for (index, value) in (first..).zip(values) {
        let group = index / POINTS_PER_STEP;
        match groups.last_mut() {
            Some((last, sum, of)) if *last == group => (*sum, *of) = (*sum + value, *of + 1.0),
            _ => groups.push((group, *value, 1.0)),
        }
    }
    let Some((newest, ..)) = groups.last().copied() else {
        return (String::new(), String::new());
    };
    // The numbers are small enough to be exact.
    #[expect(clippy::cast_precision_loss)]
    let step = WIDTH / (MAX_POINTS as f32 / POINTS_PER_STEP as f32);
    let (mut line, mut min) = (String::new(), WIDTH);
    for (at, (group, sum, of)) in groups.iter().enumerate() {
        #[expect(clippy::cast_precision_loss)]
        let x = (WIDTH - (newest - group) as f32 * step).max(0.0);
        let y = HEIGHT - (sum / of / top).clamp(0.0, 1.0) * (HEIGHT - 2.0) - 1.0;
        line += &format!("{}{x:.0} {y:.1}", if at == 0 { "M" } else { "L" });
        min = min.min(x);
    }
    let area = format!("{line}L{WIDTH:.0} {HEIGHT:.0}L{min:.0} {HEIGHT:.0}Z");
    (line, area)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_ends_now_and_its_scale_is_a_round_number() {
        for (max, expected) in [
            (0.0, 0.1),
            (0.3, 0.5),
            (1.0, 1.0),
            (7.0, 10.0),
            (130.0, 200.0),
        ] {
            assert!((top(max) - expected).abs() < 1e-3, "{max}: {}", top(max));
        }
        assert_eq!(paths(&[], 0, 1.0), (String::new(), String::new()));
        let (line, area) = paths(&[1.0; 12], 12, 1.0);
        assert_eq!(line, "M238 1.0L240 1.0");
        assert_eq!(area, "M238 1.0L240 1.0L240 56L238 56Z");
        let (line, _) = paths(&[0.0; MAX_POINTS], 100_000, 1.0);
        assert!(
            line.starts_with("M0 55.0L2 ") && line.ends_with("L240 55.0"),
            "{line}"
        );
        assert!(line.len() < 1_500, "{}", line.len());
    }

    #[test]
    fn a_worker_that_just_started_has_no_data() {
        let all = charts(&Ring::default());
        let html: Vec<String> = all.iter().map(|it| it.render().expect("it can")).collect();
        assert_eq!(html.len(), SERIES);
        assert!(html[0].contains("Starts per second") && html[0].contains('–'));
    }
}
