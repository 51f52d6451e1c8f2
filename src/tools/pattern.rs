//! The glob syntax of `glob` and of grep's `include`: `**` for any number of path elements, `*`, `?` and classes within one, and
//! `{a,b}` for either, nested too (spec executor 10.4).
//!
//! Matching is globset's, over bytes: a name need not be UTF-8, and `?` or a class stands for one byte of it, as in ripgrep. Braces
//! are expanded here, because globset takes `{a/**,b}/c` for something else than `a/**/c` or `b/c`. So are the bounds on a pattern
//! here, and the question which directories it can lead into.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{Candidate, Glob, GlobBuilder, GlobMatcher, GlobSet};

use super::Failure;

/// The most bytes of a pattern.
const LONGEST: usize = 4096;

/// The most patterns that braces may stand for, and the most bytes that may be copied to write them all out. Each brace can double
/// their number.
const MAX_ALTERNATIVES: usize = 1000;
const MAX_EXPANSION: usize = 64 * 1024;

/// With more alternatives than this, asking each of them costs more than reading a directory; with more elements, compiling them costs
/// more than they save.
const MAX_LEADS: usize = 16;
const MAX_ELEMENTS: usize = 16;

/// Whether `path` matches `pattern`, both relative to the same directory. Fails where the pattern is not valid.
///
/// For programs that want the tools' syntax, and for the fuzzer.
pub fn matches(pattern: &str, path: &[u8]) -> Result<bool, Failure> {
    Ok(Pattern::new("pattern", pattern)?.matches(path))
}

/// A glob pattern, compiled.
pub(super) struct Pattern {
    set: GlobSet,
    /// Where each alternative leads; `None` where there are too many to ask.
    leads: Option<Vec<Lead>>,
}

/// The beginning of a pattern without braces, as far as each of its elements stands for exactly one element of a path.
struct Lead {
    elements: Vec<Element>,
    /// Whether that is all of the pattern, so that nothing deeper can match.
    whole: bool,
}

enum Element {
    Any,
    Literal(Vec<u8>),
    Glob(GlobMatcher),
}

impl Pattern {
    /// Compiles `text`, which was the argument `key`.
    pub(super) fn new(key: &str, text: &str) -> Result<Self, Failure> {
        let invalid = |why: &str| Failure::InvalidArguments(format!("{key:?} is not a valid glob: {why}"));
        if text.len() > LONGEST {
            return Err(invalid(&format!("it is longer than {LONGEST} bytes")));
        }
        if text.is_empty() {
            return Err(invalid("it is empty"));
        }
        let alternatives = expand(text).map_err(invalid)?;
        let mut globs = Vec::with_capacity(alternatives.len());
        let mut leads = (alternatives.len() <= MAX_LEADS).then(Vec::new);
        for alternative in &alternatives {
            let mut alternative = alternative.as_str();
            while let Some(rest) = alternative.strip_prefix("./") {
                alternative = rest;
            }
            if alternative.starts_with('/') {
                return Err(invalid(
                    "it must be relative to the directory that is searched; name that one with \"path\"",
                ));
            }
            if alternative.split('/').any(|element| element == "..") {
                return Err(invalid(
                    "it cannot lead out of the directory that is searched; name another with \"path\"",
                ));
            }
            globs.push(compile(alternative).map_err(|error| invalid(&error.kind().to_string()))?);
            if let Some(leads) = &mut leads {
                leads.push(Lead::new(alternative));
            }
        }
        let set = GlobSet::new(&globs).map_err(|_| invalid("it is too large; use a simpler one"))?;
        Ok(Self { set, leads })
    }

    /// Whether a path matches, relative to the directory the pattern is.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        self.set.is_match_candidate(&candidate(path))
    }

    /// Whether something below `directory` may match.
    pub(super) fn leads_into(&self, directory: &[u8]) -> bool {
        self.leads.as_ref().is_none_or(|leads| leads.iter().any(|lead| lead.leads_into(directory)))
    }
}

