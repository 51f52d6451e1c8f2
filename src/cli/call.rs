//! `berth call`: calls one tool, here or at a target, and prints what it answers.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::{Mutex, PoisonError};

use lexopt::prelude::*;
use serde_json::{Map, Value as Json};

use super::ask::{Reply, yes_or_no};
use super::open::{Output, Place, interruption, text};
use super::tools::takes;
use super::{Error, Status, clean, print, print_json};
use crate::executor::{self, only_looks};
use crate::jsonrpc::strict;
use crate::mcp::types::{CallResult, Content, Tool};
use crate::os::cancel::Cancel;
use crate::tools::Progress;

const HELP: &str = "\
berth call calls one tool and prints what it answers. Tools that only look run at once; before any other it asks.

usage: berth call TOOL [KEY=VALUE ...] [OPTION ...]

  --json OBJECT         the arguments as JSON; - reads them from standard input
  --on cmd:'COMMAND'    call the tool of an executor that this command starts
  --root DIR            the directory the tools act in [this one]
  --pass-env A,B        variables that look like credentials but are passed to commands all the same: SSH_AUTH_SOCK, for one
  --yes                 do not ask
  --output text|json    json prints the whole result [text]

What a command prints is shown as it comes, on standard error, before the result.
Exit status: 0 done, 1 the tool or bash's command failed, 2 usage, 4 no executor, 5 nobody could be asked, 130 interrupted.
examples: berth call grep pattern='fn main' path=src
          berth call bash command='cargo test' --yes
";

/// The most bytes of arguments read from standard input: what one message can carry.
const STDIN_MAX_BYTES: u64 = crate::jsonrpc::LINE_MAX_BYTES as u64;

#[derive(Default)]
struct Asked {
    name: Option<String>,
    pairs: Vec<(String, String)>,
    object: Option<Map<String, Json>>,
    yes: bool,
    output: Output,
    place: Place,
}

pub(super) fn run(parser: &mut lexopt::Parser) -> Result<Status, Error> {
    let mut asked = Asked::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return print(HELP),
            Short('y') | Long("yes") => asked.yes = true,
            Long("output") => asked.output = Output::read(parser)?,
            Long("json") => asked.object = Some(read_object(parser)?),
            Long(option) => {
                let option = option.to_owned();
                asked.place.take(&option, parser)?;
            }
            Value(value) => asked.word(value.string()?)?,
            other => return Err(other.unexpected().into()),
        }
    }
    let Some(name) = asked.name else { return Err(Error::usage("a tool is missing").hint("berth tools lists them")) };
    if asked.object.is_some() && !asked.pairs.is_empty() {
        return Err(Error::usage("KEY=VALUE and --json do not go together"));
    }
    let cancel = interruption()?;
    let executor = asked.place.executor(&cancel)?;
    let Some(tool) = executor.tools().iter().find(|tool| tool.name == name) else {
        let names: Vec<String> = executor.tools().iter().map(|tool| clean::line(&tool.name)).collect();
        return Err(Error::usage(format!("no tool named {name:?}")).hint(format!("there are: {}", names.join(", "))));
    };
    let arguments = match asked.object {
        Some(object) => object,
        None => typed(tool, asked.pairs)?,
    };
    if !asked.yes && !only_looks(tool) {
        allowed(&name, &arguments, &cancel)?;
    }
    let progress = ToStderr::default();
    let outcome = executor.call(&name, arguments, &cancel, &progress);
    drop(executor);
    match outcome {
        Ok(result) => {
            let status = show(&result, asked.output, &progress.shown())?;
            // A command that failed is no failure of the tool, but a script that goes on after it would be surprised.
            let failed = name == "bash" && !result.content.iter().any(|part| words(part).ends_with("[exit 0]"));
            Ok(if failed { Status::Failed } else { status })
        }
        Err(executor::Error::Cancelled) => Err(Error::new(Status::Interrupted, "interrupted")),
        Err(error @ executor::Error::Unreachable(_)) => Err(Error::new(Status::Unreachable, error.to_string())),
        Err(error) => Err(Error::new(Status::Failed, error.to_string())),
    }
}

impl Asked {
    fn word(&mut self, word: String) -> Result<(), Error> {
        if self.name.is_none() {
            self.name = Some(word);
            return Ok(());
        }
        let Some((key, value)) = word.split_once('=') else {
            return Err(
                Error::usage(format!("{word:?} is no KEY=VALUE")).hint("berth tools lists what each tool takes")
            );
        };
        self.pairs.push((key.to_owned(), value.to_owned()));
        Ok(())
    }
}

/// Asks the person whether a call that may change something is to run.
fn allowed(name: &str, arguments: &Map<String, Json>, cancel: &Cancel) -> Result<(), Error> {
    let call = clean::line(&format!("{name} {}", Json::Object(arguments.clone())));
    match yes_or_no(&format!("run {call}?"), cancel) {
        Reply::Yes => Ok(()),
        Reply::No => Err(Error::new(Status::Failed, "not run")),
        Reply::Interrupted => Err(Error::new(Status::Interrupted, "interrupted")),
        Reply::Nobody => {
            let what = format!("{name} may change things, and there is no terminal to ask on");
            Err(Error::new(Status::Unanswered, what).hint("--yes runs it without asking"))
        }
    }
}

/// Progress for the person, as it comes.
#[derive(Default)]
struct ToStderr {
    shown: Mutex<String>,
}

/// How much of what was shown is remembered.
const SHOWN_MAX_BYTES: usize = 64 * 1024;

