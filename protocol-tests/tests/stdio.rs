//! The life of a server on standard input and output: how it starts, how it ends whatever happens to its client, and what it takes in
//! between (spec executor 2.2, mcp 1.2 and 2.5).

use std::collections::HashSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use protocol_tests::directory::Directory;
use protocol_tests::server::{DEADLINE, Launch, Server, described};
use protocol_tests::{procfs, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const MIB: u64 = 1024 * 1024;

/// How long the end may take: its grace for what it started, and a loaded machine.
const END: Duration = Duration::from_secs(8);

fn directory() -> Directory {
    Directory::with(&[("hello.txt", "hello\nworld\n")])
}

fn berth(root: &Directory) -> Server {
    let mut server = Launch::berth(root.path()).start();
    server.initialize();
    server
}

/// Starts a command that goes on for ever, with a child in the background, and waits until both are there.
fn block(server: &mut Server) {
    let command = "sleep 1000 & echo started; wait";
    let call = server.begin_call("bash", &json!({"command": command, "timeout_seconds": 1000}));
    server.progress(call, "started");
    let child = procfs::eventually(DEADLINE, || {
        procfs::marked(server.mark()).iter().any(|(_, command)| command == "sleep 1000 ").then_some(())
    });
    assert!(child.is_some(), "{:?}", procfs::marked(server.mark()));
}

/// Waits until it has ended by itself, in time, and left nothing.
fn assert_ends(server: &mut Server, since: Instant, expected: &str) {
    let status = server.exit_status();
    let took = since.elapsed();
    assert_eq!(described(status), expected, "stderr: {}", server.stderr());
    assert!(took < END, "took {took:?}");
    server.assert_nothing_left();
}

#[test]
fn the_end_of_input_ends_a_blocked_call_and_the_server_with_status_0() {
    let root = directory();
    let mut server = berth(&root);
    block(&mut server);
    let start = Instant::now();
    server.close_input();
    assert_ends(&mut server, start, "exit 0");
}

#[test]
fn an_idle_server_ends_with_its_input_at_once() {
    let root = directory();
    let mut server = berth(&root);
    let start = Instant::now();
    server.close_input();
    assert!(server.drain().is_empty());
    assert_ends(&mut server, start, "exit 0");
    assert!(start.elapsed() < Duration::from_secs(2), "took {:?}", start.elapsed());
}

#[test]
fn a_signal_ends_a_blocked_call_and_the_server() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let root = directory();
        let mut server = berth(&root);
        block(&mut server);
        let start = Instant::now();
        server.signal(signal);
        assert_ends(&mut server, start, "exit 0");
    }
}

#[test]
fn a_signal_ends_an_idle_server_and_one_that_was_never_spoken_to() {
    let root = directory();
    for greeted in [true, false] {
        let mut server = Launch::berth(root.path()).start();
        if greeted {
            server.initialize();
        } else {
            // Its answer shows that it is there to take the signal.
            server.request("ping", &json!({}));
        }
        let start = Instant::now();
        server.signal(Signal::TERM);
        assert_ends(&mut server, start, "exit 0");
        assert!(start.elapsed() < Duration::from_secs(2), "took {:?}", start.elapsed());
    }
}

/// The parent holds the only writing end of the server's input, as a client does; when it is killed nothing can be said any more.
#[test]
fn a_parent_that_is_killed_takes_the_server_with_it() {
    let root = directory();
    let pipes = Directory::new();
    let script =
        r#"mkfifo "$0/in"; "$@" <"$0/in" & exec 3>"$0/in"; while read -r line; do printf '%s\n' "$line" >&3; done"#;
    let mut parent = Launch::new("sh")
        .arg("-c")
        .arg(script)
        .arg(pipes.path())
        .arg(program::berth())
        .arg("execute")
        .arg("--root")
        .arg(root.path())
        .start();
    parent.initialize();
    block(&mut parent);
    let start = Instant::now();
    parent.signal(Signal::KILL);
    let gone = procfs::eventually(END, || procfs::marked(parent.mark()).is_empty().then_some(()));
    assert!(gone.is_some(), "left after {:?}: {:?}", start.elapsed(), procfs::marked(parent.mark()));
}

