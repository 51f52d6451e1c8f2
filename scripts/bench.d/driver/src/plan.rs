//! What is to be measured, as scripts/bench writes it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A whole run.
#[derive(Serialize, Deserialize)]
pub struct Plan {
    /// What the machine and the tools are, line by line, for the record.
    pub machine: Vec<String>,
    /// How often everything is measured; what is reported is the median over the rounds.
    pub rounds: usize,
    /// How many times a server is started in a round, and the floor's command beside it.
    pub starts: usize,
    /// How many calls are made one after the other in a round.
    pub calls: usize,
    /// How many calls are made with `in_flight` of them under way.
    pub calls_in_flight: usize,
    pub in_flight: usize,
    /// How often each query is asked in a round.
    pub searches: usize,
    /// The command whose spawning is the floor of every start.
    pub floor: Vec<String>,
    pub servers: Vec<Contestant>,
    pub queries: Vec<Query>,
}

/// A server and the call that reads the small file.
#[derive(Serialize, Deserialize)]
pub struct Contestant {
    pub name: String,
    pub version: String,
    pub role: Role,
    pub command: Vec<String>,
    /// Where it is started.
    pub folder: String,
    pub tool: String,
    pub arguments: Value,
    /// Text that its answer holds, so that no error is measured as a success.
    pub expect: String,
    /// The file whose size is the server's; none where a runtime and its packages make it up.
    pub binary: Option<String>,
    /// Divides the numbers of starts and calls, for a server of another order of magnitude.
    pub slower: usize,
}

/// What a contestant is measured for.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Held to the budgets.
    Berth,
    /// Held to the budgets, that of the static binary's size among them.
    StaticBerth,
    /// The program that answers without doing anything.
    Echo,
    Peer,
}

/// One question to the tree, and who answers it; the last of them is what the others are held to.
#[derive(Serialize, Deserialize)]
pub struct Query {
    pub name: String,
    /// How many times as long as the last seeker the first may take; none where no budget is set.
    pub budget: Option<f64>,
    pub seekers: Vec<Seeker>,
}

#[derive(Serialize, Deserialize)]
pub struct Seeker {
    pub name: String,
    /// The command; with a tool the server that is asked, without one the program that answers on its stdout.
    pub command: Vec<String>,
    pub folder: String,
    pub tool: Option<String>,
    #[serde(default)]
    pub arguments: Value,
}
