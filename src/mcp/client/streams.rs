//! Messages over a pair of byte streams, one on a line: a child's pipes, a socket (spec mcp 1.2).
//!
//! A caller writes on its own thread, since a hand-over to another would cost more than the write. Only what the pipe has no room for is
//! left to the one thread that also reads, so that no caller ever hangs in a write to a server that does not read.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::error::{Closed, Ended};
use super::outbox::Outbox;
use super::printable;
use super::process::{Process, timespec};
use super::transport::{Inbox, Outgoing, SendError, Transport, Until};
use crate::jsonrpc::{LINE_MAX_BYTES, Line, Lines};

/// How much is still read from a server that has ended: what a pipe can hold. One of its children may go on writing for ever.
const DRAIN_MAX_BYTES: usize = 1024 * 1024;

/// How long a server that closed its output is given to end, so that its exit status can be told.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How much of a server's standard error is kept.
const TAIL_BYTES: usize = 4096;

/// What the reading thread needs: a message is parsed on it, at most 128 levels deep.
const STACK_BYTES: usize = 512 * 1024;

/// A [`Transport`] over two descriptors. Both are made non-blocking, and so is whoever shares their open file descriptions.
pub struct Streams {
    reading: Mutex<Option<Reading>>,
    out: Arc<Outbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Streams {
    /// Reads messages from `read` and writes them to `write`, which may be two handles of one socket.
    ///
    /// Fails when the process is out of descriptors.
    pub fn new(read: impl Into<OwnedFd>, write: impl Into<OwnedFd>) -> io::Result<Self> {
        Self::beside(read.into(), write.into(), None)
    }

    /// As [`Streams::new`], watching a server's process as well.
    pub(super) fn beside(read: OwnedFd, write: OwnedFd, beside: Option<Beside>) -> io::Result<Self> {
        let (woken, wake) = io::pipe()?;
        for descriptor in [&read, &write] {
            rustix::io::ioctl_fionbio(descriptor, true)?;
        }
        if let Some(stderr) = beside.as_ref().and_then(|beside| beside.stderr.as_ref()) {
            rustix::io::ioctl_fionbio(stderr, true)?;
        }
        rustix::io::ioctl_fionbio(&wake, true)?;
        rustix::io::ioctl_fionbio(&woken, true)?;
        Ok(Self {
            reading: Mutex::new(Some(Reading { read, woken, beside })),
            out: Arc::new(Outbox::new(write, wake)),
            thread: Mutex::new(None),
        })
    }

    /// Closes the writing end: a server on a pipe sees the end of its input. Reading goes on.
    pub(super) fn end_input(&self) {
        self.out.end();
    }
}

impl Transport for Streams {
    fn start(&self, inbox: Inbox) -> io::Result<()> {
        let Some(mut reading) = lock(&self.reading).take() else {
            return Err(io::ErrorKind::AlreadyExists.into());
        };
        let out = Arc::clone(&self.out);
        let thread = thread::Builder::new().name("mcp client".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            let closed = reading.run(&out, &inbox);
            out.end();
            // The descriptors are closed before anybody is told that it is over.
            drop(reading);
            inbox.closed(closed);
        })?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    fn send(&self, message: &Outgoing<'_>, until: &Until<'_>) -> Result<(), SendError> {
        Outbox::send(&self.out, message.text, until)
    }

    fn close(&self) {
        self.out.stop();
        drop(lock(&self.reading).take());
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // A panic there has been printed; there is nothing else to do about it.
            let _ = thread.join();
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.close();
    }
}

/// What is watched beside the messages of a server that was started here.
pub(super) struct Beside {
    /// Its standard error, where it is captured.
    pub(super) stderr: Option<OwnedFd>,
    /// What is kept of it.
    pub(super) tail: Stderr,
    /// Its process.
    pub(super) process: Arc<Process>,
}

/// The last of what a server wrote to its standard error.
#[derive(Clone, Default)]
pub struct Stderr(Arc<Mutex<VecDeque<u8>>>);

impl Stderr {
    /// The last 4 KiB, cleaned of control characters.
    pub fn tail(&self) -> String {
        let mut kept = lock(&self.0);
        printable::lines(kept.make_contiguous())
    }

    fn take(&self, bytes: &[u8]) {
        let mut kept = lock(&self.0);
        let bytes = bytes.get(bytes.len().saturating_sub(TAIL_BYTES)..).unwrap_or_default();
        let over = (kept.len() + bytes.len()).saturating_sub(TAIL_BYTES);
        kept.drain(..over);
        kept.extend(bytes);
    }
}

/// The reading half, owned by the thread.
struct Reading {
    read: OwnedFd,
    woken: io::PipeReader,
    beside: Option<Beside>,
}

/// What a read came to.
enum Got {
    Bytes(usize),
    NothingYet,
    End(Ended),
}

impl Reading {
    /// Reads until the end, and says which it was.
    fn run(&mut self, out: &Outbox, inbox: &Inbox) -> Closed {
        let mut lines = Lines::new(LINE_MAX_BYTES);
        loop {
            if out.stopped() {
                return self.closed(Ended::ByUs);
            }
            let writing = out.wants_room();
            let happened = match self.wait(true, writing.as_deref(), None) {
                Ok(happened) => happened,
                Err(error) => return self.closed(Ended::Broken(error.kind())),
            };
            drop(writing);
            if happened.writable {
                out.flush();
            }
            if happened.stderr {
                self.hear_stderr();
            }
            if happened.readable {
                match self.read(&mut lines, inbox) {
                    Got::Bytes(_) | Got::NothingYet => {}
                    Got::End(how) => return self.after_the_end(how, out),
                }
            }
            if happened.exited {
                let mut drained = 0;
                while let Got::Bytes(count) = self.read(&mut lines, inbox) {
                    drained += count;
                    if drained > DRAIN_MAX_BYTES {
                        break;
                    }
                }
                return self.closed(Ended::EndOfStream);
            }
        }
    }

