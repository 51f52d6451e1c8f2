//! Berth gives a coding agent a place to work.
//!
//! The crate is a stack of rooms; a room imports only rooms below it:
//!
//! ```text
//! cli
//! executor
//! tools
//! mcp         workspace
//! jsonrpc
//! os
//! ```
//!
//! * [`executor`] serves the coding tools to an MCP client, and reaches an executor elsewhere.
//! * [`tools`] are the coding tools: read, write, edit, glob, grep, ls, bash.
//! * [`mcp`] is the Model Context Protocol, server and client, every published version.
//! * [`workspace`] is the confined directory tree and the processes that run in it.
//! * [`jsonrpc`] is messages, line framing and the matching of answers to requests.
//! * [`os`] is the ground: confined opens, child processes, signals. The only room with unsafe code.

pub mod cli;
pub mod executor;
pub mod jsonrpc;
pub mod mcp;
pub mod os;
pub mod tools;
pub mod workspace;