impl Lead {
    fn new(pattern: &str) -> Self {
        let mut elements = Vec::new();
        let mut rest = pattern;
        loop {
            let Some(length) = element(rest) else { return Self { elements, whole: false } };
            let (element, after) = rest.split_at(length);
            if element == "**" || elements.len() == MAX_ELEMENTS {
                return Self { elements, whole: false };
            }
            if element == "*" {
                elements.push(Element::Any);
            } else if element.contains(['*', '?', '[', '\\']) {
                match compile(element) {
                    Ok(glob) => elements.push(Element::Glob(glob.compile_matcher())),
                    Err(_) => return Self { elements, whole: false },
                }
            } else {
                elements.push(Element::Literal(element.into()));
            }
            match after.strip_prefix('/') {
                Some(after) => rest = after,
                None => return Self { elements, whole: true },
            }
        }
    }

    fn leads_into(&self, directory: &[u8]) -> bool {
        let mut elements = self.elements.iter();
        let fits = directory.split(|byte| *byte == b'/').all(|name| match elements.next() {
            Some(Element::Any) => true,
            Some(Element::Literal(literal)) => literal == name,
            Some(Element::Glob(glob)) => glob.is_match_candidate(&candidate(name)),
            None => !self.whole,
        });
        fits && !(self.whole && elements.as_slice().is_empty())
    }
}

fn candidate(path: &[u8]) -> Candidate<'_> {
    Candidate::new(Path::new(OsStr::from_bytes(path)))
}

fn compile(text: &str) -> Result<Glob, globset::Error> {
    GlobBuilder::new(text).literal_separator(true).backslash_escape(true).build()
}

/// The length of the first element of a pattern without braces, up to a slash or the end; `None` where a slash may not be one that
/// separates.
fn element(text: &str) -> Option<usize> {
    let mut at = 0;
    while let Some((token, length)) = token(text, at) {
        match token {
            b'/' => return Some(at),
            b'\\' | b'[' if text.get(at..at + length)?.contains('/') => return None,
            _ => at += length,
        }
    }
    Some(text.len())
}

/// What stands at `at`, by its first byte, and how many bytes belong to it: an escaped character or a class is one token.
fn token(text: &str, at: usize) -> Option<(u8, usize)> {
    let rest = text.get(at..)?;
    let first = *rest.as_bytes().first()?;
    let length = match first {
        b'\\' => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
        b'[' => {
            let negated = rest.starts_with("[!") || rest.starts_with("[^");
            // A bracket that comes first is a member.
            let members = if negated { 2 } else { 1 };
            let first_member = rest.get(members..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
            let searched = members + first_member;
            // Without its end the rest is taken, and globset will refuse it.
            rest.get(searched..).and_then(|rest| rest.find(']')).map_or(rest.len(), |end| searched + end + 1)
        }
        _ => rest.chars().next().map_or(1, char::len_utf8),
    };
    Some((first, length))
}

/// The patterns without braces that a pattern stands for, in the order they are written.
fn expand(text: &str) -> Result<Vec<String>, &'static str> {
    let mut expanded = Vec::new();
    let mut copied = 0;
    // Still to be looked through, each from an offset on; the first one last.
    let mut pending = vec![(text.to_owned(), 0)];
    while let Some((pattern, from)) = pending.pop() {
        let Some(braces) = Braces::find(&pattern, from)? else {
            expanded.push(pattern);
            continue;
        };
        for (start, end) in braces.alternatives.iter().rev() {
            let parts = [pattern.get(..braces.start), pattern.get(*start..*end), pattern.get(braces.end..)];
            let alternative: String = parts.into_iter().flatten().collect();
            copied += alternative.len();
            pending.push((alternative, braces.start));
        }
        if expanded.len() + pending.len() > MAX_ALTERNATIVES || copied > MAX_EXPANSION {
            return Err("its braces stand for too many patterns; use fewer");
        }
    }
    Ok(expanded)
}

/// A pair of braces, as offsets into a pattern.
struct Braces {
    start: usize,
    /// Behind the closing one.
    end: usize,
    alternatives: Vec<(usize, usize)>,
}

