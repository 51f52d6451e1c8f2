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

use crossbeam_channel::{Receiver, Sender, bounded};
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
const CANCELLED_GRACE: Duration = Duration::from_secs(2);

/// How many bytes may wait behind a client that does not read before an answer waits to be queued.
const WAITING_MAX_BYTES: usize = 16 * 1024 * 1024;

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
        state: Mutex::new(CrewState { threads: 0, idle: 0, waiting: VecDeque::new() }),
        changed: Condvar::new(),
        over: AtomicBool::new(false),
        connection: connection.clone(),
        outlet: outlet.clone(),
        ended: ended.clone(),
    });
    let _hook = stop.on_cancel(move || {
        let _ = ended.try_send(End::Stopped);
    });
    if !crew.enlist(&mut crew.state(), &mut None) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // The crew holds a sender, so the channel stays open.
    let end = end.recv().unwrap_or(End::Stopped);
    crew.over.store(true, Ordering::SeqCst);
    if end == End::Input {
        crew.wait_for_requests(GRACE);
        match connection.under_way() {
            0 => {}
            count => log::warn!("the input ended: calls that were still running are cancelled, {count} of them"),
        }
    }
    connection.close();
    let waiting = std::mem::take(&mut crew.state().waiting);
    waiting.into_iter().for_each(Job::abandon);
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

