//! What a program offers over the protocol: the two traits it implements, and what a request gives it.
//!
//! A [`Service`] opens a [`Session`] for each client that says what it can do; the connection (`mcp/connection`) speaks the versions
//! and the eras, so that a session is written once. Nothing here knows a transport.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::protocol::{Version, code};
use super::types::{
    CallResult, Completion, Implementation, Prompt, PromptResult, Resource, ResourceContents, ResourceTemplate, Tool,
};
use crate::jsonrpc::{self, ErrorObject};

pub use super::connection::{Notifier, Request};

/// What a client said of itself: in `initialize`, or in the envelope of one modern request.
#[derive(Clone, Debug)]
pub struct Client {
    /// The version spoken with it.
    pub version: Version,
    /// Who it is, where it said so.
    pub info: Option<Implementation>,
    /// What it can do, as it stands on the wire.
    pub capabilities: Map<String, Value>,
}

/// A program that serves clients.
pub trait Service: Send + Sync {
    /// Opens a session for a client, when what it can do is first known: at `initialize`, or at the first modern request of a
    /// connection (design 8.1). Must not block.
    fn open(&self, client: &Client, notifier: Notifier) -> Result<Arc<dyn Session>, ErrorObject>;
}

/// What the server says it can do.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Who it is.
    pub server: Implementation,
    /// Words for the model about the whole.
    pub instructions: Option<String>,
    /// Tools; `Some(true)` when the list may change.
    pub tools: Option<bool>,
    /// Prompts; `Some(true)` when the list may change.
    pub prompts: Option<bool>,
    /// Resources.
    pub resources: Option<ResourcesOffer>,
    /// Log messages.
    pub logging: bool,
    /// Completion of arguments.
    pub completions: bool,
    /// Beyond the protocol, by key.
    pub experimental: Map<String, Value>,
    /// Extensions, by id.
    pub extensions: Map<String, Value>,
}

/// What the server can do with resources.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourcesOffer {
    /// A client may ask to be told of a resource's changes.
    pub subscribe: bool,
    /// The list may change.
    pub list_changed: bool,
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// The items, in a stable order.
    pub items: Vec<T>,
    /// What to ask the next page with; the empty string is a cursor too (trap T39).
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// All there is, on one page. A cursor was not handed out, so one that comes in is refused.
    pub fn whole(items: Vec<T>, cursor: Option<&str>) -> Result<Self, ErrorObject> {
        match cursor {
            None => Ok(Self { items, next: None }),
            Some(_) => Err(invalid_params("no such cursor")),
        }
    }
}

/// How a request that may ask back ends (spec mcp 3.6).
#[derive(Clone, Debug)]
pub enum Outcome<T> {
    /// Done.
    Complete(T),
    /// The client is to answer questions and to ask again; 2026-07-28 alone.
    InputRequired {
        /// What to answer: key to `{method, params}`.
        requests: Map<String, Value>,
        /// To be given back byte for byte. Hostile input when it comes back: sign it.
        state: Option<String>,
    },
    /// A kind of result that an extension defines.
    Extension {
        /// Its name, for `resultType`.
        result_type: String,
        /// Its members.
        body: Map<String, Value>,
    },
}

/// One client's session. Called from several threads at once.
///
/// A method of a feature that [`Session::offer`] does not name is never called: the connection answers that there is no such method.
pub trait Session: Send + Sync {
    /// What the server says it can do. Must not block.
    fn offer(&self) -> Offer;

    /// The tools. Must not block.
    fn tools(&self, cursor: Option<&str>) -> Result<Page<Tool>, ErrorObject> {
        Page::whole(Vec::new(), cursor)
    }

    /// Runs a tool; may block until the request is cancelled. A tool nobody knows is [`unknown_tool`] (trap T26), a tool that fails is a
    /// [`CallResult`] that says so. `arguments` is the text of whatever stood there.
    fn call_tool(
        &self,
        name: &str,
        _arguments: Option<&RawValue>,
        _request: &Request<'_>,
    ) -> Result<Outcome<CallResult>, ErrorObject> {
        Err(unknown_tool(name))
    }

    /// Runs a tool on the thread that read the request, when that cannot block; `None` when it might, and then nothing has happened.
    fn call_tool_now(
        &self,
        _name: &str,
        _arguments: Option<&RawValue>,
        _request: &Request<'_>,
    ) -> Option<Result<Outcome<CallResult>, ErrorObject>> {
        None
    }

