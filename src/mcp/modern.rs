//! What belongs to 2026-07-28 alone: the envelope of a request, discovery, and the streams of changes (spec mcp 3).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::connection::{Connection, Opened, Outlet};
use super::legacy::capabilities;
use super::protocol::{Era, Version, code, key, method};
use super::reply::Object;
use super::request::{Envelope, read};
use super::server::{Client, Offer, invalid_params, method_not_found};
use crate::jsonrpc::{self, ErrorObject, Id, write_notification, write_result};

/// The most streams of changes of one connection; one more is refused.
const LISTENS_MAX: usize = 64;

/// The most resources one stream watches.
const LISTEN_RESOURCES_MAX: usize = 1024;

/// Who asks, as the request's own envelope says it: first what is missing, then the version (spec mcp 3.12).
pub(super) fn client(envelope: &mut Envelope<'_>) -> Result<Client, ErrorObject> {
    let missing = |key: &str| invalid_params(format!("the request's \"_meta\" has no {key:?}"));
    let version = envelope.version.take().ok_or_else(|| missing(key::PROTOCOL_VERSION))?;
    let capabilities = match envelope.capabilities.take() {
        Some(jsonrpc::strict::Strict(Value::Object(map))) => map,
        Some(_) => return Err(invalid_params(format!("{:?} must be an object", key::CLIENT_CAPABILITIES))),
        None => return Err(missing(key::CLIENT_CAPABILITIES)),
    };
    match Version::parse(&version).filter(|version| version.era() == Era::Modern) {
        Some(version) => Ok(Client { version, info: envelope.info.take(), capabilities }),
        None => Err(unsupported(&version)),
    }
}

/// The error for a version that is not served (spec mcp 3.4).
fn unsupported(requested: &str) -> ErrorObject {
    #[derive(Serialize)]
    struct Data<'a> {
        supported: Vec<&'static str>,
        requested: &'a str,
    }
    let supported = Version::names(Era::Modern);
    ErrorObject::new(
        code::UNSUPPORTED_VERSION,
        format!("version {requested:?} is not served; {} is", supported.join(", ")),
    )
    .with_data(&Data { supported, requested })
}

/// Discovery's answer, but for what every result carries.
pub(super) fn discovery(offer: &Offer) -> Vec<u8> {
    let mut out = Vec::new();
    let mut object = Object::new(&mut out);
    object.field("supportedVersions", &Version::names(Era::Modern));
    object.text("capabilities", &capabilities(offer, Version::NEWEST));
    object.optional("instructions", offer.instructions.as_ref());
    object.field("ttlMs", &0);
    object.field("cacheScope", "private");
    object.end();
    out
}

/// The streams of changes that are open.
#[derive(Default)]
pub(super) struct Listens(Vec<Listen>);

struct Listen {
    id: Id,
    wanted: Wanted,
}

/// What a stream tells of.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Wanted {
    #[serde(skip_serializing_if = "is_false")]
    tools_list_changed: bool,
    #[serde(skip_serializing_if = "is_false")]
    prompts_list_changed: bool,
    #[serde(skip_serializing_if = "is_false")]
    resources_list_changed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resource_subscriptions: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Opens a stream of changes: it is registered and acknowledged in one step, and its request is answered when it ends.