impl Crew {
    /// What each thread does: lead until there is something that may block, do that, and line up again.
    fn work(self: Arc<Self>, first: Option<Job>) {
        // A thread that was started to take the badge takes it, whatever waits in the queue: nobody else may be there to read.
        let mut may_do_other_work = first.is_some();
        if let Some(job) = first {
            self.run(job);
        }
        loop {
            {
                let mut state = self.state();
                if may_do_other_work {
                    if let Some(job) = state.waiting.pop_front() {
                        drop(state);
                        self.run(job);
                        continue;
                    }
                    if state.idle >= IDLE_MAX || self.over.load(Ordering::SeqCst) {
                        state.threads -= 1;
                        return;
                    }
                }
                may_do_other_work = true;
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
        {
            // What a batch left in the queue is done first, while another who waits for the badge can take it.
            let mut state = self.state();
            if state.idle > 0
                && let Some(job) = state.waiting.pop_front()
            {
                return Some(job);
            }
        }
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
                            match lines.partial() {
                                0 => {}
                                bytes => log::warn!("the input ended inside a line: its {bytes} bytes are dropped"),
                            }
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

    /// Finds threads for jobs: the leader takes the first itself when another can take the badge. Each further one, which only a batch has,
    /// gets a thread of its own; those that find every thread taken wait in the queue, where each thread looks when it is done.
    fn place(self: &Arc<Self>, jobs: &mut Vec<Job>) -> Option<Job> {
        let mut mine = None;
        for job in jobs.drain(..) {
            let mut state = self.state();
            // Without a second thread there is nobody to take from the queue, so the leader does it and reads on afterwards.
            if mine.is_none() && (state.idle > 0 || self.enlist(&mut state, &mut None) || state.threads == 1) {
                mine = Some(job);
                continue;
            }
            let mut job = Some(job);
            if !self.enlist(&mut state, &mut job) {
                state.waiting.extend(job);
            }
        }
        mine
    }

    /// Starts a thread, for the badge or for a job, which is taken then; false where as many as may be are there or none can be started.
    fn enlist(self: &Arc<Self>, state: &mut CrewState, job: &mut Option<Job>) -> bool {
        if state.threads >= THREADS_MAX {
            return false;
        }
        // The job is handed over in a cell of its own, so that it is still there when no thread can be started.
        let handed = Arc::new(Mutex::new(job.take()));
        let crew = self.clone();
        let theirs = handed.clone();
        let run = move || {
            let job = theirs.lock().unwrap_or_else(PoisonError::into_inner).take();
            crew.work(job);
        };
        match std::thread::Builder::new().name("mcp-stdio".into()).stack_size(STACK_BYTES).spawn(run) {
            Ok(_) => {
                state.threads += 1;
                true
            }
            Err(error) => {
                log::warn!("no further thread: {error}");
                *job = handed.lock().unwrap_or_else(PoisonError::into_inner).take();
                false
            }
        }
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
    queue: Arc<Queue>,
    /// Disconnected once the queue has been written.
    done: Receiver<()>,
}

/// Messages that wait to be written, bounded in number for those that can be lost and in bytes for those that cannot.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    closed: bool,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message unless `most` wait, or too many bytes.
    fn offer(&self, message: Vec<u8>, most: usize) -> bool {
        let mut waiting = self.waiting();
        if waiting.closed || waiting.messages.len() >= most || waiting.bytes >= WAITING_MAX_BYTES {
            return false;
        }
        self.push(&mut waiting, message);
        true
    }

    /// Queues a message once there is room.
    fn push_when_there_is_room(&self, message: Vec<u8>) {
        let mut waiting = self.waiting();
        while waiting.bytes >= WAITING_MAX_BYTES && !waiting.closed {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        if !waiting.closed {
            self.push(&mut waiting, message);
        }
    }

    fn push(&self, waiting: &mut Waiting, message: Vec<u8>) {
        waiting.bytes = waiting.bytes.saturating_add(message.len());
        waiting.messages.push_back(message);
        self.changed.notify_all();
    }

    /// The next message; `None` once the queue is closed and empty.
    fn pop(&self) -> Option<Vec<u8>> {
        let mut waiting = self.waiting();
        loop {
            if let Some(message) = waiting.messages.pop_front() {
                waiting.bytes = waiting.bytes.saturating_sub(message.len());
                self.changed.notify_all();
                return Some(message);
            }
            if waiting.closed {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        self.waiting().closed = true;
        self.changed.notify_all();
    }
}

impl Writer {
    /// Writes whole lines. A client that does not read makes this wait, and with it the reading of its requests: that is the bound on
    /// what it can have waiting.
    fn write(&self, bytes: &[u8]) {
        self.write_to(&mut **self.stream(), bytes);
    }

    fn stream(&self) -> MutexGuard<'_, Box<dyn Sink + Send>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, stream: &mut (dyn Sink + Send), bytes: &[u8]) {
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
    fn queue(&self) -> Option<Arc<Queue>> {
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(behind) = &*behind {
            return Some(behind.queue.clone());
        }
        let queue = Arc::new(Queue::default());
        let (alive, done) = bounded::<()>(0);
        let (writer, theirs) = (self.writer.clone(), queue.clone());
        let started = std::thread::Builder::new().name("mcp-notify".into()).stack_size(STACK_BYTES).spawn(move || {
            // Dropped with the thread, which is how its end is seen.
            let _alive = alive;
            while let Some(message) = theirs.pop() {
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
            queue.close();
            let _ = done.recv_timeout(GRACE);
        }
    }
}

impl Outlet for Output {
    fn send(&self, message: &mut dyn FnMut(&mut Vec<u8>)) {
        let mut stream = self.writer.stream();
        let mut line = Vec::new();
        message(&mut line);
        line.push(b'\n');
        self.writer.write_to(&mut **stream, &line);
    }

    fn offer(&self, mut message: Vec<u8>, droppable: bool) -> bool {
        let Some(queue) = self.queue() else { return false };
        message.push(b'\n');
        let taken = queue.offer(message, if droppable { WAITING_DROPPABLE_MAX } else { WAITING_MAX });
        if !taken && !droppable {
            log::warn!("a notification was lost: too many wait for a client that does not read");
        }
        taken
    }

    fn send_behind_offers(&self, mut message: Vec<u8>) {
        message.push(b'\n');
        match self.queue() {
            Some(queue) => queue.push_when_there_is_room(message),
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