impl ToStderr {
    /// What the person has seen, from its beginning.
    fn shown(&self) -> String {
        std::mem::take(&mut *self.shown.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Progress for ToStderr {
    fn wanted(&self) -> bool {
        true
    }

    fn report(&self, message: &str) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.len() < SHOWN_MAX_BYTES {
            shown.push_str(message);
        }
        // Nobody is left to be told when standard error is gone.
        let _ = io::stderr().write_all(clean::lines(message).as_bytes());
    }
}

fn read_object(parser: &mut lexopt::Parser) -> Result<Map<String, Json>, Error> {
    let mut json = text(parser, "--json")?;
    if json == "-" {
        json.clear();
        io::stdin()
            .take(STDIN_MAX_BYTES + 1)
            .read_to_string(&mut json)
            .map_err(|error| Error::usage(format!("--json: standard input: {error}")))?;
        if json.len() as u64 > STDIN_MAX_BYTES {
            return Err(Error::usage(format!("--json: standard input holds more than {STDIN_MAX_BYTES} bytes")));
        }
    }
    strict::object(&json).map_err(|error| Error::usage(format!("--json: {error}")))
}

/// Words become what the tool's schema says they are; one that does not fit is refused here, where the person sees it.
fn typed(tool: &Tool, pairs: Vec<(String, String)>) -> Result<Map<String, Json>, Error> {
    let schema: Json = serde_json::from_str(tool.input_schema.get()).unwrap_or_default();
    let mut arguments = Map::new();
    for (key, value) in pairs {
        let Some(property) = schema.get("properties").and_then(|properties| properties.get(&key)) else {
            let names: Vec<String> = takes(tool).into_iter().map(|(name, _)| clean::line(&name)).collect();
            let hint = format!("it takes {}", names.join(", "));
            return Err(Error::usage(format!("{} takes no {key:?}", tool.name)).hint(hint));
        };
        let wrong = |kind: &str| Error::usage(format!("{key}: {value:?} is not {kind}"));
        let typed = match property.get("type").and_then(Json::as_str) {
            Some("integer") => whole(&value).ok_or_else(|| wrong("a whole number of 64 bits"))?,
            Some("number") => {
                let number = value.parse::<f64>().ok().and_then(serde_json::Number::from_f64);
                Json::Number(number.ok_or_else(|| wrong("a number"))?)
            }
            Some("boolean") => value.parse::<bool>().map_err(|_| wrong("true or false"))?.into(),
            Some("string") | None => Json::String(value),
            Some(_) => strict::value(&value).map_err(|error| wrong(&format!("JSON ({error})")))?,
        };
        if arguments.insert(key.clone(), typed).is_some() {
            return Err(Error::usage(format!("{key:?} is given twice")));
        }
    }
    Ok(arguments)
}

/// A whole number of either sign, as far as 64 bits reach.
fn whole(text: &str) -> Option<Json> {
    text.parse::<i64>().map(Json::from).or_else(|_| text.parse::<u64>().map(Json::from)).ok()
}

fn show(result: &CallResult, output: Output, shown: &str) -> Result<Status, Error> {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Shown<'a> {
        content: &'a [Content],
        #[serde(skip_serializing_if = "Option::is_none")]
        structured_content: Option<&'a Json>,
        is_error: bool,
    }
    let status = if result.is_error { Status::Failed } else { Status::Done };
    if output == Output::Json {
        let CallResult { content, structured_content, is_error, .. } = result;
        let shown = Shown { content, structured_content: structured_content.as_ref(), is_error: *is_error };
        let json = serde_json::to_string(&shown)
            .map_err(|error| Error::new(Status::Failed, format!("the result has no JSON form: {error}")))?;
        return print_json(json).map(|_| status);
    }
    let mut words: String = result.content.iter().map(words).collect();
    if result.is_error {
        return Err(Error::new(Status::Failed, words));
    }
    // A program that reads the output gets the bytes as they are; a terminal gets nothing it would obey, and nothing twice.
    if io::stdout().is_terminal() {
        let rest = words.strip_prefix(shown).filter(|_| io::stderr().is_terminal());
        words = clean::lines(rest.unwrap_or(&words));
    }
    if !words.is_empty() && !words.ends_with('\n') {
        words.push('\n');
    }
    print(&words).map(|_| status)
}

fn words(content: &Content) -> String {
    match content {
        Content::Text { text } => text.clone(),
        Content::Image { mime_type, data } | Content::Audio { mime_type, data } => {
            format!("({mime_type}, {} bytes in base64)\n", data.len())
        }
        Content::Resource { resource } => resource.text.clone().unwrap_or_else(|| format!("({})\n", resource.uri)),
        Content::ResourceLink(link) => format!("({})\n", link.uri),
        Content::Other(value) => format!("{value}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    #[test]
    fn words_become_what_the_schema_says() {
        let schema = r#"{"type":"object","properties":{"path":{"type":"string"},"limit":{"type":"integer"},"all":{"type":"boolean"}}}"#;
        let tool = Tool::new("t", "", RawValue::from_string(schema.into()).unwrap());
        let read = |pairs: &[(&str, &str)]| {
            typed(&tool, pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect())
                .map(|map| Json::Object(map).to_string())
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            read(&[("path", "7"), ("limit", "7"), ("all", "true")]).unwrap(),
            r#"{"all":true,"limit":7,"path":"7"}"#
        );
        assert!(read(&[("limit", "x")]).unwrap_err().contains("whole number"));
        assert!(read(&[("paths", "x")]).unwrap_err().contains("it takes"));
        assert!(read(&[("path", "a"), ("path", "b")]).unwrap_err().contains("twice"));
    }
}
