//! The list of keys.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::parts::fit;
use super::write;
use crate::commands::top::theme::Theme;

const HELP: [&str; 21] = [
    "1 2 3 4, Tab     fleet, tenants, limits, dead letters",
    "Up Down, j k     the row above, below; PgUp PgDn Home End go further",
    "Enter            the marked tenant's own page; Esc goes back",
    "/                search a tenant by name; Enter opens it, busy or not",
    "s                sort tenants: waiting, denied, closed, starts",
    "[ ]              the pipeline before, the next one",
    "",
    "The marked tenant, or that of the page; each is asked back (y does it):",
    "p  r             pause it for some time; resume it (pause, 429, breaker)",
    "l  c             set a limit for some time; the configured one again",
    "t  e  x          try a limit, which denies nothing; enforce it; end the trial",
    "z                reset its waitlist; usage still counts",
    "Dead letters, asked back, too:",
    "f                fetch them again: that is not done by itself",
    "R  T  A          replay the marked one, all of its tenant, all",
    "",
    "LINE: in the waitlist, as the gate says. MEMORY: in workers' memory; N+: or",
    "more. CLOSED: suspended for so long. ENDS IN: then the last has its turn.",
    "USED 7/9*: an operator set the 9. NEXT: when a unit is available. LATE: due",
    "over a second ago. Clocks are by Redis's time; DIED by the worker's.",
    "q, Ctrl-C        quit                      any key leaves this help",
];

pub fn draw(frame: &mut Frame, area: Rect, theme: Theme) {
    let wide = usize::from(area.width);
    let mut lines = vec![Line::styled("sluicegate top: keys", theme.head())];
    if area.height > 22 {
        lines.push(Line::default());
    }
    lines.extend(HELP.iter().map(|line| Line::from(fit(line, wide))));
    write(frame, area, lines);
}
