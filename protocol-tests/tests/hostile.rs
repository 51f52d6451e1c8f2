//! Hostile input through the protocol against the built binary: each case ends with a clear error, bounded memory, a session that goes
//! on, and no process left (design 3, 9).

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use protocol_tests::directory::Directory;
use protocol_tests::server::{Launch, Server};
use protocol_tests::{procfs, program};
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, makedev, mkdirat, mknodat, open, openat, renameat_with};
use serde_json::{Value, json};

const MIB: u64 = 1024 * 1024;

/// The most memory a server may have had after what a test did to it, unless the test says otherwise.
const MEMORY: u64 = 48 * MIB;

/// What stands in files outside the root. No answer may hold it.
const SECRET: &str = "THE-SECRET-OUTSIDE";

/// A directory that holds the root and, beside it, what must not be reached.
struct Place {
    outer: Directory,
}

impl Place {
    fn new() -> Self {
        let outer = Directory::with(&[
            ("root/hello.txt", "hello\nworld\n"),
            ("root/dir/inner.txt", "inner\n"),
            ("secret.txt", SECRET),
            ("outside/secret.txt", SECRET),
            // Its path begins with the root's.
            ("root-sibling/secret.txt", SECRET),
        ]);
        Self { outer }
    }

    fn root(&self) -> PathBuf {
        self.outer.join("root")
    }

    fn serve(&self) -> Server {
        let mut server = Launch::berth(&self.root()).start();
        server.initialize();
        server
    }

    /// Fails when anything outside the root is not as it was.
    fn assert_outside_untouched(&self) {
        let mut names: Vec<String> = Vec::new();
        collect(self.outer.path(), &self.root(), &mut names);
        names.sort();
        assert_eq!(names, ["outside", "outside/secret.txt", "root-sibling", "root-sibling/secret.txt", "secret.txt"]);
        for name in ["secret.txt", "outside/secret.txt", "root-sibling/secret.txt"] {
            assert_eq!(self.outer.read(name), SECRET, "{name}");
        }
    }
}

/// The names below a directory, but for the root's.
fn collect(directory: &Path, root: &Path, names: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path == *root {
            continue;
        }
        names.push(path.strip_prefix(root.parent().unwrap()).unwrap().to_str().unwrap().to_owned());
        if path.symlink_metadata().unwrap().is_dir() {
            collect(&path, root, names);
        }
    }
}

/// What every test ends with: memory was bounded, the session goes on, and its end leaves nothing.
fn go_on(mut server: Server) {
    let peak = server.peak_memory();
    assert!(peak < MEMORY, "{} MiB at its highest", peak / MIB);
    assert_eq!(server.call_well("read", &json!({"path": "hello.txt"})), "     1\thello\n     2\tworld");
    server.finish_passing_over();
}

/// Calls of every file tool on a path; what each must be refused with where the path leads out.
fn calls_on(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("read", json!({"path": path})),
        ("write", json!({"path": path, "content": "overwritten"})),
        ("edit", json!({"path": path, "old_string": "THE", "new_string": "overwritten"})),
        ("glob", json!({"pattern": "**", "path": path})),
        ("grep", json!({"pattern": "SECRET", "path": path})),
        ("ls", json!({"path": path})),
    ]
}

/// Names that lead out by themselves are refused for every tool, and the refusal says why.
#[test]
fn a_name_that_leads_out_is_refused_by_every_tool() {
    let place = Place::new();
    let root = place.root();
    let root = root.to_str().unwrap();
    let mut server = place.serve();
    for path in [
        "..",
        "../",
        "../secret.txt",
        "../root-sibling/secret.txt",
        "dir/../../secret.txt",
        "dir/../../root/../secret.txt",
        "./././../secret.txt",
        "no-such/../../secret.txt",
        "hello.txt/../../secret.txt",
        "/etc/passwd",
        "/",
        "//etc/passwd",
        &format!("{root}-sibling/secret.txt"),
        &format!("{root}/../secret.txt"),
        &format!("{root}/dir/../../secret.txt"),
        "/proc/self/root/etc/passwd",
        "/proc/self/cwd/../secret.txt",
        "/dev/stdin",
        "/dev/fd/0",
    ] {
        for (tool, arguments) in calls_on(path) {
            let text = server.call_badly(tool, &arguments);
            assert!(text.contains("outside the workspace"), "{tool} {path}: {text}");
            assert!(!text.contains(SECRET) && !text.contains("root:x:"), "{tool} {path}: {text}");
        }
    }
    place.assert_outside_untouched();
    go_on(server);
}

