//! The `glob` tool: files by the form of their names (spec executor 10.4).

use std::sync::Arc;

use super::answer::{MAX_BYTES, add_line, answer, limit, shown, stopped};
use super::pattern::Pattern;
use super::schema::{self, Argument};
use super::smallest::{Bound, Item, Smallest};
use super::walk::{Found, Limits, Start, Visitor, walk};
use super::{Arguments, Call, Definition, Effect, Failure, Tool};
use crate::workspace::Workspace;

/// How many files are listed where nothing else is said, and at most.
const DEFAULT_RESULTS: usize = 1000;
const MAX_RESULTS: usize = 100_000;

/// Paths found are handed over so many at a time.
const BATCH: usize = 64;

/// The tool.
pub(super) struct Glob {
    workspace: Arc<Workspace>,
    definition: Definition,
    limits: Limits,
}

impl Glob {
    /// The tool over `workspace`.
    pub(super) fn new(workspace: &Arc<Workspace>) -> Self {
        let definition = Definition {
            name: "glob",
            description:
                "List files whose path matches a glob pattern, sorted, one per line, relative to the workspace root. \
                          Hidden files match like any other. Does not look below .git, node_modules, vendor, virtual \
                          environments or caches, and does not follow links to directories."
                    .to_owned(),
            input_schema: schema::object(vec![
                Argument::required(
                    "pattern",
                    "string",
                    "relative to path; ** is any number of directories, * ? and [a-z] stay within one name, {a,b} is either; \
                     example: src/**/*.{rs,toml}",
                ),
                Argument::optional("path", "string", "the directory to search (default: the workspace root)"),
                Argument::optional("max_results", "integer", format!("most files to list (default {DEFAULT_RESULTS})")),
            ]),
            read_only: true,
            effect: Effect::Looks,
            sequential: false,
        };
        Self { workspace: workspace.clone(), definition, limits: Limits::default() }
    }
}

impl Tool for Glob {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn run(&self, arguments: &Arguments, call: &Call<'_>) -> Result<String, Failure> {
        arguments.known(&["pattern", "path", "max_results", schema::STAMP])?;
        arguments.optional_string(schema::STAMP)?;
        let pattern = Pattern::new("pattern", arguments.string("pattern")?)?;
        let path = self.workspace.path(arguments.optional_string("path")?.unwrap_or("."))?;
        let results = limit(arguments.count("max_results")?, DEFAULT_RESULTS, MAX_RESULTS);
        let directory = self.workspace.open_directory(&path)?;

        let kept = Smallest::new(results, MAX_BYTES);
        let start = Start { workspace: &self.workspace, path: &path, directory };
        let lost = walk(start, call, self.limits, || Matching {
            pattern: &pattern,
            kept: &kept,
            bound: Bound::default(),
            found: Vec::new(),
        })?;

        let (files, more) = kept.finish();
        let mut text = String::new();
        for file in &files {
            add_line(&mut text, shown(&path, &file.0));
        }
        let mut notes = String::new();
        lost.tell(&mut notes);
        if more {
            add_line(&mut notes, stopped(files.len(), results, MAX_RESULTS, "files"));
        }
        Ok(answer(text, "(no files match)", &notes))
    }
}

/// A path relative to the search's start. Sorted as plain bytes, as `sort` would.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct File(Box<[u8]>);

impl Item for File {
    fn size(&self) -> usize {
        self.0.len() + 1
    }
}

/// One thread's part of a search.
struct Matching<'s> {
    pattern: &'s Pattern,
    kept: &'s Smallest<File>,
    bound: Bound<File>,
    found: Vec<File>,
}

impl Visitor for Matching<'_> {
    fn enter(&mut self, path: &[u8]) -> bool {
        // Below `a` is `a/...`, and all of that sorts after the bound if its beginning does.
        self.pattern.leads_into(path)
            && self.kept.bound(&mut self.bound).is_none_or(|bound| !all_below_sort_after(path, &bound.0))
    }

    fn visit(&mut self, found: &Found<'_>) {
        if self.kept.bound(&mut self.bound).is_some_and(|bound| *found.path >= *bound.0)
            || !self.pattern.matches(found.path)
            || !found.is_regular()
        {
            return;
        }
        self.found.push(File(found.path.into()));
        if self.found.len() >= BATCH {
            self.kept.offer(&mut self.found);
        }
    }

    fn end(&mut self) {
        self.kept.offer(&mut self.found);
    }
}

/// Whether every path below `directory` sorts after `bound`, as bytes.
fn all_below_sort_after(directory: &[u8], bound: &[u8]) -> bool {
    match bound.strip_prefix(directory) {
        Some(rest) => rest.first().is_none_or(|next| b'/' > *next),
        None => directory > bound,
    }
}

#[cfg(test)]
mod tests {
    use super::super::walk::fixture::{Reports, Tree, answered, check_definition, run, run_with};
    use super::*;
    use crate::os::cancel::Cancel;
    use std::time::Duration;

    fn tool(tree: &Tree) -> Glob {
        let mut tool = Glob::new(&tree.workspace());
        tool.limits = Limits { threads: Some(4), alone: Duration::ZERO, ..Limits::default() };
        tool
    }

    fn glob(tree: &Tree, arguments: &str) -> String {
        answered(&tool(tree), arguments)
    }

    #[test]
    fn the_schema_names_what_it_takes() {
        let tree = Tree::new();
        check_definition(&tool(&tree), &["pattern", "path", "max_results", "dax_stamp"], &["pattern"]);
    }