/// What a grandchild writes to the server's own standard output, through /proc, lands on standard error (trap T11).
#[test]
fn a_stray_line_reaches_standard_error_and_not_the_protocol() {
    let root = directory();
    let mut server = berth(&root);
    let pid = server.pid();
    let command = format!("echo stray line > /proc/{pid}/fd/1 || echo refused");
    let refused = server.call_well("bash", &json!({"command": command})).contains("refused");
    // Whatever is on the protocol's stream has to be JSON, or this wait fails.
    assert_eq!(server.request("ping", &json!({}))["result"], json!({}));
    // A server that does not let its commands look at it is as good.
    let seen = procfs::eventually(DEADLINE, || (refused || server.stderr().contains("stray line")).then_some(()));
    assert!(seen.is_some(), "stderr: {}", server.stderr());
    server.finish();
}

#[test]
fn a_stray_print_in_the_program_reaches_standard_error_and_not_the_protocol() {
    let mut server = Launch::fixture().start();
    server.initialize();
    server.call_well("test_stray_print", &json!({}));
    assert_eq!(server.request("ping", &json!({}))["result"], json!({}));
    let seen = procfs::eventually(DEADLINE, || server.stderr().contains("a stray line").then_some(()));
    assert!(seen.is_some(), "stderr: {}", server.stderr());
    server.finish();
}

/// The server's input is its own: neither its commands nor a second reader in the process get any of it.
#[test]
fn a_command_cannot_read_the_protocol() {
    let root = directory();
    let mut server = berth(&root);
    let pid = server.pid();
    let call = server.begin(
        "tools/call",
        &json!({"name": "bash", "arguments": {"command": format!("cat /proc/{pid}/fd/0; cat"), "timeout_seconds": 20}}),
    );
    let ping = server.begin("ping", &json!({}));
    server.answer(ping);
    let text = server.outcome(call).text;
    assert!(text.ends_with("[exit 0]") && !text.contains("jsonrpc"), "{text}");
    server.finish();
}

#[test]
fn a_wrong_command_line_is_one_clear_line_and_status_2() {
    let root = directory();
    let root = root.path().to_str().unwrap();
    for arguments in [
        &["execute", "--no-such-flag"][..],
        &["execute", "--root"],
        &["execute", "--root", root, "more"],
        &["execute", "--root", root, "--max-read-bytes", "-1"],
        &["execute", "--root", root, "--max-read-bytes", "many"],
        &["execute", "--root", root, "--kind", "planet"],
        &["execute", "--root", root, "--pass-env", "A=B"],
        &["execute", "--root", root, "--mcp", "no-such"],
        &["no-such-command"],
    ] {
        let (status, stdout, stderr) = run(arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {stderr}");
        assert_one_line(arguments, &stdout, &stderr);
    }
}

#[test]
fn a_root_that_is_missing_or_no_directory_is_one_clear_line_and_status_1() {
    let root = directory();
    for name in ["no-such-directory", "hello.txt"] {
        let path = root.join(name);
        let arguments = ["execute", "--root", path.to_str().unwrap()];
        let (status, stdout, stderr) = run(&arguments);
        assert_eq!(status, Some(1), "{arguments:?}: {stderr}");
        assert_one_line(&arguments, &stdout, &stderr);
        assert!(stderr.contains(name), "{stderr}");
    }
}

/// Runs berth without input; gives its exit code, stdout and stderr.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program::berth()).args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn assert_one_line(arguments: &[&str], stdout: &str, stderr: &str) {
    assert_eq!(stdout, "", "{arguments:?}");
    assert!(stderr.starts_with("berth"), "{arguments:?}: {stderr:?}");
    assert!(stderr.ends_with('\n') && stderr.lines().count() <= 2, "one line and perhaps a hint: {stderr:?}");
    assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr:?}");
}