/// Absolute names inside the root are names inside the root, in either spelling.
#[test]
fn an_absolute_name_inside_is_taken() {
    let place = Place::new();
    symlink(place.root(), place.outer.join("alias")).unwrap();
    let alias = place.outer.join("alias");
    let mut server = Launch::berth(&alias).start();
    server.initialize();
    for base in [&alias, &place.root()] {
        let path = base.join("hello.txt");
        assert!(server.call_well("read", &json!({"path": path.to_str().unwrap()})).contains("hello"));
        let path = base.join("dir/../hello.txt");
        assert!(server.call_well("read", &json!({"path": path.to_str().unwrap()})).contains("hello"));
    }
    fs::remove_file(&alias).unwrap();
    place.assert_outside_untouched();
    go_on(server);
}

/// Links whose names are fine and that lead out are not followed by any tool, however they are made.
#[test]
fn a_link_that_leads_out_is_not_followed_by_any_tool() {
    let place = Place::new();
    let root = place.root();
    symlink("../secret.txt", root.join("file-out")).unwrap();
    symlink(place.outer.join("secret.txt"), root.join("file-out-absolute")).unwrap();
    symlink("../outside", root.join("dir-out")).unwrap();
    symlink(place.outer.join("outside"), root.join("dir-out-absolute")).unwrap();
    symlink("..", root.join("up")).unwrap();
    symlink("dir-out", root.join("link-to-link-out")).unwrap();
    symlink("/proc/self/root", root.join("proc-root")).unwrap();
    symlink("/proc/self/cwd", root.join("proc-cwd")).unwrap();
    symlink("loop-b", root.join("loop-a")).unwrap();
    symlink("loop-a", root.join("loop-b")).unwrap();
    let mut server = place.serve();
    let secret = place.outer.join("secret.txt");
    let through_proc = format!("proc-root{}", secret.to_str().unwrap());
    for path in [
        "file-out",
        "file-out-absolute",
        "dir-out/secret.txt",
        "dir-out-absolute/secret.txt",
        "link-to-link-out/secret.txt",
        "up/secret.txt",
        "up/root-sibling/secret.txt",
        "up/../secret.txt",
        "proc-root/etc/passwd",
        &through_proc,
        "proc-cwd/../secret.txt",
        "loop-a",
        "loop-a/secret.txt",
    ] {
        for (tool, arguments) in calls_on(path) {
            let called = server.call(tool, &arguments);
            assert!(
                !called.text.contains(SECRET) && !called.text.contains("root:x:"),
                "{tool} {path}: {}",
                called.text
            );
            // A lexical `..` behind a link may mean a name inside that is not there, and a new file may be written there.
            let may_succeed = path.contains("..") || (tool == "write" && path == "loop-a");
            assert!(called.failed || may_succeed, "{tool} {path} succeeded: {}", called.text);
        }
    }
    for directory in ["dir-out", "dir-out-absolute", "up", "link-to-link-out", "proc-root", "proc-cwd"] {
        for (tool, arguments) in calls_on(directory) {
            let called = server.call(tool, &arguments);
            assert!(called.failed, "{tool} {directory} succeeded: {}", called.text);
            assert!(!called.text.contains("secret.txt"), "{tool} {directory}: {}", called.text);
        }
        let made = format!("{directory}/made.txt");
        server.call_badly("write", &json!({"path": made, "content": "x"}));
        let deeper = format!("{directory}/made/made.txt");
        server.call_badly("write", &json!({"path": deeper, "content": "x"}));
    }
    // A walk of the whole root passes by.
    let found = server.call_well("grep", &json!({"pattern": "SECRET"}));
    assert!(!found.contains(SECRET), "{found}");
    let found = server.call_well("glob", &json!({"pattern": "**/*.txt"}));
    for line in found.lines() {
        let path = root.join(line).canonicalize().unwrap();
        assert!(path.starts_with(&root), "{line} lies outside");
    }
    server.call_well("ls", &json!({}));
    place.assert_outside_untouched();
    go_on(server);
}

/// A directory that is exchanged for a link out, again and again, while files below it are read and written: whatever moment a call meets,
/// it acts inside or not at all.
#[test]
fn a_directory_swapped_for_a_link_never_leads_out() {
    let place = Place::new();
    let root = place.root();
    fs::create_dir(root.join("swapped")).unwrap();
    fs::write(root.join("swapped/secret.txt"), "inside").unwrap();
    symlink("../outside", root.join("other")).unwrap();
    let mut server = place.serve();
    let done = AtomicBool::new(false);
    let (one, other) = (root.join("swapped"), root.join("other"));
    let mut swaps = 0;
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0;
            while !done.load(Ordering::Relaxed) {
                match renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE) {
                    Ok(()) => swaps += 1,
                    Err(error) => panic!("the file system does not exchange names: {error}"),
                }
            }
            swaps
        });
        let mut succeeded = 0;
        for n in 0..150 {
            let written = format!("swapped/written-{n}.txt");
            for (tool, arguments) in [
                ("read", json!({"path": "swapped/secret.txt"})),
                ("grep", json!({"pattern": ".", "path": "swapped"})),
                ("ls", json!({"path": "swapped"})),
                ("glob", json!({"pattern": "*", "path": "swapped"})),
                ("edit", json!({"path": "swapped/secret.txt", "old_string": "THE", "new_string": "overwritten"})),
                ("write", json!({"path": written, "content": "x"})),
            ] {
                let called = server.call(tool, &arguments);
                assert!(!called.text.contains("SECRET"), "{tool}: {}", called.text);
                succeeded += usize::from(!called.failed);
            }
        }
        done.store(true, Ordering::Relaxed);
        swaps = swapper.join().unwrap();
        assert!(succeeded > 0);
    });
    assert!(swaps > 100, "only {swaps} swaps");
    place.assert_outside_untouched();
    go_on(server);
}

