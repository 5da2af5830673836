//! Rules for RabbitMQ's queues, timeouts and prefetch.

pub mod existing_queue;
pub mod holding;
pub mod shares;
