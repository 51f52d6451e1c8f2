//! `write`: a file's whole content, made or replaced (spec executor 10.2, design 8.4).

use std::sync::Arc;

use super::schema::{self, Argument};
use super::{Arguments, Call, Definition, Effect, Failure, Tool};
use crate::os::cancel::Cancel;
use crate::workspace::{self, Workspace, WriteGuard};

/// The `write` tool.
pub(super) struct Write {
    workspace: Arc<Workspace>,
    definition: Definition,
}

impl Write {
    pub(super) fn new(workspace: &Arc<Workspace>) -> Self {
        let definition = Definition {
            name: "write",
            description: "Write a file: make it, with the directories above it, or replace its whole content. Readers see the old \
                          content or the new, and a write that fails leaves the old. To change a part of a file use edit."
                .to_owned(),
            input_schema: schema::object(vec![
                Argument::required("path", "string", "the file, relative to the workspace or absolute in it"),
                Argument::required("content", "string", "all that the file shall contain"),
            ]),
            read_only: false,
            effect: Effect::ReplacesFiles,
            sequential: false,
        };
        Self { workspace: Arc::clone(workspace), definition }
    }
}

impl Tool for Write {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn run(&self, arguments: &Arguments, call: &Call<'_>) -> Result<String, Failure> {
        arguments.known(&["path", "content", schema::STAMP])?;
        arguments.optional_string(schema::STAMP)?;
        let path = self.workspace.path(arguments.string("path")?)?;
        let content = arguments.string("content")?;
        lock(&self.workspace, call.cancel)?.replace(&path, content.as_bytes())?;
        Ok(format!("wrote {} bytes to {path}", content.len()))
    }
}

/// Waits for the right to write, for a call: nothing is written once it is cancelled.
pub(super) fn lock<'a>(workspace: &'a Workspace, cancel: &Cancel) -> Result<WriteGuard<'a>, Failure> {
    let guard = workspace.lock_writes(cancel).map_err(|error| match error {
        workspace::Error::Cancelled => Failure::Cancelled,
        other => other.into(),
    })?;
    if cancel.is_cancelled() { Err(Failure::Cancelled) } else { Ok(guard) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::scratch::Scratch;
    use crate::tools::testing::{arguments, call, open};
    use std::fs;

    fn write(scratch: &Scratch, text: &str) -> Result<String, Failure> {
        let tool = Write::new(&open(scratch));
        call(|call| tool.run(&arguments(text), call))
    }

    #[test]
    fn a_file_is_made_with_its_directories_or_replaced() {
        let scratch = Scratch::new();
        assert_eq!(write(&scratch, r#"{"path":"a/b/c","content":"é\n"}"#).unwrap(), "wrote 3 bytes to a/b/c");
        assert_eq!(fs::read(scratch.inside("a/b/c")).unwrap(), "é\n".as_bytes());
        let absolute = scratch.inside("a/./x/../b/c");
        let given = format!(r#"{{"path":{absolute:?},"content":"","dax_stamp":"any"}}"#);
        assert_eq!(write(&scratch, &given).unwrap(), "wrote 0 bytes to a/b/c");
        assert_eq!(fs::read(scratch.inside("a/b/c")).unwrap(), b"");
        assert_eq!(scratch.names("a/b"), ["c"]);
    }

    #[test]
    fn refusals_are_sentences_and_change_nothing() {
        let scratch = Scratch::new();
        scratch.file("d/a", "a");
        scratch.link("../canary", "out");
        scratch.link("..", "up");
        for (given, wanted) in [
            (r#"{"path":"a"}"#, "invalid arguments: \"content\" is required"),
            (r#"{"path":"a","content":1}"#, "invalid arguments: \"content\" must be a string, not 1"),
            (r#"{"path":"a","Content":""}"#, "invalid arguments: \"Content\" must be written \"content\""),
            (r#"{"path":"","content":""}"#, "path is required"),
            (r#"{"path":"out","content":""}"#, "path is outside the workspace: out"),
            (r#"{"path":"up/canary","content":""}"#, "path is outside the workspace: up/canary"),
            (r#"{"path":"up/new/file","content":""}"#, "path is outside the workspace: up/new/file"),
            (r#"{"path":"../canary","content":""}"#, "path is outside the workspace: ../canary"),
            (r#"{"path":"d","content":""}"#, "not a regular file: d is a directory"),
            (r#"{"path":".","content":""}"#, "not a regular file: . is a directory"),
            (r#"{"path":"d/a/b","content":""}"#, "not a directory: d/a"),
            (r#"{"path":"d/a/b/c","content":""}"#, "not a directory: d/a"),
        ] {
            assert_eq!(write(&scratch, given).unwrap_err().to_string(), wanted, "{given}");
        }
        assert_eq!(fs::read_to_string(scratch.outside("canary")).unwrap(), "outside");
        assert_eq!(scratch.names(".."), ["canary", "root"]);
        assert_eq!(scratch.names("."), ["d", "out", "up"]);
        assert_eq!(scratch.names("d"), ["a"]);
    }

    #[test]
    fn a_cancelled_call_writes_nothing() {
        let scratch = Scratch::new();
        let tool = Write::new(&open(&scratch));
        call(|call| {
            call.cancel.cancel();
            let answer = tool.run(&arguments(r#"{"path":"a","content":"a"}"#), call);
            assert!(matches!(answer, Err(Failure::Cancelled)));
        });
        assert!(scratch.names(".").is_empty());
    }
}
