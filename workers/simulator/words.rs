//! Figures for people: what each configuration comes to, side by side.

use crate::figures::{Figures, Waits};

/// A part of a table: what is measured, and a text for each configuration.
type Row = (String, Vec<String>);

/// `all` with their names, in columns.
pub fn table(all: &[(String, Figures)]) -> String {
    let mut rows: Vec<Row> = vec![(
        String::new(),
        all.iter().map(|(name, _)| name.clone()).collect(),
    )];
    let mut row = |name: &str, text: &dyn Fn(&Figures) -> String| {
        let texts = all.iter().map(|(_, figures)| text(figures)).collect();
        rows.push((name.to_owned(), texts));
    };
    row("jobs", &|f| number(f.jobs as u64));
    row("makespan", &|f| time(f.makespan));
    row("used of the busiest quota", &|f| percent(f.used));
    row("wait p50", &|f| time(f.waits.p50));
    row("wait p99", &|f| time(f.waits.p99));
    row("wait max", &|f| time(f.waits.max));
    row("calls", &|f| number(f.calls as u64));
    row("429s", &|f| number(f.throttled as u64));
    row("retries", &|f| number(f.retries as u64));
    row("deliveries a job", &|f| format!("{:.2}", f.deliveries));
    row("dead letters", &|f| {
        number(f.dead.values().sum::<usize>() as u64)
    });
    if all.iter().any(|(_, f)| f.unfinished > 0) {
        row("not done in time", &|f| number(f.unfinished as u64));
    }
    for name in names(all, |f| f.limits.iter().map(|limit| limit.name.as_str())) {
        let find = |f: &Figures, text: &dyn Fn(&crate::figures::OfLimit) -> String| {
            let limit = f.limits.iter().find(|limit| limit.name == name);
            limit.map_or("-".to_owned(), text)
        };
        row(&format!("limit {name}"), &|f| {
            find(f, &|l| l.algorithm.clone())
        });
        row("  used: the busiest, all", &|f| {
            find(f, &|l| {
                format!("{}, {}", percent(l.most_used), percent(l.used))
            })
        });
        row("  fullest window", &|f| {
            find(f, &|l| {
                format!("{} of {}", number(l.fullest), number(l.allowance))
            })
        });
        row("  made wait", &|f| {
            find(f, &|l| number(l.waits.jobs as u64))
        });
        row("  p50, p99, max", &|f| find(f, &|l| three(&l.waits)));
    }
    for name in names(all, |f| {
        f.tenants.iter().map(|tenant| tenant.tenant.as_str())
    }) {
        let find = |f: &Figures, text: &dyn Fn(&crate::figures::OfTenant) -> String| {
            let tenant = f.tenants.iter().find(|tenant| tenant.tenant == name);
            tenant.map_or("-".to_owned(), text)
        };
        row(&format!("tenant {name}: jobs"), &|f| {
            find(f, &|t| number(t.jobs as u64))
        });
        row("  wait p50, p99, max", &|f| find(f, &|t| three(&t.waits)));
    }
    for reason in names(all, |f| f.dead.keys().map(String::as_str)) {
        row(&format!("dead: {}", short(&reason)), &|f| {
            number(f.dead.get(&reason).copied().unwrap_or(0) as u64)
        });
    }
    in_columns(&rows)
}

/// All names that any of them has, in the order of their first.
fn names<'a, I: Iterator<Item = &'a str>>(
    all: &'a [(String, Figures)],
    of: impl Fn(&'a Figures) -> I,
) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in all.iter().flat_map(|(_, figures)| of(figures)) {
        if names.iter().all(|known| known != name) {
            names.push(name.to_owned());
        }
    }
    names
}

fn in_columns(rows: &[Row]) -> String {
    let wide = |text: &str| text.chars().count();
    let first = rows.iter().map(|(name, _)| wide(name)).max().unwrap_or(0);
    let columns = rows.first().map_or(0, |(_, texts)| texts.len());
    let width = |column: usize| {
        let texts = rows.iter().filter_map(|(_, texts)| texts.get(column));
        texts.map(|text| wide(text)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut table = String::new();
    for (name, texts) in rows {
        table.push_str(&format!("{name:first$}"));
        for (text, width) in texts.iter().zip(&widths) {
            table.push_str(&format!("  {text:>width$}"));
        }
        table.truncate(table.trim_end().len());
        table.push('\n');
    }
    table
}

fn three(waits: &Waits) -> String {
    let Waits { p50, p99, max, .. } = *waits;
    format!("{}, {}, {}", time(p50), time(p99), time(max))
}

fn short(text: &str) -> String {
    let mut short: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(40)
        .collect();
    if text.chars().count() > 40 {
        short.push('…');
    }
    short
}

/// Seconds, as people say them.
pub fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        7200.. => format!("{}h {:02}m", whole / 3600, whole % 3600 / 60),
        600.. => format!("{}m {:02}s", whole / 60, whole % 60),
        _ if seconds >= 10.0 => format!("{seconds:.1} s"),
        _ if seconds >= 1.0 => format!("{seconds:.2} s"),
        _ => format!("{:.0} ms", seconds * 1000.0),
    }
}

/// A part of something.
pub fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// With a comma after each thousand.
pub fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_said_as_people_say_them() {
        let times = [0.0, 0.0123, 1.5, 12.34, 599.0, 754.0, 7_320.0].map(time);
        let said = [
            "0 ms", "12 ms", "1.50 s", "12.3 s", "599.0 s", "12m 34s", "2h 02m",
        ];
        assert_eq!(times, said);
        assert_eq!(
            [7, 1_234, 1_234_567].map(number),
            ["7", "1,234", "1,234,567"]
        );
    }
}