    #[test]
    fn it_lists_files_from_the_root_sorted_as_bytes() {
        let tree = Tree::with(&["a/x.rs", "a-b/x.rs", "a.rs", "b/c/d.rs", ".h/i.rs", "b/c.txt", "node_modules/y.rs"]);
        assert_eq!(glob(&tree, r#"{"pattern":"**/*.rs"}"#), ".h/i.rs\na-b/x.rs\na.rs\na/x.rs\nb/c/d.rs");
        assert_eq!(glob(&tree, r#"{"pattern":"*"}"#), "a.rs");
        assert_eq!(glob(&tree, r#"{"pattern":"*/*.{rs,txt}"}"#), ".h/i.rs\na-b/x.rs\na/x.rs\nb/c.txt");
        assert_eq!(glob(&tree, r#"{"pattern":"*.py"}"#), "(no files match)");
    }

    #[test]
    fn the_pattern_is_relative_to_the_path_and_the_answer_to_the_root() {
        let tree = Tree::with(&["a/b/c/x", "a/b/x", "x", "node_modules/m/x"]);
        assert_eq!(glob(&tree, r#"{"pattern":"x","path":"a/b"}"#), "a/b/x");
        assert_eq!(glob(&tree, r#"{"pattern":"**/x","path":"./a//b/"}"#), "a/b/c/x\na/b/x");
        assert_eq!(glob(&tree, r#"{"pattern":"m/*","path":"node_modules"}"#), "node_modules/m/x");
        assert_eq!(glob(&tree, r#"{"pattern":"node_modules/m/*"}"#), "(no files match)");
        let absolute = serde_json::json!({"pattern": "*", "path": tree.root.join("a/b")}).to_string();
        assert_eq!(glob(&tree, &absolute), "a/b/x");
    }

    #[test]
    fn directories_and_links_that_lead_elsewhere_are_not_listed() {
        let tree = Tree::with(&["a/x"]);
        tree.outside("secret", "");
        tree.link("a", "directory");
        tree.link("a/x", "inside");
        tree.link("../secret", "out");
        tree.link("gone", "dangling");
        tree.fifo("fifo");
        assert_eq!(glob(&tree, r#"{"pattern":"**"}"#), "a/x\ninside");
    }

    #[test]
    fn a_path_that_leads_out_or_is_no_directory_is_refused() {
        let tree = Tree::with(&["file"]);
        let outside = tree.outside("root-evil/x", "");
        tree.link("../root-evil", "out");
        for path in [
            "..",
            "../root-evil",
            "a/../../root-evil",
            "/etc",
            outside.to_str().unwrap(),
            "out",
            "file",
            "missing",
            "",
            "a\0b",
        ] {
            let arguments = serde_json::json!({"pattern": "*", "path": path}).to_string();
            let error = run(&tool(&tree), &arguments).unwrap_err();
            assert!(matches!(error, Failure::Workspace(_)), "{path}: {error:?}");
        }
    }

    #[test]
    fn wrong_arguments_are_named() {
        let tree = Tree::new();
        for (arguments, why) in [
            ("{}", "\"pattern\" is required"),
            (r#"{"pattern":7}"#, "\"pattern\" must be a string"),
            (r#"{"pattern":"{a"}"#, "unclosed"),
            (r#"{"pattern":"*","max_results":-1}"#, "\"max_results\""),
        ] {
            let error = run(&tool(&tree), arguments).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn it_stops_at_the_limit_with_the_first_every_time() {
        let tree = Tree::new();
        let mut all = Vec::new();
        for number in 0..600 {
            // Directories whose order differs by the two orders there could be.
            let name = format!("{}{}/{}/f{number:03}", number % 7, ["", "-x", ".y"][number % 3], number % 5);
            tree.file(&name, "");
            all.push(name);
        }
        all.sort();
        for limit in [1, 10, 65, 300, 599] {
            let expected = all[..limit].join("\n");
            for _ in 0..20 {
                let text = glob(&tree, &format!(r#"{{"pattern":"**/f*","max_results":{limit}}}"#));
                let (files, trailer) = text.rsplit_once('\n').unwrap();
                assert_eq!(files, expected);
                assert!(trailer.starts_with(&format!("(stopped at {limit} files, there are more: ")), "{trailer}");
            }
        }
        // Just enough is not too many.
        assert_eq!(glob(&tree, r#"{"pattern":"**/f*","max_results":600}"#), all.join("\n"));
    }

    #[test]
    fn a_name_stays_on_its_line() {
        let tree = Tree::new();
        tree.bytes_named(b"a\nb/c\x1b[2J", "");
        tree.bytes_named(b"d\xff", "");
        tree.bytes_named("e\u{e9}".as_bytes(), "");
        assert_eq!(glob(&tree, r#"{"pattern":"**"}"#), "a\\nb/c\\u{1b}[2J\nd\u{fffd}\ne\u{e9}");
    }

    #[test]
    fn a_cancelled_call_says_so() {
        let tree = Tree::with(&["a"]);
        let cancel = Cancel::new();
        cancel.cancel();
        let ended = run_with(&tool(&tree), r#"{"pattern":"*"}"#, &cancel, &Reports::default());
        assert!(matches!(ended, Err(Failure::Cancelled)), "{ended:?}");
    }

    #[test]
    fn what_sorts_after_a_bound_is_known_from_a_directory_alone() {
        for (directory, bound, after) in [
            ("b", "a/x", true),
            ("a", "a/x", false),
            ("a", "a-b", true),
            ("a", "a.b", true),
            ("a", "a0", false),
            ("ab", "a", true),
            ("a", "b", false),
        ] {
            assert_eq!(all_below_sort_after(directory.as_bytes(), bound.as_bytes()), after, "{directory} {bound}");
        }
    }
}
