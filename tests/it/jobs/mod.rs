//! The fate of single jobs: duplicates, delays, priorities, and moves between queues.

mod deduping;
mod delay_queue_policies;
mod delayed_starts;
mod moving;
mod priorities;
mod waking;
mod whole_seconds;
