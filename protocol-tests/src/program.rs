//! Where the programs under test are.

use std::path::PathBuf;

/// The `berth` binary: `BERTH_BIN`, or the one cargo built beside this test.
///
/// # Panics
/// When there is none, with how to build it.
pub fn berth() -> PathBuf {
    locate("berth", "BERTH_BIN", "cargo build --bin berth")
}

/// The fixture server: `FIXTURE_BIN`, or the one cargo built beside this test.
///
/// # Panics
/// When there is none, with how to build it.
pub fn fixture() -> PathBuf {
    locate("fixture", "FIXTURE_BIN", "cargo build -p protocol-tests --bin fixture")
}

/// A test runs from `target/PROFILE/deps`; the programs of its profile lie one directory above.
fn locate(name: &str, variable: &str, build: &str) -> PathBuf {
    let path = match std::env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => {
            let test = std::env::current_exe().expect("a test knows its own path");
            test.ancestors().nth(2).expect("a test lies in a target directory").join(name)
        }
    };
    let path = path.canonicalize().unwrap_or(path);
    assert!(path.is_file(), "no {name} at {}: run `{build}` first, or name one in {variable}", path.display());
    path
}