#[test]
fn a_name_no_file_can_have_is_a_clear_error() {
    let place = Place::new();
    let mut server = place.serve();
    let deep = "a/".repeat(2048) + "b";
    for path in [
        "hello.txt\0.png",
        "\0",
        &"x".repeat(256),
        &"x".repeat(4096),
        &deep,
        &"../".repeat(1365),
        &"y".repeat(1_000_000),
    ] {
        for (tool, arguments) in calls_on(path) {
            let text = server.call_badly(tool, &arguments);
            assert!(text.len() < 10_000, "{tool} answers a name of {} bytes with {} bytes", path.len(), text.len());
        }
    }
    for (tool, arguments) in calls_on("") {
        if matches!(tool, "read" | "write" | "edit") {
            let text = server.call_badly(tool, &arguments);
            assert!(text.contains("path"), "{tool}: {text}");
        }
    }
    place.assert_outside_untouched();
    go_on(server);
}

/// A name that is not UTF-8 cannot be asked for; it must not stop anything that comes across it.
#[test]
fn a_name_that_is_not_utf_8_stops_nothing() {
    let place = Place::new();
    let root = place.root();
    let name = std::ffi::OsStr::from_bytes(b"odd-\xff\xfe.txt");
    fs::write(root.join(name), "needle\n").unwrap();
    fs::write(root.join("odd-\u{1b}[31mred\n.txt"), "needle\n").unwrap();
    fs::create_dir(root.join(std::ffi::OsStr::from_bytes(b"odd-dir-\xff"))).unwrap();
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"odd-dir-\xff")).join("x.txt"), "needle\n").unwrap();
    fs::write(root.join("plain.txt"), "needle\n").unwrap();
    let mut server = place.serve();
    assert!(server.call_well("ls", &json!({})).contains("plain.txt"));
    assert!(server.call_well("glob", &json!({"pattern": "**/*.txt"})).contains("plain.txt"));
    assert!(server.call_well("grep", &json!({"pattern": "needle"})).contains("plain.txt:1:needle"));
    go_on(server);
}

/// What is no regular file is never opened in a way that waits: a FIFO has no writer, a socket no peer, a device no end.
#[test]
fn a_fifo_a_device_a_socket_and_a_directory_are_not_files() {
    let place = Place::new();
    let root = place.root();
    mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    symlink("fifo", root.join("link-to-fifo")).unwrap();
    let mut names = vec!["fifo", "socket", "dir", "link-to-fifo"];
    // Only root makes devices; /dev/zero has no end, /dev/tty waits for a person.
    for (name, minor) in [("zero", 5), ("full", 7)] {
        if mknodat(CWD, root.join(name), FileType::CharacterDevice, Mode::from_raw_mode(0o600), makedev(1, minor))
            .is_ok()
        {
            names.push(name);
        }
    }
    let mut server = place.serve();
    for name in names {
        for (tool, arguments) in [
            ("read", json!({"path": name})),
            ("write", json!({"path": name, "content": "x"})),
            ("edit", json!({"path": name, "old_string": "a", "new_string": "b"})),
        ] {
            let text = server.call_badly(tool, &arguments);
            assert!(text.contains("not a regular file") || text.contains("directory"), "{tool} {name}: {text}");
        }
        // A search may pass by what it cannot read; it must not wait for it.
        server.call("grep", &json!({"pattern": "x", "path": name}));
        if name != "dir" {
            server.call_badly("ls", &json!({"path": name}));
        }
    }
    let found = server.call_well("grep", &json!({"pattern": "inner"}));
    assert_eq!(found, "dir/inner.txt:1:inner");
    server.call_well("glob", &json!({"pattern": "**"}));
    server.call_well("ls", &json!({}));
    assert!(root.join("fifo").symlink_metadata().unwrap().file_type().is_fifo());
    assert!(root.join("socket").symlink_metadata().unwrap().file_type().is_socket());
    go_on(server);
}

