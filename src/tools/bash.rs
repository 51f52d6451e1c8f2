//! `bash`: runs a command line in the workspace (spec executor 10.7).

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::schema::{self, Argument, STAMP};
use super::{Arguments, Call, Definition, Effect, Failure, Tool};
use crate::os::child;
use crate::workspace::{Ended, Output, Run, Workspace};

/// How much of a command's output is answered: the first 50 KiB.
const KEPT: usize = 50 * 1024;

/// How long a command may run where nothing else is said, and at the most, in seconds.
const DEFAULT_TIMEOUT: u64 = 120;
const LONGEST_TIMEOUT: u64 = 24 * 60 * 60;

/// The `bash` tool.
pub(super) struct Bash {
    workspace: Arc<Workspace>,
    definition: Definition,
}

impl Bash {
    /// The tool over a workspace; `None` where that has no shell.
    pub(super) fn new(workspace: &Arc<Workspace>) -> Option<Self> {
        let shell = workspace.shell()?.name();
        let definition = Definition {
            name: "bash",
            description: format!(
                "Run a command line with {shell} in the workspace's root. Answers with what it printed, standard output and error \
                 together (the first 50 KiB), and its exit code in the last line. It has no terminal and no input. What it leaves \
                 running in the background lives on, without its output being shown, until the session ends."
            ),
            input_schema: schema::object(vec![
                Argument::required("command", "string", format!("the command line, as {shell} reads it")),
                Argument::optional(
                    "timeout_seconds",
                    "integer",
                    format!(
                        "kill the command and all it started after this many seconds (default {DEFAULT_TIMEOUT}, at most \
                         {LONGEST_TIMEOUT})"
                    ),
                ),
            ]),
            read_only: true,
            effect: Effect::Anything,
            sequential: true,
        };
        Some(Self { workspace: Arc::clone(workspace), definition })
    }
}

impl Tool for Bash {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn run(&self, arguments: &Arguments, call: &Call<'_>) -> Result<String, Failure> {
        arguments.known(&["command", "timeout_seconds", STAMP])?;
        let line = arguments.string("command")?;
        if line.trim().is_empty() {
            return Err(Failure::InvalidArguments("\"command\" must not be blank".into()));
        }
        if line.contains('\0') {
            return Err(Failure::InvalidArguments("\"command\" must not hold a NUL character".into()));
        }
        let timeout = match arguments.count("timeout_seconds")? {
            None | Some(0) => DEFAULT_TIMEOUT,
            Some(seconds @ 1..=LONGEST_TIMEOUT) => seconds,
            Some(seconds) => {
                let why = format!("\"timeout_seconds\" must be at most {LONGEST_TIMEOUT}, not {seconds}");
                return Err(Failure::InvalidArguments(why));
            }
        };
        let shell = self.workspace.shell().ok_or_else(|| Failure::Refused("this workspace has no shell".into()))?;
        let directory = self.workspace.open_directory(&self.workspace.path(".")?)?;
        let mut report = |window: &[u8]| call.progress.report(&String::from_utf8_lossy(window));
        let output = shell.run(Run {
            line,
            directory: std::os::fd::AsFd::as_fd(&directory),
            environment: self.workspace.environment(),
            timeout: Duration::from_secs(timeout),
            keep: KEPT,
            cancel: call.cancel,
            watch: call.progress.wanted().then_some(&mut report),
        });
        answer(output, timeout, shell.name(), line.len())
    }
}

/// The text of an answer: the output, what was dropped of it, and how the command ended.
fn answer(output: Output, timeout: u64, shell: &str, length: usize) -> Result<String, Failure> {
    let mut text = String::from_utf8_lossy(&output.bytes).into_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    // Writing to a string does not fail.
    if output.dropped > 0 {
        let _ = writeln!(text, "[{} more bytes of output were dropped]", output.dropped);
    }
    let _ = match output.ended {
        Ended::Exit(code) => write!(text, "[exit {code}]"),
        Ended::Signal(signal) => write!(text, "[ended by {}]\n[exit -1]", signal_name(signal)),
        Ended::TimedOut => write!(text, "[killed after {}]", duration(timeout)),
        Ended::Cancelled => return Err(Failure::Cancelled),
        Ended::Lost => {
            let why = "the command killed its own parent process, so it was ended, and what it printed is incomplete";
            return Err(Failure::Refused(format!("{why}\n{text}").trim_end().to_owned()));
        }
        Ended::NotStarted(child::Error::Program(why)) if why.raw_os_error() == Some(Errno::TOOBIG.raw_os_error()) => {
            return Err(Failure::Refused(format!(
                "the command line is {length} bytes long, more than a program can be given here (mostly 131071): write it to a \
                 file and run that"
            )));
        }
        Ended::NotStarted(why) => return Err(Failure::Refused(format!("{shell} cannot be started: {why}"))),
    };
    Ok(text)
}

