//! The ground: what the operating system gives, behind safe types. The only room where unsafe code may stand.

pub mod beneath;
pub mod cancel;
pub mod child;
pub mod environment;
mod launch;
mod orphan;
mod reaper;
pub mod replace;
#[cfg(test)]
pub(crate) mod scratch;
pub mod signal;
pub mod trees;
