//! A request as its handler sees it: who asks, how far it is, what the client may be asked meanwhile.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::connection::Connection;
use super::protocol::{Era, Level, Version, method};
use super::server::{AskError, Client, invalid_params};
use super::types::Implementation;
use crate::jsonrpc::strict::Strict;
use crate::jsonrpc::{self, ErrorObject};
use crate::os::cancel::Cancel;

/// What a request gives its handler besides its parameters.
pub struct Request<'a> {
    pub(super) connection: &'a Connection,
    pub(super) client: &'a Client,
    pub(super) cancel: &'a Cancel,
    pub(super) level: Option<Level>,
    pub(super) token: Option<&'a RawValue>,
    pub(super) input_responses: Option<Map<String, Value>>,
    pub(super) request_state: Option<String>,
    pub(super) progress: Mutex<Progress>,
}

/// How far a request said it is.
#[derive(Default)]
pub(super) struct Progress {
    last: Option<f64>,
    /// Something was offered on the request's behalf, which its answer must not overtake.
    pub(super) offered: bool,
}

impl Request<'_> {
    /// Who asks; at 2026-07-28 as this very request says it.
    pub fn client(&self) -> &Client {
        self.client
    }

    /// Thrown when the answer is not wanted any more.
    pub fn cancel(&self) -> &Cancel {
        self.cancel
    }

    /// Whether the client asked to be told how far the request is.
    pub fn progress_wanted(&self) -> bool {
        self.token.is_some()
    }

    /// Says how far the request is; never blocks, and is lost when the client does not keep up. Without a number the reports are counted.
    /// A number that does not grow is not sent (spec mcp 4.1).
    pub fn progress(&self, progress: Option<f64>, total: Option<f64>, message: Option<&str>) {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            progress_token: &'a RawValue,
            progress: Count,
            #[serde(skip_serializing_if = "Option::is_none")]
            total: Option<Count>,
            #[serde(skip_serializing_if = "Option::is_none")]
            message: Option<&'a str>,
        }
        let Some(progress_token) = self.token else { return };
        let mut said = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let progress = progress.unwrap_or_else(|| said.last.map_or(1.0, |last| last + 1.0));
        if said.last.is_some_and(|last| progress <= last) || !progress.is_finite() {
            return;
        }
        said.last = Some(progress);
        said.offered = true;
        let message = message.filter(|_| self.client.version >= Version::V2025_03_26);
        let total = total.filter(|total| total.is_finite()).map(Count);
        let params = Params { progress_token, progress: Count(progress), total, message };
        self.connection.offer(method::PROGRESS, &params, Droppable::Yes);
    }

    /// Logs to the client, where it wants messages of that level; never blocks.
    pub fn log(&self, level: Level, logger: Option<&str>, data: &impl Serialize) {
        #[derive(Serialize)]
        struct Params<'a, T> {
            level: Level,
            #[serde(skip_serializing_if = "Option::is_none")]
            logger: Option<&'a str>,
            data: &'a T,
        }
        if self.level.is_none_or(|wanted| level < wanted) {
            return;
        }
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).offered = true;
        self.connection.offer(method::MESSAGE, &Params { level, logger, data }, Droppable::No);
    }

    /// Asks the client something and waits for its answer, or until the request is cancelled. Only with a handshake, and only what the
    /// client declared: at 2026-07-28 a request ends with [`super::server::Outcome::InputRequired`] instead (spec mcp 3.6).
    pub fn ask(&self, method: &str, params: &impl Serialize) -> Result<Box<RawValue>, AskError> {
        let needed = match method {
            method::SAMPLING => "sampling",
            method::ELICITATION => "elicitation",
            method::ROOTS_LIST => "roots",
            _ => return Err(AskError::NotOffered),
        };
        if self.client.version.era() != Era::Legacy || !self.client.capabilities.contains_key(needed) {
            return Err(AskError::NotOffered);
        }
        let params = serde_json::to_vec(params).map_err(|error| {
            AskError::Refused(ErrorObject::new(
                jsonrpc::code::INTERNAL_ERROR,
                format!("the question has no JSON form: {error}"),
            ))
        })?;
        self.connection.ask(method, &params, self.cancel)
    }

    /// The client's answers to the questions an earlier try ended with; `None` on the first.
    pub fn input_responses(&self) -> Option<&Map<String, Value>> {
        self.input_responses.as_ref()
    }

    /// What an earlier try gave the client to bring back. Hostile input.
    pub fn request_state(&self) -> Option<&str> {
        self.request_state.as_deref()
    }
}

/// What becomes of a notification when the client does not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Droppable {
    /// It is lost while others wait: the next report says more.
    Yes,
    /// It is lost only when very many wait.
    No,
}

/// A number that is written as an integer when it is one.
#[derive(Clone, Copy)]
struct Count(f64);

impl Serialize for Count {
    #[allow(clippy::cast_possible_truncation)]
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && self.0.abs() < 9_007_199_254_740_992.0 {
            serializer.serialize_i64(self.0 as i64)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

/// What a request's `_meta` says to the protocol itself.
#[derive(Default, Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow, rename = "progressToken")]
    pub(super) token: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    pub(super) version: Option<Cow<'a, str>>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
    pub(super) capabilities: Option<Strict>,
    #[serde(rename = "io.modelcontextprotocol/clientInfo")]
    pub(super) info: Option<Implementation>,
    #[serde(rename = "io.modelcontextprotocol/logLevel")]
    pub(super) level: Option<Level>,
}

impl<'a> Envelope<'a> {
    /// Reads the envelope of a request's parameters; an empty one where there is none.
    pub(super) fn read(params: Option<&'a RawValue>) -> Result<Self, ErrorObject> {
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(borrow, default, rename = "_meta")]
            meta: Option<Envelope<'a>>,
        }
        let Some(params) = params else { return Ok(Self::default()) };
        let envelope = match serde_json::from_str::<Params<'a>>(params.get()) {
            Ok(params) => params.meta.unwrap_or_default(),
            Err(error) => Self::of_the_handshake(params, &error)?,
        };
        if let Some(token) = envelope.token
            && jsonrpc::Id::parse(token).is_none()
        {
            return Err(invalid_params("\"progressToken\" must be a string or an integer"));
        }
        Ok(envelope)
    }

    /// With a handshake only the token has a meaning; what else stands there is the client's own, whatever it is called.
    fn of_the_handshake(params: &'a RawValue, error: &serde_json::Error) -> Result<Self, ErrorObject> {
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(borrow, default, rename = "_meta")]
            meta: Option<Meta<'a>>,
        }
        #[derive(Deserialize)]
        struct Meta<'a> {
            #[serde(borrow, rename = "progressToken")]
            token: Option<&'a RawValue>,
            #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
            version: Option<IgnoredAny>,
        }
        match serde_json::from_str::<Params<'a>>(params.get()) {
            Ok(Params { meta: Some(Meta { token, version: None }) }) => Ok(Self { token, ..Self::default() }),
            _ => Err(invalid_params(format!("\"_meta\" does not fit: {error}"))),
        }
    }
}

/// Reads parameters into a type, or says what does not fit.
pub(super) fn read<'a, T: Deserialize<'a>>(params: &'a RawValue) -> Result<T, ErrorObject> {
    serde_json::from_str(params.get()).map_err(|error| invalid_params(format!("the parameters do not fit: {error}")))
}
