//! Packs requests for one node into a pipeline, and unpacks the answers.

use ::redis::{Cmd, Pipeline, Value};

use super::{Answers, Request};
use crate::scripts::Script;
use crate::{GateError, refusal};

/// The commands for one node in one round trip.
#[derive(Default)]
pub struct Parcel {
    pipeline: Pipeline,
    /// The purpose of each command in the pipeline.
    steps: Vec<ParcelStep>,
}

#[derive(Clone, Copy)]
enum ParcelStep {
    /// Loads the script with this SHA.
    Load(&'static str),
    /// Announces that another node redirected the next command here while its slot moves.
    Asking,
    /// A request, with the SHA of the script loaded before it, if any.
    Request(Option<&'static str>),
}

impl Parcel {
    /// Packs `requests` for a node that has all their keys.
    pub fn of(requests: Vec<Request<'_>>) -> Self {
        let mut parcel = Self {
            pipeline: Pipeline::with_capacity(requests.len()),
            steps: Vec::with_capacity(requests.len()),
        };
        for request in requests {
            parcel.add(request.load, false, request.command);
        }
        parcel
    }

    /// Adds a request, preceded by the commands it needs.
    pub fn add(&mut self, load: Option<&'static Script>, asking: bool, command: Cmd) {
        let sha = load.map(|script| script.sha.as_str());
        if let Some(script) = load
            && !self
                .steps
                .iter()
                .any(|step| matches!(step, ParcelStep::Load(known) if *known == script.sha))
        {
            self.pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.source);
            self.steps.push(ParcelStep::Load(&script.sha));
        }
        if asking {
            self.pipeline.cmd("ASKING");
            self.steps.push(ParcelStep::Asking);
        }
        self.pipeline.add_command(command);
        self.steps.push(ParcelStep::Request(sha));
    }

    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Returns the answer to each request, in order. A request whose script could not be loaded
    /// gets that error.
    pub fn unpack(&self, answers: Vec<Value>) -> Answers {
        let mut failed: Vec<(&str, GateError)> = Vec::new();
        let mut unpacked = Answers::with_capacity(self.steps.len());
        for (step, answer) in self.steps.iter().zip(answers) {
            match (step, answer) {
                (ParcelStep::Load(sha), Value::ServerError(error)) => {
                    failed.push((sha, refusal::refused(&error, "SCRIPT LOAD")));
                }
                (ParcelStep::Load(_) | ParcelStep::Asking, _) => {}
                (ParcelStep::Request(script), answer) => {
                    let failed = failed.iter().find(|(sha, _)| Some(*sha) == *script);
                    unpacked.push(failed.map_or(Ok(answer), |(_, why)| Err(why.clone())));
                }
            }
        }
        unpacked
    }
}
