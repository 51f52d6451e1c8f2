//! A server that is started here and spoken to over its standard input and output.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::error::Error;
use super::printable;
use super::process::{Launch, Process};
use super::streams::{Beside, Stderr, Streams};
use super::transport::{Inbox, Outgoing, SendError, Transport, Until};

/// A [`Transport`] that starts its server and ends it: closing closes the server's input, and what has not ended by then is terminated
/// and at last killed, with its whole process group. Dropping closes.
pub struct ChildServer {
    streams: Streams,
    process: Arc<Process>,
    stderr: Stderr,
}

impl ChildServer {
    /// Starts a server.
    ///
    /// Fails with [`Error::Launch`] when the program cannot be run, and when the system has no more processes or descriptors.
    pub fn spawn(launch: &Launch) -> Result<Self, Error> {
        Self::start(launch).map_err(|error| {
            let program = launch.argv.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
            Error::Launch { program: printable::line(program.as_encoded_bytes(), 100), error }
        })
    }

    fn start(launch: &Launch) -> io::Result<Self> {
        let (process, pipes) = Process::start(launch)?;
        let (Some(stdin), Some(stdout)) = (pipes.stdin, pipes.stdout) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let process = Arc::new(process);
        let stderr = Stderr::default();
        let beside = Beside { stderr: pipes.stderr, tail: stderr.clone(), process: Arc::clone(&process) };
        Ok(Self { streams: Streams::beside(stdout, stdin, Some(beside))?, process, stderr })
    }

    /// The server's process id, which is its process group's too.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The last the server wrote to its standard error, now and later, where that is captured.
    pub fn captured(&self) -> Stderr {
        self.stderr.clone()
    }
}

impl Transport for ChildServer {
    fn start(&self, inbox: Inbox) -> io::Result<()> {
        self.streams.start(inbox)
    }

    fn send(&self, message: &Outgoing<'_>, until: &Until<'_>) -> Result<(), SendError> {
        self.streams.send(message, until)
    }

    fn stderr(&self) -> String {
        self.stderr.tail()
    }

    fn close(&self) {
        // Its output is read on meanwhile: a server that is still writing could not end otherwise.
        self.streams.end_input();
        self.process.end();
        self.streams.close();
    }
}

impl Drop for ChildServer {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::super::testing::{SOON, ended, options};
    use super::super::{CallOptions, Client, Closed, Ended, EraChoice, StderrTo};
    use super::*;

