//! Directories that a test has for itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

static MADE: AtomicU64 = AtomicU64::new(0);

/// A name no other test of this run and no other run uses.
pub fn unique() -> String {
    format!("berth-test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed))
}

/// A fresh directory, removed with all that is in it when it goes.
pub struct Directory(PathBuf);

impl Default for Directory {
    fn default() -> Self {
        Self::new()
    }
}

impl Directory {
    /// An empty one, its path without links.
    pub fn new() -> Self {
        let parent = std::env::temp_dir().canonicalize().expect("the directory for temporary files is there");
        let path = parent.join(unique());
        fs::create_dir(&path).expect("a directory for temporary files takes another");
        Self(path)
    }

    /// One that holds `files`, each a name and a content; directories on the way are made.
    pub fn with(files: &[(&str, &str)]) -> Self {
        let directory = Self::new();
        for (name, content) in files {
            directory.write(name, content);
        }
        directory
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a name in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.join(name);
        fs::create_dir_all(path.parent().expect("a name in a directory has a parent"))
            .expect("directories can be made");
        fs::write(path, content).expect("a file can be written");
    }

    /// Reads a file in it.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.join(name)).unwrap_or_else(|error| panic!("{name} cannot be read: {error}"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
