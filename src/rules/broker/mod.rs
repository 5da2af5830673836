//! What RabbitMQ's queues, timeouts and prefetch mean for jobs.

pub mod existing_queue;
pub mod holding;
pub mod shares;
