//! Calls that are prepared. In simulations with seeds from [`PREPARED`], a call needs a connection:
//! opening one takes time and may fail, and an open one may break before it is used. Histories of
//! lower seeds are unchanged.

use handler::{Attempt, PreparingHandler, Trouble};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rules::job::Job;
use tokio::time::sleep;

use super::downstream::{self, SimHandler};
use super::plan::pick;
use super::world::World;

/// First seed with the connections of this module.
pub const PREPARED: u64 = 13_000_000;

/// Probabilities of events, and the time that opening a connection takes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Connections {
    /// No idle connection can be used.
    absent: f64,
    fails: f64,
    breaks: f64,
    max_ms: u64,
}

impl Connections {
    /// Draws from a random stream of its own.
    pub fn new(seed: u64, troubled: bool) -> Self {
        if seed < PREPARED || !troubled {
            return Self::default();
        }
        let mut random = SmallRng::seed_from_u64(seed.rotate_left(31) ^ 0xC022);
        Self {
            absent: pick(&mut random, &[0.1, 0.5, 1.0]),
            fails: pick(&mut random, &[0.0, 0.05, 0.3]),
            breaks: pick(&mut random, &[0.0, 0.05]),
            max_ms: pick(&mut random, &[10, 300, 3_000]),
        }
    }
}

/// The handler of all simulations.
pub struct PreparedHandler(pub SimHandler);

impl PreparedHandler {
    fn world(&self) -> &World {
        &self.0.0.world
    }
}

impl PreparingHandler for PreparedHandler {
    type Ready = ();

    fn at_once(&self) -> Option<()> {
        let world = self.world();
        let absent = world.plan.connections.absent;
        (!world.chance(|_| absent)).then_some(())
    }

    async fn prepare(&self, job: &Job) -> Result<(), Attempt> {
        let (life, world) = (&self.0.0, self.world());
        let connections = world.plan.connections;
        if connections.max_ms == 0 {
            return Ok(());
        }
        life.point("preparing").await;
        sleep(world.up_to(connections.max_ms)).await;
        life.thaw().await;
        if !world.dice(|_| connections.fails) {
            return Ok(());
        }
        let troubles = [
            None,
            Some(Trouble::Unreachable),
            Some(Trouble::Tenant),
            Some(Trouble::Local),
        ];
        let trouble = troubles[world.below(troubles.len())];
        world.fault(format_args!("no connection for {}: {trouble:?}", job.id));
        Err(Attempt {
            trouble,
            ..downstream::failed(world, &job.id, "no connection").into()
        })
    }

    fn is_ready(&self, (): &mut ()) -> bool {
        let world = self.world();
        let breaks = world.plan.connections.breaks;
        !world.dice(|_| breaks)
    }

    fn send(
        &self,
        job: &Job,
        (): (),
        permit: handler::Permit,
    ) -> impl Future<Output = Attempt> + Send {
        handler::Handler::attempt(&self.0, job, permit)
    }
}