impl Braces {
    /// The first outermost pair from an offset on.
    fn find(pattern: &str, from: usize) -> Result<Option<Self>, &'static str> {
        let mut depth = 0usize;
        let mut braces = Self { start: 0, end: 0, alternatives: Vec::new() };
        let mut begun = 0;
        let mut at = from;
        while let Some((token, length)) = token(pattern, at) {
            match (token, depth) {
                (b'{', 0) => {
                    braces.start = at;
                    begun = at + 1;
                    depth = 1;
                }
                (b'{', _) => depth += 1,
                (b',', 1) => {
                    braces.alternatives.push((begun, at));
                    begun = at + 1;
                }
                (b'}', 0) => return Err("it has a closing brace without an opening one; write \\} for the character"),
                (b'}', 1) => {
                    braces.alternatives.push((begun, at));
                    braces.end = at + 1;
                    return Ok(Some(braces));
                }
                (b'}', _) => depth -= 1,
                _ => {}
            }
            at += length;
        }
        if depth > 0 { Err("it has an unclosed brace; write \\{ for the character") } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_syntax() {
        // Pattern, what it matches, what it does not.
        let table: &[(&str, &[&str], &[&str])] = &[
            ("a", &["a"], &["b", "a/a", "aa"]),
            ("*", &["a", ".hidden", "a.b"], &["a/b"]),
            ("*.rs", &["a.rs", ".rs"], &["a/b.rs", "a.rs/b", "a.rsx"]),
            ("a/*", &["a/b"], &["a", "a/b/c"]),
            ("?", &["a", "."], &["ab", "/"]),
            ("a?b", &["axb"], &["a/b", "ab"]),
            ("[ab]x", &["ax", "bx"], &["cx", "abx"]),
            ("[a-c]", &["b"], &["d", "-"]),
            ("[!a]", &["b"], &["a", "/"]),
            ("[^a]b", &["bb"], &["ab", "/b"]),
            ("[]]", &["]"], &["a"]),
            ("a[/]b", &[], &["a/b"]),
            ("**", &["a", "a/b", ".a/.b"], &[]),
            ("**/a", &["a", "b/a", "b/c/a"], &["a/b", "ba"]),
            ("a/**", &["a/b", "a/b/c"], &["a", "ab/c"]),
            ("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["ab", "a/xb", "b"]),
            ("**/a/**/*.rs", &["a/x.rs", "b/a/c/d/x.rs"], &["x.rs", "b/x.rs"]),
            ("a**b", &["ab", "axxb"], &["a/b"]),
            ("{a,b}", &["a", "b"], &["ab", "{a,b}"]),
            ("*.{rs,to{ml,y}}", &["x.rs", "x.toml", "x.toy"], &["x.to", "x.ml"]),
            ("{src,tests/**}/*.rs", &["src/a.rs", "tests/a.rs", "tests/x/a.rs"], &["src/x/a.rs"]),
            ("a{,b}", &["a", "ab"], &["b"]),
            ("a,b", &["a,b"], &["a"]),
            ("\\*", &["*"], &["a"]),
            ("\\{a\\}", &["{a}"], &["a"]),
            ("[{]a", &["{a"], &["a"]),
            ("./a/*", &["a/b"], &["./a/b"]),
            ("..a/b..", &["..a/b.."], &[]),
            ("é*", &["é", "éa"], &["e"]),
        ];
        for (pattern, yes, no) in table {
            for (paths, expected) in [(yes, true), (no, false)] {
                for path in *paths {
                    assert_eq!(matches(pattern, path.as_bytes()).unwrap(), expected, "{pattern} {path}");
                }
            }
        }
        assert!(matches("a*/?", b"a\xff\xfe/\xfd").unwrap());
    }

    #[test]
    fn what_is_not_a_pattern_is_refused_with_the_reason() {
        let long = "a".repeat(LONGEST + 1);
        let doubling = "{a,b}".repeat(800);
        let copied = "{a,b}".repeat(9) + &"{}".repeat(2000);
        for (pattern, why) in [
            ("{a", "unclosed brace"),
            ("a}", "closing brace without"),
            ("{a,{b}", "unclosed brace"),
            ("[a", "unclosed character class"),
            ("[b-a]", "invalid range"),
            ("a\\", "dangling '\\'"),
            ("", "it is empty"),
            ("{../a,b}", "cannot lead out"),
            ("{a,/b}", "must be relative"),
            ("/a", "must be relative"),
            ("../a", "cannot lead out"),
            ("a/../../b", "cannot lead out"),
            (long.as_str(), "longer than 4096 bytes"),
            (doubling.as_str(), "too many patterns"),
            (copied.as_str(), "too many patterns"),
        ] {
            let error = matches(pattern, b"a").unwrap_err().to_string();
            assert!(error.starts_with("invalid arguments: \"pattern\" is not a valid glob: "), "{error}");
            assert!(error.contains(why), "{pattern}: {error}");
            assert!(error.len() < 300, "{error}");
        }
    }

    #[test]
    fn braces_are_written_out_in_order() {
        for (pattern, expected) in [
            ("a", vec!["a"]),
            ("{a}", vec!["a"]),
            ("{}", vec![""]),
            ("x{a,b,}y", vec!["xay", "xby", "xy"]),
            ("{a,b{c,d{e,f}}}g", vec!["ag", "bcg", "bdeg", "bdfg"]),
            ("{a,b}{c,d}", vec!["ac", "ad", "bc", "bd"]),
            ("\\{a,b\\}", vec!["\\{a,b\\}"]),
            ("[{]a,{b,[},]}", vec!["[{]a,b", "[{]a,[},]"]),
        ] {
            assert_eq!(expand(pattern).unwrap(), expected, "{pattern}");
        }
        let deep = "{".repeat(200) + "a" + &"}".repeat(200);
        assert_eq!(expand(&deep).unwrap(), ["a"]);
    }

    #[test]
    fn a_pattern_leads_where_something_may_match() {
        let table: &[(&str, &[&str], &[&str])] = &[
            ("a", &[], &["a", "b"]),
            ("a/b", &["a"], &["b", "a/b"]),
            ("a/*/c", &["a", "a/x"], &["b", "a/x/c"]),
            ("src*/[ab]/**", &["src1", "src1/a", "src1/a/x/y"], &["lib", "src1/c"]),
            ("**/a", &["x", "x/y/z"], &[]),
            ("{a/b,c}/d", &["a", "a/b", "c"], &["x", "a/c", "a/b/d"]),
            ("x/{a/b,c}/d", &["x", "x/a", "x/c"], &["a", "x/y"]),
            ("{a,b/**}/c", &["a", "b", "b/x/y"], &["c", "a/x"]),
            ("{a,b}/*", &["a", "b"], &["c", "a/x"]),
            ("a\\/b/c", &["a", "a/b", "x"], &[]),
            ("[[:alpha:]]/x", &["a"], &["1"]),
        ];
        for (pattern, yes, no) in table {
            let compiled = Pattern::new("pattern", pattern).unwrap();
            for (paths, expected) in [(yes, true), (no, false)] {
                for path in *paths {
                    assert_eq!(compiled.leads_into(path.as_bytes()), expected, "{pattern} {path}");
                }
            }
        }
    }

    #[test]
    fn whatever_matches_is_led_to() {
        // Patterns and paths from a small alphabet, drawn by a generator with a fixed seed.
        const PARTS: [&str; 16] =
            ["a", "b", "/", "/", "*", "**", "**/", "?", "[ab]", "[!a]", "{", ",", "}", "{a,b/", "\\", "[/a]"];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).unwrap() % below
        };
        let mut matched = 0;
        for _ in 0..1500 {
            let pattern: String = (0..1 + draw(7)).map(|_| PARTS[draw(PARTS.len())]).collect();
            let Ok(compiled) = Pattern::new("pattern", &pattern) else { continue };
            for _ in 0..10 {
                let names: Vec<&str> = (0..1 + draw(4)).map(|_| ["a", "b", "ab"][draw(3)]).collect();
                let path = names.join("/");
                if compiled.matches(path.as_bytes()) {
                    matched += 1;
                    for length in 1..names.len() {
                        let directory = names[..length].join("/");
                        assert!(compiled.leads_into(directory.as_bytes()), "{pattern} {path} {directory}");
                    }
                }
            }
        }
        assert!(matched > 200, "{matched}");
    }
}
