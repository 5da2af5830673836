//! The jobs' destination: the workers' configuration of it, and the faults that it can have. Pure.

use clap::ValueEnum;

use crate::downstream::TOKENS;
use crate::faults::Kind;
use crate::others;
use crate::plan::{Settings, quoted};

/// How workers process a job whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Dispatch {
    /// They call the downstream
    Http,
    /// They forward it to other workers, which call the downstream and report when it is done;
    /// limits then hold when jobs are forwarded, so windows are only counted
    Forward,
}

impl Dispatch {
    /// Returns true if faults of `kind` are possible. Some need a connection to the downstream;
    /// rude jobs are unknown to other workers.
    pub fn has(self, kind: Kind) -> bool {
        let is_on_the_way = matches!(
            kind,
            Kind::DownstreamFar | Kind::DownstreamRefuse | Kind::DownstreamStill
        );
        self == Self::Http || !(is_on_the_way || kind.is_rude())
    }

    /// Returns keys of the section `dispatch`, as lines. `tokens`: calls need an access token of
    /// their tenant.
    pub fn yaml(self, settings: &Settings<'_>, tokens: bool) -> String {
        let Settings {
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
                quoted(&others::name(queue)),
                quoted(&others::routing_key(*worker, *life)),
                others::TIMEOUT.as_secs()
            ),
        }
    }
}
