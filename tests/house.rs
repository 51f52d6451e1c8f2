//! What the house promises of itself: a room imports only rooms below it, unsafe code lives in one room, every dependency has its reason in
//! README, and the program's help fits a screen.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The floors, from the ground up; a room may import rooms of lower floors alone.
const FLOORS: &[&[&str]] = &[
    &["os"],
    &["jsonrpc", "http"],
    &["mcp", "workspace"],
    &["facts"],
    &["tools", "wire"],
    &["executor"],
    &["agent", "runner", "holder"],
    &["cli"],
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let Ok(entry) = entry else { continue };
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

/// The rooms a source names: `crate::room`, also in the braces of `crate::{...}`.
fn rooms_named(text: &str) -> BTreeSet<String> {
    let mut rooms = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let names = match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default().split(',').collect(),
            None => vec![rest],
        };
        for name in names {
            rooms.insert(name.trim().chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect());
        }
    }
    rooms
}

#[test]
fn a_room_imports_only_rooms_below_it() {
    let source = root().join("src");
    let mut files = Vec::new();
    sources(&source, &mut files);
    assert!(files.len() > 30, "the sources are not where they should be");
    for file in files {
        let inside = file.strip_prefix(&source).unwrap();
        let Some(room) = inside.components().next().and_then(|part| part.as_os_str().to_str()) else { continue };
        let Some(own) = floor(room) else {
            assert!(["lib.rs", "main.rs"].contains(&room), "{room} has no floor");
            continue;
        };
        for named in rooms_named(&fs::read_to_string(&file).unwrap()) {
            if let Some(other) = floor(&named) {
                assert!(
                    named == room || other < own,
                    "{} imports {named}, which is not below {room}",
                    inside.display()
                );
            }
        }
    }
}

#[test]
fn unsafe_code_lives_on_the_ground_alone() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    for file in files {
        let on_the_ground = file.starts_with(root().join("src/os"));
        let allowed = fs::read_to_string(&file).unwrap().contains("allow(unsafe_code)");
        assert!(on_the_ground || !allowed, "{} allows unsafe code", file.display());
    }
}

#[test]
fn every_dependency_has_its_reason_in_readme() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let names: Vec<&str> = section.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name).collect();
    assert!(names.len() > 5, "the dependencies are not where they should be");
    for name in names {
        assert!(
            readme.lines().any(|line| line.starts_with(&format!("| `{name}` |"))),
            "README has no reason for {name}"
        );
    }
}

#[test]
fn the_tree_of_dependencies_stays_small() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    assert!(lock.contains("name = \"berth\""));
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--edges", "normal", "--prefix", "none", "--package", "berth", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let crates: BTreeSet<&str> =
        std::str::from_utf8(&tree.stdout).unwrap().lines().filter_map(|line| line.split(' ').next()).collect();
    assert!((10..100).contains(&crates.len()), "{} crates", crates.len());
    // Nothing that compiles C.
    for name in ["cc", "cmake", "bindgen"] {
        assert!(!crates.contains(name), "{name} is in the tree");
    }
}

#[test]
fn help_fits_a_screen_and_shows_an_example() {
    for command in [vec![], vec!["execute"], vec!["call"], vec!["tools"]] {
        let help = Command::new(env!("CARGO_BIN_EXE_berth")).args(&command).arg("--help").output().unwrap();
        let text = String::from_utf8(help.stdout).unwrap();
        assert!(help.status.success() && help.stderr.is_empty(), "{command:?}");
        assert!(text.lines().count() <= 24, "{command:?} has {} lines", text.lines().count());
        assert!(text.contains("berth call") || text.contains("example"), "{command:?}");
    }
}

#[test]
fn a_wrong_command_line_is_one_clear_line_and_status_2() {
    for (arguments, expected) in [
        (vec![], "berth: a command is missing"),
        (vec!["sail"], "berth: no command \"sail\""),
        (vec!["execute", "--rot", "x"], "berth execute: invalid option '--rot'"),
        (vec!["execute", "there"], "berth execute: unexpected argument \"there\""),
        (vec!["execute", "--kind", "boat"], "berth execute: --kind: "),
        (vec!["execute", "--max-read-bytes", "-1"], "berth execute: --max-read-bytes: "),
        (vec!["execute", "--pass-env", "A=B"], "berth execute: --pass-env: "),
        (vec!["call"], "berth call: a tool is missing"),
        (vec!["call", "reed", "path=x"], "berth call: no tool named \"reed\""),
        (vec!["call", "read", "x"], "berth call: \"x\" is no KEY=VALUE"),
        (vec!["call", "read", "--on", "gopher:x"], "berth call: --on: "),
        (vec!["tools", "--output", "xml"], "berth tools: --output: "),
    ] {
        let run = Command::new(env!("CARGO_BIN_EXE_berth")).args(&arguments).output().unwrap();
        let words = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(2), "{arguments:?}: {words}");
        assert!(words.starts_with(expected), "{arguments:?}: {words}");
        assert!(run.stdout.is_empty());
    }
    let missing =
        Command::new(env!("CARGO_BIN_EXE_berth")).args(["execute", "--root", "/no/such/place"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        String::from_utf8(missing.stderr)
            .unwrap()
            .starts_with("berth execute: cannot open the workspace's directory /no/such/place: ")
    );
}
