//! Moments of a job in a worker, as they show on its connections: the bytes that mark a moment, and
//! the bytes held afterwards, so that the moment lasts until the worker is struck. Pure.

use kit::proxy::{Direction, Transfer, Transfers, Trap};

use crate::run_plan::TENANT;

/// A moment between two steps of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The job was delivered; the worker asks the gate.
    Gate,
    /// The gate has given a permit; the worker does not know yet.
    Permit,
    /// The downstream has the call.
    Call,
    /// RabbitMQ has the job in another queue; the worker does not know yet.
    Publish,
    /// The worker has the confirm; RabbitMQ does not have its ack yet.
    Confirm,
}

/// A connection of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerConnection {
    Rabbit,
    Redis,
}

/// The bytes that mark a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A tenant's name. Among a worker's requests to Redis, only decisions and their settlements
    /// contain one.
    Tenant,
    /// An AMQP method, by its class and its number.
    Method(u8, u8),
}

/// basic.publish of the publisher. basic.ack is a confirm if it comes from RabbitMQ, and an ack
/// otherwise.
const PUBLISH: Mark = Mark::Method(60, 40);
const CONFIRM: Mark = Mark::Method(60, 80);

impl Moment {
    /// Returns the trap that makes the moment last; `None` if the downstream must hold it.
    pub fn trap(self) -> Option<(WorkerConnection, Trap)> {
        let hold_there = Transfers {
            there: Transfer::HELD,
            back: Transfer::OPEN,
        };
        let hold_back = Transfers {
            there: Transfer::OPEN,
            back: Transfer::HELD,
        };
        let (to, direction, mark, then) = match self {
            Self::Gate => (
                WorkerConnection::Redis,
                Direction::There,
                Mark::Tenant,
                hold_there,
            ),
            Self::Permit => (
                WorkerConnection::Redis,
                Direction::There,
                Mark::Tenant,
                hold_back,
            ),
            Self::Call => return None,
            Self::Publish => (
                WorkerConnection::Rabbit,
                Direction::There,
                PUBLISH,
                hold_back,
            ),
            Self::Confirm => (
                WorkerConnection::Rabbit,
                Direction::Back,
                CONFIRM,
                hold_there,
            ),
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
    /// Returns true if the mark is in these bytes. A mark cut in two by their end is missed; the
    /// next one is found.
    pub fn is_in(self, bytes: &[u8]) -> bool {
        match self {
            Self::Tenant => bytes
                .windows(TENANT.len())
                .any(|at| at == TENANT.as_bytes()),
            // A frame has 1 for a method, two bytes of channel, four of size, two of class and two
            // of method.
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
    fn marks_are_found_anywhere() {
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