#[test]
fn a_sparse_file_of_ten_gibibytes_costs_no_more_than_the_limit() {
    let place = Place::new();
    let file = File::create(place.root().join("sparse.txt")).unwrap();
    if file.set_len(10 << 30).is_err() {
        // Not every file system has room for its own idea of it.
        return;
    }
    let mut server = place.serve();
    let start = Instant::now();
    let called = server.call("read", &json!({"path": "sparse.txt"}));
    assert!(called.text.len() < 512 * 1024, "{} bytes", called.text.len());
    server.call_badly("edit", &json!({"path": "sparse.txt", "old_string": "a", "new_string": "b"}));
    assert!(!server.call_well("grep", &json!({"pattern": "x", "path": "sparse.txt"})).contains("sparse.txt:"));
    assert_eq!(server.call_well("grep", &json!({"pattern": "inner"})), "dir/inner.txt:1:inner");
    assert!(server.call_well("ls", &json!({})).contains("sparse.txt  10737418240"));
    assert!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
    go_on(server);
}

/// A pattern whose machine would be enormous, or that takes for ever on some texts in other engines.
#[test]
fn a_pattern_made_to_explode_does_not() {
    let place = Place::new();
    fs::write(place.root().join("long.txt"), "a".repeat(1 << 20)).unwrap();
    fs::write(place.root().join("a".repeat(200)), "a").unwrap();
    let mut server = place.serve();
    let start = Instant::now();
    let deep_group = "(".repeat(100_000);
    let alternatives = "{a,".repeat(5_000) + &"}".repeat(5_000);
    for pattern in
        ["(a{1000}){1000}", "((a*)*)*b", "(a|aa)+$", "(?i)\\pL{500}{500}", "[", "a{", "\\", "(?P<n>a)\\1", &deep_group]
    {
        let called = server.call("grep", &json!({"pattern": pattern}));
        assert!(
            called.text.len() < 64 * 1024,
            "grep {}: {} bytes",
            &pattern[..20.min(pattern.len())],
            called.text.len()
        );
    }
    for pattern in [
        "**/*a*a*a*a*a*a*a*a*a*a*a*a*b",
        &"**/".repeat(2_000),
        &alternatives,
        &"{a,b}".repeat(1_000),
        &"[!a]".repeat(10_000),
        "{a,b",
        "[a",
        "\\",
        "../*",
        "/etc/*",
        "dir/../../*",
    ] {
        let called = server.call("glob", &json!({"pattern": pattern}));
        assert!(
            called.text.len() < 64 * 1024,
            "glob {}: {} bytes",
            &pattern[..20.min(pattern.len())],
            called.text.len()
        );
        assert!(!called.text.contains("secret") && !called.text.contains("passwd"), "{}", called.text);
        server.call("grep", &json!({"pattern": "a", "include": pattern}));
    }
    assert!(start.elapsed() < Duration::from_secs(15), "took {:?}", start.elapsed());
    place.assert_outside_untouched();
    go_on(server);
}

/// Directories so deep that no path names the lowest: a walk must neither follow with its stack nor stop the session.
#[test]
fn a_tree_deeper_than_a_path_can_name_stops_nothing() {
    let place = Place::new();
    const LEVELS: usize = 1_500;
    let mut level = open(place.root(), OFlags::DIRECTORY | OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..LEVELS {
        mkdirat(&level, "deeper", Mode::from_raw_mode(0o755)).unwrap();
        level = openat(&level, "deeper", OFlags::DIRECTORY | OFlags::PATH, Mode::empty()).unwrap();
    }
    let lowest = openat(&level, "lowest.txt", OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o644)).unwrap();
    File::from(lowest).write_all(b"needle\n").unwrap();
    let mut server = place.serve();
    assert!(server.call_well("grep", &json!({"pattern": "inner"})).contains("dir/inner.txt:1:inner"));
    let found = server.call_well("glob", &json!({"pattern": "**/*.txt"}));
    assert!(found.contains("hello.txt"), "{} bytes", found.len());
    server.call_well("ls", &json!({}));
    let removed = Command::new("rm").arg("-rf").arg("--").arg(place.root().join("deeper")).status().unwrap();
    assert!(removed.success());
    go_on(server);
}

#[test]
fn a_line_without_end_is_cut() {
    let place = Place::new();
    fs::write(place.root().join("line.txt"), "x".repeat(8 << 20)).unwrap();
    let mut server = place.serve();
    let text = server.call_well("read", &json!({"path": "line.txt"}));
    assert!(text.len() < 128 * 1024, "{} bytes", text.len());
    let text = server.call_well("grep", &json!({"pattern": "x", "path": "line.txt"}));
    assert!(text.len() < 4096, "{} bytes", text.len());
    go_on(server);
}

