//! Queries over the tree: through a warm server, or by a process that is started for each.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::Outcome;
use crate::plan::{Query, Seeker};
use crate::report::Samples;
use crate::server::{Server, since};

/// One round of a query: its seekers take turns.
pub fn measure(query: &Query, searches: usize) -> Outcome<Vec<Samples>> {
    let mut samples: Vec<Samples> = query.seekers.iter().map(|_| Samples::new()).collect();
    let mut servers = Vec::new();
    for seeker in &query.seekers {
        servers.push(match seeker.tool {
            Some(_) => Some(ready(seeker)?),
            None => None,
        });
    }
    for turn in 0..searches {
        for ((seeker, server), samples) in query.seekers.iter().zip(&mut servers).zip(&mut samples) {
            let start = Instant::now();
            match (server, &seeker.tool) {
                (Some(server), Some(tool)) => server.call(2 + turn as u64, tool, &seeker.arguments)?,
                _ => run(seeker)?,
            };
            samples.push(since(start));
        }
    }
    servers.into_iter().flatten().try_for_each(Server::stop)?;
    Ok(samples)
}

/// A server past its handshake that has been asked the query once.
fn ready(seeker: &Seeker) -> Outcome<Server> {
    let mut server = Server::start(&seeker.command, &seeker.folder)?;
    server.initialize()?;
    server.initialized()?;
    server.call(1, seeker.tool.as_deref().unwrap_or_default(), &seeker.arguments)?;
    Ok(server)
}

fn run(seeker: &Seeker) -> Outcome<String> {
    let (program, arguments) = seeker.command.split_first().ok_or("an empty command")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&seeker.folder);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut text = String::new();
    child.stdout.take().ok_or("no pipe")?.read_to_string(&mut text)?;
    if child.wait()?.success() { Ok(text) } else { Err("it failed".into()) }
}

/// How the answers of a query's seekers differ, when they do.
pub fn difference(query: &Query) -> Outcome<Option<String>> {
    let mut first: Option<(&str, BTreeSet<String>)> = None;
    for seeker in &query.seekers {
        let text = match &seeker.tool {
            Some(tool) => {
                let mut server = Server::start(&seeker.command, &seeker.folder)?;
                server.initialize()?;
                server.initialized()?;
                let text = server.call(1, tool, &seeker.arguments)?;
                server.stop()?;
                text
            }
            None => run(seeker)?,
        };
        let lines: BTreeSet<String> = text.lines().map(|line| line.trim_start_matches("./").to_owned()).collect();
        let Some((name, found)) = &first else {
            first = Some((&seeker.name, lines));
            continue;
        };
        if let Some(odd) = found.symmetric_difference(&lines).next() {
            let (few, many) = (found.len(), lines.len());
            return Ok(Some(format!("{name} found {few} lines, {} {many}; {odd:?} is in one alone", seeker.name)));
        }
    }
    Ok(None)
}
