//! Measures MCP servers over stdio side by side, and their search beside ripgrep's.
//!
//! `bench-driver tree DIR` makes the tree that is searched. `bench-driver run PLAN RAW [--strict]` measures what the JSON
//! file PLAN says (see [`plan`]), writes every sample to RAW and prints the tables; with `--strict` the exit status is 1
//! when a budget is missed. scripts/bench writes the plan.

mod cores;
mod plan;
mod report;
mod search;
mod server;
mod tree;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use plan::Plan;
use report::Measured;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["tree", folder] => tree::make(Path::new(folder)).map(|()| true),
        ["run", plan, raw] => run(plan, raw).map(|_| true),
        ["run", plan, raw, "--strict"] => run(plan, raw),
        _ => Err("usage: bench-driver tree DIR | run PLAN RAW [--strict]".into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-driver: {error}");
            ExitCode::from(2)
        }
    }
}

/// Measures, and says whether every budget is met.
fn run(plan: &str, raw: &str) -> Outcome<bool> {
    let plan: Plan = serde_json::from_slice(&std::fs::read(plan)?)?;
    let mut measured = Measured::new(&plan);
    // First, since it also brings the tree into memory.
    for (query, differ) in plan.queries.iter().zip(&mut measured.differ) {
        *differ = search::difference(query).map_err(|error| format!("{}: {error}", query.name))?;
    }
    for round in 1..=plan.rounds {
        eprintln!("bench: round {round} of {}", plan.rounds);
        let (spawn, rounds) = server::measure(&plan)?;
        measured.spawn.push(spawn);
        for (all, round) in measured.servers.iter_mut().zip(rounds) {
            all.push(round);
        }
        for (query, all) in plan.queries.iter().zip(&mut measured.queries) {
            let samples = search::measure(query, plan.searches).map_err(|error| format!("{}: {error}", query.name))?;
            for (all, samples) in all.iter_mut().zip(samples) {
                all.push(samples);
            }
        }
    }
    std::fs::write(raw, serde_json::to_vec(&json!({ "plan": plan, "measured": measured }))?)?;
    Ok(report::print(&plan, &measured))
}
