//! The smallest server that rmcp makes of one `read` tool: what berth is measured beside.
//!
//! `rmcp-read one` runs it on one thread, `rmcp-read many` on tokio's usual pool.

use rmcp::handler::server::{router::tool::ToolRouter, wrapper::Parameters};
use rmcp::{ServerHandler, ServiceExt, tool, tool_handler, tool_router, transport};
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Deserialize, JsonSchema)]
struct Read {
    path: String,
}

#[derive(Clone)]
struct Server {
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Server {
    #[tool(name = "read", description = "Reads a file.")]
    fn read(&self, Parameters(read): Parameters<Read>) -> Result<String, String> {
        // Synchronous: for a small file it is faster than tokio's own reading, which passes it to another thread.
        std::fs::read_to_string(read.path).map_err(|error| error.to_string())
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Server {}

async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server { tool_router: Server::tool_router() };
    server.serve(transport::stdio()).await?.waiting().await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut runtime = match std::env::args().nth(1).as_deref() {
        Some("one") => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    runtime.enable_all().build()?.block_on(serve())
}
