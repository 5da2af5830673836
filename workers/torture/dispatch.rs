//! Where jobs go whose turn it is: what workers are told of it, and what can be broken there. Pure.

use clap::ValueEnum;

use crate::downstream::TOKENS;
use crate::faults::Kind;
use crate::others;
use crate::plan::{Settings, quoted};

/// What workers do with a job whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Dispatch {
    /// They call the downstream
    Http,
    /// They forward it to others, who call the downstream and say when it is done; limits then hold at the handover, so windows are only counted
    Forward,
}

impl Dispatch {
    /// Whether `kind` can be done: there must be a connection to the downstream to break, and other workers know no rude jobs.
    pub fn has(self, kind: Kind) -> bool {
        let is_on_the_way = matches!(
            kind,
            Kind::DownstreamFar | Kind::DownstreamRefuse | Kind::DownstreamStill
        );
        self == Self::Http || !(is_on_the_way || kind.is_rude())
    }

    /// Keys of the section `dispatch`, as lines. `tokens`: calls need an access token of their tenant.
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
