//! Where the tools run, as a person writes it.

use std::fmt;
use std::str::FromStr;

/// A place for tools to run in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// This directory, in this process.
    Here,
    /// A command whose standard input and output carry the protocol, as a list of words; no shell is involved.
    Command(Vec<String>),
}

/// Why a text names no target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetError {
    /// The kind before the colon is not known.
    UnknownKind(String),
    /// The command has no word.
    NoCommand,
    /// A quote has no end, or a backslash nothing behind it.
    Unterminated,
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKind(text) => write!(f, "{text:?} is no target: write cmd:'COMMAND WORDS'"),
            Self::NoCommand => f.write_str("cmd: needs a command behind it"),
            Self::Unterminated => {
                f.write_str("the command has a quote without an end or a backslash with nothing behind it")
            }
        }
    }
}

impl std::error::Error for TargetError {}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        match text.split_once(':') {
            Some(("cmd", line)) => words(line).map(Self::Command),
            _ => Err(TargetError::UnknownKind(text.to_owned())),
        }
    }
}

/// Splits a line as a shell splits words: quotes and backslashes are honoured, nothing is expanded (spec executor 2.4).
fn words(line: &str) -> Result<Vec<String>, TargetError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next().ok_or(TargetError::Unterminated)? {
                        '\'' => break,
                        quoted => word.push(quoted),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next().ok_or(TargetError::Unterminated)? {
                        '"' => break,
                        '\\' => match letters.next().ok_or(TargetError::Unterminated)? {
                            escaped @ ('"' | '\\' | '$' | '`') => word.push(escaped),
                            other => word.extend(['\\', other]),
                        },
                        quoted => word.push(quoted),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(letters.next().ok_or(TargetError::Unterminated)?),
            plain => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    if words.first().is_none_or(String::is_empty) { Err(TargetError::NoCommand) } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_split_as_a_shell_splits_words() {
        for (text, expected) in [
            ("cmd:berth execute", Ok(vec!["berth", "execute"])),
            ("cmd:  a\t'b c'  \"d \\\" \\x $e\" f\\ g '' ", Ok(vec!["a", "b c", "d \" \\x $e", "f g", ""])),
            ("cmd:a'b'\"c\"d", Ok(vec!["abcd"])),
            ("cmd:ssh host berth execute --root '/a b'", Ok(vec!["ssh", "host", "berth", "execute", "--root", "/a b"])),
            ("cmd:", Err(TargetError::NoCommand)),
            ("cmd:  ", Err(TargetError::NoCommand)),
            ("cmd:'' a", Err(TargetError::NoCommand)),
            ("cmd:'a", Err(TargetError::Unterminated)),
            ("cmd:\"a", Err(TargetError::Unterminated)),
            ("cmd:a\\", Err(TargetError::Unterminated)),
            ("berth execute", Err(TargetError::UnknownKind("berth execute".into()))),
            ("gopher:x", Err(TargetError::UnknownKind("gopher:x".into()))),
        ] {
            let expected = expected.map(|words| Target::Command(words.into_iter().map(str::to_owned).collect()));
            assert_eq!(text.parse::<Target>(), expected, "{text}");
        }
    }
}
