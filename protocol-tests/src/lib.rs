//! Conformance and hostile-input tests that drive the built `berth` binary (`BERTH_BIN`, or the one cargo builds).
//!
//! This library is what the tests share: [`server`] starts a program and talks to it, [`procfs`] looks at its processes from outside,
//! [`pattern`] compares an answer with what is expected, [`vector`] runs the data in `vectors/`, [`fuzz`] is
//! what the decoders are fuzzed with. The binary `fixture` is a server that
//! offers every feature of the protocol: the second user of the `mcp` library.

pub mod directory;
pub mod fuzz;
pub mod pattern;
pub mod procfs;
pub mod program;
pub mod server;
pub mod vector;
