//! The jobs' destination: the workers' configuration of it, and the faults that it can have. Pure.

use clap::ValueEnum;

use crate::downstream::TOKENS;
use crate::faults::FaultKind;
use crate::run_plan::{PerWorkerSettings, quoted};
use crate::third_party;

/// How workers process a job whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DispatchMode {
    /// They call the downstream
    Http,
    /// They forward it to other workers, which call the downstream and report when it is done;
    /// limits then hold when jobs are forwarded, so windows are only counted
    Forward,
}

impl DispatchMode {
    /// Returns true if faults of `kind` are possible. Some need a connection to the downstream;
    /// rude jobs are unknown to other workers.
    pub fn has(self, kind: FaultKind) -> bool {
        let is_on_the_way = matches!(
            kind,
            FaultKind::DownstreamFar | FaultKind::DownstreamRefuse | FaultKind::DownstreamStill
        );
        self == Self::Http || !(is_on_the_way || kind.is_rude())
    }

    /// Returns keys of the section `dispatch`, as lines. `tokens`: calls need an access token of
    /// their tenant.
    pub fn yaml(self, settings: &PerWorkerSettings<'_>, tokens: bool) -> String {
        let PerWorkerSettings {
            queue,
            downstream,
            worker: (worker, life),
            ..
        } = settings;
        match self {
            Self::Http => {
                let url = quoted(&format!("{downstream}/{worker}/{life}"));
                let http = format!("  http:\n    url: {url}\n    timeout: 5s\n    abandoned: 2s\n");
                if !tokens {
                    return http;
                }
                let url = quoted(&format!("{downstream}{TOKENS}{{tenant}}"));
                format!("{http}    oauth2: {{token-url: {url}, client-id: x, client-secret: x}}\n")
            }
            Self::Forward => format!(
                "  forward:\n    exchange: {}\n    routing-key: {}\n    done: true\n    timeout: {}s\n",
                quoted(&third_party::name(queue)),
                quoted(&third_party::routing_key(*worker, *life)),
                third_party::TIMEOUT.as_secs()
            ),
        }
    }
}