    /// Waits for something to happen, or for `deadline`. An output that is at its end would end every wait at once, so it is left out then.
    fn wait(&mut self, reading: bool, writing: Option<&OwnedFd>, deadline: Option<Instant>) -> io::Result<Happened> {
        let stderr = self.beside.as_ref().and_then(|beside| beside.stderr.as_ref());
        let exit = self.beside.as_ref().map(|beside| beside.process.exit());
        let mut set = vec![PollFd::new(&self.woken, PollFlags::IN)];
        let mut add = |descriptor| {
            set.push(descriptor);
            set.len() - 1
        };
        let readable = reading.then(|| add(PollFd::new(&self.read, PollFlags::IN)));
        let writable = writing.map(|write| add(PollFd::new(write, PollFlags::OUT)));
        let stderr = stderr.map(|stderr| add(PollFd::new(stderr, PollFlags::IN)));
        let exited = exit.map(|exit| add(PollFd::from_borrowed_fd(exit, PollFlags::IN)));
        loop {
            match poll(&mut set, timespec(deadline).as_ref()) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let ready = |at: Option<usize>| at.and_then(|at| set.get(at)).is_some_and(|one| !one.revents().is_empty());
        let happened = Happened {
            readable: ready(readable),
            writable: ready(writable),
            stderr: ready(stderr),
            exited: ready(exited),
        };
        if ready(Some(0)) {
            let _ = self.woken.read(&mut [0; 64]);
        }
        Ok(happened)
    }

    /// Reads once, and delivers every line that is whole.
    fn read(&self, lines: &mut Lines, inbox: &Inbox) -> Got {
        match rustix::io::read(&self.read, lines.space()) {
            Ok(0) => Got::End(Ended::EndOfStream),
            Ok(count) => {
                lines.filled(count);
                while let Some(line) = lines.next_line() {
                    match line {
                        Line::Message(text) => inbox.message(text),
                        Line::TooLong { bytes, owner } => inbox.too_long(bytes, owner.as_ref()),
                    }
                }
                Got::Bytes(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => Got::NothingYet,
            Err(error) => Got::End(Ended::Broken(io::Error::from(error).kind())),
        }
    }

    /// Keeps what the server wrote to its standard error; false when there was nothing.
    fn hear_stderr(&mut self) -> bool {
        let Some(beside) = &mut self.beside else { return false };
        let Some(stderr) = &beside.stderr else { return false };
        let mut buffer = [0; TAIL_BYTES];
        match rustix::io::read(stderr, &mut buffer) {
            Ok(count) if count > 0 => {
                beside.tail.take(buffer.get(..count).unwrap_or_default());
                return true;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => beside.stderr = None,
        }
        false
    }

    /// A server that closed its output is mostly about to end: its exit status says more than the end of a stream.
    fn after_the_end(&mut self, how: Ended, out: &Outbox) -> Closed {
        let deadline = Instant::now() + LAST_WORDS;
        while self.beside.is_some() && !out.stopped() && Instant::now() < deadline {
            match self.wait(false, None, Some(deadline)) {
                Ok(happened) if !happened.exited => {}
                _ => break,
            }
            self.hear_stderr();
        }
        self.closed(how)
    }

    /// The end with all that is known of it.
    fn closed(&mut self, how: Ended) -> Closed {
        let mut reads = 0;
        while reads < DRAIN_MAX_BYTES / TAIL_BYTES && self.hear_stderr() {
            reads += 1;
        }
        let Some(beside) = &self.beside else { return Closed::new(how) };
        let how = match beside.process.reap() {
            Some(status) if how != Ended::ByUs => Ended::Exited(status),
            _ => how,
        };
        Closed { how, stderr: beside.tail.tail() }
    }
}

/// What a wait ended with.
struct Happened {
    readable: bool,
    writable: bool,
    stderr: bool,
    exited: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;

    use serde_json::value::RawValue;
    use serde_json::{Value, json};

    use super::super::testing::{SOON, legacy, options};
    use super::super::{CallOptions, Client, EraChoice, Error};
    use super::*;
    use crate::os::cancel::Cancel;

    fn padded(bytes: usize) -> Box<RawValue> {
        RawValue::from_string(format!(r#"{{"x":"{}"}}"#, "x".repeat(bytes))).unwrap()
    }

    /// A server that does not read holds up nobody for longer than they want, and loses nothing when it reads again.
    #[test]
    fn a_server_that_does_not_read_hangs_no_caller() {
        let (go, gone) = crossbeam_channel::bounded(1);
        let (client, server) = legacy(move |peer| {
            gone.recv_timeout(SOON).unwrap();
            let mut methods = Vec::new();
            loop {
                let message = peer.hear();
                let method = message["method"].as_str().unwrap().to_owned();
                match method.as_str() {
                    "x/last" => {
                        peer.answer(&message, json!({}));
                        return methods;
                    }
                    "notifications/cancelled" => {}
                    _ => methods.push((method, message["params"]["x"].as_str().unwrap().len())),
                }
            }
        });
        let quick = || CallOptions { timeout: Some(Duration::from_millis(10)), ..CallOptions::default() };
        // As much as the socket takes, and as much as may wait.
        for _ in 0..12 {
            let error = client.request("x/fill", Some(&padded(300_000)), quick()).unwrap_err();
            assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        }
        // No room any more, for any length of time.
        let started = Instant::now();
        let cancel = Cancel::new();
        let outcome = thread::scope(|scope| {
            let waiting =
                scope.spawn(|| client.request("x/never", Some(&padded(10)), CallOptions::cancelled_by(&cancel)));
            assert!(client.request("x/fill", Some(&padded(300_000)), quick()).is_err());
            cancel.cancel();
            waiting.join().unwrap()
        });
        assert!(matches!(outcome, Err(Error::Cancelled)));
        assert!(started.elapsed() < SOON);
        go.send(()).unwrap();
        client.request("x/last", None, CallOptions::default()).unwrap();
        let heard = server.join().unwrap();
        let filled = heard.iter().filter(|(method, _)| method == "x/fill").count();
        assert!(heard.iter().all(|(_, length)| *length == 300_000));
        assert!((2..13).contains(&filled), "some found room and some did not: {filled}");
    }

    #[test]
    fn large_messages_of_many_callers_never_mix() {
        let (client, server) = legacy(|peer| {
            for _ in 0..64 {
                let request = peer.expect("x/echo");
                peer.answer(&request, request["params"].clone());
            }
        });
        thread::scope(|scope| {
            for caller in 0..8usize {
                let client = &client;
                scope.spawn(move || {
                    for call in 0..8usize {
                        let params = padded(caller * 40_000 + call);
                        let result = client.request("x/echo", Some(&params), CallOptions::default()).unwrap();
                        assert_eq!(result.get(), params.get());
                    }
                });
            }
        });
        server.join().unwrap();
    }

    /// Trap T8: a message that comes in pieces, while others go out.
    #[test]
    fn a_message_may_come_in_pieces() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || {
            let mut read = BufReader::new(theirs.try_clone().unwrap());
            let mut line = String::new();
            read.read_line(&mut line).unwrap();
            let answer =
                json!({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "2025-11-25", "capabilities": {}}});
            for byte in format!("{answer}\n").into_bytes() {
                theirs.write_all(&[byte]).unwrap();
            }
            read.read_line(&mut line).unwrap();
            theirs.write_all(br#"{"jsonrpc":"2.0","id":"never whole""#).unwrap();
            line
        });
        let streams = Streams::new(ours.try_clone().unwrap(), ours).unwrap();
        let client = Client::connect(streams, options(EraChoice::Legacy)).unwrap();
        assert!(server.join().unwrap().contains("notifications/initialized"));
        // The end of the stream comes with half a message, which is none.
        let error = client.request("x/y", None, CallOptions::default()).unwrap_err();
        assert!(matches!(&error, Error::Closed(_)), "{error}");
        assert_eq!(client.skipped_lines(), 0);
    }

    #[test]
    fn dropping_a_client_closes_its_streams_at_once() {
        let (client, server) = legacy(|peer| peer.hear());
        drop(client);
        assert_eq!(server.join().unwrap(), Value::Null);
    }

    #[test]
    fn a_server_that_closes_its_input_alone_is_told_apart() {
        let (their_read, our_write) = io::pipe().unwrap();
        let (our_read, their_write) = io::pipe().unwrap();
        let server = thread::spawn(move || {
            let mut read = BufReader::new(File::from(OwnedFd::from(their_read)));
            let mut line = String::new();
            read.read_line(&mut line).unwrap();
            let answer =
                json!({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "2025-11-25", "capabilities": {}}});
            (&their_write).write_all(format!("{answer}\n").as_bytes()).unwrap();
            read.read_line(&mut line).unwrap();
            their_write
        });
        let client = Client::connect(Streams::new(our_read, our_write).unwrap(), options(EraChoice::Legacy)).unwrap();
        let their_write = server.join().unwrap();
        let error = client.request("x/y", None, CallOptions::default()).unwrap_err();
        assert!(matches!(&error, Error::Closed(closed) if closed.how == Ended::NotReading), "{error}");
        assert!(client.notify("x/y", None).is_err());
        drop(their_write);
    }
}
