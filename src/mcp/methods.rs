//! From a method's name to the session: the one table both eras share (spec mcp 0). What a version does not have, or the session does
//! not offer, is a method nobody knows (rmcp 1446).

use std::borrow::Cow;
use std::sync::PoisonError;

use serde::Deserialize;
use serde_json::Map;
use serde_json::value::RawValue;

use super::connection::{Opened, WATCHED_MAX};
use super::modern;
use super::protocol::{Era, Level, method};
use super::reply::Reply;
use super::request::{Request, read};
use super::server::{Offer, Session, invalid_params, method_not_found};
use crate::jsonrpc::strict::Strict;
use crate::jsonrpc::{self, ErrorObject};

/// Carries out a request that cannot block; `None` when it might, and then nothing has happened.
pub(super) fn now(
    opened: &Opened,
    method: &str,
    params: Option<&RawValue>,
    request: &Request<'_>,
) -> Option<Result<Reply, ErrorObject>> {
    let session = &*opened.session;
    if !offered(method, &opened.offer, request.client.version.era()) {
        return Some(Err(method_not_found(method)));
    }
    Some(match method {
        method::PING => Ok(Reply::Empty),
        method::DISCOVER => Ok(Reply::Whole(modern::discovery(&opened.offer))),
        method::TOOLS_LIST => page(params, |cursor| session.tools(cursor)).map(Reply::Tools),
        method::RESOURCES_LIST => page(params, |cursor| session.resources(cursor)).map(Reply::Resources),
        method::RESOURCE_TEMPLATES_LIST => {
            page(params, |cursor| session.resource_templates(cursor)).map(Reply::Templates)
        }
        method::PROMPTS_LIST => page(params, |cursor| session.prompts(cursor)).map(Reply::Prompts),
        method::SET_LEVEL => set_level(params, request),
        method::RESOURCES_SUBSCRIBE => watch(session, params, request),
        method::RESOURCES_UNSUBSCRIBE => unwatch(params, request),
        method::TOOLS_CALL => {
            let call: Call<'_> = match required(params) {
                Ok(call) => call,
                Err(error) => return Some(Err(error)),
            };
            if call.input_responses.is_some() || call.request_state.is_some() {
                return None;
            }
            session.call_tool_now(&call.name, call.arguments, request)?.map(Reply::Call)
        }
        method::RESOURCES_READ | method::PROMPTS_GET | method::COMPLETE => return None,
        _ => session.custom_now(method, params, request)?.map(Reply::Custom),
    })
}

/// Carries out a request that may block; says too whether something was sent on its behalf.
pub(super) fn run(
    opened: &Opened,
    method: &str,
    params: Option<&RawValue>,
    mut request: Request<'_>,
) -> (Result<Reply, ErrorObject>, bool) {
    let outcome = carry_out(&*opened.session, method, params, &mut request);
    (outcome, request.progress.into_inner().unwrap_or_else(PoisonError::into_inner).offered)
}

fn carry_out(
    session: &dyn Session,
    method: &str,
    params: Option<&RawValue>,
    request: &mut Request<'_>,
) -> Result<Reply, ErrorObject> {
    match method {
        method::TOOLS_CALL => {
            let call: Call<'_> = required(params)?;
            bring_back(request, call.input_responses, call.request_state)?;
            session.call_tool(&call.name, call.arguments, request).map(Reply::Call)
        }
        method::RESOURCES_READ => {
            let read: ReadParams<'_> = required(params)?;
            bring_back(request, read.input_responses, read.request_state)?;
            session.read_resource(&read.uri, request).map(Reply::Read)
        }
        method::PROMPTS_GET => {
            let get: GetParams<'_> = required(params)?;
            bring_back(request, get.input_responses, get.request_state)?;
            let arguments = match get.arguments {
                None => Map::new(),
                Some(Strict(serde_json::Value::Object(map))) => map,
                Some(_) => return Err(invalid_params("\"arguments\" must be an object")),
            };
            session.prompt(&get.name, &arguments, request).map(Reply::Prompt)
        }
        method::COMPLETE => {
            let text = params.map_or("{}", RawValue::get);
            let params = jsonrpc::strict::object(text)
                .map_err(|error| invalid_params(format!("the parameters do not fit: {error}")))?;
            session.complete(&params, request).map(Reply::Completion)
        }
        _ => session.custom(method, params, request).map(Reply::Custom),
    }
}

