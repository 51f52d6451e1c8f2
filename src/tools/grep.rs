//! The `grep` tool: lines that match a regular expression (spec executor 10.5).

mod search;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::FileType;

use super::answer::{MAX_BYTES, add_line, answer, limit, shown, stopped};
use super::pattern::Pattern;
use super::schema::{self, Argument};
use super::smallest::{Bound, Smallest};
use super::walk::{Found, Limits, Start, Visitor, name_order, walk};
use super::{Arguments, Call, Definition, Effect, Failure, Tool};
use crate::os::beneath::kind;
use crate::workspace::Workspace;
use search::{Content, Hit, Searcher, compile};

/// How many lines are shown where nothing else is said, and at most.
const DEFAULT_RESULTS: usize = 200;
const MAX_RESULTS: usize = 10_000;

/// The tool.
pub(super) struct Grep {
    workspace: Arc<Workspace>,
    definition: Definition,
    limits: Limits,
}

impl Grep {
    /// The tool over `workspace`.
    pub(super) fn new(workspace: &Arc<Workspace>) -> Self {
        let definition = Definition {
            name: "grep",
            description: "Search file contents for a regular expression. Answers path:line:text for each matching line, paths \
                          relative to the workspace root, in name order; long lines are cut at 500 bytes. Skips files over 2 \
                          MiB and binary files. Does not look below .git, node_modules, vendor, virtual environments or \
                          caches, and does not follow links to directories."
                .to_owned(),
            input_schema: schema::object(vec![
                Argument::required("pattern", "string", "a regular expression in RE2 syntax, matched line by line"),
                Argument::optional("path", "string", "the file or directory to search (default: the workspace root)"),
                Argument::optional(
                    "include",
                    "string",
                    "search only files that match this glob: by base name when it has no slash, else by path",
                ),
                Argument::optional("ignore_case", "boolean", "whether upper and lower case are the same (default false)"),
                Argument::optional("max_results", "integer", format!("most lines to show (default {DEFAULT_RESULTS})")),
            ]),
            read_only: true,
            effect: Effect::Looks,
            sequential: false,
        };
        Self { workspace: workspace.clone(), definition, limits: Limits::default() }
    }
}

impl Tool for Grep {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn run(&self, arguments: &Arguments, call: &Call<'_>) -> Result<String, Failure> {
        arguments.known(&["pattern", "path", "include", "ignore_case", "max_results", schema::STAMP])?;
        arguments.optional_string(schema::STAMP)?;
        let matcher = compile(arguments.string("pattern")?, arguments.flag("ignore_case")?)?;
        let path = self.workspace.path(arguments.optional_string("path")?.unwrap_or("."))?;
        let include = arguments.optional_string("include")?.map(Include::new).transpose()?;
        let results = limit(arguments.count("max_results")?, DEFAULT_RESULTS, MAX_RESULTS);

        let kept = Smallest::new(results, MAX_BYTES);
        let mut notes = String::new();
        let skipped = AtomicU64::new(0);
        if kind(&self.workspace.stat(&path)?) == FileType::Directory {
            let directory = self.workspace.open_directory(&path)?;
            let start = Start { workspace: &self.workspace, path: &path, directory };
            let lost = walk(start, call, self.limits, || Searching {
                include: include.as_ref(),
                kept: &kept,
                bound: Bound::default(),
                searcher: Searcher::new(&matcher, results.saturating_add(1)),
                hits: Vec::new(),
                skipped: &skipped,
                call,
            })?;
            lost.tell(&mut notes);
        } else {
            // A file that was named is searched whatever `include` says.
            let (file, stat) = self.workspace.open_file(&path)?;
            let mut searcher = Searcher::new(&matcher, results.saturating_add(1));
            let mut hits = Vec::new();
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            match searcher.read(&file, size) {
                Ok(Content::Text) => {
                    searcher.search(b"", &mut hits, call.cancel);
                    skipped.store(searcher.skipped, Relaxed);
                }
                Ok(Content::TooLarge) => {
                    add_line(&mut notes, format_args!("({path} is larger than 2 MiB and was not searched)"));
                }
                Ok(Content::Binary) => {
                    add_line(&mut notes, format_args!("({path} is a binary file and was not searched)"));
                }
                Err(errno) => {
                    return Err(Failure::Refused(format!("cannot read {path}: {}", std::io::Error::from(errno))));
                }
            }
            if call.cancel.is_cancelled() {
                return Err(Failure::Cancelled);
            }
            kept.offer(&mut hits);
        }

        let (hits, more) = kept.finish();
        let mut text = String::new();
        let mut named = None;
        let mut name = String::new();
        for hit in &hits {
            if named != Some(&hit.path) {
                name = shown(&path, &hit.path);
                named = Some(&hit.path);
            }
            add_line(&mut text, format_args!("{name}:{}:{}", hit.line, hit.text));
        }
        let skipped = skipped.into_inner();
        if skipped > 0 {
            let why = "very long lines were not searched: the pattern is too slow for them";
            add_line(&mut notes, format_args!("({skipped} {why})"));
        }
        if more {
            add_line(&mut notes, stopped(hits.len(), results, MAX_RESULTS, "matches"));
        }
        Ok(answer(text, "(no matches)", &notes))
    }
}

