//! What the commands that use tools share: where the tools run, the executor that is there, how a result is printed.

use std::path::PathBuf;
use std::sync::Arc;

use lexopt::ValueExt;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::{Error, Status};
use crate::executor::{Executor, InProcess, Remote, Target};
use crate::os::cancel::Cancel;
use crate::os::child;
use crate::os::signal::Termination;
use crate::tools::{DEFAULT_MAX_READ_BYTES, Settings};
use crate::workspace::{Environment, Options, Workspace};

/// Where tools run, and how.
pub(super) struct Place {
    pub(super) target: Target,
    pub(super) root: Option<PathBuf>,
    pub(super) max_read_bytes: u64,
    pub(super) options: Options,
}

impl Default for Place {
    fn default() -> Self {
        Self { target: Target::Here, root: None, max_read_bytes: DEFAULT_MAX_READ_BYTES, options: Options::default() }
    }
}

impl Place {
    /// Takes an option that says where tools run; any other is unknown.
    pub(super) fn take(&mut self, option: &str, parser: &mut lexopt::Parser) -> Result<(), Error> {
        match option {
            "on" => {
                let target = text(parser, "--on")?;
                self.target = target.parse().map_err(|error| Error::usage(format!("--on: {error}")))?;
            }
            "root" => self.root = Some(parser.value()?.into()),
            "pass-env" => {
                let names = text(parser, "--pass-env")?;
                self.options.pass_env =
                    Environment::names(&names).map_err(|error| Error::usage(format!("--pass-env: {error}")))?;
            }
            _ => return Err(Error::usage(format!("invalid option '--{option}'"))),
        }
        Ok(())
    }

    /// The tools that are there.
    pub(super) fn executor(self, cancel: &Cancel) -> Result<Box<dyn Executor>, Error> {
        match &self.target {
            Target::Here => {
                keep_commands_together();
                let settings = Settings { max_read_bytes: self.max_read_bytes };
                Ok(Box::new(InProcess::new(Arc::new(self.workspace()?), &settings)))
            }
            Target::Command(words) => {
                if self.root.is_some() {
                    return Err(Error::usage("--root and --on do not go together")
                        .hint("give the root to the command: --on cmd:'berth execute --root DIR'"));
                }
                match Remote::start(words, &self.options.pass_env, cancel) {
                    Ok(remote) => Ok(Box::new(remote)),
                    Err(crate::executor::Error::Cancelled) => Err(Error::new(Status::Interrupted, "interrupted")),
                    Err(error) => Err(Error::new(Status::Unreachable, error.to_string())),
                }
            }
        }
    }

    /// The workspace here.
    pub(super) fn workspace(self) -> Result<Workspace, Error> {
        let root = self.root.unwrap_or_else(|| PathBuf::from("."));
        Workspace::open(&root, self.options).map_err(|error| Error::new(Status::Failed, error.to_string()))
    }
}

/// An option's value as text.
pub(super) fn text(parser: &mut lexopt::Parser, option: &str) -> Result<String, Error> {
    parser.value()?.string().map_err(|error| Error::usage(format!("{option}: {error}")))
}

/// A switch that SIGINT, SIGTERM or SIGHUP throws. To be made before any thread is started, so that each has the signals blocked.
pub(super) fn interruption() -> Result<Cancel, Error> {
    let failed = |error: std::io::Error| Error::new(Status::Failed, format!("signals: {error}"));
    let termination = Termination::block().map_err(failed)?;
    let cancel = Cancel::new();
    let switch = cancel.clone();
    let wait = move || {
        if termination.wait().is_ok() {
            switch.cancel();
        }
    };
    std::thread::Builder::new().name("signals".into()).stack_size(64 * 1024).spawn(wait).map_err(failed)?;
    Ok(cancel)
}

/// Makes this process the parent of whatever loses its own below it, and keeps its environment, which still holds what commands are not
/// given, from them. Both are second walls: without them the first still stands.
pub(super) fn keep_commands_together() {
    if let Err(error) = child::adopt_orphans() {
        log::warn!("orphans are not adopted here: {error}");
    }
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        log::warn!("other processes of this user may read this one's environment: {error}");
    }
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Output {
    /// For a person.
    #[default]
    Text,
    /// For a program: one line of JSON.
    Json,
}

impl Output {
    /// Reads the value of `--output`.
    pub(super) fn read(parser: &mut lexopt::Parser) -> Result<Self, Error> {
        match text(parser, "--output")?.as_str() {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(Error::usage(format!("--output: {other:?} is neither text nor json"))),
        }
    }
}
