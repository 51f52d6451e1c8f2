//! A server on a pair of byte streams, one message a line: standard input and output, or any other pipe (spec mcp 1.2).
//!
//! The thread that reads a message answers it, when that cannot block: a hand-over between threads costs several times what a small call
//! does. When it may block, the thread hands the *reading* to another and carries on itself (leader and followers, design 2).

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::connection::{Connection, Eras, Job, Outlet};
use super::server::Service;
use crate::jsonrpc::{Line, Lines};
use crate::os::cancel::Cancel;

/// The most threads of one connection. What cannot be begun by then waits in a queue that [`super::connection::IN_FLIGHT_MAX`] bounds.
const THREADS_MAX: usize = 64;

/// How many threads stay when there is nothing to do.
const IDLE_MAX: usize = 3;

/// Enough for a tool; address space, not memory.
const STACK_BYTES: usize = 1024 * 1024;

/// Answers that were made while more input was at hand leave together, at the latest when they are this many bytes.
const ANSWERS_MAX_BYTES: usize = 64 * 1024;

/// How many notifications may wait for a client that does not read; beyond it they are lost.
const WAITING_MAX: usize = 1024;

/// How many may wait before those that a later one replaces are lost.
const WAITING_DROPPABLE_MAX: usize = 32;

/// How long a request that is nearly done when the input ends may still take before it is cancelled.
const GRACE: Duration = Duration::from_millis(50);

/// How long a cancelled request may take to end.
const CANCELLED_GRACE: Duration = Duration::from_secs(5);

/// Why a server ended; none of them is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client closed its end of the input.
    Input,
    /// The client does not take answers any more.
    Output,
    /// The `stop` switch was thrown.
    Stopped,
}

/// Serves one connection until its input ends, its output breaks or `stop` is thrown, and the requests under way have ended.
///
/// A thread that is blocked in a read of `input`, or in a write to a client that does not read, is left behind: the caller is expected to
/// end the process, or to close what it blocks on. Fails when not even one thread can be started.
pub fn serve(
    service: Arc<dyn Service>,
    eras: Eras,
    input: impl Read + AsFd + Send + 'static,
    output: impl Write + AsFd + Send + 'static,
    stop: &Cancel,
) -> io::Result<End> {
    let (ended, end) = bounded(1);
    let outlet = Arc::new(Output::new(Box::new(output), ended.clone()));
    let connection = Connection::new(service, outlet.clone(), eras);
    let crew = Arc::new(Crew {
        input: Mutex::new(Input {
            input: Box::new(input),
            lines: Lines::default(),
            answers: Vec::new(),
            jobs: Vec::new(),
        }),
        state: Mutex::new(CrewState { threads: 1, idle: 0, waiting: VecDeque::new() }),
        changed: Condvar::new(),
        over: AtomicBool::new(false),
        connection: connection.clone(),
        outlet: outlet.clone(),
        ended: ended.clone(),
    });
    let _hook = stop.on_cancel(move || {
        let _ = ended.try_send(End::Stopped);
    });
    spawn(&crew)?;
    // The crew holds a sender, so the channel stays open.
    let end = end.recv().unwrap_or(End::Stopped);
    crew.over.store(true, Ordering::SeqCst);
    if end == End::Input {
        crew.wait_for_requests(GRACE);
    }
    connection.close();
    crew.wait_for_requests(CANCELLED_GRACE);
    outlet.finish();
    Ok(end)
}

/// The threads that take turns at reading.
struct Crew {
    /// Held by the one that reads, while it reads: the leader's badge.
    input: Mutex<Input>,
    state: Mutex<CrewState>,
    /// A request ended.
    changed: Condvar,
    over: AtomicBool,
    connection: Arc<Connection>,
    outlet: Arc<Output>,
    ended: Sender<End>,
}

struct Input {
    input: Box<dyn Source + Send>,
    lines: Lines,
    /// Answers that have not left yet.
    answers: Vec<u8>,
    jobs: Vec<Job>,
}

/// What is read from. It may have been made non-blocking by whoever shares it, so that a wait needs its descriptor.
trait Source: Read + AsFd {}

impl<T: Read + AsFd> Source for T {}

/// What is written to, likewise.
trait Sink: Write + AsFd {}

impl<T: Write + AsFd> Sink for T {}

