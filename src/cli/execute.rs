//! `berth execute`: serves the coding tools of one directory (spec executor 2).

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use lexopt::prelude::*;

use super::open::{Place, interruption, keep_commands_together, text};
use super::{Error, Status, clean, print};
use crate::executor::CodingService;
use crate::mcp::connection::Eras;
use crate::mcp::stdio;
use crate::tools::Settings;
use crate::workspace::Kind;

const HELP: &str = "\
berth execute serves the coding tools of a directory over MCP, on standard input and output. The end of the input ends the session,
with every call still running: keep it open until the answers are there.

usage: berth execute [OPTION ...]

  --root DIR            the directory the file tools act in, and nowhere else; commands start there [this one]
  --max-read-bytes N    the most bytes of a file the tools read [2097152]
  --pass-env A,B        variables that look like credentials but are passed to commands all the same
  --kind K              what this place is, for the record: local, container or remote [remote]
  --ref TEXT            which one it is, for the record [this host's name]
  --mcp legacy          serve only the versions that begin with a handshake [all]

example, for a client's configuration: {\"command\": \"berth\", \"args\": [\"execute\", \"--root\", \"/work\"]}
";

pub(super) fn run(parser: &mut lexopt::Parser) -> Result<Status, Error> {
    let mut place = Place::default();
    let mut eras = Eras::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return print(HELP),
            Long(option @ ("root" | "pass-env")) => {
                let option = option.to_owned();
                place.take(&option, parser)?;
            }
            Long("max-read-bytes") => {
                let value = text(parser, "--max-read-bytes")?;
                match value.parse::<u64>() {
                    Ok(0) => {}
                    Ok(bytes) => place.max_read_bytes = bytes,
                    Err(_) => {
                        return Err(Error::usage(format!("--max-read-bytes: {value:?} is not a number of bytes")));
                    }
                }
            }
            Long("kind") => {
                let kind = text(parser, "--kind")?;
                place.options.kind = kind.parse::<Kind>().map_err(|error| Error::usage(format!("--kind: {error}")))?;
            }
            Long("ref") => place.options.reference = Some(text(parser, "--ref")?),
            Long("mcp") => match text(parser, "--mcp")?.as_str() {
                "legacy" => eras.modern = false,
                "all" => eras.modern = true,
                other => return Err(Error::usage(format!("--mcp: {other:?} is neither legacy nor all"))),
            },
            other => return Err(other.unexpected().into()),
        }
    }
    serve(place, eras)
}

fn serve(place: Place, eras: Eras) -> Result<Status, Error> {
    let failed = |what: &str, error: io::Error| Error::new(Status::Failed, format!("{what}: {error}"));
    let stop = interruption()?;
    keep_commands_together();
    let settings = Settings { max_read_bytes: place.max_read_bytes };
    let workspace = Arc::new(place.workspace()?);
    let (input, output) = take_streams().map_err(|error| failed("standard input and output", error))?;
    if input.is_terminal() {
        // A person who tries it out would see nothing at all.
        let root = clean::line(&workspace.root().display().to_string());
        let _ = writeln!(io::stderr(), "berth execute: serving {root} to an MCP client on standard input; end with ^D");
    }
    let service = Arc::new(CodingService::new(workspace.clone(), settings));
    stdio::serve(service, eras, input, output, &stop).map_err(|error| failed("threads", error))?;
    workspace.end_processes();
    Ok(Status::Done)
}

/// Takes standard input and output for the protocol alone: whatever else in this process reads finds nothing, and whatever prints
/// reaches standard error (spec executor 2.2).
fn take_streams() -> io::Result<(File, File)> {
    let input = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let output = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let nothing = File::open("/dev/null").or_else(|_| {
        // A container with nothing in it has no /dev/null; a pipe without a writer reads as empty too.
        let (read, _write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        Ok::<File, io::Error>(File::from(read))
    })?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok((File::from(input), File::from(output)))
}
