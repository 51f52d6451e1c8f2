//! The `berth` program: the command line is read, its command run, and its end turned into an exit status.

use std::process::ExitCode;

/// musl's own allocator gives memory back to the kernel with almost every call and takes it anew with the next: a small `read` took four
/// times as long with it.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    berth::cli::main(std::env::args_os())
}