/// A client that sends and does not read makes the server wait, and neither grow nor lose anything.
#[test]
fn a_hundred_thousand_requests_are_answered_when_their_answers_are_read_at_last() {
    const REQUESTS: i64 = 100_000;
    let root = directory();
    let mut server = Launch::berth(root.path()).hold_output().start();
    server.write(concat!(
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
        r#""capabilities":{},"clientInfo":{"name":"test","version":"0"}}}"#,
        "\n"
    ));
    let mut requests = String::new();
    for id in 1..=REQUESTS {
        // Each tenth reads a file, the others ask for nothing.
        let message = if id % 10 == 0 {
            json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "read", "arguments": {"path": "hello.txt"}}})
        } else {
            json!({"jsonrpc": "2.0", "id": id, "method": "ping"})
        };
        requests.push_str(&message.to_string());
        requests.push('\n');
    }
    server.write(requests);
    // Both pipes are full and stay so: the server waits for its client.
    let mut last = (0, 0);
    let stuck = procfs::eventually(DEADLINE, || {
        let now = server.waiting();
        let same = now == last && now.0 > 32 * 1024 && now.1 > 32 * 1024;
        last = now;
        same.then_some(())
    });
    assert!(stuck.is_some(), "bytes waiting to it and from it: {last:?}");
    let peak = server.peak_memory();
    assert!(peak < 48 * MIB, "{} MiB while nobody read", peak / MIB);
    server.release();
    let mut missing: HashSet<i64> = (0..=REQUESTS).collect();
    while !missing.is_empty() {
        let message = server.receive().unwrap_or_else(|trouble| panic!("{trouble}; {} are missing", missing.len()));
        let message = message.unwrap_or_else(|| panic!("the output ended; {} are missing", missing.len()));
        assert!(message.get("result").is_some(), "{message}");
        let id = message["id"].as_i64().unwrap();
        assert!(missing.remove(&id), "answered twice: {message}");
    }
    let peak = server.peak_memory();
    assert!(peak < 48 * MIB, "{} MiB in all", peak / MIB);
    server.finish();
}

/// Progress that nobody reads is dropped; it neither grows the server nor holds its command.
#[test]
fn progress_nobody_reads_is_dropped() {
    let root = directory();
    let mut server = Launch::berth(root.path()).hold_output().start();
    server.write(concat!(
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
        r#""capabilities":{},"clientInfo":{"name":"test","version":"0"}}}"#,
        "\n"
    ));
    // Many commands, since each may report four times a second at most.
    let command = "while [ ! -e enough ]; do printf '%04000d' 0; sleep 0.2; done; touch ended";
    let calls: Vec<i64> =
        (0..40).map(|_| server.begin_call("bash", &json!({"command": command, "timeout_seconds": 60}))).collect();
    // A pipe whose pages are partly filled is full with less than it holds: it is full when it does not fill any more.
    let mut last = 0;
    let full = procfs::eventually(DEADLINE, || {
        let now = server.waiting().1;
        let same = now == last && now > 32 * 1024;
        last = now;
        same.then_some(())
    });
    assert!(full.is_some(), "the output never filled: {last}");
    root.write("enough", "");
    // The commands end although nothing of them is read.
    let ended = procfs::eventually(DEADLINE, || root.join("ended").exists().then_some(()));
    assert!(ended.is_some(), "a command waits for a client that does not read");
    let peak = server.peak_memory();
    assert!(peak < 48 * MIB, "{} MiB", peak / MIB);
    server.release();
    for call in calls {
        assert!(server.outcome(call).text.ends_with("[exit 0]"));
    }
    server.finish_passing_over();
}