/// Which files of a directory are searched.
struct Include {
    pattern: Pattern,
    /// The pattern is for the name alone.
    name: bool,
}

impl Include {
    fn new(text: &str) -> Result<Self, Failure> {
        Ok(Self { pattern: Pattern::new("include", text)?, name: !text.contains('/') })
    }

    fn leads_into(&self, directory: &[u8]) -> bool {
        self.name || self.pattern.leads_into(directory)
    }

    fn admits(&self, found: &Found<'_>) -> bool {
        self.pattern.matches(if self.name { found.name() } else { found.path })
    }
}

/// One thread's part of a search.
struct Searching<'s> {
    include: Option<&'s Include>,
    kept: &'s Smallest<Hit>,
    bound: Bound<Hit>,
    searcher: Searcher,
    hits: Vec<Hit>,
    skipped: &'s AtomicU64,
    call: &'s Call<'s>,
}

impl Searching<'_> {
    /// Whether nothing at `path`, or below it, can be in the answer any more.
    fn is_beyond(&mut self, path: &[u8]) -> bool {
        self.kept.bound(&mut self.bound).is_some_and(|bound| name_order(path, &bound.path).is_gt())
    }
}

impl Visitor for Searching<'_> {
    fn enter(&mut self, path: &[u8]) -> bool {
        self.include.is_none_or(|include| include.leads_into(path)) && !self.is_beyond(path)
    }

    fn visit(&mut self, found: &Found<'_>) {
        if self.is_beyond(found.path) || !self.include.is_none_or(|include| include.admits(found)) {
            return;
        }
        let Some((file, size)) = found.open() else { return };
        match self.searcher.read(&file, size) {
            Ok(Content::Text) => {
                self.searcher.search(found.path, &mut self.hits, self.call.cancel);
                if !self.hits.is_empty() {
                    self.kept.offer(&mut self.hits);
                }
            }
            Ok(Content::TooLarge | Content::Binary) => {}
            Err(errno) => found.failed(errno),
        }
    }

    fn end(&mut self) {
        self.skipped.fetch_add(self.searcher.skipped, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::walk::fixture::{Reports, Tree, answered, check_definition, run, run_with};
    use super::search::MAX_FILE;
    use super::*;
    use crate::os::cancel::Cancel;
    use std::fs;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    fn tool(tree: &Tree) -> Grep {
        let mut tool = Grep::new(&tree.workspace());
        tool.limits = Limits { threads: Some(4), alone: Duration::ZERO, ..Limits::default() };
        tool
    }

    fn grep(tree: &Tree, arguments: &str) -> String {
        answered(&tool(tree), arguments)
    }

    #[test]
    fn the_schema_names_what_it_takes() {
        let tree = Tree::new();
        let keys = ["pattern", "path", "include", "ignore_case", "max_results", "dax_stamp"];
        check_definition(&tool(&tree), &keys, &["pattern"]);
    }

    #[test]
    fn it_answers_with_path_line_and_text_in_name_order() {
        let tree = Tree::new();
        tree.file("b.rs", "no\nlet x\r\n  let y");
        tree.file("a/z.rs", "let z\n");
        tree.file("a-b/y.rs", "let w\n");
        tree.file(".hidden/x", "let h\n");
        tree.file("vendor/v.rs", "let v\n");
        let all = ".hidden/x:1:let h\na/z.rs:1:let z\na-b/y.rs:1:let w\nb.rs:2:let x\nb.rs:3:  let y";
        assert_eq!(grep(&tree, r#"{"pattern":"let"}"#), all);
        assert_eq!(grep(&tree, r#"{"pattern":"^let [xz]$"}"#), "a/z.rs:1:let z\nb.rs:2:let x");
        assert_eq!(grep(&tree, r#"{"pattern":"LET Y","ignore_case":true}"#), "b.rs:3:  let y");
        assert_eq!(grep(&tree, r#"{"pattern":"LET Y","ignore_case":false}"#), "(no matches)");
    }

    #[test]
    fn a_path_may_be_a_directory_or_a_file() {
        let tree = Tree::with(&["a/b/c", "a/d", "vendor/e"]);
        tree.link("a/d", "link");
        assert_eq!(grep(&tree, r#"{"pattern":".","path":"a/b"}"#), "a/b/c:1:a/b/c");
        assert_eq!(grep(&tree, r#"{"pattern":".","path":"vendor"}"#), "vendor/e:1:vendor/e");
        assert_eq!(grep(&tree, r#"{"pattern":".","path":"./a/./d"}"#), "a/d:1:a/d");
        assert_eq!(grep(&tree, r#"{"pattern":".","path":"link"}"#), "link:1:a/d");
        // Named is named.
        assert_eq!(grep(&tree, r#"{"pattern":".","path":"a/d","include":"*.rs"}"#), "a/d:1:a/d");
        let absolute = serde_json::json!({"pattern": ".", "path": tree.root.join("a/d")}).to_string();
        assert_eq!(grep(&tree, &absolute), "a/d:1:a/d");
    }

    #[test]
    fn include_is_for_the_name_or_with_a_slash_for_the_path() {
        let tree = Tree::with(&["a.rs", "src/b.rs", "src/c.ts", "src/x/d.rs", "lib/src/e.rs"]);
        let files = |include: &str, path: &str| {
            let text = grep(&tree, &serde_json::json!({"pattern": "^", "include": include, "path": path}).to_string());
            text.lines().map(|line| line.split(':').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(files("*.rs", "."), ["a.rs", "lib/src/e.rs", "src/b.rs", "src/x/d.rs"]);
        assert_eq!(files("*.{rs,ts}", "src"), ["src/b.rs", "src/c.ts", "src/x/d.rs"]);
        assert_eq!(files("src/*.rs", "."), ["src/b.rs"]);
        assert_eq!(files("src/*.rs", "lib"), ["lib/src/e.rs"]);
        assert_eq!(files("**/src/**", "."), ["lib/src/e.rs", "src/b.rs", "src/c.ts", "src/x/d.rs"]);
        assert_eq!(files("./*.rs", "."), ["a.rs"]);
        assert_eq!(files("*.py", "."), ["(no matches)"]);
    }

    #[test]
    fn what_is_not_text_or_too_large_is_skipped_and_told_of_where_it_was_named() {
        let tree = Tree::with(&["a"]);
        tree.file("binary", b"a\0");
        tree.file("large", vec![b'a'; MAX_FILE + 1]);
        fs::File::create(tree.root.join("sparse")).unwrap().set_len(10 << 30).unwrap();
        tree.fifo("fifo");
        assert_eq!(grep(&tree, r#"{"pattern":"a"}"#), "a:1:a");
        let binary = grep(&tree, r#"{"pattern":"a","path":"binary"}"#);
        assert_eq!(binary, "(no matches)\n(binary is a binary file and was not searched)");
        for large in ["large", "sparse"] {
            let text = grep(&tree, &format!(r#"{{"pattern":"a","path":"{large}"}}"#));
            assert_eq!(text, format!("(no matches)\n({large} is larger than 2 MiB and was not searched)"));
        }
        let error = run(&tool(&tree), r#"{"pattern":"a","path":"fifo"}"#).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_path_that_leads_out_is_refused_and_a_link_that_does_is_not_followed() {
        let tree = Tree::with(&["a/b"]);
        let secret = tree.outside("secret", "secret\n");
        tree.outside("root-evil/x", "secret\n");
        tree.link("../secret", "out");
        tree.link(&secret, "a/absolute");
        tree.link("../root-evil", "evil");
        tree.link("/proc/self/root", "magic");
        assert_eq!(grep(&tree, r#"{"pattern":"secret"}"#), "(no matches)");
        let paths = [
            "..",
            "../secret",
            "a/../../secret",
            secret.to_str().unwrap(),
            "out",
            "a/absolute",
            "evil/x",
            "magic/etc",
            "/etc/passwd",
        ];
        for path in paths {
            let arguments = serde_json::json!({"pattern": ".", "path": path}).to_string();
            let error = run(&tool(&tree), &arguments).unwrap_err();
            assert!(matches!(error, Failure::Workspace(_)), "{path}: {error:?}");
            // It says what it was given, and nothing else of what is outside.
            assert!(!error.to_string().contains("secret") || path.contains("secret"), "{path}: {error}");
        }
    }

    /// CVE-2025-67366: a directory was looked at, and then another stood in its place.
    #[test]
    fn a_directory_swapped_for_a_link_shows_nothing_outside() {
        let tree = Tree::with(&["dir/sub/file", "z"]);
        tree.outside("secret/sub/file", "secret\n");
        tree.link("../secret", "evil");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                let (one, other) = (tree.root.join("dir"), tree.root.join("evil"));
                while !done.load(Relaxed) {
                    rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &other, exchange).unwrap();
                }
            });
            let tool = tool(&tree);
            let texts: Vec<String> = (0..300).map(|_| answered(&tool, r#"{"pattern":"secret|z"}"#)).collect();
            done.store(true, Relaxed);
            for text in texts {
                assert_eq!(text, "z:1:z");
            }
        });
    }

    #[test]
    fn it_stops_at_the_limit_with_the_first_every_time() {
        let tree = Tree::new();
        let mut all = Vec::new();
        for number in 0..300 {
            let name = format!("{}{}/f{number:03}", number % 7, ["", "-x", "/y"][number % 3]);
            tree.file(&name, "x\n".repeat(3));
            all.push(name);
        }
        all.sort_by(|one, other| name_order(one.as_bytes(), other.as_bytes()));
        let lines: Vec<String> =
            all.iter().flat_map(|name| (1..=3).map(move |line| format!("{name}:{line}:x"))).collect();
        for limit in [1, 2, 100, 500, 899] {
            let expected = lines[..limit].join("\n");
            for _ in 0..20 {
                let text = grep(&tree, &format!(r#"{{"pattern":"x","max_results":{limit}}}"#));
                let (found, trailer) = text.rsplit_once('\n').unwrap();
                assert_eq!(found, expected);
                assert!(trailer.starts_with(&format!("(stopped at {limit} matches, there are more: ")), "{trailer}");
            }
        }
        assert_eq!(grep(&tree, r#"{"pattern":"x","max_results":900}"#), lines.join("\n"));
    }

    #[test]
    fn a_million_matches_cost_what_is_shown() {
        let tree = Tree::new();
        tree.file("a", "x\n".repeat(1_000_000));
        let text = grep(&tree, r#"{"pattern":"x","max_results":2,"path":"a"}"#);
        assert!(text.starts_with("a:1:x\na:2:x\n(stopped at 2 matches"), "{text}");
        let text = grep(&tree, r#"{"pattern":"x","max_results":1000000}"#);
        let most = "(stopped at 10000 matches, there are more: no more are ever listed; narrow the search)";
        assert_eq!(text.lines().last(), Some(most));
    }

    #[test]
    fn an_answer_is_bounded_in_bytes_too() {
        let tree = Tree::new();
        for number in 0..10 {
            tree.file(format!("{number}"), ("y".repeat(499) + "\n").repeat(1000));
        }
        let text = grep(&tree, r#"{"pattern":"y","max_results":10000}"#);
        assert!(text.len() <= MAX_BYTES + 200, "{}", text.len());
        assert!(text.ends_with("there are more: the answer is full; narrow the search)"));
        assert_eq!(text, grep(&tree, r#"{"pattern":"y","max_results":10000}"#));
    }

    #[test]
    fn names_and_lines_that_are_not_utf8_are_shown_replaced() {
        let tree = Tree::new();
        tree.bytes_named(b"a\nb\xff", "x\n");
        tree.file("c", b"\xffx\n");
        assert_eq!(grep(&tree, r#"{"pattern":"x"}"#), "a\\nb\u{fffd}:1:x\nc:1:\u{fffd}x");
    }

    #[test]
    fn wrong_arguments_are_named() {
        let tree = Tree::with(&["a"]);
        for (arguments, why) in [
            ("{}", "\"pattern\" is required"),
            (r#"{"pattern":"("}"#, "\"pattern\" is not a valid regular expression: unclosed group"),
            (r#"{"pattern":"a","include":"{b"}"#, "\"include\" is not a valid glob: it has an unclosed brace"),
            (r#"{"pattern":"a","ignore_case":"yes"}"#, "\"ignore_case\" must be true or false"),
            (r#"{"pattern":"a","path":"missing"}"#, "no such file"),
            (r#"{"pattern":"a","path":""}"#, "path is required"),
        ] {
            let error = run(&tool(&tree), arguments).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_cancelled_call_says_so() {
        let tree = Tree::with(&["a/b"]);
        let cancel = Cancel::new();
        cancel.cancel();
        for path in [".", "a/b"] {
            let arguments = format!(r#"{{"pattern":".","path":"{path}"}}"#);
            let ended = run_with(&tool(&tree), &arguments, &cancel, &Reports::default());
            assert!(matches!(ended, Err(Failure::Cancelled)), "{ended:?}");
        }
    }

    #[test]
    fn a_cancel_from_a_report_ends_it() {
        let tree = Tree::new();
        (0..100).for_each(|number| tree.file(format!("{number}"), "x\n"));
        let cancel = Cancel::new();
        let progress = Reports { cancels: Some(cancel.clone()), ..Reports::default() };
        let mut tool = tool(&tree);
        tool.limits.report = Duration::ZERO;
        let ended = run_with(&tool, r#"{"pattern":"x"}"#, &cancel, &progress);
        assert!(matches!(ended, Err(Failure::Cancelled)), "{ended:?}");
        assert!(!progress.said.lock().unwrap().is_empty());
    }
}
