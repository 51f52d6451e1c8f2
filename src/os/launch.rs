//! How a command's process comes to be: a fresh child of its reaper that turns itself into the program it was planned to run.
//!
//! All of this runs after a fork of a process with threads, so it may only do what a signal handler may (see `os/reaper`): no
//! allocation, no lock, no panic.

#![allow(unsafe_code)] // clone, and the code that runs between it and exec.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::libc;
use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Signal, WaitOptions, fchdir, getppid, getrlimit, set_parent_process_death_signal, setsid, waitpid,
};

use super::reaper::{Report, say};

/// What a command is started with: plain numbers and pointers, made before the fork, where memory may still be asked for.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// The program, a path; relative to `directory`.
    pub(super) program: *const c_char,
    /// Arguments, the program's name first, ended by a null pointer.
    pub(super) arguments: *const *const c_char,
    /// `NAME=value` strings, ended by a null pointer.
    pub(super) environment: *const *const c_char,
    /// The directory the command starts in.
    pub(super) directory: c_int,
    /// The command's standard input, output and error. The last two may be the same descriptor.
    pub(super) standard: [c_int; 3],
    /// The reaper's end of the channel.
    pub(super) channel: c_int,
}

/// What could not be done when a command was to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Memory, processes or descriptors ran out.
    Prepare,
    /// The directory could not be entered.
    Directory,
    /// The program could not be executed.
    Program,
}

impl Stage {
    /// The stage `as i32` gave the number of.
    pub(super) const fn from_number(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Prepare),
            1 => Some(Self::Directory),
            2 => Some(Self::Program),
            _ => None,
        }
    }
}

/// What the command's process is made of, shared with it until it executes its program.
struct Launch<'a> {
    plan: &'a Plan,
    parent: Pid,
    stage: AtomicI32,
    errno: AtomicI32,
}

/// The stack the command's process stands on until it executes its program. Used by a reaper only, which starts one command.
#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; Stack::SIZE]>);

impl Stack {
    const SIZE: usize = 64 * 1024;
}

// SAFETY: no thread of Berth touches it. A reaper does, in its own copy, and has one thread.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; Stack::SIZE]));

/// Starts the command. Shares memory with its process until the program is executed, as `posix_spawn` does, so that the
/// reaper's pages are not copied once more and a failure needs no pipe to be told.
pub(super) fn launch(plan: &Plan, parent: Pid) -> Result<Pid, (Stage, Errno)> {
    let launch = Launch { plan, parent, stage: AtomicI32::new(0), errno: AtomicI32::new(0) };
    // SAFETY: one past the end of the stack, which grows downwards; the address is a multiple of 16.
    let top = unsafe { STACK.0.get().cast::<u8>().add(Stack::SIZE) };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is used by nothing else, and `launch` outlives its use: CLONE_VFORK holds this process until the
    // child has executed its program or ended.
    let cloned = unsafe { libc::clone(become_command, top.cast(), flags, (&raw const launch).cast_mut().cast()) };
    let pid = Pid::from_raw(cloned.max(0)).ok_or_else(|| (Stage::Prepare, last_errno()))?;
    let errno = launch.errno.load(Ordering::SeqCst);
    if errno == 0 {
        return Ok(pid);
    }
    while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
    let stage = Stage::from_number(launch.stage.load(Ordering::SeqCst)).unwrap_or(Stage::Prepare);
    Err((stage, Errno::from_raw_os_error(errno)))
}