/// Even a server that waits for its client to read ends when it is told to.
#[test]
fn a_signal_ends_a_server_whose_answers_nobody_reads() {
    let root = directory();
    let mut server = Launch::berth(root.path()).hold_output().start();
    server.write(concat!(
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
        r#""capabilities":{},"clientInfo":{"name":"test","version":"0"}}}"#,
        "\n"
    ));
    for _ in 0..8 {
        server.begin_call("bash", &json!({"command": "echo started; sleep 1000", "timeout_seconds": 1000}));
    }
    for _ in 0..20_000 {
        server.begin("tools/list", &json!({}));
    }
    let mut last = (0, 0);
    let stuck = procfs::eventually(DEADLINE, || {
        let now = server.waiting();
        let same = now == last && now.0 > 32 * 1024 && now.1 > 16 * 1024;
        last = now;
        same.then_some(())
    });
    assert!(stuck.is_some(), "bytes waiting to it and from it: {last:?}");
    let start = Instant::now();
    server.signal(Signal::TERM);
    assert_ends(&mut server, start, "exit 0");
}

/// A launcher on an event loop may leave its children streams that do not block; a full pipe or an empty one is then no end.
#[test]
fn streams_that_do_not_block_are_served_like_others() {
    const REQUESTS: i64 = 5_000;
    let root = directory();
    let mut server = Launch::berth(root.path()).nonblocking().hold_output().start();
    server.write(concat!(
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
        r#""capabilities":{},"clientInfo":{"name":"test","version":"0"}}}"#,
        "\n"
    ));
    for _ in 0..REQUESTS {
        server.begin("tools/call", &json!({"name": "read", "arguments": {"path": "hello.txt"}}));
    }
    let full = procfs::eventually(DEADLINE, || (server.waiting().1 > 32 * 1024).then_some(()));
    assert!(full.is_some(), "{:?}; stderr: {}", server.waiting(), server.stderr());
    server.release();
    for id in 0..=REQUESTS {
        assert!(server.answer(id).get("result").is_some());
    }
    // Nothing to read for a while is no end either, and costs no processor.
    let before = procfs::ticks(server.pid());
    assert_eq!(server.call_well("bash", &json!({"command": "sleep 1; echo slept"})), "slept\n[exit 0]");
    let used = procfs::ticks(server.pid()) - before;
    assert!(used <= 20, "{used} hundredths of a second of processor time in a second of waiting");
    server.finish();
}

/// A session that has done much is as large as one that has done little.
#[test]
fn calls_leave_no_file_thread_or_zombie_behind() {
    let root = directory();
    let mut server = berth(&root);
    let some_calls = |server: &mut Server| {
        let calls: Vec<i64> =
            (0..8).map(|n| server.begin_call("bash", &json!({"command": format!("echo {n}")}))).collect();
        calls.into_iter().for_each(|call| drop(server.outcome(call)));
        let calls: Vec<i64> =
            (0..4).map(|_| server.begin_call("bash", &json!({"command": "echo started; sleep 1000"}))).collect();
        for call in calls {
            server.progress(call, "started");
            server.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}));
        }
        server.call_well("grep", &json!({"pattern": "hello"}));
        server.call_well("write", &json!({"path": "new.txt", "content": "x"}));
        server.call_badly("read", &json!({"path": "../x"}));
    };
    some_calls(&mut server);
    let pid = server.pid();
    let settled = |server: &Server| {
        // What was cancelled may still be ending.
        let gone = procfs::eventually(DEADLINE, || {
            let left = procfs::marked(server.mark());
            left.iter().all(|(other, _)| *other == pid).then_some(())
        });
        assert!(gone.is_some(), "{:?}", procfs::marked(server.mark()));
        let few = procfs::eventually(DEADLINE, || (procfs::threads(pid) <= 10).then_some(()));
        assert!(few.is_some(), "{} threads are left", procfs::threads(pid));
        procfs::open_files(pid)
    };
    let files = settled(&server);
    for _ in 0..10 {
        some_calls(&mut server);
    }
    settled(&server);
    // The last files of a command that was cancelled are closed a moment after its processes are gone.
    let mut later = None;
    let few = procfs::eventually(DEADLINE, || {
        later = procfs::open_files(pid);
        (later <= files.map(|files| files + 2)).then_some(())
    });
    assert!(few.is_some(), "{files:?} files were open, then {later:?}");
    assert_eq!(procfs::unreaped(pid), [0; 0]);
    server.finish_passing_over();
}

