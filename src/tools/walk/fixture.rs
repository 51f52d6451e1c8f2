//! Trees for the tests of the walk, `glob` and `grep`.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat, renameat, unlinkat};
use serde_json::Value;

use crate::os::cancel::Cancel;
use crate::os::scratch::Scratch;
use crate::tools::{Call, Failure, Progress, Tool, testing};
use crate::workspace::Workspace;

/// A directory that is gone when the test is. The workspace is `root` in it, so that there is something outside.
pub(in crate::tools) struct Tree {
    scratch: Scratch,
    pub(in crate::tools) root: PathBuf,
}

impl Tree {
    pub(in crate::tools) fn new() -> Self {
        let scratch = Scratch::new();
        Self { root: scratch.root(), scratch }
    }

    /// With these files, each holding its own path.
    pub(in crate::tools) fn with(files: &[&str]) -> Self {
        let tree = Self::new();
        for file in files {
            tree.file(file, file);
        }
        tree
    }

    pub(in crate::tools) fn file(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        self.scratch.file(path, content);
    }

    pub(in crate::tools) fn bytes_named(&self, name: &[u8], content: &str) {
        self.scratch.file(OsStr::from_bytes(name), content);
    }

    pub(in crate::tools) fn link(&self, target: impl AsRef<Path>, path: &str) {
        fs::create_dir_all(self.root.join(path).parent().unwrap()).unwrap();
        self.scratch.link(target, path);
    }

    pub(in crate::tools) fn fifo(&self, path: &str) {
        mknodat(CWD, self.root.join(path), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    }

    /// A file beside the root, not in it.
    pub(in crate::tools) fn outside(&self, name: &str, content: &str) -> PathBuf {
        let path = self.scratch.outside(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Directories below one another, each called `name`, made without ever naming the whole way. Answers with the last.
    pub(in crate::tools) fn deep(&self, name: &str, levels: usize) -> OwnedFd {
        let mut here = directory(CWD, &self.root);
        for _ in 0..levels {
            mkdirat(&here, name, Mode::from_raw_mode(0o700)).unwrap();
            here = directory(&here, Path::new(name));
        }
        here
    }

    /// Takes such directories away from the top: each is emptied by moving what is in it to its parent.
    pub(in crate::tools) fn remove_deep(&self, name: &str) {
        let root = directory(CWD, &self.root);
        loop {
            let top = directory(&root, Path::new(name));
            let moved = renameat(&top, name, &root, "moved").is_ok();
            let _ = unlinkat(&top, "file", AtFlags::empty());
            unlinkat(&root, name, AtFlags::REMOVEDIR).unwrap();
            if !moved {
                return;
            }
            renameat(&root, "moved", &root, name).unwrap();
        }
    }

    pub(in crate::tools) fn workspace(&self) -> Arc<Workspace> {
        testing::open(&self.scratch)
    }
}

fn directory(parent: impl std::os::fd::AsFd, path: &Path) -> OwnedFd {
    openat(parent, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// Remembers what was reported, and cancels at the first report where it has something to cancel.
#[derive(Default)]
pub(in crate::tools) struct Reports {
    pub(in crate::tools) said: Mutex<Vec<String>>,
    pub(in crate::tools) cancels: Option<Cancel>,
}

impl Progress for Reports {
    fn wanted(&self) -> bool {
        true
    }

    fn report(&self, message: &str) {
        self.said.lock().unwrap().push(message.to_owned());
        if let Some(cancel) = &self.cancels {
            cancel.cancel();
        }
    }
}

/// Calls a tool with arguments in JSON.
pub(in crate::tools) fn run(tool: &dyn Tool, arguments: &str) -> Result<String, Failure> {
    run_with(tool, arguments, &Cancel::new(), &Reports::default())
}

/// What a call answers, without the end of its last line. Each line has one but the sentence that nothing was found.
pub(in crate::tools) fn answered(tool: &dyn Tool, arguments: &str) -> String {
    let text = run(tool, arguments).unwrap();
    match text.strip_suffix('\n') {
        Some(lines) => lines.to_owned(),
        None => {
            assert!(text.starts_with("(no ") && !text.contains('\n'), "{text}");
            text
        }
    }
}

/// As [`run`], watched.
pub(in crate::tools) fn run_with(
    tool: &dyn Tool,
    arguments: &str,
    cancel: &Cancel,
    progress: &Reports,
) -> Result<String, Failure> {
    tool.run(&testing::arguments(arguments), &Call { cancel, progress })
}

/// The keys in the schema are those a tool takes, and each is refused in another case.
pub(in crate::tools) fn check_definition(tool: &dyn Tool, keys: &[&str], required: &[&str]) {
    let schema: Value = serde_json::from_str(tool.definition().input_schema.get()).unwrap();
    let mut named: Vec<&str> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = keys.to_vec();
    named.sort_unstable();
    expected.sort_unstable();
    assert_eq!(named, expected);
    assert_eq!(schema["required"], Value::from(required.to_vec()));
    for name in keys {
        let other = name.to_uppercase();
        let error = run(tool, &format!(r#"{{"{other}":1}}"#)).unwrap_err().to_string();
        assert!(error.contains("must be written"), "{name}: {error}");
    }
}