/// Waits until a descriptor that is non-blocking can be read from or written to.
fn wait_ready(descriptor: &dyn AsFd, readiness: PollFlags) -> io::Result<()> {
    match poll(&mut [PollFd::from_borrowed_fd(descriptor.as_fd(), readiness)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

struct CrewState {
    threads: usize,
    /// Threads that wait for the badge, the leader not among them.
    idle: usize,
    /// Requests that wait for a thread.
    waiting: VecDeque<Job>,
}

fn spawn(crew: &Arc<Crew>) -> io::Result<()> {
    let crew = crew.clone();
    std::thread::Builder::new().name("mcp-stdio".into()).stack_size(STACK_BYTES).spawn(move || crew.work()).map(drop)
}

impl Crew {
    /// What each thread does: lead until there is something that may block, do that, and line up again.
    fn work(self: Arc<Self>) {
        loop {
            {
                let mut state = self.state();
                if let Some(job) = state.waiting.pop_front() {
                    drop(state);
                    self.run(job);
                    continue;
                }
                if state.idle >= IDLE_MAX || self.over.load(Ordering::SeqCst) {
                    state.threads -= 1;
                    return;
                }
                state.idle += 1;
            }
            let input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
            self.state().idle -= 1;
            match self.lead(input) {
                Some(job) => self.run(job),
                None => {
                    self.state().threads -= 1;
                    return;
                }
            }
        }
    }

    fn run(&self, job: Job) {
        job.run();
        // Under the lock, so that the one who counts requests cannot miss it.
        let _state = self.state();
        self.changed.notify_all();
    }

    /// Reads and answers until a request may block, which is the caller's to run once the badge is down; `None` at the end of the input.
    fn lead(self: &Arc<Self>, mut input: MutexGuard<'_, Input>) -> Option<Job> {
        loop {
            if self.over.load(Ordering::SeqCst) {
                return None;
            }
            let Input { input: source, lines, answers, jobs } = &mut *input;
            match lines.next_line() {
                Some(Line::Message(line)) => self.connection.receive(line, answers, jobs),
                Some(Line::TooLong { bytes, owner }) => self.connection.too_long(bytes, owner.as_ref(), answers),
                None => {
                    self.outlet.flush_answers(answers);
                    match source.read(lines.space()) {
                        Ok(0) => {
                            let _ = self.ended.try_send(End::Input);
                            return None;
                        }
                        Ok(count) => lines.filled(count),
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error)
                            if error.kind() == io::ErrorKind::WouldBlock
                                && wait_ready(&*source, PollFlags::IN).is_ok() => {}
                        Err(error) => {
                            log::warn!("the input broke: {error}");
                            let _ = self.ended.try_send(End::Input);
                            return None;
                        }
                    }
                }
            }
            if answers.len() >= ANSWERS_MAX_BYTES || !jobs.is_empty() {
                self.outlet.flush_answers(answers);
            }
            if let Some(job) = self.place(jobs) {
                return Some(job);
            }
        }
    }

    /// Finds threads for jobs: the leader takes the first itself when another can take the badge; the others, which only a batch has, and
    /// those that find every thread taken wait in the queue, where each thread looks before it lines up.
    fn place(self: &Arc<Self>, jobs: &mut Vec<Job>) -> Option<Job> {
        let mut mine = None;
        for job in jobs.drain(..) {
            let mut state = self.state();
            let relieved = state.idle > 0 || (state.threads < THREADS_MAX && self.enlist(&mut state));
            // Without a second thread there is nobody to take from the queue, so the leader does it and reads on afterwards.
            if (relieved || state.threads == 1) && mine.is_none() {
                mine = Some(job);
            } else {
                state.waiting.push_back(job);
            }
        }
        mine
    }

    /// Starts a thread, which looks in the queue first and lines up for the badge then.
    fn enlist(self: &Arc<Self>, state: &mut CrewState) -> bool {
        match spawn(self) {
            Ok(()) => state.threads += 1,
            Err(error) => {
                log::warn!("no further thread: {error}");
                return false;
            }
        }
        true
    }

    /// Waits until no request is under way, for at most `grace`.
    fn wait_for_requests(&self, grace: Duration) {
        let deadline = Instant::now() + grace;
        let mut state = self.state();
        while self.connection.under_way() > 0 {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, CrewState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way out: one writer under a lock held for one write, and a thread for what must not wait.
struct Output {
    writer: Arc<Writer>,
    /// The thread for what was offered, started when something first is.
    behind: Mutex<Option<Behind>>,
}

struct Writer {
    stream: Mutex<Box<dyn Sink + Send>>,
    ended: Sender<End>,
}

struct Behind {
    queue: Sender<Vec<u8>>,
    /// Disconnected once the queue has been written.
    done: Receiver<()>,
}

impl Writer {
    /// Writes whole lines. A client that does not read makes this wait, and with it the reading of its requests: that is the bound on
    /// what it can have waiting.
    fn write(&self, bytes: &[u8]) {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = match stream.write(rest) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    Ok(())
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_ready(&*stream, PollFlags::OUT),
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                log::debug!("the output broke: {error}");
                let _ = self.ended.try_send(End::Output);
                return;
            }
        }
    }
}

impl Output {
    fn new(stream: Box<dyn Sink + Send>, ended: Sender<End>) -> Self {
        Self { writer: Arc::new(Writer { stream: Mutex::new(stream), ended }), behind: Mutex::new(None) }
    }

    /// Writes answers that have their newlines already, and empties the buffer.
    fn flush_answers(&self, answers: &mut Vec<u8>) {
        if !answers.is_empty() {
            self.writer.write(answers);
            answers.clear();
            answers.shrink_to(ANSWERS_MAX_BYTES);
        }
    }

    /// The queue of what is offered; `None` when its thread cannot be started.
    fn queue(&self) -> Option<Sender<Vec<u8>>> {
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(behind) = &*behind {
            return Some(behind.queue.clone());
        }
        let (queue, waiting) = bounded::<Vec<u8>>(WAITING_MAX);
        let (alive, done) = bounded::<()>(0);
        let writer = self.writer.clone();
        let started = std::thread::Builder::new().name("mcp-notify".into()).stack_size(STACK_BYTES).spawn(move || {
            // Dropped with the thread, which is how its end is seen.
            let _alive = alive;
            for message in waiting {
                writer.write(&message);
            }
        });
        if let Err(error) = started {
            log::warn!("no thread for notifications: {error}");
            return None;
        }
        *behind = Some(Behind { queue: queue.clone(), done });
        Some(queue)
    }

    /// Lets what was offered leave, within a grace: the client may not be reading any more.
    fn finish(&self) {
        let behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Behind { queue, done }) = behind {
            drop(queue);
            let _ = done.recv_timeout(GRACE);
        }
    }
}

impl Outlet for Output {
    fn send(&self, message: &[u8]) {
        let mut line = Vec::with_capacity(message.len() + 1);
        line.extend_from_slice(message);
        line.push(b'\n');
        self.writer.write(&line);
    }

    fn offer(&self, mut message: Vec<u8>, droppable: bool) -> bool {
        let Some(queue) = self.queue() else { return false };
        if droppable && queue.len() >= WAITING_DROPPABLE_MAX {
            return false;
        }
        message.push(b'\n');
        match queue.try_send(message) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                log::warn!("a notification was lost: {WAITING_MAX} wait for a client that does not read");
                false
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }

    fn send_behind_offers(&self, mut message: Vec<u8>) {
        message.push(b'\n');
        match self.queue() {
            Some(queue) => drop(queue.send(message)),
            None => self.writer.write(&message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonrpc::ErrorObject;
    use crate::mcp::server::{Client, Notifier, Offer, Outcome, Page, Request, Session, unknown_tool};
    use crate::mcp::types::{CallResult, Tool};
    use serde_json::Value;
    use serde_json::value::RawValue;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixStream;
    use std::thread::JoinHandle;

    /// Offers `now`, which answers where it was read, `wait`, which waits for its cancellation, and `panic`.
    struct Program;

    struct Offered;

    impl Service for Program {
        fn open(&self, _client: &Client, _notifier: Notifier) -> Result<Arc<dyn Session>, ErrorObject> {
            Ok(Arc::new(Offered))
        }
    }

    impl Session for Offered {
        fn offer(&self) -> Offer {
            Offer { tools: Some(true), logging: true, ..Offer::default() }
        }

        fn tools(&self, cursor: Option<&str>) -> Result<Page<Tool>, ErrorObject> {
            Page::whole(vec![Tool::new("now", "", RawValue::from_string("{}".into()).unwrap())], cursor)
        }

        fn call_tool_now(
            &self,
            name: &str,
            _arguments: Option<&RawValue>,
            _request: &Request<'_>,
        ) -> Option<Result<Outcome<CallResult>, ErrorObject>> {
            (name == "now").then(|| Ok(Outcome::Complete(CallResult::text("now"))))
        }

        fn call_tool(
            &self,
            name: &str,
            _arguments: Option<&RawValue>,
            request: &Request<'_>,
        ) -> Result<Outcome<CallResult>, ErrorObject> {
            match name {
                "wait" => {
                    request.progress(None, None, Some("waiting"));
                    let (thrown, cancelled) = bounded::<()>(0);
                    let _hook = request.cancel().on_cancel(move || drop(thrown));
                    let _ = cancelled.recv();
                    Ok(Outcome::Complete(CallResult::text("late")))
                }
                "panic" => panic!("on purpose"),
                _ => Err(unknown_tool(name)),
            }
        }
    }

    struct Peer {
        write: UnixStream,
        read: BufReader<UnixStream>,
        served: Option<JoinHandle<End>>,
        stop: Cancel,
    }

    impl Peer {
        fn new() -> Self {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let stop = Cancel::new();
            let (input, output) = (theirs.try_clone().unwrap(), theirs);
            let switch = stop.clone();
            let served =
                std::thread::spawn(move || serve(Arc::new(Program), Eras::default(), input, output, &switch).unwrap());
            ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            Self { write: ours.try_clone().unwrap(), read: BufReader::new(ours), served: Some(served), stop }
        }

        fn greeted() -> Self {
            let mut peer = Self::new();
            peer.send(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}"#);
            assert_eq!(peer.next()["result"]["protocolVersion"], "2025-03-26");
            peer
        }

        fn send(&mut self, line: &str) {
            writeln!(self.write, "{line}").unwrap();
        }

        fn call(&mut self, id: i32, name: &str) {
            self.send(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{name}","_meta":{{"progressToken":{id}}}}}}}"#
            ));
        }

        fn next(&mut self) -> Value {
            let mut line = String::new();
            self.read.read_line(&mut line).unwrap();
            serde_json::from_str(&line).unwrap()
        }

        fn end(&mut self) -> End {
            self.served.take().unwrap().join().unwrap()
        }
    }

    #[test]
    fn a_call_that_waits_holds_nobody_up_and_its_cancel_is_read() {
        let mut peer = Peer::greeted();
        for id in 1..=100 {
            peer.call(id, "wait");
        }
        // More calls wait than there are threads; the reading goes on.
        peer.call(200, "now");
        let mut progressed = 0;
        loop {
            let message = peer.next();
            if message["id"] == 200 {
                break;
            }
            assert_eq!(message["method"], "notifications/progress");
            progressed += 1;
        }
        assert!(progressed <= 100);
        for id in 1..=100 {
            peer.send(&format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
            ));
        }
        peer.call(201, "now");
        // A cancelled request is not answered (spec mcp 1.1).
        while peer.next()["id"] != 201 {}
        peer.write.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(peer.end(), End::Input);
    }

    #[test]
    fn a_panic_ends_its_request_alone() {
        let mut peer = Peer::greeted();
        peer.call(1, "panic");
        let answer = peer.next();
        assert_eq!((answer["id"].as_i64(), answer["error"]["code"].as_i64()), (Some(1), Some(-32603)));
        assert!(!answer.to_string().contains("on purpose"), "{answer}");
        peer.call(2, "now");
        assert_eq!(peer.next()["result"]["content"][0]["text"], "now");
    }

    #[test]
    fn a_batch_is_answered_member_by_member_and_its_calls_run_side_by_side() {
        let mut peer = Peer::greeted();
        let call = |id: i32, name: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{name}"}}}}"#)
        };
        peer.send(&format!("[{},{},{}]", call(1, "wait"), call(2, "wait"), call(3, "now")));
        assert_eq!(peer.next()["id"], 3);
        peer.stop.cancel();
        assert_eq!(peer.end(), End::Stopped);
    }

    #[test]
    fn stopping_ends_what_waits() {
        let mut peer = Peer::greeted();
        peer.call(1, "wait");
        assert_eq!(peer.next()["method"], "notifications/progress");
        peer.stop.cancel();
        assert_eq!(peer.end(), End::Stopped);
    }
}
