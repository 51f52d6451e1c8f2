//! A server under test: started, spoken to over its pipes, and looked after until nothing of it is left.
//!
//! Every receive has a deadline, no send ever blocks, and no wait is a sleep. A test that fails leaves no process behind.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, waitid};
use serde_json::{Value, json};

use crate::directory::unique;
use crate::{procfs, program};

/// How long anything may take that is expected to come. Generous: a loaded machine is no failure.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A server about to be started.
pub struct Launch {
    command: Command,
    mark: String,
    held: bool,
    nonblocking: bool,
}

impl Launch {
    /// Any program.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        let mark = unique();
        command.env(procfs::MARK, &mark).stderr(Stdio::piped());
        Self { command, mark, held: false, nonblocking: false }
    }

    /// `berth execute` in a directory.
    pub fn berth(root: &Path) -> Self {
        Self::new(program::berth()).arg("execute").arg("--root").arg(root)
    }

    /// The fixture.
    pub fn fixture() -> Self {
        Self::new(program::fixture())
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Reads none of its output until [`Server::release`].
    #[must_use]
    pub fn hold_output(mut self) -> Self {
        self.held = true;
        self
    }

    /// Gives it standard streams that do not block, as a launcher on an event loop leaves them to the programs it starts.
    #[must_use]
    pub fn nonblocking(mut self) -> Self {
        self.nonblocking = true;
        self
    }

    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(mut self) -> Server {
        let (its_input, our_input) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe can be made");
        let (our_output, its_output) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe can be made");
        if self.nonblocking {
            for end in [&its_input, &its_output] {
                fcntl_setfl(end, OFlags::NONBLOCK).expect("a pipe can be set not to block");
            }
        }
        self.command.stdin(its_input).stdout(its_output);
        let mut child = self.command.spawn().expect("the program can be started");
        let (input, bytes) = channel::<Vec<u8>>();
        let input_pipe = our_input.try_clone().ok();
        let mut stdin = File::from(our_input);
        std::thread::spawn(move || {
            for piece in bytes {
                // A server that is gone shows where its answer is waited for.
                if stdin.write_all(&piece).is_err() {
                    return;
                }
            }
        });
        let output_pipe = our_output.try_clone().ok();
        let stdout = File::from(our_output);
        let (sender, lines) = channel();
        let (release, go) = channel();
        if !self.held {
            let _ = release.send(());
        }
        std::thread::spawn(move || {
            if go.recv().is_ok() {
                forward_lines(BufReader::new(stdout), &sender);
            }
        });
        let stderr = Arc::new(Mutex::new(String::new()));
        let mut pipe = child.stderr.take().expect("stderr is a pipe");
        let (stderr_done, stderr_end) = channel();
        let text = stderr.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
                text.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
            drop(stderr_done);
        });
        Server {
            child,
            mark: self.mark,
            input: Some(input),
            input_pipe,
            output_pipe,
            lines,
            release,
            stderr,
            stderr_end,
            kept: VecDeque::new(),
            last_id: 0,
        }
    }
}

fn forward_lines(mut stdout: impl BufRead, sender: &Sender<Vec<u8>>) {
    loop {
        let mut line = Vec::new();
        match stdout.read_until(b'\n', &mut line) {
            Ok(1..) if sender.send(line).is_ok() => {}
            _ => return,
        }
    }
}

/// What a wait ended with instead of a message.
#[derive(Debug)]
pub enum Trouble {
    /// Nothing came in time.
    Late,
    /// The server wrote what is not one JSON value in one line.
    NotJson(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => write!(f, "nothing came within {} s", DEADLINE.as_secs()),
            Self::NotJson(line) => write!(f, "not a line of JSON on stdout: {line:?}"),
        }
    }
}

/// A server that runs.
pub struct Server {
    child: Child,
    mark: String,
    input: Option<Sender<Vec<u8>>>,
    input_pipe: Option<OwnedFd>,
    output_pipe: Option<OwnedFd>,
    lines: Receiver<Vec<u8>>,
    release: Sender<()>,
    stderr: Arc<Mutex<String>>,
    stderr_end: Receiver<()>,
    kept: VecDeque<Value>,
    last_id: i64,
}

/// What a tool answered.
#[derive(Debug)]
pub struct Called {
    /// The text of its blocks, one after the other, without white space at the end: whether a last line has its newline is no matter.
    pub text: String,
    /// Whether it says it failed.
    pub failed: bool,
}