#[test]
fn a_file_that_grows_while_it_is_read_has_an_end() {
    let place = Place::new();
    let path = place.root().join("growing.log");
    let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    file.write_all(b"first\n").unwrap();
    let done = AtomicBool::new(false);
    let mut server = place.serve();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let lines = "a line that is added while others read\n".repeat(100);
            let mut room = 256 * MIB;
            while !done.load(Ordering::Relaxed) && room > 0 {
                file.write_all(lines.as_bytes()).unwrap();
                room = room.saturating_sub(lines.len() as u64);
            }
        });
        for _ in 0..20 {
            let text = server.call_well("read", &json!({"path": "growing.log", "limit": 1_000_000}));
            assert!(text.starts_with("     1\tfirst\n"), "{}", &text[..100.min(text.len())]);
            assert!(text.len() < 512 * 1024, "{} bytes", text.len());
            server.call_well("grep", &json!({"pattern": "first", "path": "growing.log"}));
            server.call("edit", &json!({"path": "growing.log", "old_string": "nowhere", "new_string": "x"}));
        }
        done.store(true, Ordering::Relaxed);
    });
    go_on(server);
}

#[test]
fn a_command_that_prints_without_end_is_cut_and_killed_at_its_timeout() {
    let place = Place::new();
    let mut server = place.serve();
    for command in ["yes", "yes 'a longer line of output' >&2", "exec cat /dev/zero"] {
        let text = server.call_well("bash", &json!({"command": command, "timeout_seconds": 1}));
        assert!(
            text.ends_with("[killed after 1s]"),
            "{command}: …{}",
            text.chars().rev().take(200).collect::<String>()
        );
        // An answer with control characters in it is longer on the wire, not here.
        assert!(text.len() < 64 * 1024, "{command}: {} bytes", text.len());
    }
    assert_nothing_below(&server);
    go_on(server);
}

#[test]
fn ten_gigabytes_of_output_are_taken_and_dropped() {
    let place = Place::new();
    let mut server = place.serve();
    // As much as fits into the time it is given, up to ten gigabytes; the answer is the first part of it.
    let text = server
        .call_well("bash", &json!({"command": "head -c 10000000000 /dev/zero | tr '\\0' x", "timeout_seconds": 3}));
    assert!(text.starts_with("xxxx") && text.len() < 64 * 1024, "{} bytes", text.len());
    assert_nothing_below(&server);
    go_on(server);
}

#[test]
fn a_command_that_forks_many_is_killed_with_all_of_them() {
    let place = Place::new();
    let mut server = place.serve();
    // A tree of shells and a row of sleepers: enough to outrun a killer that takes one at a time, not enough to hurt the machine.
    let tree = "tree() { if [ $1 -gt 0 ]; then (tree $(($1 - 1))) & (tree $(($1 - 1))) & fi; sleep 1000; }; tree 6 &\n\
                i=0; while [ $i -lt 150 ]; do sleep 1000 & i=$((i + 1)); done; echo all; wait";
    let call = server.begin_call("bash", &json!({"command": tree, "timeout_seconds": 2}));
    assert!(server.outcome(call).text.ends_with("[killed after 2s]"));
    assert_nothing_below(&server);
    // And one that goes on forking while it is killed.
    let storm = "n=0; while [ $n -lt 800 ]; do (sleep 1000) & n=$((n + 1)); done; wait";
    let call = server.begin_call("bash", &json!({"command": storm, "timeout_seconds": 1}));
    assert!(server.outcome(call).text.ends_with("[killed after 1s]"));
    assert_nothing_below(&server);
    go_on(server);
}

#[test]
fn a_command_that_ignores_signals_is_killed() {
    let place = Place::new();
    let mut server = place.serve();
    let start = Instant::now();
    let command = "trap '' TERM INT HUP QUIT; echo started; while :; do sleep 0.1; done";
    let text = server.call_well("bash", &json!({"command": command, "timeout_seconds": 1}));
    assert_eq!(text, "started\n[killed after 1s]");
    assert!(start.elapsed() < Duration::from_secs(8), "took {:?}", start.elapsed());
    assert_nothing_below(&server);
    go_on(server);
}

#[test]
fn a_command_that_closes_its_output_and_lives_is_waited_for_and_killed() {
    let place = Place::new();
    let mut server = place.serve();
    let text =
        server.call_well("bash", &json!({"command": "echo before; exec >&- 2>&-; sleep 1000", "timeout_seconds": 1}));
    assert_eq!(text, "before\n[killed after 1s]");
    assert_nothing_below(&server);
    let text = server.call_well("bash", &json!({"command": "exec >&- 2>&-; sleep 0.2; exit 4", "timeout_seconds": 15}));
    assert_eq!(text, "[exit 4]");
    go_on(server);
}

