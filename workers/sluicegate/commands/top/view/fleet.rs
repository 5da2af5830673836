//! The workers and, if there are several, the pipelines.

use operator::fleet::{NO_WORKER, gaps, is_empty};
use operator::hold::held;
use operator::overview::Overview;
use operator::recovery::Recovery;
use operator::text::count;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use rules::report::view::ReportedWorker;
use rules::steering::Hold;

use super::parts::{Side, bar, columns, draw_line, fit, list, paragraph};
use super::{lines, write};
use crate::commands::top::model::{Model, PipelineModel};
use crate::commands::top::theme::{BAD, GOOD, WARN};
use crate::commands::workers::{HEADS, cells};

/// Number of lines for the selected worker.
const NOTES: usize = 3;

pub fn draw(frame: &mut Frame, area: Rect, model: &Model) {
    let wide = usize::from(area.width);
    let pipelines = match model.pipelines.len() {
        1 => 0,
        // At most a third of the screen.
        some => u16::try_from(some + 2)
            .unwrap_or(u16::MAX)
            .min(area.height / 3),
    };
    let picture = model.picture().map(|(picture, _)| picture);
    let details = picture.map_or_else(Vec::new, |picture| details(model, picture, wide));
    let [above, sums, workers, notes] = Layout::vertical([
        Constraint::Length(pipelines),
        Constraint::Length(2),
        Constraint::Min(0),
        Constraint::Length(lines(&details)),
    ])
    .areas(area);
    if pipelines > 0 {
        draw_pipelines(frame, above, model);
    }
    let Some(picture) = picture else {
        let words = "reading workers from Redis ...";
        return draw_line(frame, sums, words, Style::new());
    };
    draw_line(frame, sums, &totals(picture), Style::new());
    if is_empty(&picture.fleet) {
        draw_line(frame, workers, NO_WORKER, BAD);
    } else {
        let used = if wide < 100 { 5 } else { 16 };
        let widths = [0, 8, 7, 7, used, 7, 5, 0];
        let rows = picture.fleet.view.workers.iter();
        let rows = rows.map(|worker| row(worker, wide >= 100));
        list(frame, workers, &columns(HEADS, widths), rows, model.place());
    }
    write(frame, notes, details);
}

/// Returns the sums over all workers.
fn totals(picture: &Overview) -> String {
    let workers = &picture.fleet.view.workers;
    let sum = |of: fn(&ReportedWorker) -> u64| workers.iter().map(of).fold(0, u64::saturating_add);
    let calls = sum(|it| it.report.load.running);
    let slots = sum(|it| it.report.load.slots);
    let waiting = count(sum(|it| it.report.waiting), "job");
    let late = sum(|it| it.report.load.idle);
    let delayed = sum(|it| it.report.load.delayed);
    format!(
        "{calls} of {slots} calls in flight; {waiting} waiting in memory ({delayed} delayed); \
        {late} late"
    )
}

fn row(worker: &ReportedWorker, is_wide: bool) -> Vec<Line<'static>> {
    let mut cells = cells(worker);
    if is_wide {
        let share = worker.report.load.saturation;
        cells[4] = format!("{} {:>5}", bar(share, 10), cells[4]);
    }
    let mut row = cells.map(Line::from);
    if worker.report.load.idle > 0 {
        row[6].style = WARN;
    }
    row[7].style = match (worker.report.ready, worker.report.notes.is_empty()) {
        (true, true) => GOOD,
        (true, false) => WARN,
        (false, _) => BAD,
    };
    row.into()
}

/// Returns the selected worker's state in full, and the gaps in the view of the fleet.
fn details(model: &Model, picture: &Overview, wide: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let worker = model
        .place()
        .and_then(|at| picture.fleet.view.workers.get(at));
    if let Some(worker) = worker {
        let [name, .., state] = cells(worker);
        let text = format!("{name}: {state}");
        lines.extend(paragraph(&text, (wide, 2, NOTES), Style::new()));
    }
    let gaps = gaps(&picture.fleet).describe().into_iter();
    lines.extend(
        gaps.take(NOTES)
            .map(|gap| Line::styled(fit(&gap, wide), WARN)),
    );
    lines
}

fn draw_pipelines(frame: &mut Frame, area: Rect, model: &Model) {
    let heads = [
        ("PIPELINE", Side::Left),
        ("WORKERS", Side::Right),
        ("CALLS", Side::Right),
        ("WAITING", Side::Right),
        ("STATE", Side::Left),
    ];
    let rows = model.pipelines.iter().map(|it| pipeline(it, model.now_ms));
    list(
        frame,
        area,
        &columns(heads, [0, 9, 9, 9, 0]),
        rows,
        Some(model.at),
    );
}

fn pipeline(pipeline: &PipelineModel, now_ms: u64) -> Vec<Line<'static>> {
    let name = Line::from(pipeline.name.to_string());
    let away = pipeline.picture.trouble(now_ms).is_some();
    let Some((picture, _)) = pipeline.picture.answer() else {
        let state = match away {
            true => Line::styled("NO ANSWER from Redis", BAD),
            false => Line::from("reading from Redis ..."),
        };
        let none = || Line::from("-");
        return vec![name, none(), none(), none(), state];
    };
    let workers = &picture.fleet.view.workers;
    let sum = |of: fn(&ReportedWorker) -> u64| workers.iter().map(of).fold(0, u64::saturating_add);
    let ready = workers.iter().filter(|it| it.report.ready).count();
    let mut states = Vec::new();
    if away {
        states.push("NO ANSWER from Redis".to_owned());
    }
    match held(&picture.fleet.boards) {
        Some((Hold::Paused, _)) => states.push("PAUSED by an operator".to_owned()),
        Some((Hold::Draining, _)) => states.push("DRAINED by an operator".to_owned()),
        None => {}
    }
    if picture
        .recovery
        .iter()
        .any(|it| matches!(it, Recovery::Waits { .. }))
    {
        states.push("RECOVERY WAIT".to_owned());
    }
    match ready {
        _ if is_empty(&picture.fleet) => states.push("NO WORKER".to_owned()),
        _ if workers.is_empty() => states.push("NO REPORT".to_owned()),
        ready if ready < workers.len() => {
            states.push(format!("{} not ready", workers.len() - ready));
        }
        _ => {}
    }
    let state = match states.as_slice() {
        [] => Line::styled("ready", GOOD),
        states => Line::styled(states.join(", "), BAD),
    };
    vec![
        name,
        Line::from(format!("{ready}/{}", workers.len())),
        Line::from(format!(
            "{}/{}",
            sum(|it| it.report.load.running),
            sum(|it| it.report.load.slots)
        )),
        Line::from(sum(|it| it.report.waiting).to_string()),
        state,
    ]
}