/// Turns a fresh child of the reaper into the command.
extern "C" fn become_command(launch: *mut c_void) -> c_int {
    // SAFETY: `launch` passed a pointer to one that lives until this process has another memory.
    let launch = unsafe { &*launch.cast::<Launch<'_>>() };
    if let Err((stage, errno)) = try_become_command(launch) {
        launch.stage.store(stage as i32, Ordering::SeqCst);
        launch.errno.store(errno.raw_os_error(), Ordering::SeqCst);
    }
    exit()
}

/// Returns only with an error.
fn try_become_command(launch: &Launch<'_>) -> Result<(), (Stage, Errno)> {
    let prepare = |errno| (Stage::Prepare, errno);
    let plan = launch.plan;
    // A second wall: a command that kills its own parent ends itself.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(prepare)?;
    if getppid() != Some(launch.parent) {
        exit();
    }
    // Own session and process group, and no controlling terminal: a prompt on /dev/tty fails at once instead of waiting.
    let own = setsid().map_err(prepare)?;
    // Not left to the reaper: a command may kill it before it has said a word, and its group must be found all the same.
    say(plan.channel, &Report::Born(own.as_raw_pid()).encode());
    // SAFETY: the descriptor is open: it was kept, and nothing here closes it before.
    fchdir(unsafe { BorrowedFd::borrow_raw(plan.directory) }).map_err(|errno| (Stage::Directory, errno))?;
    for (descriptor, wanted) in plan.standard.into_iter().zip(0..) {
        // SAFETY: plain numbers. All sources lie above 2, so none is overwritten before its turn and close-on-exec is cleared.
        if unsafe { libc::dup2(descriptor, wanted) } < 0 {
            return Err(prepare(last_errno()));
        }
    }
    // Whatever else is open is ours and closes on exec, but for the directory, which is the caller's.
    close(plan.directory);
    reset_signals();
    // SAFETY: the plan's pointers hold (see `fork`), and the strings and lists end as execve wants them to.
    unsafe { libc::execve(plan.program, plan.arguments, plan.environment) };
    Err((Stage::Program, last_errno()))
}

/// Gives every signal its default disposition, those that were ignored too (SIGPIPE is, in Rust; SIGHUP, under nohup), then
/// unblocks all. In this order, for a handler of Berth's must not run here.
fn reset_signals() {
    // The kernel's own structure, whose length differs between machines: all zero is the default handler, no flags, nothing masked.
    let default = [0u64; 8];
    for signal in 1..=64 {
        // The system call itself, since the C library keeps two signals from its callers.
        // SAFETY: the structure is at least as long as the kernel's; SIGKILL and SIGSTOP are refused, which is as it should be.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null::<c_void>(), 8usize) };
    }
    let none = 0u64;
    // SAFETY: a set of 64 signals is eight bytes for the kernel.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, ptr::null::<c_void>(), 8usize)
    };
}

/// Closes everything but what the plan names, which is moved above 2, where the command's own will be.
///
/// Berth's standard input and output must not stay open here: a client that reads to the end would wait for the reaper.
pub(super) fn keep_only(plan: &mut Plan) -> Result<(), Errno> {
    let [input, output, error] = &mut plan.standard;
    let mut kept = [0; 5];
    for (keep, descriptor) in kept.iter_mut().zip([input, output, error, &mut plan.directory, &mut plan.channel]) {
        if *descriptor <= 2 {
            // SAFETY: the caller's descriptor is open in this copy of its table.
            let held = unsafe { BorrowedFd::borrow_raw(*descriptor) };
            *descriptor = rustix::io::fcntl_dupfd_cloexec(held.as_fd(), 3)?.into_raw_fd();
        }
        *keep = *descriptor;
    }
    kept.sort_unstable();
    let mut next = 0;
    for descriptor in kept {
        if descriptor > next {
            close_between(next, descriptor.saturating_sub(1));
        }
        next = descriptor.saturating_add(1);
    }
    close_between(next, c_int::MAX);
    Ok(())
}

/// Closes the descriptors from `first` to `last`, both included.
fn close_between(first: c_int, last: c_int) {
    // SAFETY: plain numbers. What is closed is this process's copy, and nothing in it uses them any more.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // Linux before 5.9, or a filter that does not know the call. A limit can be a thousand million, so it is not believed beyond this.
    const MOST: u64 = 65_536;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(MOST).min(MOST);
    let limit = c_int::try_from(limit).unwrap_or(c_int::MAX);
    close_each(first, last.min(limit));
}

fn close_each(first: c_int, last: c_int) {
    for descriptor in first..=last {
        close(descriptor);
    }
}

/// Closes a descriptor of this process's copy of the table.
pub(super) fn close(descriptor: c_int) {
    // SAFETY: a plain number; the caller is done with it.
    unsafe { libc::close(descriptor) };
}

/// Ends this process without running anything of Berth's.
pub(super) fn exit() -> ! {
    // SAFETY: always sound: nothing runs after it.
    unsafe { libc::_exit(0) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_close_range_the_same_descriptors_are_closed() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let open = |number: c_int| std::path::Path::new(&format!("/proc/self/fd/{number}")).exists();
        // Far above what other tests of this process open.
        let made: Vec<c_int> =
            (0..4).map(|_| rustix::io::fcntl_dupfd_cloexec(&file, 700).unwrap().into_raw_fd()).collect();
        close_each(made[1], made[2]);
        assert_eq!(made.iter().map(|number| open(*number)).collect::<Vec<_>>(), [true, false, false, true]);
        close(made[0]);
        close(made[3]);
    }
}