/// The command has ended; what holds its output open must not hold its answer.
#[test]
fn a_background_job_that_keeps_the_output_open_does_not_hold_the_answer() {
    let place = Place::new();
    let mut server = place.serve();
    let start = Instant::now();
    let text = server.call_well("bash", &json!({"command": "sleep 1000 & echo done", "timeout_seconds": 100}));
    assert!(text.starts_with("done\n") && text.ends_with("[exit 0]"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(8), "took {:?}", start.elapsed());
    go_on(server);
}

/// A daemon leaves its session and its group, and gives its parent up; the end of the session is its end too.
#[test]
fn a_daemon_does_not_outlive_the_session() {
    let place = Place::new();
    let mut server = place.serve();
    for command in [
        "setsid sleep 1001 >/dev/null 2>&1 </dev/null & echo done",
        "(setsid sh -c 'sleep 1002 & sleep 1003' >/dev/null 2>&1 </dev/null &) ; echo done",
        "setsid setsid sleep 1004 & echo done",
        "nohup sleep 1005 >/dev/null 2>&1 & disown; echo done",
    ] {
        let start = Instant::now();
        let text = server.call_well("bash", &json!({"command": command, "timeout_seconds": 100}));
        assert!(text.starts_with("done\n") && text.ends_with("[exit 0]"), "{command}: {text}");
        assert!(start.elapsed() < Duration::from_secs(8), "{command}: took {:?}", start.elapsed());
    }
    go_on(server);
}

#[test]
fn a_daemon_does_not_outlive_a_timeout_that_kills_its_command() {
    let place = Place::new();
    let mut server = place.serve();
    let command = "setsid sleep 1006 & sleep 1007";
    let text = server.call_well("bash", &json!({"command": command, "timeout_seconds": 1}));
    assert_eq!(text, "[killed after 1s]");
    go_on(server);
}

/// Whoever watches over a command may be attacked by it: it is its parent, and of the same user.
#[test]
fn a_command_that_attacks_its_parent_is_still_ended() {
    let place = Place::new();
    let mut server = place.serve();
    for attack in ["kill -9 $PPID", "kill -STOP $PPID", "kill -TERM $PPID; kill -HUP $PPID", "kill -STOP $$"] {
        let command = format!("[ $PPID = {} ] || {attack}; sleep 1010; sleep 1011", server.pid());
        let start = Instant::now();
        server.call("bash", &json!({"command": command, "timeout_seconds": 1}));
        assert!(start.elapsed() < Duration::from_secs(8), "{attack}: took {:?}", start.elapsed());
    }
    go_on(server);
}

/// A command line longer than the system passes on, one with a NUL in it, and limits of every size.
#[test]
fn a_command_that_cannot_be_started_is_a_clear_error() {
    let place = Place::new();
    let mut server = place.serve();
    let long = format!(": {}; echo done", "x".repeat(200_000));
    let called = server.call("bash", &json!({"command": long}));
    assert!(called.failed || called.text.contains("done"), "{}", &called.text[..200.min(called.text.len())]);
    let huge = format!(": {}; echo done", "x".repeat(4_000_000));
    let called = server.call("bash", &json!({"command": huge}));
    assert!(called.failed || called.text.contains("done"), "{}", &called.text[..200.min(called.text.len())]);
    assert!(called.text.len() < 10_000);
    server.call_badly("bash", &json!({"command": "echo a\0b"}));
    server.call_badly("bash", &json!({"command": ""}));
    server.call_badly("bash", &json!({"command": "echo x", "timeout_seconds": -1}));
    server.call_badly("bash", &json!({"command": "echo x", "timeout_seconds": 0.5}));
    for seconds in [0_u64, 1 << 31, 1 << 53, u64::MAX] {
        let called = server.call("bash", &json!({"command": "echo x", "timeout_seconds": seconds}));
        assert!(called.failed || called.text == "x\n[exit 0]", "{seconds}: {}", called.text);
    }
    go_on(server);
}

/// Numbers at the end of their range.
#[test]
fn a_number_of_any_size_is_taken_or_refused() {
    let place = Place::new();
    let mut server = place.serve();
    let numbers =
        [json!(0), json!(1), json!(u64::MAX), json!(i64::MAX), json!(1e300), json!(-0.0), json!(-1), json!(1.5)];
    for number in numbers {
        server.call("read", &json!({"path": "hello.txt", "offset": number}));
        server.call("read", &json!({"path": "hello.txt", "limit": number}));
        server.call("read", &json!({"path": "hello.txt", "offset": number, "limit": number}));
        server.call("grep", &json!({"pattern": "l", "max_results": number}));
        server.call("glob", &json!({"pattern": "**", "max_results": number}));
    }
    go_on(server);
}

/// What a command prints need not be text.
#[test]
fn output_that_is_not_text_stays_inside_its_answer() {
    let place = Place::new();
    let mut server = place.serve();
    let text = server.call_well("bash", &json!({"command": "printf 'a\\377b\\000c\\033[31m\\r\\n\\342\\200\\250d'"}));
    assert!(text.contains('a') && text.contains('b') && text.contains('d'), "{text:?}");
    let call = server.begin_call("bash", &json!({"command": "head -c 3000000 /dev/urandom"}));
    let text = server.outcome(call).text;
    assert!(text.ends_with("[exit 0]") && text.len() < 256 * 1024, "{} bytes", text.len());
    // Cut at the limit in the middle of a character of three bytes, whichever way.
    for shift in 0..3 {
        let command = format!("printf '%{shift}s' ''; yes \u{20ac} | tr -d '\\n' | head -c 120000");
        let text = server.call_well("bash", &json!({"command": command}));
        assert!(text.contains('\u{20ac}') && text.len() < 128 * 1024, "{} bytes", text.len());
    }
    go_on(server);
}

/// The directory itself is taken away.
#[test]
fn a_root_that_is_removed_ends_no_session() {
    let place = Place::new();
    let mut server = place.serve();
    fs::remove_dir_all(place.root()).unwrap();
    for (tool, arguments) in calls_on("hello.txt") {
        let called = server.call(tool, &arguments);
        assert!(called.failed, "{tool} succeeded: {}", called.text);
    }
    server.call("bash", &json!({"command": "echo hello > hello.txt; pwd", "timeout_seconds": 5}));
    server.call("ls", &json!({}));
    server.call("glob", &json!({"pattern": "**"}));
    assert_eq!(server.request("ping", &json!({}))["result"], json!({}));
    assert!(server.peak_memory() < MEMORY);
    // Another that takes its name is not the root.
    fs::create_dir(place.root()).unwrap();
    fs::write(place.root().join("other.txt"), SECRET).unwrap();
    assert!(!server.call("read", &json!({"path": "other.txt"})).text.contains(SECRET));
    fs::remove_file(place.root().join("other.txt")).unwrap();
    server.finish_passing_over();
}

/// The terminal that the server was started from is not its commands': they can neither read from it nor write to it.
#[test]
fn a_command_does_not_reach_the_terminal() {
    let place = Place::new();
    let pipes = Directory::new();
    let have = Command::new("sh").args(["-c", "command -v script"]).stdout(Stdio::null()).status().unwrap();
    if !have.success() {
        eprintln!("no `script` here, and so no terminal to start from");
        return;
    }
    // `script` gives its command a terminal; the protocol goes through FIFOs beside it.
    let wrapper = r#"exec 3<&0; mkfifo "$0/in" "$0/out"
        script -qec "exec '$1' execute --root '$2' <'$0/in' >'$0/out'" /dev/null </dev/null >/dev/null &
        cat <&3 >"$0/in" & cat <"$0/out"; wait"#;
    let mut server =
        Launch::new("sh").arg("-c").arg(wrapper).arg(pipes.path()).arg(program::berth()).arg(place.root()).start();
    server.initialize();
    let mut serving = procfs::processes();
    let root = place.root();
    serving.retain(|(_, command)| {
        command.starts_with(program::berth().to_str().unwrap()) && command.contains(root.to_str().unwrap())
    });
    assert!(serving.iter().any(|(pid, _)| procfs::has_terminal(*pid)), "{serving:?}");
    let text = server
        .call_well("bash", &json!({"command": "read x </dev/tty && echo read; echo after", "timeout_seconds": 5}));
    assert!(text.ends_with("after\n[exit 0]") && !text.contains("read\n"), "{text}");
    let text = server
        .call_well("bash", &json!({"command": "echo x >/dev/tty && echo written; echo after", "timeout_seconds": 5}));
    assert!(text.ends_with("after\n[exit 0]") && !text.contains("written"), "{text}");
    assert_eq!(server.call_well("read", &json!({"path": "hello.txt"})), "     1\thello\n     2\tworld");
}

/// A cancelled call's processes are gone when its cancellation has been taken, whatever they do.
#[test]
fn a_cancelled_command_leaves_nothing() {
    let place = Place::new();
    let mut server = place.serve();
    let command = "trap '' TERM; (trap '' TERM; sleep 1008; sleep 1009) & echo started; wait; wait";
    let call = server.begin_call("bash", &json!({"command": command, "timeout_seconds": 1000}));
    server.progress(call, "started");
    server.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}));
    assert_nothing_below(&server);
    go_on(server);
}

