//! The lines above and below each view.

use operator::overview::Notice;
use operator::text::{count, plain};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::parts::{BAD, GOOD, HEAD, MARKED, QUIET, WARN, fit, paragraph};
use crate::commands::top::clock::{age, time};
use crate::commands::top::model::{Model, TopView, VIEWS};
use crate::commands::top::query::QueryFailure;

/// Maximum number of lines of a notice.
const MAX_NOTICE_LINES: usize = 3;

/// Returns the title, the time, and whatever stops all tenants or does not answer.
pub fn lines(model: &Model, wide: u16) -> Vec<Line<'static>> {
    let wide = usize::from(wide);
    let mut lines = vec![title_line(model, wide), views(model)];
    let mut notice = |text: &str, style| lines.extend(notice(text, wide, style));
    if let Some((server, trouble)) = trouble(model) {
        notice(&not_answering(model.now_ms, server, &trouble), BAD);
    }
    let Some((picture, redis_ms)) = model.picture() else {
        return lines;
    };
    for Notice { text, is_stop } in picture.notices(redis_ms) {
        notice(&text, if is_stop { BAD } else { WARN });
    }
    lines
}

/// Returns the lines of a notice.
fn notice(text: &str, wide: usize, style: Style) -> impl Iterator<Item = Line<'static>> + use<> {
    paragraph(&plain(text, 600), (wide, 2, MAX_NOTICE_LINES), style)
}

fn title_line(model: &Model, wide: usize) -> Line<'static> {
    let pipeline = model.pipeline();
    let mut text = "sluicegate top".to_owned();
    if !pipeline.name.is_default() || model.pipelines.len() > 1 {
        let (at, all) = (model.at + 1, model.pipelines.len());
        text += &format!("  pipeline {} ({at} of {all})", pipeline.name);
    }
    if let Some((picture, _)) = model.picture() {
        let workers = &picture.fleet.view.workers;
        let ready = workers.iter().filter(|it| it.report.ready).count();
        let workers = count(workers.len() as u64, "worker");
        text += &format!("  {workers}, {ready} ready");
    }
    let now = format!("{} UTC", time(model.now_ms));
    let text = fit(&text, wide.saturating_sub(now.len() + 1));
    let gap = wide.saturating_sub(Span::raw(&text).width() + now.len());
    Line::styled(format!("{text}{}{now}", " ".repeat(gap)), HEAD)
}

fn views(model: &Model) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, (view, title)) in VIEWS.into_iter().enumerate() {
        let text = format!("{} {title}", number + 1);
        let is_open = model.view == view;
        // Brackets show the open view even without reverse video.
        spans.push(match is_open {
            true => Span::styled(format!("[{text}]"), MARKED),
            false => Span::raw(format!(" {text} ")),
        });
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

/// Returns the first shown server that does not answer.
fn trouble(model: &Model) -> Option<(&'static str, QueryFailure<'_>)> {
    let (page, pipeline, now_ms) = (model.page.as_ref(), model.pipeline(), model.now_ms);
    let of_page = page.and_then(|page| page.glance.trouble(now_ms));
    if let Some(trouble) = of_page.or_else(|| pipeline.picture.trouble(now_ms)) {
        return Some(("Redis", trouble));
    }
    let letters = pipeline.letters.trouble(now_ms);
    // A slow fetch is reported next to the letters.
    let letters = letters.filter(|it| model.shows_letters() && it.why.is_some());
    letters.map(|trouble| ("RabbitMQ", trouble))
}

fn not_answering(now_ms: u64, server: &str, trouble: &QueryFailure) -> String {
    let ago = |at_ms: u64| age(now_ms.saturating_sub(at_ms));
    let since_ms = trouble.since_ms;
    let why = trouble
        .why
        .map_or_else(String::new, |why| format!(": {why}"));
    let shown = match trouble.answered_ms {
        Some(at_ms) => format!(" - the picture below is {} old", ago(at_ms)),
        None => String::new(),
    };
    let (since, ago) = (time(since_ms), ago(since_ms));
    format!("NO ANSWER from {server} since {since} UTC ({ago}){shown}{why}")
}

/// Returns the running or finished action, and the keys.
pub fn foot(model: &Model, wide: u16) -> Vec<Line<'static>> {
    let wide = usize::from(wide);
    let mut lines = Vec::new();
    if let Some(why) = &model.file_error {
        lines.extend(notice(&format!("OLD CONFIGURATION: {why}"), wide, BAD));
    }
    if let Some(action) = &model.action {
        let since = age(model.now_ms.saturating_sub(action.since_ms));
        let mut text = format!("{} ({since})", action.what);
        if !action.progress.is_empty() {
            text += &format!(": {}", action.progress);
        }
        lines.push(Line::styled(text, WARN));
    } else if let Some(message) = model.status() {
        lines.extend(match message.is_bad {
            true => notice(&format!("NOT DONE: {}", message.text), wide, BAD),
            false => notice(&message.text, wide, GOOD),
        });
    }
    lines.push(match model.is_searching {
        true => {
            let search = plain(&model.search, 60);
            let text = format!("/{search}_   Enter: open or list   Esc: end");
            Line::styled(text, HEAD)
        }
        false => Line::styled(keys(model), QUIET),
    });
    lines
}

fn keys(model: &Model) -> &'static str {
    match (&model.page, model.view, model.search.is_empty()) {
        (Some(page), ..) if model.trials(&page.tenant).next().is_some() => {
            "e enforce the trial  x end it  p r l c t z act  Esc back  ? help  q quit"
        }
        (Some(_), ..) => {
            "p pause  r resume  l limit  c clear  t try  z reset  Esc back  ? help  q quit"
        }
        (None, TopView::Fleet, _) if model.pipelines.len() > 1 => {
            "[ ] pipeline  1-4 views  / search  ? help  q quit"
        }
        (None, TopView::Fleet, _) => "1-4 views  / search a tenant  ? help  q quit",
        (None, TopView::Tenants, false) => {
            "Enter open  Esc all tenants  p r l c t z act  ? help  q quit"
        }
        (None, TopView::Tenants, true) | (None, TopView::Limits, _) => {
            "Enter open  s sort  / search  p pause  r resume  l limit  t try  ? help  q quit"
        }
        (None, TopView::DeadLetters, _) => {
            "f fetch  R replay one  T its tenant's  A all  Enter tenant  ? help  q quit"
        }
    }
}
