//! The list of keys.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::parts::{HEAD, write};

const HELP: [&str; 21] = [
    "1 2 3 4, Tab     fleet, tenants, limits, dead letters",
    "Up Down, j k     previous, next row; also PgUp PgDn Home End",
    "Enter            open the selected tenant; Esc goes back",
    "/                search tenants by name; Enter opens one, busy or not",
    "s                sort tenants: waiting, denied, closed, starts",
    "[ ]              previous, next pipeline",
    "",
    "Actions on the selected tenant, confirmed with y:",
    "p  r             pause it for a time; resume it (pause, 429, breaker)",
    "l  c             set a limit for a time; clear it",
    "t  e  x          try a limit, denying nothing; enforce it; end the trial",
    "z                reset its waitlist; usage is kept",
    "Actions on dead letters, replays confirmed with y:",
    "f                fetch them again (not automatic)",
    "R  T  A          replay the selected one, all of its tenant, all",
    "",
    "LINE: jobs in the waitlist. MEMORY: jobs in workers' memory; N+: N or",
    "more. CLOSED: suspension left. ENDS IN: time until the last one starts.",
    "USED 7/9*: 9 is an operator's limit. NEXT: next available unit. LATE: due",
    "over a second ago. Times are Redis's, DIED is the worker's.",
    "q, Ctrl-C        quit                      any key closes this help",
];

pub fn draw(frame: &mut Frame, area: Rect) {
    let mut lines = vec![Line::styled("sluicegate top: keys", HEAD)];
    if area.height > 22 {
        lines.push(Line::default());
    }
    lines.extend(HELP.map(Line::from));
    write(frame, area, lines);
}