pub(super) fn listen(
    connection: &Connection,
    opened: &Opened,
    client: &Client,
    id: &Id,
    params: Option<&RawValue>,
) -> Result<(), ErrorObject> {
    #[derive(Deserialize)]
    struct Params {
        notifications: Wanted,
    }
    if client.version.era() == Era::Legacy {
        return Err(method_not_found(method::LISTEN));
    }
    let Params { mut notifications } =
        read(params.ok_or_else(|| invalid_params("\"subscriptions/listen\" has no parameters"))?)?;
    let offer = &opened.offer;
    notifications.tools_list_changed &= offer.tools == Some(true);
    notifications.prompts_list_changed &= offer.prompts == Some(true);
    notifications.resources_list_changed &= offer.resources.is_some_and(|offer| offer.list_changed);
    if !offer.resources.is_some_and(|offer| offer.subscribe) {
        notifications.resource_subscriptions.clear();
    }
    if notifications.resource_subscriptions.len() > LISTEN_RESOURCES_MAX {
        return Err(invalid_params(format!("a stream watches at most {LISTEN_RESOURCES_MAX} resources")));
    }
    for uri in &notifications.resource_subscriptions {
        opened.session.subscribe(uri)?;
    }
    connection.with_listens(|listens, outlet| {
        if listens.0.len() >= LISTENS_MAX {
            return Err(ErrorObject::new(
                jsonrpc::code::INTERNAL_ERROR,
                format!("{LISTENS_MAX} streams are open, which is the most; end one first"),
            ));
        }
        let listen = Listen { id: id.clone(), wanted: notifications };
        let params = listen.params(|object| object.field("notifications", &listen.wanted));
        if !outlet.offer(notification(method::ACKNOWLEDGED, &params), false) {
            return Err(ErrorObject::new(jsonrpc::code::INTERNAL_ERROR, "too many messages wait to be read"));
        }
        listens.0.push(listen);
        Ok(())
    })
}

impl Listens {
    /// Whether a stream of this id is open.
    pub(super) fn contains(&self, id: &Id) -> bool {
        self.0.iter().any(|listen| listen.id == *id)
    }

    /// Ends a stream because its client says so: nothing more is sent for it (spec mcp 1.1).
    pub(super) fn remove(&mut self, id: &Id) {
        self.0.retain(|listen| listen.id != *id);
    }

    /// Tells the streams that want to know that a list changed.
    pub(super) fn list_changed(&self, method: &str, outlet: &dyn Outlet) {
        for listen in &self.0 {
            let wanted = match method {
                method::TOOLS_CHANGED => listen.wanted.tools_list_changed,
                method::PROMPTS_CHANGED => listen.wanted.prompts_list_changed,
                method::RESOURCES_CHANGED => listen.wanted.resources_list_changed,
                _ => false,
            };
            if wanted {
                outlet.offer(notification(method, &listen.params(|_| {})), false);
            }
        }
    }

    /// Tells the streams that watch a resource that it changed.
    pub(super) fn resource_updated(&self, uri: &str, outlet: &dyn Outlet) {
        for listen in &self.0 {
            if listen.wanted.resource_subscriptions.iter().any(|watched| watched == uri) {
                let params = listen.params(|object| object.field("uri", uri));
                outlet.offer(notification(method::RESOURCE_UPDATED, &params), false);
            }
        }
    }

    /// Ends every stream from the server's side: what to send for each, the cancellation first and then the answer (spec mcp 3.7).
    pub(super) fn end_all(&mut self) -> Vec<Vec<u8>> {
        let mut farewells = Vec::new();
        for listen in self.0.drain(..) {
            let mut params = Vec::new();
            let mut object = Object::new(&mut params);
            object.text("requestId", &listen.id_text());
            object.field("reason", "the server ends");
            object.end();
            farewells.push(notification(method::CANCELLED, &params));
            let mut answer = Vec::new();
            let result = listen.params(|object| object.field("resultType", "complete"));
            write_result(&mut answer, &listen.id, &result);
            farewells.push(answer);
        }
        farewells
    }
}

impl Listen {
    /// Parameters that carry the stream's id with its own type (trap T38).
    fn params(&self, more: impl FnOnce(&mut Object<'_>)) -> Vec<u8> {
        let mut meta = Vec::new();
        let mut object = Object::new(&mut meta);
        object.text(key::SUBSCRIPTION_ID, &self.id_text());
        object.end();
        let mut out = Vec::new();
        let mut object = Object::new(&mut out);
        more(&mut object);
        object.text("_meta", &meta);
        object.end();
        out
    }

    fn id_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        self.id.write(&mut text);
        text
    }
}

fn notification(method: &str, params: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_notification(&mut out, method, params);
    out
}
