//! Moments in a job's way through a worker, as they show on its connections: what passes there, and what is held from
//! then on, so that the moment lasts until the worker is struck. Pure.

use kit::proxy::{Direction, Trap, Way, Ways};

use crate::plan::TENANT;

/// Between two steps of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Delivered; the worker asks the gate.
    Gate,
    /// The gate has given a permit; the worker does not know.
    Permit,
    /// The downstream has the call.
    Call,
    /// RabbitMQ has the job in another queue; the worker does not know.
    Publish,
    /// The worker knows; RabbitMQ does not have its ack.
    Confirm,
}

/// A connection of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    Rabbit,
    Redis,
}

/// What shows on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A tenant's name: of all that workers ask Redis, only decisions have one, and what settles them.
    Tenant,
    /// An AMQP method, by its class and its number.
    Method(u8, u8),
}

/// basic.publish, of the publisher; basic.ack is a confirm from RabbitMQ, and an ack to it.
const PUBLISH: Mark = Mark::Method(60, 40);
const CONFIRM: Mark = Mark::Method(60, 80);

impl Moment {
    /// The trap that makes the moment last. `None`: the downstream has to.
    pub fn trap(self) -> Option<(To, Trap)> {
        let hold_there = Ways {
            there: Way::HELD,
            back: Way::OPEN,
        };
        let hold_back = Ways {
            there: Way::OPEN,
            back: Way::HELD,
        };
        let (to, direction, mark, then) = match self {
            Self::Gate => (To::Redis, Direction::There, Mark::Tenant, hold_there),
            Self::Permit => (To::Redis, Direction::There, Mark::Tenant, hold_back),
            Self::Call => return None,
            Self::Publish => (To::Rabbit, Direction::There, PUBLISH, hold_back),
            Self::Confirm => (To::Rabbit, Direction::Back, CONFIRM, hold_there),
        };
        let trap = Trap {
            direction,
            shows: Box::new(move |bytes| mark.is_in(bytes)),
            then,
        };
        Some((to, trap))
    }
}

impl Mark {
    /// Whether it is in these bytes. One that is cut in two by their end is missed, and the next one is not.
    pub fn is_in(self, bytes: &[u8]) -> bool {
        match self {
            Self::Tenant => bytes
                .windows(TENANT.len())
                .any(|at| at == TENANT.as_bytes()),
            // A frame: 1 for a method, two bytes of channel, four of size, two of class, two of method.
            Self::Method(class, method) => bytes
                .windows(11)
                .any(|at| at[0] == 1 && at[7..] == [0, class, 0, method]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_wherever_they_are() {
        let ask = format!("*5\r\n$7\r\nEVALSHA\r\n$16\r\ntorture:{TENANT}1\r\n");
        assert!(Mark::Tenant.is_in(ask.as_bytes()));
        let pulse = b"*4\r\n$7\r\nEVALSHA\r\n$14\r\ntorture:%epoch\r\n";
        assert!(!Mark::Tenant.is_in(pulse));
        // basic.ack of delivery 5 on channel 2, after a heartbeat.
        let ack = [
            8, 0, 0, 0, 0, 0, 0, 0xce, 1, 0, 2, 0, 0, 0, 13, 0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 5,
            0, 0xce,
        ];
        assert!(CONFIRM.is_in(&ack) && !PUBLISH.is_in(&ack));
        assert!(!CONFIRM.is_in(&ack[..18]), "a part of a frame");
    }
}