impl Server {
    /// Its process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id is an i32")
    }

    /// The mark all processes below it carry, see [`procfs::marked`].
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Its memory at its highest so far, in bytes.
    pub fn peak_memory(&self) -> u64 {
        procfs::memory(self.pid(), "VmHWM")
    }

    /// Writes bytes in one piece, in order with all that was written before. Never blocks.
    pub fn write(&mut self, bytes: impl Into<Vec<u8>>) {
        if let Some(input) = &self.input {
            let _ = input.send(bytes.into());
        }
    }

    /// Writes a message.
    pub fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n"));
    }

    /// Ends its input, once all that was written has been taken.
    pub fn close_input(&mut self) {
        self.input = None;
        self.input_pipe = None;
    }

    /// Lets its output be read, where [`Launch::hold_output`] kept it.
    pub fn release(&self) {
        let _ = self.release.send(());
    }

    /// How many bytes wait in the pipe to it and in the pipe from it.
    ///
    /// # Panics
    /// After [`Server::close_input`].
    pub fn waiting(&self) -> (u64, u64) {
        let count = |pipe: &Option<OwnedFd>| {
            rustix::io::ioctl_fionread(pipe.as_ref().expect("the pipe is open")).expect("a pipe knows its fill")
        };
        (count(&self.input_pipe), count(&self.output_pipe))
    }

    /// The next message; `None` at the end of its output.
    pub fn receive(&mut self) -> Result<Option<Value>, Trouble> {
        if let Some(message) = self.kept.pop_front() {
            return Ok(Some(message));
        }
        self.receive_new()
    }

    fn receive_new(&mut self) -> Result<Option<Value>, Trouble> {
        let line = match self.lines.recv_timeout(DEADLINE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Err(Trouble::Late),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        };
        let not_json = || Trouble::NotJson(String::from_utf8_lossy(&line[..line.len().min(2000)]).into_owned());
        if line.last() != Some(&b'\n') {
            return Err(not_json());
        }
        serde_json::from_slice(&line).map(Some).map_err(|_| not_json())
    }

    /// The first message that `wanted` takes, of those kept and those that come; the others are kept.
    ///
    /// # Panics
    /// When none comes.
    pub fn wait_for(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.kept.iter().position(&wanted) {
            return self.kept.remove(at).expect("it was just found");
        }
        loop {
            match self.receive_new() {
                Ok(Some(message)) if wanted(&message) => return message,
                Ok(Some(message)) => self.kept.push_back(message),
                Ok(None) => panic!("the output ended before {what}; stderr: {}", self.stderr()),
                Err(trouble) => panic!("{trouble} while waiting for {what}; stderr: {}", self.stderr()),
            }
        }
    }

    /// The answer to a request.
    ///
    /// # Panics
    /// When none comes.
    pub fn answer(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        self.wait_for(&format!("the answer to {id}"), |message| {
            message.get("method").is_none() && message.get("id") == Some(&id)
        })
    }

    /// A notification.
    ///
    /// # Panics
    /// When none comes.
    pub fn notification(&mut self, method: &str) -> Value {
        self.wait_for(method, |message| message.get("method").and_then(Value::as_str) == Some(method))
    }

    /// Sends a request and gives its id.
    pub fn begin(&mut self, method: &str, params: &Value) -> i64 {
        self.last_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}));
        self.last_id
    }

    /// Sends a request and waits for its answer.
    pub fn request(&mut self, method: &str, params: &Value) -> Value {
        let id = self.begin(method, params);
        self.answer(id)
    }

    /// The handshake of 2025-11-25.
    ///
    /// # Panics
    /// When it is refused.
    pub fn initialize(&mut self) {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}});
        let answer = self.request("initialize", &params);
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    /// Starts a call of a tool, with its id as its progress token.
    pub fn begin_call(&mut self, tool: &str, arguments: &Value) -> i64 {
        let token = self.last_id + 1;
        self.begin("tools/call", &json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": token}}))
    }

    /// Waits until progress of a call speaks of `words`.
    ///
    /// # Panics
    /// When the call is answered before, or nothing comes.
    pub fn progress(&mut self, call: i64, words: &str) -> Value {
        let message = self.wait_for(&format!("progress of {call} with {words:?}"), |message| {
            let speaks = message["params"]["message"].as_str().is_some_and(|text| text.contains(words));
            let progressed =
                message["method"] == "notifications/progress" && message["params"]["progressToken"] == call;
            (progressed && speaks) || (message.get("method").is_none() && message["id"] == call)
        });
        assert!(message.get("method").is_some(), "answered before any progress with {words:?}: {message}");
        message
    }

    /// What a started call answers.
    pub fn outcome(&mut self, call: i64) -> Called {
        let answer = self.answer(call);
        called(&answer)
    }

    /// Calls a tool and waits for its answer.
    pub fn call(&mut self, tool: &str, arguments: &Value) -> Called {
        let answer = self.request("tools/call", &json!({"name": tool, "arguments": arguments}));
        called(&answer)
    }

    /// Calls a tool that has to succeed.
    ///
    /// # Panics
    /// When it fails.
    pub fn call_well(&mut self, tool: &str, arguments: &Value) -> String {
        let called = self.call(tool, arguments);
        assert!(!called.failed, "{tool} {arguments} failed: {}", called.text);
        called.text
    }

    /// Calls a tool that has to fail.
    ///
    /// # Panics
    /// When it succeeds.
    pub fn call_badly(&mut self, tool: &str, arguments: &Value) -> String {
        let called = self.call(tool, arguments);
        let shown: String = called.text.chars().take(300).collect();
        assert!(called.failed, "{tool} {arguments} succeeded: {shown}");
        assert!(!called.text.trim().is_empty(), "{tool} {arguments} failed without a word");
        called.text
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is there");
    }

    /// What it wrote to stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it has ended, without reaping it: `/proc` still knows it.
    ///
    /// # Panics
    /// When it does not end.
    pub fn wait_for_end(&self) {
        let pid = Pid::from_child(&self.child);
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).expect("the process is there or unreaped");
        let limit = Timespec { tv_sec: i64::try_from(DEADLINE.as_secs()).unwrap_or(20), tv_nsec: 0 };
        let mut set = [PollFd::new(&descriptor, PollFlags::IN)];
        let ready = poll(&mut set, Some(&limit)).expect("a pidfd can be polled");
        assert!(ready > 0, "the server did not end; stderr: {}", self.stderr());
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).expect("it is our child");
    }

    /// Waits until it has ended and its stderr has been read.
    ///
    /// # Panics
    /// When it does not end.
    pub fn exit_status(&mut self) -> ExitStatus {
        self.wait_for_end();
        let status = self.child.wait().expect("it is our child");
        // A process it left behind may hold stderr; that is for `assert_nothing_left` to say.
        let _ = self.stderr_end.recv_timeout(Duration::from_secs(2));
        status
    }

    /// Fails when a process that it started, at any depth, is still there. One that was killed a moment ago may still be ending.
    ///
    /// # Panics
    /// When one is.
    pub fn assert_nothing_left(&self) {
        let mut left = Vec::new();
        let gone = procfs::eventually(Duration::from_secs(2), || {
            left = procfs::marked(&self.mark);
            left.is_empty().then_some(())
        });
        assert!(gone.is_some(), "processes are left: {left:?}");
    }

    /// Ends its input and expects what a session's end must be: no further message, exit status 0, no process left.
    ///
    /// # Panics
    /// When it is not.
    pub fn finish(mut self) {
        self.close_input();
        assert!(self.kept.is_empty(), "messages nobody waited for: {:?}", self.kept);
        match self.receive() {
            Ok(None) => {}
            Ok(Some(message)) => panic!("a message nobody waited for: {message}"),
            Err(trouble) => panic!("{trouble} after the end of input; stderr: {}", self.stderr()),
        }
        let status = self.exit_status();
        assert!(status.success(), "{status}; stderr: {}", self.stderr());
        self.assert_nothing_left();
    }

    /// As [`Server::finish`], passing over messages that came meanwhile, such as trailing progress.
    ///
    /// # Panics
    /// When the end is not what it must be.
    pub fn finish_passing_over(mut self) {
        self.close_input();
        self.kept.clear();
        self.drain();
        self.finish();
    }

    /// Reads its output to its end.
    ///
    /// # Panics
    /// When it does not end.
    pub fn drain(&mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            match self.receive() {
                Ok(None) => return messages,
                Ok(Some(message)) => messages.push(message),
                Err(trouble) => panic!("{trouble} before the end of output; stderr: {}", self.stderr()),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let end = Instant::now() + Duration::from_secs(2);
        while let Some((pid, _)) = procfs::marked(&self.mark).first() {
            if let Some(pid) = Pid::from_raw(*pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
            if Instant::now() > end {
                break;
            }
        }
    }
}

/// What a tool said in an answer.
///
/// # Panics
/// When the answer is an error of the protocol.
pub fn called(answer: &Value) -> Called {
    let result = answer.get("result").unwrap_or_else(|| panic!("not a result: {answer}"));
    let blocks = result["content"].as_array().unwrap_or_else(|| panic!("no content: {answer}"));
    let text: String = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    Called { text: text.trim_end().to_owned(), failed: result["isError"] == true }
}

/// How a status reads: the exit code, or the signal.
pub fn described(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
