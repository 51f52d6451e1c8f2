//! JSON-RPC 2.0 as the Model Context Protocol and the vendors speak it: messages, line framing, and the matching of answers to requests.
//!
//! Nothing here reads a descriptor or a clock: bytes in, messages out (spec mcp 1). The threads around it do the I/O.

mod batch;
mod id;
mod lines;
mod message;
mod oversize;
mod peer;
pub mod strict;
pub mod text;

pub use batch::{BATCH_MAX_MESSAGES, members};
pub use id::Id;
pub use lines::{LINE_MAX_BYTES, Line, Lines};
pub use message::{
    ErrorObject, Malformed, Message, code, write_error, write_notification, write_request, write_result,
};
pub use oversize::Owner;
pub use peer::{Answer, InFlight, Pending, Refusal, Waiter};