/// Fails when the server still has a process below it.
fn assert_nothing_below(server: &Server) {
    let own = server.pid();
    let mut left = Vec::new();
    let gone = procfs::eventually(Duration::from_secs(8), || {
        left = procfs::marked(server.mark());
        left.retain(|(pid, _)| *pid != own);
        left.is_empty().then_some(())
    });
    assert!(gone.is_some(), "processes are left: {left:?}");
}

/// A command gets nothing of the server but its environment: no open file, default signals, its own group.
#[test]
fn a_command_inherits_no_file_and_no_signal_disposition() {
    let place = Place::new();
    let mut server = place.serve();
    // 3 is the directory that `ls` itself reads.
    let text = server.call_well("bash", &json!({"command": "exec ls /proc/self/fd"}));
    assert_eq!(text, "0\n1\n2\n3\n[exit 0]");
    // SIGPIPE (13), SIGINT (2) and SIGTERM (15) are neither ignored nor blocked.
    let text = server.call_well("bash", &json!({"command": "grep -E '^(SigIgn|SigBlk)' /proc/self/status"}));
    for line in text.lines().filter(|line| line.starts_with("Sig")) {
        let set = u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap();
        assert_eq!(set & (1 << 12 | 1 << 1 | 1 << 14 | 1), 0, "{line}");
    }
    let text =
        server.call_well("bash", &json!({"command": "read -r _ _ _ _ group _ < /proc/self/stat; echo $group $$"}));
    let first = text.lines().next().unwrap_or_default().to_owned();
    assert!(!first.split(' ').any(|group| group == server.pid().to_string()), "{text}");
    go_on(server);
}

