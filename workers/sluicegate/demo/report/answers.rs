//! P9: the publishers' results compared with the API's answers.

use std::collections::HashSet;

use serde_json::json;

use super::tenant::TenantFigures;
use super::{DemoObservations, Promise};
use crate::demo::answers::ReportedResult;
use crate::demo::ledger::Arrival;
use crate::demo::workload::Workload;

/// P9: every job has a result with the answer to its own call.
pub fn answers_back(
    plan: &Workload,
    observed: &DemoObservations,
    tenants: &[TenantFigures],
) -> Promise {
    let mut answered = HashSet::new();
    let (mut wrong, mut again) = (0, 0);
    for result in &observed.results {
        if !matches_its_call(plan, &observed.arrivals, result) {
            wrong += 1;
        } else if !answered.insert(&*result.id) {
            again += 1;
        }
    }
    let has_none = |id: &String| !answered.contains(&**id);
    let jobs = observed
        .confirmed
        .iter()
        .map(|job| plan.id(*job).to_string());
    let missing = jobs.filter(has_none).count();
    let results = observed.results.len();
    let calls: usize = tenants.iter().map(|tenant| tenant.done + tenant.dead).sum();
    Promise {
        key: "answers_back",
        title: "P9 answers come back",
        holds: missing == 0 && wrong == 0,
        figures: json!({
            "results": results,
            "missing": missing,
            // About a call other than the job's last one, or about none.
            "wrong": wrong,
            "again": again,
        }),
        text: format!(
            "{results} results for {calls} calls: {missing} jobs have none, {wrong} belong to \
            another call, {again} are repeats"
        ),
    }
}

/// Returns true if the result's call was made for its job and ended it as the result says.
fn matches_its_call(plan: &Workload, arrivals: &[Arrival], result: &ReportedResult) -> bool {
    let call = result.call().and_then(|number| arrivals.get(number));
    let expected = call.map(|call| match call.status {
        200 => "done",
        _ => "dead",
    });
    expected == Some(&*result.ended)
        && call.map(|call| call.status) == result.status
        && call.map(|call| call.job) == plan.job(&result.id)
}