/// Whether a method is there at all: by the era, and by what the session offers.
fn offered(method: &str, offer: &Offer, era: Era) -> bool {
    let legacy = era == Era::Legacy;
    match method {
        method::PING => legacy,
        method::DISCOVER => !legacy,
        method::TOOLS_LIST | method::TOOLS_CALL => offer.tools.is_some(),
        method::RESOURCES_LIST | method::RESOURCE_TEMPLATES_LIST | method::RESOURCES_READ => offer.resources.is_some(),
        method::RESOURCES_SUBSCRIBE | method::RESOURCES_UNSUBSCRIBE => {
            legacy && offer.resources.is_some_and(|resources| resources.subscribe)
        }
        method::PROMPTS_LIST | method::PROMPTS_GET => offer.prompts.is_some(),
        method::COMPLETE => offer.completions,
        method::SET_LEVEL => legacy && offer.logging,
        _ => true,
    }
}

/// Whether a method is the protocol's own and served with a handshake, so that a client that forgot it can be told.
pub(super) fn needs_handshake(method: &str) -> bool {
    matches!(
        method,
        method::TOOLS_LIST
            | method::TOOLS_CALL
            | method::RESOURCES_LIST
            | method::RESOURCE_TEMPLATES_LIST
            | method::RESOURCES_READ
            | method::RESOURCES_SUBSCRIBE
            | method::RESOURCES_UNSUBSCRIBE
            | method::PROMPTS_LIST
            | method::PROMPTS_GET
            | method::COMPLETE
            | method::SET_LEVEL
    )
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, rename = "inputResponses")]
    input_responses: Option<&'a RawValue>,
    #[serde(borrow, rename = "requestState")]
    request_state: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct ReadParams<'a> {
    #[serde(borrow)]
    uri: Cow<'a, str>,
    #[serde(borrow, rename = "inputResponses")]
    input_responses: Option<&'a RawValue>,
    #[serde(borrow, rename = "requestState")]
    request_state: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct GetParams<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    arguments: Option<Strict>,
    #[serde(borrow, rename = "inputResponses")]
    input_responses: Option<&'a RawValue>,
    #[serde(borrow, rename = "requestState")]
    request_state: Option<Cow<'a, str>>,
}

/// Gives the handler what an earlier try asked for; only 2026-07-28 has it (spec mcp 3.6).
fn bring_back(
    request: &mut Request<'_>,
    responses: Option<&RawValue>,
    state: Option<Cow<'_, str>>,
) -> Result<(), ErrorObject> {
    if request.client.version.era() == Era::Legacy {
        return Ok(());
    }
    request.input_responses = responses
        .map(|responses| jsonrpc::strict::object(responses.get()))
        .transpose()
        .map_err(|error| invalid_params(format!("\"inputResponses\" does not fit: {error}")))?;
    request.request_state = state.map(Cow::into_owned);
    Ok(())
}

fn required<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Result<T, ErrorObject> {
    read(params.ok_or_else(|| invalid_params("the parameters are missing"))?)
}

fn page<T>(
    params: Option<&RawValue>,
    list: impl FnOnce(Option<&str>) -> Result<T, ErrorObject>,
) -> Result<T, ErrorObject> {
    #[derive(Default, Deserialize)]
    struct Cursor<'a> {
        #[serde(borrow)]
        cursor: Option<Cow<'a, str>>,
    }
    let cursor: Cursor<'_> = params.map(read).transpose()?.unwrap_or_default();
    list(cursor.cursor.as_deref())
}

fn set_level(params: Option<&RawValue>, request: &Request<'_>) -> Result<Reply, ErrorObject> {
    #[derive(Deserialize)]
    struct SetLevel {
        level: Level,
    }
    let wanted: SetLevel = required(params)?;
    request.connection.with_client(|level, _| *level = Some(wanted.level));
    Ok(Reply::Empty)
}

#[derive(Deserialize)]
struct Watched<'a> {
    #[serde(borrow)]
    uri: Cow<'a, str>,
}

fn watch(session: &dyn Session, params: Option<&RawValue>, request: &Request<'_>) -> Result<Reply, ErrorObject> {
    let wanted: Watched<'_> = required(params)?;
    session.subscribe(&wanted.uri)?;
    request.connection.with_client(|_, watched| {
        if watched.len() >= WATCHED_MAX && !watched.contains(&*wanted.uri) {
            return Err(invalid_params(format!("at most {WATCHED_MAX} resources are watched; unsubscribe one first")));
        }
        watched.insert(wanted.uri.into_owned());
        Ok(Reply::Empty)
    })
}

fn unwatch(params: Option<&RawValue>, request: &Request<'_>) -> Result<Reply, ErrorObject> {
    let wanted: Watched<'_> = required(params)?;
    request.connection.with_client(|_, watched| watched.remove(&*wanted.uri));
    Ok(Reply::Empty)
}
