//! The `berth` program: the command line is read, its command run, and its end turned into an exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    berth::cli::main(std::env::args_os())
}
