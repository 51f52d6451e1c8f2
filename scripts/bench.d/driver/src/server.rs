//! A server at the other end of two pipes, and the ways it is timed.

use std::error::Error;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Outcome;
use crate::cores::{Cores, Place};
use crate::plan::{Contestant, Plan};
use crate::report::{Round, Samples};

/// A running server, past its handshake or before it.
pub struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    /// What has been read and not been handed out yet is `buffer[taken..filled]`.
    buffer: Vec<u8>,
    taken: usize,
    filled: usize,
}

/// Nanoseconds since `start`.
pub fn since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn command(words: &[String], folder: &str) -> Outcome<Command> {
    let (program, arguments) = words.split_first().ok_or("an empty command")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(command)
}

impl Server {
    pub fn start(words: &[String], folder: &str) -> Outcome<Self> {
        let mut child = command(words, folder)?.spawn().map_err(|error| format!("{}: {error}", words[0]))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("no pipe")?;
        Ok(Self { child, input, output, buffer: vec![0; 1 << 20], taken: 0, filled: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Outcome<()> {
        Ok(self.input.as_mut().ok_or("its input is closed")?.write_all(bytes)?)
    }

    /// Waits for output, and puts it behind what is held.
    fn fill(&mut self) -> Outcome<()> {
        self.buffer.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.filled * 2, 0);
        }
        let read = self.output.read(&mut self.buffer[self.filled..])?;
        self.filled += read;
        if read == 0 { Err("it ended before it answered".into()) } else { Ok(()) }
    }

    /// Where the next line ends that has been read whole already.
    fn line_end(&self) -> Option<usize> {
        memchr::memchr(b'\n', &self.buffer[self.taken..self.filled]).map(|length| self.taken + length + 1)
    }

    /// Hands the next answer to `seen`: its id and its line.
    fn answer<T>(&mut self, seen: impl FnOnce(u64, &[u8]) -> T) -> Outcome<T> {
        loop {
            while let Some(end) = self.line_end() {
                let line = self.taken..end;
                self.taken = end;
                if let Some(id) = id_of(&self.buffer[line.clone()]) {
                    return Ok(seen(id, &self.buffer[line]));
                }
            }
            self.fill()?;
        }
    }

    /// Asks, waits, and gives the answer's result; an error answer is an error.
    fn ask(&mut self, id: u64, method: &str, params: &Value) -> Outcome<Value> {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.write(format!("{request}\n").as_bytes())?;
        let answer = self.answer(|_, line| serde_json::from_slice::<Value>(line))??;
        match answer.get("result") {
            Some(result) => Ok(result.clone()),
            None => Err(format!("{method} was answered with {answer}").into()),
        }
    }

    pub fn initialize(&mut self) -> Outcome<()> {
        let client = json!({ "name": "bench", "version": "1" });
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
        self.ask(0, "initialize", &params).map(|_| ())
    }

    pub fn initialized(&mut self) -> Outcome<()> {
        self.write(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")
    }

    /// Calls a tool and gives the text it answers with.
    pub fn call(&mut self, id: u64, tool: &str, arguments: &Value) -> Outcome<String> {
        let result = self.ask(id, "tools/call", &json!({ "name": tool, "arguments": arguments }))?;
        let text = result["content"][0]["text"].as_str().unwrap_or_default().to_owned();
        if result["isError"] == json!(true) { Err(format!("{tool} failed: {text}").into()) } else { Ok(text) }
    }

    /// Resident memory in KiB, once two looks a tenth of a second apart agree.
    fn resident(&self) -> Outcome<u64> {
        let mut last = 0;
        for _ in 0..30 {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
            let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
            let now = line.split_whitespace().nth(1).ok_or("no figure")?.parse()?;
            if now == last {
                break;
            }
            last = now;
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(last)
    }

    /// Closes its input, and kills it when it has not ended after five seconds.
    pub fn stop(mut self) -> Outcome<()> {
        drop(self.input.take());
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > Duration::from_secs(5) {
                self.child.kill()?;
                self.child.wait()?;
                return Err("it did not end with its input".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Only a server that was not stopped is still running here.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The integer id of a line that has one near its beginning or its end, which is where every server writes it. Parsing
/// the answers would cost more than some servers take to make them.
fn id_of(line: &[u8]) -> Option<u64> {
    const KEY: &[u8] = b"\"id\":";
    let head = &line[..line.len().min(64)];
    let tail = &line[line.len().saturating_sub(64)..];
    let digits = |part: &[u8]| {
        let at = part.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
        let digits = part[at..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(None, |number: Option<u64>, digit| Some(number.unwrap_or(0) * 10 + u64::from(digit - b'0')))
    };
    digits(head).or_else(|| digits(tail))
}

/// How many calls a server is given in a row, and how many of them come first and do not count: they find the processor's
/// caches filled by its neighbours.
const ROW: usize = 500;
const ROW_WARM_UP: usize = 20;

/// One round of all servers. They take turns call by call, or row by row, so that what else the machine does in the
/// meantime hits all alike.
pub fn measure(plan: &Plan) -> Outcome<(Samples, Vec<Round>)> {
    let mut rounds: Vec<Round> = plan.servers.iter().map(|_| Round::default()).collect();
    let mut spawn = Samples::new();
    for turn in 0..plan.starts {
        spawn.push(spawn_of(&plan.floor)?);
        for (contestant, round) in plan.servers.iter().zip(&mut rounds) {
            if turn % contestant.slower == 0 {
                round.start.push(start_of(contestant).map_err(named(contestant))?);
            }
        }
    }

    let mut runs = Vec::with_capacity(plan.servers.len());
    for (contestant, round) in plan.servers.iter().zip(&mut rounds) {
        runs.push(Run::start(contestant, round).map_err(named(contestant))?);
    }
    let cores = Cores::allowed()?;
    for turn in 0..plan.calls.div_ceil(ROW) {
        for place in [Place::OneCore, Place::TwoCores] {
            for (run, round) in runs.iter_mut().zip(&mut rounds) {
                if turn % run.contestant.slower == 0 && cores.place(place, run.server.child.id())? {
                    let samples = if place == Place::OneCore { &mut round.call_one_core } else { &mut round.call };
                    round.answer_bytes = run.row(samples).map_err(named(run.contestant))?;
                }
            }
        }
    }
    for run in &runs {
        cores.free(run.server.child.id())?;
    }
    for (run, round) in runs.iter_mut().zip(&mut rounds) {
        run.in_flight(plan, round).map_err(named(run.contestant))?;
    }
    for (run, round) in runs.into_iter().zip(&mut rounds) {
        let contestant = run.contestant;
        round.resident_after = run.server.resident()?;
        run.server.stop().map_err(named(contestant))?;
    }
    Ok((spawn, rounds))
}

fn named(contestant: &Contestant) -> impl Fn(Box<dyn Error>) -> Box<dyn Error> {
    let name = contestant.name.clone();
    move |error| format!("{name}: {error}").into()
}

/// How long the command takes from its spawn to its end.
fn spawn_of(words: &[String]) -> Outcome<u64> {
    let mut command = command(words, ".")?;
    let start = Instant::now();
    command.spawn()?.wait()?;
    Ok(since(start))
}

/// How long the server takes from its spawn to its answer to `initialize`.
fn start_of(contestant: &Contestant) -> Outcome<u64> {
    let start = Instant::now();
    let mut server = Server::start(&contestant.command, &contestant.folder)?;
    server.initialize()?;
    let taken = since(start);
    server.stop()?;
    Ok(taken)
}

/// A contestant's process that is called in every way.
struct Run<'a> {
    contestant: &'a Contestant,
    server: Server,
    /// The last id that was used.
    id: u64,
    /// The line of a call, cut where its id goes.
    before: Vec<u8>,
    after: Vec<u8>,
}

impl<'a> Run<'a> {
    fn start(contestant: &'a Contestant, round: &mut Round) -> Outcome<Self> {
        let params = json!({ "name": contestant.tool, "arguments": contestant.arguments });
        let mut run = Self {
            contestant,
            server: Server::start(&contestant.command, &contestant.folder)?,
            id: 1,
            before: b"{\"jsonrpc\":\"2.0\",\"id\":".to_vec(),
            after: format!(",\"method\":\"tools/call\",\"params\":{params}}}\n").into_bytes(),
        };
        run.server.initialize()?;
        run.server.initialized()?;
        run.server.ask(1, "tools/list", &json!({}))?;
        round.resident_idle = run.server.resident()?;
        // The warm-up looks at the answers closely; what follows only looks at their ids and sizes.
        for _ in 0..200 {
            run.id += 1;
            let text = run.server.call(run.id, &contestant.tool, &contestant.arguments)?;
            if !text.contains(&contestant.expect) {
                return Err(format!("unexpected answer: {}", text.chars().take(200).collect::<String>()).into());
            }
        }
        Ok(run)
    }

    fn append_request(&self, line: &mut Vec<u8>, id: u64) {
        line.extend_from_slice(&self.before);
        line.extend_from_slice(id.to_string().as_bytes());
        line.extend_from_slice(&self.after);
    }

    /// Calls one after the other; says how long the answers are.
    fn row(&mut self, samples: &mut Samples) -> Outcome<usize> {
        let mut answer_bytes = 0;
        let mut line = Vec::with_capacity(256);
        for turn in 0..ROW_WARM_UP + ROW {
            self.id += 1;
            line.clear();
            self.append_request(&mut line, self.id);
            let start = Instant::now();
            self.server.write(&line)?;
            let (answered, size) = self.server.answer(|id, line| (id, line.len()))?;
            let taken = since(start);
            if answered != self.id {
                return Err(format!("answered {answered} to {}", self.id).into());
            }
            answer_bytes = size;
            if turn >= ROW_WARM_UP {
                samples.push(taken);
            }
        }
        Ok(answer_bytes)
    }

    /// Calls with as many under way as the plan says.
    fn in_flight(&mut self, plan: &Plan, round: &mut Round) -> Outcome<()> {
        let total = plan.calls_in_flight / self.contestant.slower;
        let first = self.id + 1;
        let mut open = vec![false; total];
        let (mut sent, mut answered) = (0, 0);
        let mut lines = Vec::with_capacity(256 * plan.in_flight);
        let start = Instant::now();
        while answered < total {
            // All the requests that there is room for leave in one write, as a client with many callers would send them.
            lines.clear();
            while sent < total && sent - answered < plan.in_flight {
                open[sent] = true;
                self.append_request(&mut lines, first + sent as u64);
                sent += 1;
            }
            if !lines.is_empty() {
                self.server.write(&lines)?;
            }
            loop {
                let (id, size) = self.server.answer(|id, line| (id, line.len()))?;
                let place = id.checked_sub(first).and_then(|place| open.get_mut(place as usize));
                let known = place.is_some_and(std::mem::take);
                if !known || size + 64 < round.answer_bytes {
                    return Err(format!("answer {id} is not one that was asked for, or is short: {size} bytes").into());
                }
                answered += 1;
                if self.server.line_end().is_none() {
                    break;
                }
            }
        }
        round.calls_per_second = total as f64 / start.elapsed().as_secs_f64();
        self.id += total as u64;
        Ok(())
    }
}
