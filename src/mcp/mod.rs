//! The Model Context Protocol, every published version of it, as a server and as a client.
//!
//! The room knows nothing of Berth: the executor is one user of it, the fixture in `protocol-tests` another. A program that serves
//! implements [`server::Service`] and [`server::Session`]; one that asks holds a [`client::Client`].

pub mod client;
pub mod connection;
mod legacy;
mod methods;
mod modern;
pub mod protocol;
mod reply;
mod request;
pub mod server;
pub mod stdio;
pub mod types;
