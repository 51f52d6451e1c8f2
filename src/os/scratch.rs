//! A directory for one test, gone with it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A fresh directory under the system's temporary one; removed when dropped. Holds `root`, where a test works, so that what stands
/// beside it (`../canary`) can be reached for.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("berth-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let scratch = Self(std::env::temp_dir().canonicalize().unwrap().join(name));
        fs::create_dir(&scratch.0).unwrap();
        fs::create_dir(scratch.root()).unwrap();
        fs::write(scratch.outside("canary"), "outside").unwrap();
        scratch
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.0.join("root")
    }

    /// A name in the root.
    pub(crate) fn inside(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    /// A name beside the root.
    pub(crate) fn outside(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in the root, and the directories above it.
    pub(crate) fn file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.inside(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Makes a link in the root.
    pub(crate) fn link(&self, target: impl AsRef<Path>, name: impl AsRef<Path>) -> PathBuf {
        let path = self.inside(name);
        symlink(target, &path).unwrap();
        path
    }

    /// The names in a directory in the root, sorted.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.inside(directory))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
