//! Draws a run as SVG: the used share of the busiest quota and the backlog, over time.

use std::fmt::Write as _;

use crate::figures::Figures;
use crate::table;

const WIDE: f64 = 960.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const HIGH: f64 = 200.0;
/// Colors that color-blind readers can distinguish (Okabe and Ito).
const COLORS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

/// Dashes: where lines overlap, the lower one shows in the gaps. Five dashes and six colors give 30
/// lines a pair of their own.
const DASHES: [&str; 5] = ["", "9 4", "2 3", "9 3 2 3", "14 6"];

/// Returns the stroke of configuration number `index`.
fn stroke(index: usize) -> String {
    let color = COLORS[index % COLORS.len()];
    let dash = match DASHES[index % DASHES.len()] {
        "" => String::new(),
        dash => format!(" stroke-dasharray=\"{dash}\""),
    };
    format!("stroke=\"{color}\" stroke-width=\"1.8\"{dash}")
}

/// Draws all runs, with their names, in one picture.
pub fn svg(all: &[(String, Figures)]) -> String {
    let legend_high = 24.0 * all.len() as f64;
    let top = 40.0 + legend_high;
    let high = top + 2.0 * (HIGH + 60.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDE} {high}\" width=\"{WIDE}\" height=\"{high}\" \
         font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n\
         <title>Used quota and backlog over time</title>\n\
         <rect width=\"{WIDE}\" height=\"{high}\" fill=\"#ffffff\"/>\n"
    );
    for (index, (name, figures)) in all.iter().enumerate() {
        let y = 28.0 + 24.0 * index as f64;
        let at = y - 4.0;
        let name = table::middle(name);
        let text = format!(
            "{name}: makespan {}, used {}, wait p99 {}",
            table::makespan(figures),
            table::percent(figures.used),
            table::wait(&figures.waits, 99),
        );
        line(
            &mut svg,
            format_args!(
                "<line x1=\"{LEFT}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\" {}/><text x=\"{}\" y=\"{y}\">{}</text>",
                LEFT + 40.0,
                stroke(index),
                LEFT + 48.0,
                escaped(&text),
            ),
        );
    }
    let ends = all.iter().flat_map(|(_, figures)| figures.series.last());
    let end = ends.map(|slot| slot.until).fold(1e-3, f64::max);
    let most = |of: fn(&crate::figures::RunInterval) -> f64| {
        let slots = all.iter().flat_map(|(_, figures)| &figures.series);
        slots.map(of).fold(0.0, f64::max)
    };
    let used = Panel {
        title: "busiest quota: used share",
        top,
        end,
        max: most(|slot| slot.used).max(1.0),
        shown: |most| table::percent(most),
        of: |slot| slot.used,
    };
    let backlog = Panel {
        title: "backlog (jobs)",
        top: top + HIGH + 60.0,
        end,
        max: most(|slot| slot.backlog as f64).max(1.0),
        shown: |most| table::number(most.round() as u64),
        of: |slot| slot.backlog as f64,
    };
    for chart in [used, backlog] {
        chart.draw(&mut svg, all);
    }
    svg.push_str("</svg>\n");
    svg
}

struct Panel {
    title: &'static str,
    top: f64,
    end: f64,
    max: f64,
    shown: fn(f64) -> String,
    of: fn(&crate::figures::RunInterval) -> f64,
}

impl Panel {
    fn draw(&self, svg: &mut String, all: &[(String, Figures)]) {
        let (bottom, right) = (self.top + HIGH, WIDE - RIGHT);
        line(
            svg,
            format_args!(
                "<text x=\"{LEFT}\" y=\"{}\">{}</text>",
                self.top - 8.0,
                self.title
            ),
        );
        for part in [0.0, 0.5, 1.0] {
            let y = bottom - part * HIGH;
            line(
                svg,
                format_args!(
                    "<line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\" stroke=\"#dddddd\"/>\
                 <text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#555555\">{}</text>",
                    LEFT - 6.0,
                    y + 4.0,
                    (self.shown)(self.max * part),
                ),
            );
        }
        for quarter in 0..=4 {
            let part = f64::from(quarter) / 4.0;
            // The last label ends at the edge of the picture.
            let anchor = if quarter == 4 { "end" } else { "middle" };
            let x = LEFT + part * (right - LEFT);
            line(
                svg,
                format_args!(
                    "<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\" fill=\"#555555\">{}</text>",
                    bottom + 18.0,
                    table::time(self.end * part),
                ),
            );
        }
        for (index, (_, figures)) in all.iter().enumerate() {
            let mut points = String::new();
            // Each slot is a horizontal step, since nothing was measured between two slots.
            for slot in &figures.series {
                let y = bottom - (self.of)(slot) / self.max * HIGH;
                for at in [slot.at, slot.until] {
                    let x = LEFT + at / self.end * (right - LEFT);
                    line(&mut points, format_args!("{x:.1},{y:.1}"));
                }
            }
            let stroke = stroke(index);
            line(
                svg,
                format_args!(
                    "<polyline fill=\"none\" {stroke} points=\"{}\"/>",
                    points.trim_end().replace('\n', " "),
                ),
            );
        }
    }
}

fn line(svg: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string never fails.
    let _ = writeln!(svg, "{what}");
}

/// Escapes a text for XML.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::RunHistory;
    use crate::jobs::SimulatedJob;
    use config::Config;

    #[test]
    fn a_name_is_escaped_in_markup() {
        let policy = &Config::default().rate_limiter.policy;
        let jobs = [SimulatedJob::new(0.0, "a"), SimulatedJob::new(5.0, "a")];
        let figures = Figures::of(policy, &jobs, &RunHistory::default());
        let picture = svg(&[("<b>&\"x\".yaml".to_owned(), figures)]);
        assert!(
            picture.contains("&lt;b&gt;&amp;&quot;x&quot;.yaml"),
            "{picture}"
        );
        assert!(
            !picture.contains("NaN") && !picture.contains("inf"),
            "{picture}"
        );
    }

    #[test]
    fn no_two_configurations_have_the_same_line() {
        let all: std::collections::HashSet<String> = (0..16).map(stroke).collect();
        assert_eq!(all.len(), 16);
    }
}