    /// The resources. Must not block.
    fn resources(&self, cursor: Option<&str>) -> Result<Page<Resource>, ErrorObject> {
        Page::whole(Vec::new(), cursor)
    }

    /// The families of resources. Must not block.
    fn resource_templates(&self, cursor: Option<&str>) -> Result<Page<ResourceTemplate>, ErrorObject> {
        Page::whole(Vec::new(), cursor)
    }

    /// Reads a resource; may block. One that is not there is [`no_such_resource`].
    fn read_resource(&self, uri: &str, request: &Request<'_>) -> Result<Outcome<Vec<ResourceContents>>, ErrorObject> {
        Err(no_such_resource(uri, request.client().version))
    }

    /// A client asks to be told of a resource's changes, through [`Notifier::resource_updated`]. Must not block.
    fn subscribe(&self, _uri: &str) -> Result<(), ErrorObject> {
        Ok(())
    }

    /// The prompts. Must not block.
    fn prompts(&self, cursor: Option<&str>) -> Result<Page<Prompt>, ErrorObject> {
        Page::whole(Vec::new(), cursor)
    }

    /// Gets a prompt; may block.
    fn prompt(
        &self,
        name: &str,
        _arguments: &Map<String, Value>,
        _request: &Request<'_>,
    ) -> Result<Outcome<PromptResult>, ErrorObject> {
        Err(invalid_params(format!("no prompt named {name:?}")))
    }

    /// Completes an argument; `params` as they stand on the wire. May block.
    fn complete(&self, _params: &Map<String, Value>, _request: &Request<'_>) -> Result<Completion, ErrorObject> {
        Ok(Completion::default())
    }

    /// Answers a method the protocol does not have, with the text of an object; may block.
    fn custom(
        &self,
        method: &str,
        _params: Option<&RawValue>,
        _request: &Request<'_>,
    ) -> Result<Box<RawValue>, ErrorObject> {
        Err(method_not_found(method))
    }

    /// As [`Session::custom`], on the thread that read the request, when that cannot block. Also where a method that is not known at all is
    /// refused at once.
    fn custom_now(
        &self,
        method: &str,
        _params: Option<&RawValue>,
        _request: &Request<'_>,
    ) -> Option<Result<Box<RawValue>, ErrorObject>> {
        Some(Err(method_not_found(method)))
    }

    /// Takes in a notification that is not the protocol's own, or that the client's roots changed. Must not block.
    fn notified(&self, _method: &str, _params: Option<&RawValue>) {}

    /// The connection is over; nothing is called after it. May block for as long as ending what was started takes.
    fn close(&self) {}
}

/// The error for a method nobody knows.
pub fn method_not_found(method: &str) -> ErrorObject {
    ErrorObject::new(jsonrpc::code::METHOD_NOT_FOUND, format!("no method {method:?}"))
}

/// The error for parameters that do not fit.
pub fn invalid_params(why: impl Into<String>) -> ErrorObject {
    ErrorObject::new(jsonrpc::code::INVALID_PARAMS, why)
}

/// The error for a tool nobody knows.
pub fn unknown_tool(name: &str) -> ErrorObject {
    invalid_params(format!("unknown tool {name:?}"))
}

/// The error for a resource that is not there, by the version's own code (trap T27).
pub fn no_such_resource(uri: &str, version: Version) -> ErrorObject {
    #[derive(Serialize)]
    struct Data<'a> {
        uri: &'a str,
    }
    let code = if version >= Version::V2026_07_28 { jsonrpc::code::INVALID_PARAMS } else { code::RESOURCE_NOT_FOUND };
    ErrorObject::new(code, "no such resource").with_data(&Data { uri })
}

/// The error for a request whose client did not declare a capability it needs: `required` is a capabilities object (trap T28).
pub fn missing_capability(required: &Map<String, Value>) -> ErrorObject {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Data<'a> {
        required_capabilities: &'a Map<String, Value>,
    }
    let names: Vec<&str> = required.keys().map(String::as_str).collect();
    ErrorObject::new(
        code::MISSING_CAPABILITY,
        format!("this needs a client that declares the capability {}", names.join(", ")),
    )
    .with_data(&Data { required_capabilities: required })
}

/// Why a question to the client ([`Request::ask`]) has no answer.
#[derive(Debug)]
pub enum AskError {
    /// The client did not say it can answer this, or the version has no such question.
    NotOffered,
    /// The client refused or failed.
    Refused(ErrorObject),
    /// The request was cancelled, or the client is gone.
    Cancelled,
}
