//! `berth tools`: lists the tools, here or at a target.

use lexopt::prelude::*;
use serde::Serialize;

use super::open::{Output, Place, interruption};
use super::{Error, Status, clean, print, print_json};
use crate::executor::only_looks;
use crate::mcp::types::Tool;

const HELP: &str = "\
berth tools lists the tools that `berth call` can call, with what each takes.

usage: berth tools [OPTION ...]

  --on cmd:'COMMAND'    the tools of an executor that this command starts
  --root DIR            the directory the tools act in [this one]
  --pass-env A,B        variables that look like credentials but are passed to COMMAND all the same: SSH_AUTH_SOCK, for one
  --output text|json    json prints the listing as a client gets it [text]

example: berth tools --on cmd:'ssh host berth execute --root /work'
";

pub(super) fn run(parser: &mut lexopt::Parser) -> Result<Status, Error> {
    let mut place = Place::default();
    let mut output = Output::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return print(HELP),
            Long("output") => output = Output::read(parser)?,
            Long(option) => {
                let option = option.to_owned();
                place.take(&option, parser)?;
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let executor = place.executor(&interruption()?)?;
    // A client gets them by name, whatever the executor's own order.
    let mut tools = executor.tools().to_vec();
    tools.sort_by(|one, other| one.name.cmp(&other.name));
    match output {
        Output::Text => print(&tools.iter().map(described).collect::<String>()),
        Output::Json => {
            #[derive(Serialize)]
            struct Listing<'a> {
                tools: &'a [Tool],
            }
            let listing = serde_json::to_string(&Listing { tools: &tools })
                .map_err(|error| Error::new(Status::Failed, format!("the listing has no JSON form: {error}")))?;
            print_json(listing)
        }
    }
}

/// A tool for a person: its name, what it takes, the first sentence of what it does.
fn described(tool: &Tool) -> String {
    let mut line = clean::line(&tool.name);
    for (name, required) in takes(tool) {
        let name = clean::line(&name);
        line += &if required { format!(" {name}=…") } else { format!(" [{name}=…]") };
    }
    let marker = if only_looks(tool) { "" } else { "asks first. " };
    let words = tool.description.as_deref().unwrap_or_default();
    let sentence = words.split_inclusive(". ").next().unwrap_or_default().trim();
    format!("{line}\n    {marker}{}\n", clean::line(sentence))
}

/// The names a tool takes and whether each must be given: those first, in the schema's order, and without the executor's own.
pub(super) fn takes(tool: &Tool) -> Vec<(String, bool)> {
    let schema: serde_json::Value = serde_json::from_str(tool.input_schema.get()).unwrap_or_default();
    let listed = schema.get("required").and_then(|list| list.as_array()).cloned().unwrap_or_default();
    let mut names: Vec<(String, bool)> =
        listed.iter().filter_map(|name| name.as_str()).map(|name| (name.to_owned(), true)).collect();
    let properties = schema.get("properties").and_then(|properties| properties.as_object());
    for name in properties.into_iter().flat_map(serde_json::Map::keys) {
        if name != "dax_stamp" && !names.iter().any(|(known, _)| known == name) {
            names.push((name.clone(), false));
        }
    }
    names
}
