//! A tenant's own page.

use super::*;
use crate::commands::top::beds::glance;
use crate::commands::top::model::Glance;

/// Returns a tenant's page after an answer with this change.
fn page_of(change: impl Fn(&mut Glance)) -> Model {
    let mut model = at("2\n", picture);
    model.at_time(NOW + 2_000);
    for (number, request) in model.due() {
        if let ServerRequest::Glance(..) = request {
            let mut glance = glance();
            change(&mut glance);
            model.receive(number, ServerAnswer::Glance(Ok(glance)));
        }
    }
    model
}

#[test]
fn a_tenants_page() {
    let mut model = at("2\n", picture);
    let text = shows(&model, (80, 24));
    has(
        &text,
        &[
            "tenant acme",
            "state     open, jobs wait",
            "line      700 waiting, ends in 12:04 (22:25:24 UTC)",
            "why       the limit hour is exhausted",
            "hour",
            "[###################]",
            " hour              1m       would have made 312 of 4,000 wait, the longest 41.0s\n",
            "output of inspect (",
            "line 0    words\\u{1b}[31m",
            "p pause  r resume  l limit  c clear  t try  z reset",
        ],
    );
    types(&mut model, "G");
    has(
        &shows(&model, (80, 24)),
        &["line 29    words", "lines above: Up)"],
    );
    model.at_time(NOW + 724_000);
    has(
        &shows(&model, (80, 24)),
        &["700 units waiting, the last starts now"],
    );
    // A suspended tenant: the cause and the end.
    let suspended = page_of(|glance| {
        glance.found.suspended_until_ms = NOW + 3_600_000;
        glance.found.suspended_by = "an operator\u{7}".to_owned();
    });
    has(
        &shows(&suspended, (80, 24)),
        &["state     SUSPENDED, opens in 1:00:00 (23:13:20 UTC): an operator\\u{7}"],
    );
    // Limits without room in the table are below it.
    let many = page_of(|glance| glance.limits = vec![glance.limits[0].clone(); 12]);
    let text = shows(&many, (80, 24));
    let rows = text
        .lines()
        .filter(|line| line.starts_with(" hour "))
        .count();
    let hidden = format!("output of inspect, also on {} more limits (", 12 - rows);
    has(&text, &[hidden.as_str()]);
    let diverted = page_of(|glance| glance.found.diverted_to = Some("parked\u{7}".to_owned()));
    let text = shows(&diverted, (80, 24));
    has(&text, &["state     DIVERTED to parked\\u{7}"]);
}
