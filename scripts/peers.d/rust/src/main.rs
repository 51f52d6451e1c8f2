//! Drives a server through rmcp: peer-client ERA PROJECT SERVER [ARGUMENT ...], ERA being `legacy` or `auto`.
//!
//! The lines on stdout are what scripts/peers makes its table of; see steps.md one folder up.

use std::error::Error;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, ProgressNotificationParam,
    ProtocolVersion, ServerResult,
};
use rmcp::service::{NotificationContext, PeerRequestOptions, RequestHandle, RunningService};
use rmcp::transport::TokioChildProcess;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt, RoleClient};
use serde_json::{Value, json};

const TOOLS: [&str; 7] = ["bash", "edit", "glob", "grep", "ls", "read", "write"];

type Seen = Arc<Mutex<Vec<ProgressNotificationParam>>>;
type Outcome = Result<String, Box<dyn Error>>;

/// A client that keeps the progress it is told of.
#[derive(Clone, Default)]
struct Handler {
    seen: Seen,
}

impl ClientHandler for Handler {
    async fn on_progress(&self, params: ProgressNotificationParam, _context: NotificationContext<RoleClient>) {
        self.seen.lock().unwrap().push(params);
    }
}

struct Run {
    client: RunningService<RoleClient, Handler>,
    project: PathBuf,
}

fn want(condition: bool, seen: impl std::fmt::Debug) -> Result<(), Box<dyn Error>> {
    if condition { Ok(()) } else { Err(format!("saw {seen:?}").into()) }
}

fn text_of(result: &CallToolResult) -> String {
    let value = serde_json::to_value(result).unwrap_or_default();
    let parts = value["content"].as_array().cloned().unwrap_or_default();
    parts.iter().filter_map(|part| part["text"].as_str().map(str::to_owned)).collect()
}