/// What was cancelled before its turn came is not carried out: a client that takes a write back must be able to count on it.
#[test]
fn a_call_that_is_cancelled_while_it_waits_for_its_turn_never_begins() {
    let mut server = Launch::fixture().start();
    server.initialize();
    // More than there are threads for.
    let waiting: Vec<i64> =
        (0..200).map(|_| server.begin("tools/call", &json!({"name": "test_wait_for_cancel"}))).collect();
    let cancelled =
        |call: i64| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}});
    let call = server.begin("tools/call", &json!({"name": "test_trigger_tool_change"}));
    server.send(&cancelled(call));
    for call in waiting {
        server.send(&cancelled(call));
    }
    let after = server.begin("tools/call", &json!({"name": "greet", "arguments": {"name": "you"}}));
    let message = server.receive().unwrap().unwrap();
    assert_eq!(message["id"], after, "{message}");
    server.finish();
}

/// There is a most of what is carried out at a time; what is beyond it is refused at once, and the rest ends with the input.
#[test]
fn more_calls_than_may_be_under_way_are_refused_and_none_is_lost() {
    const CALLS: i64 = 2_000;
    let mut server = Launch::fixture().start();
    server.initialize();
    let calls: Vec<i64> =
        (0..CALLS).map(|_| server.begin("tools/call", &json!({"name": "test_wait_for_cancel"}))).collect();
    assert_eq!(server.request("ping", &json!({}))["result"], json!({}));
    assert!(server.peak_memory() < 64 * MIB, "{} MiB", server.peak_memory() / MIB);
    for call in &calls {
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}));
    }
    // All of them are out of the way again.
    assert!(!server.call("test_simple_text", &json!({})).failed);
    assert!(!server.call("greet", &json!({"name": "you"})).failed);
    server.close_input();
    let refused = server.drain();
    assert!(!refused.is_empty() && refused.len() < CALLS as usize, "{} were refused", refused.len());
    for message in refused {
        assert!(message.get("error").is_some() && calls.contains(&message["id"].as_i64().unwrap()), "{message}");
    }
    assert_ends(&mut server, Instant::now(), "exit 0");
}

/// Streams of changes are bounded too.
#[test]
fn more_streams_than_may_be_open_are_refused() {
    let mut server = Launch::fixture().start();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"notifications": {"toolsListChanged": true}, "_meta": meta});
    let streams: Vec<i64> = (0..5_000).map(|_| server.begin("subscriptions/listen", &params)).collect();
    let last = *streams.last().unwrap();
    assert!(server.answer(last)["error"]["code"].is_i64());
    assert!(server.peak_memory() < 48 * MIB);
    assert!(server.request("tools/list", &json!({"_meta": meta})).get("result").is_some());
    server.close_input();
    server.drain();
    assert_ends(&mut server, Instant::now(), "exit 0");
}

