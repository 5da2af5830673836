//! The workers and, if there are several, the pipelines.

use operator::fleet::{NO_WORKER, gaps, is_empty};
use operator::overview::Overview;
use operator::text::count;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use rules::report::view::ReportedWorker;

use super::parts::{BAD, Cells, GOOD, List, Part, Side, WARN, bar, columns, paragraph};
use crate::commands::top::model::{Model, PipelineModel};
use crate::commands::workers::{HEADS, cells};

/// Number of lines for the selected worker.
const NOTES: usize = 3;

pub fn parts(model: &Model, area: Rect) -> Vec<Part> {
    let wide = usize::from(area.width);
    let mut parts = Vec::new();
    if model.pipelines.len() > 1 {
        // At most a third of the screen.
        let high = (model.pipelines.len() + 2).min(usize::from(area.height / 3));
        parts.push(Part::List(pipelines(model), Part::high(high)));
    }
    let Some((picture, _)) = model.picture() else {
        parts.push(Part::words("reading workers from Redis ..."));
        return parts;
    };
    let sums = Line::from(totals(picture));
    parts.push(Part::Lines(vec![sums, Line::default()]));
    if is_empty(&picture.fleet) {
        parts.push(Part::Rest(vec![Line::styled(NO_WORKER, BAD)]));
    } else {
        let used = if wide < 100 { 5 } else { 16 };
        let workers = picture.fleet.view.workers.iter();
        let list = List {
            columns: columns(HEADS, [0, 8, 7, 7, used, 7, 5, 0]).to_vec(),
            rows: workers.map(|worker| row(worker, wide >= 100)).collect(),
            place: model.place(),
        };
        parts.push(Part::List(list, Constraint::Min(0)));
    }
    parts.push(Part::Lines(details(model, picture, wide)));
    parts
}

fn sum(workers: &[ReportedWorker], of: fn(&ReportedWorker) -> u64) -> u64 {
    workers.iter().map(of).fold(0, u64::saturating_add)
}

/// Returns the sums over all workers.
fn totals(picture: &Overview) -> String {
    let workers = &picture.fleet.view.workers;
    format!(
        "{} of {} calls in flight; {} waiting in memory ({} delayed); {} late",
        sum(workers, |it| it.report.load.running),
        sum(workers, |it| it.report.load.slots),
        count(sum(workers, |it| it.report.waiting), "job"),
        sum(workers, |it| it.report.load.delayed),
        sum(workers, |it| it.report.load.idle),
    )
}

fn row(worker: &ReportedWorker, is_wide: bool) -> Cells {
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
    (row.into(), Vec::new())
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
    lines.extend(gaps.take(NOTES).map(|gap| Line::styled(gap, WARN)));
    lines
}

fn pipelines(model: &Model) -> List {
    let number = Constraint::Length(9);
    let rows = model.pipelines.iter();
    List {
        columns: vec![
            ("PIPELINE", Constraint::Fill(1), Side::Left),
            ("WORKERS", number, Side::Right),
            ("CALLS", number, Side::Right),
            ("WAITING", number, Side::Right),
            ("STATE", Constraint::Fill(1), Side::Left),
        ],
        rows: rows.map(|it| pipeline(it, model.now_ms)).collect(),
        place: Some(model.at),
    }
}

fn pipeline(pipeline: &PipelineModel, now_ms: u64) -> Cells {
    let away = pipeline.picture.trouble(now_ms);
    let mut states: Vec<_> = away
        .map(|_| "NO ANSWER from Redis".to_owned())
        .into_iter()
        .collect();
    let mut numbers = ["-", "-", "-"].map(str::to_owned);
    let mut calm = Line::from("reading from Redis ...");
    if let Some((picture, redis_ms)) = pipeline.picture(now_ms) {
        let fleet = &picture.fleet;
        let workers = &fleet.view.workers;
        let ready = workers.iter().filter(|it| it.report.ready).count();
        let running = sum(workers, |it| it.report.load.running);
        let slots = sum(workers, |it| it.report.load.slots);
        numbers = [
            format!("{ready}/{}", workers.len()),
            format!("{running}/{slots}"),
            sum(workers, |it| it.report.waiting).to_string(),
        ];
        let stops = picture.notices(redis_ms).into_iter();
        states.extend(stops.filter(|it| it.is_stop).map(|it| it.text));
        match workers.len() {
            _ if is_empty(fleet) => states.push(NO_WORKER.to_owned()),
            0 => states.extend(gaps(fleet).describe()),
            all if ready < all => states.push(format!("{} not ready", all - ready)),
            _ => {}
        }
        calm = Line::styled("ready", GOOD);
    }
    let state = match states.as_slice() {
        [] => calm,
        states => Line::styled(states.join(", "), BAD),
    };
    let mut cells = vec![Line::from(pipeline.name.to_string())];
    cells.extend(numbers.map(Line::from));
    cells.push(state);
    (cells, Vec::new())
}
