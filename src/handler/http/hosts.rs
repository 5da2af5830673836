//! Finds the server for a job's call, and the party at fault if that server can't be reached.

use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex};

use super::pool::Pool;
use super::proxy::TunnelError;
use super::server::Server;
use super::shared_connection::lock;
use super::text::explain;
use rules::failures::breaker::Trouble;
use rules::job::Job;
use rules::job::call::Template;
use rules::tenant::Tenant;
use runtime::shortage;

/// Number of failures in a row, with no host reached in between, after which this worker is assumed
/// to reach no host, if they are of [`SEVERAL`] hosts.
const MANY: usize = 8;
/// See [`MANY`].
const SEVERAL: usize = 3;
/// Error texts of resolvers (glibc and musl) for names that don't exist.
const UNKNOWN_NAMES: [&str; 3] = ["not known", "No address associated", "does not resolve"];

/// Error text of a proxy that rejects the password.
const UNAUTHORIZED: &str = "authorization required";

/// The servers of an API.
pub(super) enum Hosts {
    /// All calls go to one server.
    One(Arc<Server>),
    /// Each job names its host.
    OfJobs(Template, HostFaults),
}

impl Hosts {
    /// Returns the server for all jobs of `tenant`, or `None` if it differs between them.
    pub(super) fn of_tenant(&self, tenant: &Tenant, pool: &Arc<Pool>) -> Option<Arc<Server>> {
        match self {
            Self::One(server) => Some(Arc::clone(server)),
            Self::OfJobs(host, _) => pool.server(&host.render_for(tenant)?).ok(),
        }
    }

    /// Returns the server for `job`.
    ///
    /// # Errors
    /// A message for the operator: no request can name the host, or its proxy can't be used.
    pub(super) fn of(&self, job: &Job, pool: &Arc<Pool>) -> Result<Arc<Server>, String> {
        match self {
            Self::One(server) => Ok(Arc::clone(server)),
            Self::OfJobs(host, _) => pool.server(&host.render(job, "")),
        }
    }

    /// Returns true if the call of `job` goes to `server`.
    pub(super) fn fits(&self, job: &Job, server: &Server) -> bool {
        match self {
            Self::One(_) => true,
            Self::OfJobs(host, _) => server.is_at(&host.render(job, "")),
        }
    }

    /// Records that a server was reached.
    pub(super) fn reached(&self) {
        if let Self::OfJobs(_, faults) = self {
            faults.reached();
        }
    }

    /// Returns the party at fault if `server` can't be reached. `why` is `None` after a timeout.
    pub(super) fn unreached(
        &self,
        server: &Server,
        why: Option<&(dyn Error + 'static)>,
    ) -> Trouble {
        match self {
            Self::OfJobs(_, faults) => faults.failed(server, why),
            Self::One(_) if why.is_some_and(|why| shortage::of(why).is_some()) => Trouble::Local,
            Self::One(_) => Trouble::Unreachable,
        }
    }

    /// Returns the party at fault if `server` takes no calls.
    pub(super) fn refused(&self) -> Trouble {
        match self {
            Self::One(_) => Trouble::Unreachable,
            Self::OfJobs(..) => Trouble::Tenant,
        }
    }
}

/// The hosts that failed, for unclear reasons, since one was last reached. A failure counts against
/// the tenant, unless this worker's network seems to be the reason.
#[derive(Default)]
pub(super) struct HostFaults(Mutex<RecentFaults>);

#[derive(Default)]
struct RecentFaults {
    /// Different hosts, up to [`SEVERAL`].
    hosts: Vec<String>,
    failures: usize,
}

impl HostFaults {
    /// Records that a server was reached.
    pub(super) fn reached(&self) {
        *lock(&self.0) = RecentFaults::default();
    }