#[test]
fn a_line_of_a_hundred_megabytes_is_discarded_in_bounded_memory() {
    let root = directory();
    let mut server = berth(&root);
    let piece = vec![b'x'; 10_000_000];
    server.write(r#"{"jsonrpc":"2.0","id":"long","method":"tools/call","params":{"name":"write","arguments":{"path":"long.txt","content":""#);
    for _ in 0..10 {
        server.write(piece.clone());
    }
    server.write("\"}}}\n");
    let ping = server.begin("ping", &json!({}));
    assert_eq!(server.answer(ping)["result"], json!({}));
    // The client that waits for the long one may be told; it must not be told anything else.
    let peak = server.peak_memory();
    assert!(peak < 64 * MIB, "{} MiB", peak / MIB);
    assert!(!root.join("long.txt").exists());
    server.close_input();
    for message in server.drain() {
        assert_eq!((&message["id"], &message["error"]["code"]), (&json!("long"), &json!(-32600)), "{message}");
    }
    assert_ends(&mut server, Instant::now(), "exit 0");
}

#[test]
fn a_request_nested_a_hundred_thousand_deep_is_answered_by_its_id() {
    let root = directory();
    let mut server = berth(&root);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (id, rest) in [
        ("ping", format!(r#""method":"ping","params":{{"x":{deep}}}"#)),
        ("list", format!(r#""method":"tools/list","params":{{"cursor":{deep}}}"#)),
        ("call", format!(r#""method":"tools/call","params":{{"name":"read","arguments":{{"path":{deep}}}}}"#)),
        ("meta", format!(r#""method":"tools/list","params":{{"_meta":{{"progressToken":{deep}}}}}"#)),
        ("extra", format!(r#""method":"ping","extra":{deep}"#)),
    ] {
        server.write(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id:?},{rest}}}\n"));
        let answer = server.answer(id);
        assert!(answer.get("result").is_some() != answer.get("error").is_some(), "{answer}");
    }
    assert!(server.peak_memory() < 48 * MIB);
    assert!(server.call_well("read", &json!({"path": "hello.txt"})).contains("hello"));
    server.finish();
}

#[test]
fn a_request_that_comes_byte_by_byte_is_one_request() {
    let root = directory();
    let mut server = berth(&root);
    let message = json!({"jsonrpc": "2.0", "id": "bytes", "method": "tools/call",
        "params": {"name": "read", "arguments": {"path": "hello.txt"}}});
    for byte in format!("{message}\n").bytes() {
        server.write([byte]);
    }
    assert!(server.answer("bytes")["result"]["content"][0]["text"].as_str().unwrap().contains("hello"));
    server.finish();
}

#[test]
fn answers_of_concurrent_calls_never_cross() {
    const CALLS: usize = 32;
    let root = directory();
    for n in 0..CALLS {
        root.write(&format!("file-{n}.txt"), format!("content of {n}\n"));
    }
    let mut server = berth(&root);
    for round in 0..4 {
        let calls: Vec<(i64, String)> = (0..CALLS)
            .map(|n| match (n + round) % 3 {
                0 => (
                    server.begin_call("read", &json!({"path": format!("file-{n}.txt")})),
                    format!("     1\tcontent of {n}"),
                ),
                1 => (
                    server.begin_call("bash", &json!({"command": format!("echo command {n}")})),
                    format!("command {n}\n[exit 0]"),
                ),
                _ => (
                    server.begin_call("grep", &json!({"pattern": format!("content of {n}$")})),
                    format!("file-{n}.txt:1:content of {n}"),
                ),
            })
            .collect();
        // Asked for in the other order than they were sent.
        for (call, expected) in calls.into_iter().rev() {
            let called = server.outcome(call);
            assert_eq!((called.text, called.failed), (expected, false));
        }
    }
    server.finish_passing_over();
}

#[test]
fn two_sessions_in_one_directory_do_not_disturb_each_other() {
    let root = directory();
    let (mut one, mut other) = (berth(&root), berth(&root));
    block(&mut one);
    for n in 0..20 {
        one.call_well("write", &json!({"path": "shared.txt", "content": format!("{n}\n")}));
        assert_eq!(other.call_well("read", &json!({"path": "shared.txt"})), format!("     1\t{n}"));
    }
    one.close_input();
    assert_ends(&mut one, Instant::now(), "exit 0");
    assert!(other.call_well("read", &json!({"path": "shared.txt"})).contains("19"));
    other.finish();
}

#[test]
fn a_server_that_waits_uses_no_processor() {
    let root = directory();
    let mut server = berth(&root);
    server.call_well("read", &json!({"path": "hello.txt"}));
    let before = procfs::ticks(server.pid());
    // A second passes while a command sleeps.
    server.call_well("bash", &json!({"command": "sleep 1"}));
    let used = procfs::ticks(server.pid()) - before;
    assert!(used <= 10, "{used} hundredths of a second of processor time in a second of waiting");
    server.finish();
}

/// A process that ignores what it is asked to makes the end wait for its grace; the wait must not spin.
#[test]
fn the_end_uses_no_processor_while_it_waits_for_its_children() {
    let root = directory();
    let mut server = berth(&root);
    let command = "trap '' TERM HUP INT; echo started; while :; do sleep 0.2; done";
    let call = server.begin_call("bash", &json!({"command": command, "timeout_seconds": 1000}));
    server.progress(call, "started");
    let before = procfs::ticks(server.pid());
    server.close_input();
    server.wait_for_end();
    let used = procfs::ticks(server.pid()) - before;
    assert!(used <= 20, "{used} hundredths of a second of processor time after the end of input");
    assert_ends(&mut server, Instant::now(), "exit 0");
}

/// A client that closes the server's output but not its input cannot be answered; the server must not stay for it.
#[test]
fn a_server_whose_output_nobody_reads_any_more_ends() {
    let root = directory();
    let mut child = Command::new(program::berth())
        .args(["execute", "--root"])
        .arg(root.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    let message = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n";
    let ended = procfs::eventually(END, || {
        let _ = std::io::Write::write_all(&mut stdin, message.as_bytes());
        child.try_wait().unwrap()
    });
    let _ = child.kill();
    let _ = child.wait();
    let status = ended.expect("it ends");
    assert!(status.code().is_some(), "{}", described(status));
}

/// A server started with standard input, output or error closed must not take its first files for them.
#[test]
fn a_server_without_standard_streams_does_not_write_the_protocol_into_a_file() {
    let root = directory();
    for closed in ["<&-", ">&-", "<&- >&-", "2>&-"] {
        let script = format!(r#"exec "$0" execute --root "$1" {closed}"#);
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(program::berth()).arg(root.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().unwrap();
        let status = procfs::eventually(END, || child.try_wait().unwrap());
        if status.is_none() {
            let _ = kill_process(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
        }
        assert!(status.is_some_and(|status| status.code().is_some()), "{closed}: {status:?}");
        assert_eq!(names(root.path()), ["hello.txt"], "{closed}");
        assert_eq!(root.read("hello.txt"), "hello\nworld\n", "{closed}");
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Every answer that can be had is had: what was asked before the end of input and needs no waiting is answered.
#[test]
fn what_was_asked_before_the_end_of_input_is_answered() {
    let root = directory();
    let mut server = berth(&root);
    for _ in 0..50 {
        server.begin("ping", &json!({}));
        server.begin("tools/call", &json!({"name": "read", "arguments": {"path": "hello.txt"}}));
    }
    server.close_input();
    let answers = server.drain();
    let ids: HashSet<i64> = answers.iter().filter_map(|answer| answer["id"].as_i64()).collect();
    assert_eq!((answers.len(), ids.len()), (100, 100));
    assert!(answers.iter().all(|answer: &Value| answer.get("result").is_some()));
    assert_ends(&mut server, Instant::now(), "exit 0");
}

/// What is kept from commands in their environment is not to be had from the server's own either.
#[test]
fn a_secret_in_the_servers_environment_is_not_to_be_read_from_outside() {
    let root = directory();
    let mut server = Launch::berth(root.path()).env("DEPLOY_TOKEN", "hush-hush").env("PLAIN", "plain-value").start();
    server.initialize();
    let shown = server.call_well(
        "bash",
        &json!({"command": "cat /proc/$PPID/environ; cat /proc/$(cut -d' ' -f4 /proc/$PPID/stat)/environ; env"}),
    );
    assert!(shown.contains("plain-value"), "{shown}");
    assert!(!shown.contains("hush"), "{shown}");
    if let Ok(environment) = fs::read(format!("/proc/{}/environ", server.pid())) {
        assert!(!String::from_utf8_lossy(&environment).contains("hush"));
    }
    server.finish();
}

/// The members of a batch run side by side and the reading goes on, whichever threads are idle.
#[test]
fn a_batch_of_calls_that_wait_for_each_other_holds_up_neither_itself_nor_the_reading() {
    let root = directory();
    let mut server = Launch::berth(root.path()).start();
    server.request("initialize", &json!({"protocolVersion": "2025-03-26", "capabilities": {}}));
    // Some threads become idle.
    for _ in 0..3 {
        server.call_well("bash", &json!({"command": "true"}));
    }
    let call = |id: i64, command: &str| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "bash", "arguments": {"command": command, "timeout_seconds": 100}}})
    };
    let wait = "while [ ! -e flag ]; do sleep 0.05; done";
    server.send(&json!([call(7001, wait), call(7002, wait)]));
    server.send(&json!([call(7003, wait), call(7004, wait)]));
    server.request("ping", &json!({}));
    server.send(&json!([call(7005, wait), call(7006, "touch flag")]));
    for id in 7001..=7006 {
        assert_eq!(server.answer(id)["result"]["content"][0]["text"], "[exit 0]");
    }
    server.finish();
}

/// A client that reads nothing, with more calls waiting than there are threads, does not put off the end.
#[test]
fn answers_that_nobody_reads_do_not_put_off_the_end() {
    let root = directory();
    fs::write(root.path().join("big"), ("x".repeat(400) + "\n").repeat(4000)).unwrap();
    let mut server = Launch::berth(root.path()).hold_output().start();
    server.begin("initialize", &json!({"protocolVersion": "2025-11-25", "capabilities": {}}));
    for _ in 0..200 {
        server.begin_call("grep", &json!({"pattern": "x", "path": "big", "max_results": 10_000}));
    }
    // Every thread there can be has its answer ready, or its turn to wait.
    let busy = procfs::eventually(DEADLINE, || (procfs::threads(server.pid()) >= 64).then_some(()));
    assert!(busy.is_some(), "{} threads", procfs::threads(server.pid()));
    let start = Instant::now();
    server.signal(Signal::TERM);
    assert_ends(&mut server, start, "exit 0");
    assert!(start.elapsed() < Duration::from_secs(4), "took {:?}", start.elapsed());
}

/// Parameters are held for calls that wait: so many bytes of them and no more.
#[test]
fn what_is_held_for_calls_that_wait_is_bounded_in_bytes_too() {
    let root = directory();
    let mut server = berth(&root);
    let waiting: Vec<i64> = (0..64)
        .map(|_| server.begin_call("bash", &json!({"command": "sleep 1000", "timeout_seconds": 1000})))
        .collect();
    let content = "a".repeat(8 * 1024 * 1024);
    let writes: Vec<i64> =
        (0..12).map(|n| server.begin_call("write", &json!({"path": format!("f{n}"), "content": content}))).collect();
    // The last ones are refused while the first ones wait.
    let refused = server.answer(*writes.last().unwrap());
    assert!(refused["error"]["message"].as_str().unwrap().contains("too many requests"), "{refused}");
    assert!(server.peak_memory() < 300 * MIB, "{}", server.peak_memory());
    for call in waiting {
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}));
    }
    let done = writes.iter().rev().skip(1).filter(|call| server.answer(**call)["result"].is_object()).count();
    assert!((4..=8).contains(&done), "{done} writes were done");
    server.finish();
}