    const HANDSHAKE: &str = r#"
        read -r line
        echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}}'
        read -r line
    "#;

    fn launch(script: &str) -> Launch {
        Launch {
            environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
            ..Launch::new(["/bin/sh", "-c", &format!("{HANDSHAKE}{script}")])
        }
    }

    fn started(launch: &Launch) -> (Client, Arc<Process>) {
        let server = ChildServer::spawn(launch).unwrap();
        let process = Arc::clone(&server.process);
        (Client::connect(server, options(EraChoice::Legacy)).unwrap(), process)
    }

    fn call(client: &Client) -> Result<crate::mcp::types::CallResult, Error> {
        client.call_tool("t", &json!({}), CallOptions::default())
    }

    #[test]
    fn a_server_is_started_called_and_ended() {
        let (client, process) = started(&launch(
            r#"
            read -r line
            echo "a line that is no message"
            echo '{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"hi"}]}}'
            cat > /dev/null
            exit 4
            "#,
        ));
        assert_eq!(call(&client).unwrap(), crate::mcp::types::CallResult::text("hi"));
        assert_eq!(client.skipped_lines(), 1);
        assert!(client.ended().is_none());
        client.close();
        assert_eq!(process.reap().unwrap().code(), Some(4));
        assert!(ended(process.id()));
        assert!(matches!(call(&client), Err(Error::Closed(closed)) if closed.how == Ended::ByUs));
    }

    #[test]
    fn a_server_that_dies_in_mid_call_is_named_with_its_status_and_its_last_words() {
        let (client, process) = started(&launch(
            r#"
            read -r line
            head -c 100000 /dev/zero | tr '\0' 'x' >&2
            printf '\nboom \033[31mred\n' >&2
            exit 3
            "#,
        ));
        let error = call(&client).unwrap_err();
        assert_eq!(error.to_string(), "the server ended (exit status: 3)");
        let stderr = error.stderr().unwrap();
        assert!(stderr.ends_with("xxx\nboom \\u{1b}[31mred\n") && stderr.len() < 5000, "{stderr}");
        assert_eq!(client.stderr(), stderr);
        assert!(ended(process.id()));
        // Whoever comes later is told the same.
        assert_eq!(call(&client).unwrap_err().to_string(), "the server ended (exit status: 3)");
    }

    /// A child of the server that keeps the output open does not keep the call waiting.
    #[test]
    fn the_end_of_a_server_is_its_exit_and_not_the_end_of_its_output() {
        let (client, process) = started(&launch("read -r line; sleep 1000 & kill -9 $$"));
        let error = call(&client).unwrap_err();
        let Error::Closed(Closed { how: Ended::Exited(status), .. }) = error else { panic!("{error}") };
        assert_eq!(status.signal(), Some(9));
        assert!(ended(process.id()), "and its child has ended with it");
    }

    #[test]
    fn what_a_server_said_before_it_ended_still_counts() {
        let (client, _process) = started(&launch(
            r#"
            read -r line
            echo '{"jsonrpc":"2.0","id":2,"result":{"content":[]}}'
            exit 0
            "#,
        ));
        call(&client).unwrap();
    }

    #[test]
    fn a_server_that_closes_its_output_and_lives_is_ended_with_the_client() {
        let (client, process) = started(&Launch {
            grace: Duration::from_millis(50),
            ..launch("read -r line; exec >&-; while :; do sleep 1000; done")
        });
        let error = call(&client).unwrap_err();
        assert!(matches!(&error, Error::Closed(closed) if closed.how == Ended::EndOfStream), "{error}");
        assert!(process.reap().is_none());
        drop(client);
        assert!(ended(process.id()));
    }

    #[test]
    fn a_server_that_will_not_end_is_killed_and_nothing_of_it_is_left() {
        let stubborn = r#"trap "" TERM HUP INT; (trap "" TERM; sleep 1000) & while :; do sleep 1000; done"#;
        let (client, process) = started(&Launch { grace: Duration::from_millis(50), ..launch(stubborn) });
        let began = Instant::now();
        drop(client);
        assert!(began.elapsed() < SOON);
        assert_eq!(process.reap().unwrap().signal(), Some(9));
        assert!(ended(process.id()));
    }

    /// It could not end if nobody took what it still writes.
    #[test]
    fn a_server_that_still_writes_when_it_is_ended_is_heard_out() {
        let (client, process) = started(&Launch {
            grace: SOON,
            ..launch(
                r#"cat > /dev/null; head -c 1000000 /dev/zero | tr '\0' '\n'; head -c 1000000 /dev/zero >&2; exit 9"#,
            )
        });
        client.close();
        assert_eq!(process.reap().unwrap().code(), Some(9));
    }

    #[test]
    fn a_server_that_ends_before_it_begins_says_why() {
        let server = ChildServer::spawn(&Launch::new(["/bin/sh", "-c", "echo 'no such module' >&2; exit 1"])).unwrap();
        let captured = server.captured();
        let error = Client::connect(server, options(EraChoice::Auto)).err().unwrap();
        assert_eq!(
            (error.to_string(), error.stderr()),
            ("the server ended (exit status: 1)".into(), Some("no such module\n"))
        );
        assert_eq!(captured.tail(), "no such module\n");
    }

    #[test]
    fn a_program_that_cannot_be_started_is_named_without_its_directory() {
        for argv in [vec!["/nowhere/at-all"], vec![], vec!["/bin/sh\0"]] {
            let named = argv.first().map_or("", |program| program.rsplit('/').next().unwrap()).replace('\0', "\\u{0}");
            let error = ChildServer::spawn(&Launch { stderr: StderrTo::Discard, ..Launch::new(argv) }).err().unwrap();
            let Error::Launch { program, .. } = &error else { panic!("{error}") };
            assert_eq!(*program, named);
        }
    }
}
