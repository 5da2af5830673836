//! What programs have in common that let real workers call a strict API and count what it saw: `sluicegate demo` and `torture`.

pub mod apart;
pub mod fetch;
pub mod pauses;
pub mod windows;