/// Credentials in the server's environment are not in a command's.
#[test]
fn a_command_does_not_see_credentials() {
    let place = Place::new();
    let mut server = Launch::berth(&place.root())
        .arg("--pass-env")
        .arg("MY_API_KEY, DATABASE_PASSWORD")
        .env("SOME_TOKEN", "hidden-1")
        .env("AWS_SECRET_ACCESS_KEY", "hidden-2")
        .env("SERVICE_URL", "https://user:hidden-3@example.com/")
        .env("my_password_file", "hidden-4")
        .env("MY_API_KEY", "shown-1")
        .env("DATABASE_PASSWORD", "shown-2")
        .env("KUBECONFIG", "shown-3")
        .env("PLAIN_URL", "https://example.com/shown-4")
        .start();
    server.initialize();
    let text = server.call_well("bash", &json!({"command": "env"}));
    for shown in ["shown-1", "shown-2", "shown-3", "shown-4"] {
        assert!(text.contains(shown), "{shown} is not in {text}");
    }
    assert!(!text.contains("hidden"), "{text}");
    go_on(server);
}

/// A disk without room for the new content keeps the old one whole.
#[test]
fn a_full_disk_leaves_the_old_file_whole() {
    let place = Place::new();
    let disk = place.root();
    let script =
        r#"mount -t tmpfs -o size=256k,mode=755 tmpfs "$1" && cp "$0"/* "$1" && exec "$2" execute --root "$1""#;
    let source = Directory::with(&[("hello.txt", "hello\nworld\n"), ("old.txt", &"o".repeat(100_000))]);
    // A mount of its own: as root, else in a user namespace, else not at all.
    let ways: [&[&str]; 2] = [&["unshare", "-m"], &["unshare", "-r", "-m"]];
    let works = |way: &&&[&str]| {
        let mut command = Command::new(way[0]);
        command.args(&way[1..]).args(["sh", "-c", r#"mount -t tmpfs -o size=64k tmpfs "$0""#]).arg(&disk);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let Some(way) = ways.iter().find(works) else {
        eprintln!("no mount to be had here: the limit on a file's size stands for the full disk");
        return full_by_limit();
    };
    let mut launch = Launch::new(way[0]);
    for argument in &way[1..] {
        launch = launch.arg(argument);
    }
    let launch = launch.arg("sh").arg("-c").arg(script).arg(source.path()).arg(&disk).arg(program::berth());
    full(launch.start());
}

/// A limit on the size of files does the same, and must not end the server with a signal.
#[test]
fn a_limit_on_the_size_of_files_leaves_the_old_file_whole() {
    full_by_limit();
}

fn full_by_limit() {
    let root = Directory::with(&[("hello.txt", "hello\nworld\n"), ("old.txt", &"o".repeat(100_000))]);
    // In units of 512 bytes or of 1,024, as the shell has it.
    let script = r#"ulimit -f 256; exec "$0" execute --root "$1""#;
    full(Launch::new("sh").arg("-c").arg(script).arg(program::berth()).arg(root.path()).start());
}

/// A server whose disk takes 100,000 bytes but not two million.
fn full(mut server: Server) {
    server.initialize();
    let content = "n".repeat(2_000_000);
    let text = server.call_badly("write", &json!({"path": "old.txt", "content": content}));
    assert!(!text.contains("/tmp"), "{text}");
    let old = server.call_well("grep", &json!({"pattern": "^o", "path": "old.txt"}));
    assert!(old.starts_with("old.txt:1:oooo"), "{}", &old[..100.min(old.len())]);
    assert!(server.call_well("ls", &json!({})).contains("old.txt  100000"));
    server.call_badly("write", &json!({"path": "new.txt", "content": content}));
    // Nothing is left of what did not fit.
    assert_eq!(server.call_well("ls", &json!({})), "hello.txt  12\nold.txt  100000");
    server.call_well("write", &json!({"path": "small.txt", "content": "fits"}));
    go_on(server);
}