/// Seconds as Go writes a duration: `45s`, `2m0s`, `1h0m0s`.
fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

fn signal_name(signal: i32) -> String {
    nix::sys::signal::Signal::try_from(signal)
        .map_or_else(|_| format!("signal {signal}"), |known| known.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{arguments, call, open};
    use super::*;
    use crate::os::cancel::Cancel;
    use crate::os::scratch::Scratch;
    use crate::tools::Progress;
    use serde_json::json;
    use std::path::Path;
    use std::sync::Mutex;
    use std::time::Instant;

    struct Place {
        scratch: Scratch,
        bash: Bash,
    }

    fn place() -> Place {
        let scratch = Scratch::new();
        let bash = Bash::new(&open(&scratch)).unwrap();
        Place { scratch, bash }
    }

    impl Place {
        fn with(&self, given: serde_json::Value) -> Result<String, Failure> {
            call(|call| self.bash.run(&arguments(&given.to_string()), call))
        }

        fn run(&self, line: &str) -> String {
            self.with(json!({ "command": line })).unwrap()
        }

        fn limited(&self, line: &str, seconds: u64) -> String {
            self.with(json!({ "command": line, "timeout_seconds": seconds })).unwrap()
        }

        fn refused(&self, given: serde_json::Value) -> String {
            self.with(given).unwrap_err().to_string()
        }

        /// The process ids in a file, one a line.
        fn pids(&self, name: &str) -> Vec<i32> {
            let text = std::fs::read_to_string(self.scratch.inside(name)).unwrap();
            text.lines().map(|line| line.trim().parse().unwrap()).collect()
        }
    }

    fn exists(pid: i32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn output_and_exit_code_are_answered() {
        let place = place();
        for (line, wanted) in [
            ("echo hello", "hello\n[exit 0]"),
            ("printf hello", "hello\n[exit 0]"),
            ("true", "[exit 0]"),
            ("exit 3", "[exit 3]"),
            ("echo a; echo b >&2; echo c", "a\nb\nc\n[exit 0]"),
            ("cat", "[exit 0]"),
            ("read line; echo $?", "1\n[exit 0]"),
            ("cat <<END\nhere\nEND", "here\n[exit 0]"),
            ("exec 0<&-; echo on", "on\n[exit 0]"),
            ("exec 1>&- 2>&-; sleep 0.01", "[exit 0]"),
            ("set -e; false; echo not here", "[exit 1]"),
            ("exit", "[exit 0]"),
            ("exec true", "[exit 0]"),
            ("kill -9 $$", "[ended by SIGKILL]\n[exit -1]"),
            ("echo x; kill -TERM $$", "x\n[ended by SIGTERM]\n[exit -1]"),
        ] {
            assert_eq!(place.run(line), wanted, "{line}");
        }
        // A line that begins with a dash is a line.
        assert!(place.run("--version").ends_with("[exit 127]"));
        assert!(!place.run("cat /dev/tty").ends_with("[exit 0]"));
        let root = place.scratch.root();
        assert_eq!(place.run("pwd"), format!("{}\n[exit 0]", root.display()));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let place = place();
        for (given, wanted) in [
            (json!({}), "\"command\" is required"),
            (json!({"command": 1}), "\"command\" must be a string"),
            (json!({"command": " \n"}), "\"command\" must not be blank"),
            (json!({"command": "a\0b"}), "NUL"),
            (json!({"command": "true", "timeout_seconds": -1}), "\"timeout_seconds\" must be a whole number"),
            (json!({"command": "true", "timeout_seconds": 86401}), "at most 86400"),
            (json!({"Command": "true"}), "\"command\""),
        ] {
            let error = place.refused(given);
            assert!(error.starts_with("invalid arguments: ") && error.contains(wanted), "{error}");
        }
        assert_eq!(place.with(json!({"command": "true", "timeout_seconds": 0})).unwrap(), "[exit 0]");
    }

    #[test]
    fn a_line_too_long_for_the_system_is_refused_with_a_hint() {
        let place = place();
        let error = place.refused(json!({"command": format!("true {}", "x".repeat(4 << 20))}));
        assert!(error.contains("4194309 bytes") && error.contains("write it to a file"), "{error}");
        // The longest that is sure to work everywhere does.
        assert_eq!(place.run(&format!("true {}", "x".repeat(131_000))), "[exit 0]");
    }

    #[test]
    fn the_first_of_the_output_is_kept_and_the_rest_counted() {
        let place = place();
        let all = place.run("head -c 51200 /dev/zero | tr '\\0' x");
        assert_eq!(all, format!("{}\n[exit 0]", "x".repeat(51_200)));
        let most = place.run("head -c 51203 /dev/zero | tr '\\0' x");
        assert_eq!(most, format!("{}\n[3 more bytes of output were dropped]\n[exit 0]", "x".repeat(51_200)));
        // 51,200 bytes end within a character of three.
        let cut = place.run("printf 'abc%.0s' ''; for i in 1 2 3 4 5 6 7 8 9 10; do printf '€%.0s' $(seq 2000); done");
        assert!(cut.starts_with("abc€") && !cut.contains('\u{fffd}'), "{}", &cut[cut.len() - 100..]);
        let kept = cut.split("\n[").next().unwrap().len();
        assert_eq!(kept, 3 + 17_065 * 3);
        assert!(cut.ends_with(&format!("\n[{} more bytes of output were dropped]\n[exit 0]", 60_003 - kept)));
        assert_eq!(place.run("printf 'a\\377b'"), "a\u{fffd}b\n[exit 0]");
    }

    #[test]
    fn output_without_end_is_counted_and_not_kept() {
        let place = place();
        let answer = place.run("head -c 300000000 /dev/zero | tr '\\0' x");
        assert!(answer.ends_with("\n[299948800 more bytes of output were dropped]\n[exit 0]"));
        let started = Instant::now();
        let answer = place.limited("yes", 1);
        assert!(answer.ends_with("[killed after 1s]") && answer.contains("more bytes of output were dropped"));
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn what_takes_too_long_is_killed_and_its_output_kept() {
        let place = place();
        for line in [
            "sleep 1000",
            "trap '' TERM INT HUP; sleep 1000",
            "kill -STOP $$",
            "exec >&- 2>&-; sleep 1000",
            "setsid sleep 1000 & sleep 1000",
            "(setsid sh -c 'echo $$ >> pids; sleep 1000' &); sleep 1000",
            "(trap '' HUP; setsid sh -c 'trap \"\" TERM; setsid sh -c \"echo \\$\\$ >> pids; sleep 1000\" &' &); sleep 1000",
            "kill -STOP $PPID; sleep 1000",
        ] {
            std::fs::write(place.scratch.inside("pids"), "").unwrap();
            let line = format!("echo $$ >> pids; echo before; {line}");
            assert_eq!(place.limited(&line, 1), "before\n[killed after 1s]", "{line}");
            let pids = place.pids("pids");
            assert!(!pids.is_empty() && pids.iter().all(|pid| !exists(*pid)), "{line}");
        }
    }

    #[test]
    fn a_background_job_does_not_hold_up_the_answer_and_lives_until_the_end() {
        let place = place();
        let started = Instant::now();
        let line = "sleep 1000 & echo $! >> pids; setsid sleep 1000 & echo $! >> pids; yes & echo $! >> pids; yes >/dev/null & \
                    echo $! >> pids; echo done > said";
        assert!(place.run(line).ends_with("[exit 0]"));
        assert!(started.elapsed() < Duration::from_secs(30));
        assert_eq!(place.scratch.names("."), ["pids", "said"]);
        let pids = place.pids("pids");
        assert!(pids.len() == 4 && pids.iter().all(|pid| exists(*pid)));
        // The one that prints is still there: nobody closed its pipe.
        assert_eq!(place.run(&format!("kill -0 {}", pids[2])), "[exit 0]");
        assert_eq!(place.bash.workspace.end_processes(), 0);
        assert!(pids.iter().all(|pid| !exists(*pid)));
    }

    #[test]
    fn a_background_job_that_ends_is_forgotten() {
        let place = place();
        place.run("mkfifo gate; (read line < gate; echo $? > result) & true");
        place.run("echo go > gate");
        let deadline = Instant::now() + Duration::from_secs(60);
        while place.bash.workspace.shell().unwrap().background() > 0 {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_cancelled_command_is_gone_at_once() {
        let place = place();
        let line = "echo $$ > pid; setsid sleep 1000 & echo ready; exec sleep 1000";
        struct Thrown<'a>(&'a Cancel, Mutex<Option<Instant>>);
        impl Progress for Thrown<'_> {
            fn wanted(&self) -> bool {
                true
            }
            fn report(&self, _message: &str) {
                *self.1.lock().unwrap() = Some(Instant::now());
                self.0.cancel();
            }
        }
        let cancel = Cancel::new();
        let progress = Thrown(&cancel, Mutex::default());
        let given = arguments(&json!({ "command": line }).to_string());
        let result = place.bash.run(&given, &Call { cancel: &cancel, progress: &progress });
        let took = progress.1.lock().unwrap().unwrap().elapsed();
        assert!(matches!(result, Err(Failure::Cancelled)));
        assert!(!exists(place.pids("pid")[0]));
        // 5 ms on an idle machine; the bound leaves room for a busy one.
        assert!(took < Duration::from_secs(1), "{took:?}");
        // A call that is cancelled before it begins does not begin.
        let result =
            place.bash.run(&arguments(r#"{"command":"touch x"}"#), &Call { cancel: &cancel, progress: &progress });
        assert!(matches!(result, Err(Failure::Cancelled)) && !place.scratch.inside("x").exists());
    }

    #[test]
    fn progress_is_told_at_once_and_then_in_windows() {
        /// Lets the command go on once it was heard, so that nothing here waits for time.
        struct Told<'a>(&'a Scratch, Mutex<Vec<String>>);
        impl Progress for Told<'_> {
            fn wanted(&self) -> bool {
                true
            }
            fn report(&self, message: &str) {
                self.1.lock().unwrap().push(message.to_owned());
                match message {
                    "first" => std::fs::write(self.0.inside("first"), "go\n").unwrap(),
                    _ if message.ends_with("end\n") => std::fs::write(self.0.inside("end"), "go\n").unwrap(),
                    _ => {}
                }
            }
        }
        let place = place();
        let told = Told(&place.scratch, Mutex::default());
        let line = "mkfifo first end; printf 'first\\342'; read go < first; printf '\\202\\254'; \
                    head -c 10000 /dev/zero | tr '\\0' x; echo end; read go < end";
        let given = arguments(&json!({ "command": line }).to_string());
        let answer = place.bash.run(&given, &Call { cancel: &Cancel::new(), progress: &told }).unwrap();
        assert!(answer.starts_with("first€xxx") && answer.ends_with("[exit 0]"), "{answer}");
        let told = told.1.into_inner().unwrap();
        assert_eq!(told.first().map(String::as_str), Some("first"));
        assert!(told.iter().all(|told| told.len() <= 4096 && !told.contains('\u{fffd}')), "{told:?}");
        assert!(told.iter().map(String::len).sum::<usize>() < 10_000 && told.len() >= 2, "{told:?}");
    }

    #[test]
    fn a_command_that_kills_its_parent_is_an_error_and_leaves_nothing() {
        let place = place();
        let error = place
            .refused(json!({"command": "echo $$ > pids; sleep 1000 & echo $! >> pids; kill -9 $PPID; sleep 1000"}));
        assert!(error.contains("killed its own parent"), "{error}");
        for pid in place.pids("pids") {
            let deadline = Instant::now() + Duration::from_secs(60);
            while exists(pid) {
                assert!(Instant::now() < deadline, "{pid} lives on");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn forks_without_end_are_ended() {
        let place = place();
        // One child each, for ever: as hard to catch as a bomb that doubles, and no danger to the machine.
        let answer = place.limited("hop() { hop & }; for i in 1 2 3 4; do hop; done; echo begun; sleep 1000", 1);
        assert_eq!(answer, "begun\n[killed after 1s]");
    }

    #[test]
    fn durations_are_written_as_go_does() {
        for (seconds, wanted) in
            [(1, "1s"), (59, "59s"), (60, "1m0s"), (120, "2m0s"), (3600, "1h0m0s"), (86_400, "24h0m0s")]
        {
            assert_eq!(duration(seconds), wanted);
        }
    }

    #[test]
    fn the_description_names_the_shell() {
        let place = place();
        let shell = place.bash.workspace.shell().unwrap().name();
        let definition = place.bash.definition();
        assert!(definition.description.contains(&format!("with {shell} ")));
        let schema: serde_json::Value = serde_json::from_str(definition.input_schema.get()).unwrap();
        assert_eq!(schema["required"], json!(["command"]));
    }
}