    /// Returns the party at fault if `server` can't be reached. `why` is `None` after a timeout.
    pub(super) fn failed(&self, server: &Server, why: Option<&(dyn Error + 'static)>) -> Trouble {
        let cause = why.map_or(Cause::Unclear, Cause::of);
        self.decide(server.uri.host().unwrap_or_default(), cause)
    }

    fn decide(&self, host: &str, cause: Cause) -> Trouble {
        match cause {
            Cause::Local => return Trouble::Local,
            Cause::Proxy => return Trouble::Unreachable,
            Cause::Host => return Trouble::Tenant,
            Cause::Unclear => {}
        }
        let mut recent = lock(&self.0);
        recent.failures = recent.failures.saturating_add(1);
        if recent.hosts.len() < SEVERAL && !recent.hosts.iter().any(|known| known == host) {
            recent.hosts.push(host.to_owned());
        }
        match recent.failures >= MANY && recent.hosts.len() >= SEVERAL {
            true => Trouble::Unreachable,
            false => Trouble::Tenant,
        }
    }
}

/// Why there is no connection to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// This machine lacks a resource.
    Local,
    /// The proxy for all hosts was not reached, or does not accept this worker.
    Proxy,
    /// The network works: it says that the host does not exist or takes no connection.
    Host,
    /// The host, or this worker's network.
    Unclear,
}

impl Cause {
    fn of(why: &(dyn Error + 'static)) -> Self {
        if shortage::of(why).is_some() {
            return Self::Local;
        }
        let text = explain(why);
        let (mut at, mut tunnels) = (Some(why), false);
        while let Some(error) = at {
            tunnels |= error.is::<TunnelError>();
            if error.is::<rustls::Error>() {
                return Self::Host;
            }
            at = match error.downcast_ref::<io::Error>() {
                None => error.source(),
                // The proxy was not reached.
                Some(_) if tunnels => return Self::Proxy,
                Some(error) => {
                    if is_refusal(error.kind()) {
                        return Self::Host;
                    }
                    error.get_ref().map(|inner| inner as &(dyn Error + 'static))
                }
            };
        }
        match UNKNOWN_NAMES.iter().any(|words| text.contains(words)) {
            true => Self::Host,
            false if tunnels && text.contains(UNAUTHORIZED) => Self::Proxy,
            // The proxy answered that it opens no tunnel to the host.
            false if tunnels => Self::Host,
            false => Self::Unclear,
        }
    }
}

/// Returns true if the other machine itself does not want the connection.
fn is_refusal(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, UnexpectedEof};
    matches!(kind, ConnectionRefused | ConnectionReset | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hosts_failure_is_its_tenants_and_many_in_a_row_are_the_workers() {
        let faults = HostFaults::default();
        let fails = |number: usize| faults.decide(&format!("{number}.h"), Cause::Unclear);
        assert!((0..100).all(|_| fails(0) == Trouble::Tenant), "one host");
        assert_eq!(fails(1), Trouble::Tenant);
        assert!((2..100).all(|number| fails(number) == Trouble::Unreachable));
        assert_eq!(fails(0), Trouble::Unreachable);
        assert_eq!(lock(&faults.0).hosts.len(), SEVERAL);
        faults.reached();
        assert!((0..7).all(|number| fails(number) == Trouble::Tenant));
        assert_eq!(fails(7), Trouble::Unreachable);
    }

    #[test]
    fn the_network_tells_whose_failure_it_is() {
        let faults = HostFaults::default();
        let decide = |number: usize, why: &(dyn Error + 'static)| {
            faults.decide(&format!("{number}.h"), Cause::of(why))
        };
        let lookup = |words: &str| {
            io::Error::other(format!("failed to lookup address information: {words}"))
        };
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let untrusted = io::Error::other(rustls::Error::General("unknown issuer".to_owned()));
        for number in 0..20 {
            for why in [&lookup("Name or service not known"), &refused, &untrusted] {
                assert_eq!(decide(number, why), Trouble::Tenant, "{why}");
            }
        }
        let full = io::Error::from(rustix::io::Errno::MFILE);
        assert_eq!(decide(0, &full), Trouble::Local);
        let unclear = lookup("Temporary failure in name resolution");
        let decided: Vec<Trouble> = (0..20).map(|number| decide(number, &unclear)).collect();
        assert_eq!(
            decided[MANY - 2..MANY],
            [Trouble::Tenant, Trouble::Unreachable]
        );
        assert_eq!(decided.last(), Some(&Trouble::Unreachable));
    }
}