/// Waits until `fact` holds, and says for how long it did; an error names what never came true.
async fn until(what: &str, fact: impl Fn() -> bool, limit: Duration) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    while !fact() {
        if start.elapsed() > limit {
            return Err(what.into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(start.elapsed())
}

/// Whether no process of that id runs. One that waits for init to collect it runs no more.
fn gone(pid: &str) -> bool {
    match std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")) {
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
        Err(_) => true,
    }
}

impl Run {
    async fn start(&self, tool: &'static str, arguments: Value) -> Result<RequestHandle<RoleClient>, Box<dyn Error>> {
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        let request = CallToolRequest::new(CallToolRequestParams::new(tool).with_arguments(arguments));
        let request = ClientRequest::CallToolRequest(request);
        Ok(self.client.send_cancellable_request(request, PeerRequestOptions::no_options()).await?)
    }

    async fn call(&self, tool: &'static str, arguments: Value) -> Result<CallToolResult, Box<dyn Error>> {
        match self.start(tool, arguments).await?.await_response().await? {
            ServerResult::CallToolResult(result) => Ok(result),
            other => Err(format!("not a tool's result: {other:?}").into()),
        }
    }

    async fn list_tools(&self) -> Outcome {
        let tools = self.client.list_all_tools().await?;
        let names: Vec<_> = tools.iter().map(|tool| tool.name.to_string()).collect();
        want(names == TOOLS, &names)?;
        Ok(String::new())
    }

    async fn read(&self) -> Outcome {
        let text = text_of(&self.call("read", json!({"path": "notes.txt"})).await?);
        want(text.contains("     2\tbeta\n"), text)?;
        Ok(String::new())
    }

    async fn edit(&self) -> Outcome {
        let edit = json!({"path": "notes.txt", "old_string": "beta", "new_string": "delta"});
        let result = self.call("edit", edit).await?;
        want(result.is_error != Some(true), &result)?;
        let file = std::fs::read_to_string(self.project.join("notes.txt"))?;
        want(file == "alpha\ndelta\ngamma\n", file)?;
        Ok(String::new())
    }

    async fn grep(&self) -> Outcome {
        let text = text_of(&self.call("grep", json!({"pattern": "needle", "path": "src"})).await?);
        want(text.contains("src/lib.rs:2:"), text)?;
        Ok(String::new())
    }

    async fn failing(&self) -> Outcome {
        let text = text_of(&self.call("bash", json!({"command": "echo before; exit 3"})).await?);
        want(text.trim_end() == "before\n[exit 3]", text)?;
        Ok(String::new())
    }

    async fn cancel(&self) -> Outcome {
        let pid_file = self.project.join("pid");
        let call = self.start("bash", json!({"command": "sleep 1000 & echo $! >pid; wait"})).await?;
        let written = || std::fs::read_to_string(&pid_file).is_ok_and(|text| text.ends_with('\n'));
        until("the command never started", written, Duration::from_secs(10)).await?;
        let pid = std::fs::read_to_string(&pid_file)?.trim().to_owned();
        call.cancel(Some("enough".into())).await?;
        let waited = until("the process outlives the cancel", || gone(&pid), Duration::from_secs(5)).await?;
        let text = text_of(&self.call("read", json!({"path": "notes.txt"})).await?);
        want(text.contains("alpha"), text)?;
        Ok(format!("gone after {} ms", waited.as_millis()))
    }

    async fn progress(&self) -> Outcome {
        let command = "for i in 1 2 3 4; do echo line $i; sleep 0.3; done";
        let call = self.start("bash", json!({"command": command})).await?;
        let token = call.progress_token.clone();
        let ServerResult::CallToolResult(result) = call.await_response().await? else {
            return Err("not a tool's result".into());
        };
        let text = text_of(&result);
        want(text.contains("line 4\n[exit 0]"), text)?;
        let seen = self.client.service().seen.lock().unwrap().clone();
        let seen: Vec<_> = seen.iter().filter(|report| report.progress_token == token).collect();
        want(seen.len() >= 2, &seen)?;
        want(seen.is_sorted_by(|a, b| a.progress < b.progress), &seen)?;
        want(seen[0].message.as_deref().is_some_and(|message| message.contains("line 1")), &seen)?;
        Ok(format!("{} reports", seen.len()))
    }
}

async fn report(name: &str, step: impl Future<Output = Outcome>) {
    let (verdict, detail) = match tokio::time::timeout(Duration::from_secs(20), step).await {
        Ok(Ok(detail)) => ("ok", detail),
        Ok(Err(error)) => ("FAIL", error.to_string()),
        Err(_) => ("FAIL", "no end after 20 s".into()),
    };
    println!("step\t{name}\t{verdict}\t{}", detail.split_whitespace().collect::<Vec<_>>().join(" "));
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [era, project, server, rest @ ..] = arguments.as_slice() else {
        return Err("usage: peer-client ERA PROJECT SERVER [ARGUMENT ...]".into());
    };
    let lifecycle = match era.as_str() {
        "legacy" => ClientLifecycleMode::Initialize,
        _ => ClientLifecycleMode::Auto { preferred_versions: vec![ProtocolVersion::V_2026_07_28], legacy_version: None },
    };
    let mut command = tokio::process::Command::new(server);
    command.args(rest).current_dir(project);
    let transport = TokioChildProcess::new(command)?;
    let client = Handler::default().serve_with_lifecycle(transport, lifecycle).await?;
    let version = client.peer_info().map(|info| info.protocol_version.to_string()).unwrap_or_default();
    println!("client\trmcp\t{}\t{version}", env!("RMCP_VERSION"));

    let run = Run { client, project: PathBuf::from(project) };
    report("list_tools", run.list_tools()).await;
    report("read", run.read()).await;
    report("edit", run.edit()).await;
    report("grep", run.grep()).await;
    report("failing", run.failing()).await;
    report("cancel", run.cancel()).await;
    report("progress", run.progress()).await;
    let start = Instant::now();
    let closed = run.client.cancel().await;
    report("close", async {
        want(closed.is_ok() && start.elapsed() < Duration::from_secs(1), start.elapsed())?;
        Ok(format!("{} ms", start.elapsed().as_millis()))
    })
    .await;
    Ok(())
}
