//! The command line: arguments, printing and exit statuses, and nothing else (design 7).

mod ask;
mod call;
mod clean;
mod execute;
mod log;
mod open;
mod tools;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use lexopt::prelude::*;

/// What a command's end means to whoever started it (design 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// It did what it was asked.
    Done = 0,
    /// It failed.
    Failed = 1,
    /// Its arguments do not fit.
    Usage = 2,
    /// The executor cannot be reached, or refused.
    Unreachable = 4,
    /// Nobody could answer the question it had.
    Unanswered = 5,
    /// It was interrupted.
    Interrupted = 130,
}

/// Why a command did not do what it was asked: `berth COMMAND: what: why`, and a hint where there is one.
#[derive(Debug)]
struct Error {
    status: Status,
    what: String,
    hint: Option<String>,
}

impl Error {
    fn new(status: Status, what: impl Into<String>) -> Self {
        Self { status, what: what.into(), hint: None }
    }

    fn usage(what: impl Into<String>) -> Self {
        Self::new(Status::Usage, what)
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(hint) = &self.hint {
            write!(f, "\n  {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<lexopt::Error> for Error {
    fn from(error: lexopt::Error) -> Self {
        Self::usage(error.to_string())
    }
}

const HELP: &str = "\
berth gives a coding agent a place to work.

usage: berth COMMAND [OPTION ...]

  execute   serve this directory's coding tools over MCP on standard input and output
  call      call one tool: berth call grep pattern=fn path=src
  tools     list the tools

  berth COMMAND --help says more. --version prints the version.
";

/// Runs the program: arguments in, exit status out. The result goes to standard output, everything else to standard error.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    // First of all, while there is one thread.
    crate::os::environment::hide(crate::workspace::is_credential);
    log::start();
    if let Err(error) = crate::os::signal::ignore_fatal_writes() {
        ::log::warn!("signals: {error}");
    }
    let mut parser = lexopt::Parser::from_iter(arguments);
    let (command, outcome) = run(&mut parser);
    let status = match outcome {
        Ok(status) => status,
        Err(error) => {
            let name = command.map_or_else(|| "berth".to_owned(), |command| format!("berth {command}"));
            // Nobody is left to be told when standard error is gone.
            let _ = writeln!(io::stderr(), "{name}: {}", clean::lines(&error.to_string()));
            error.status
        }
    };
    ExitCode::from(status as u8)
}

fn run(parser: &mut lexopt::Parser) -> (Option<&'static str>, Result<Status, Error>) {
    let first = match parser.next() {
        Ok(first) => first,
        Err(error) => return (None, Err(error.into())),
    };
    match first {
        None => (None, Err(Error::usage("a command is missing").hint("berth --help lists them"))),
        Some(Short('h') | Long("help")) => (None, print(HELP)),
        Some(Short('V') | Long("version")) => (None, print(concat!("berth ", env!("CARGO_PKG_VERSION"), "\n"))),
        Some(Value(name)) => match name.to_str() {
            Some("execute") => (Some("execute"), execute::run(parser)),
            Some("call") => (Some("call"), call::run(parser)),
            Some("tools") => (Some("tools"), tools::run(parser)),
            Some("help") => (None, print(HELP)),
            _ => {
                let what = format!("no command {:?}", name.to_string_lossy());
                (None, Err(Error::usage(what).hint("berth --help lists them")))
            }
        },
        Some(other) => (None, Err(other.unexpected().into())),
    }
}

/// Prints a line of JSON. A terminal gets what it would obey as escapes, which mean the same to a reader of JSON.
fn print_json(json: String) -> Result<Status, Error> {
    let json = if io::stdout().is_terminal() { clean::json(&json) } else { json };
    print(&(json + "\n"))
}

/// Prints a command's result. A reader that left early is no failure of ours.
fn print(text: &str) -> Result<Status, Error> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Status::Done),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Status::Done),
        Err(error) => Err(Error::new(Status::Failed, format!("standard output: {error}"))),
    }
}
