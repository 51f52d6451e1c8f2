//! The protocol's constants: its versions, its two eras, its methods, its own error codes, its reserved keys (spec mcp 0, 1.4, 5.4).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A published version of the protocol, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// The first: HTTP with two endpoints.
    V2024_11_05,
    /// Streamable HTTP; the only one with batches.
    V2025_03_26,
    /// Structured tool output, elicitation; batches are gone.
    V2025_06_18,
    /// URL elicitation, icons, experimental tasks. The last with a handshake.
    V2025_11_25,
    /// No handshake and no session: every request carries its own envelope.
    V2026_07_28,
}

/// Which of the two ways of talking a version belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// A handshake, then a session.
    Legacy,
    /// An envelope in every request.
    Modern,
}

impl Version {
    /// All of them, oldest first.
    pub const ALL: [Self; 5] =
        [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25, Self::V2026_07_28];
    /// The newest that begins with a handshake: what an unknown version is answered with (spec mcp 2.2).
    pub const NEWEST_LEGACY: Self = Self::V2025_11_25;
    /// The newest of all.
    pub const NEWEST: Self = Self::V2026_07_28;

    /// The version by its name on the wire, compared as text; `None` for one that is not known.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == name)
    }

    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// The way of talking it belongs to.
    pub fn era(self) -> Era {
        if self >= Self::V2026_07_28 { Era::Modern } else { Era::Legacy }
    }

    /// The names of the versions of an era, newest first.
    pub fn names(era: Era) -> Vec<&'static str> {
        Self::ALL.into_iter().rev().filter(|version| version.era() == era).map(Self::as_str).collect()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How grave a log message is, least first (spec mcp 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

/// The methods and notifications both sides speak of.
pub mod method {
    #![allow(missing_docs)]
    pub const INITIALIZE: &str = "initialize";
    pub const INITIALIZED: &str = "notifications/initialized";
    pub const PING: &str = "ping";
    pub const DISCOVER: &str = "server/discover";
    pub const TOOLS_LIST: &str = "tools/list";
    pub const TOOLS_CALL: &str = "tools/call";
    pub const RESOURCES_LIST: &str = "resources/list";
    pub const RESOURCE_TEMPLATES_LIST: &str = "resources/templates/list";
    pub const RESOURCES_READ: &str = "resources/read";
    pub const RESOURCES_SUBSCRIBE: &str = "resources/subscribe";
    pub const RESOURCES_UNSUBSCRIBE: &str = "resources/unsubscribe";
    pub const PROMPTS_LIST: &str = "prompts/list";
    pub const PROMPTS_GET: &str = "prompts/get";
    pub const COMPLETE: &str = "completion/complete";
    pub const SET_LEVEL: &str = "logging/setLevel";
    pub const LISTEN: &str = "subscriptions/listen";
    pub const SAMPLING: &str = "sampling/createMessage";
    pub const ELICITATION: &str = "elicitation/create";
    pub const ROOTS_LIST: &str = "roots/list";
    pub const CANCELLED: &str = "notifications/cancelled";
    pub const PROGRESS: &str = "notifications/progress";
    pub const MESSAGE: &str = "notifications/message";
    pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
    pub const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
    pub const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
    pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";
    pub const ROOTS_CHANGED: &str = "notifications/roots/list_changed";
    pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
}

/// The error codes the protocol adds to JSON-RPC's (spec mcp 1.4).
pub mod code {
    /// No such resource, up to 2025-11-25; 2026-07-28 says invalid params.
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// The request needs a capability its client did not declare.
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// The version named in a request's envelope is not served.
    pub const UNSUPPORTED_VERSION: i64 = -32022;
}

/// The keys of `_meta` the protocol reserves for the envelope of 2026-07-28 (spec mcp 3.1).
pub mod key {
    /// The version a request is made at. Its presence makes a request modern.
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    /// What the client can do.
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    /// Who the client is.
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    /// From which level on this request's log messages are wanted.
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    /// Who the server is, in a result.
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    /// Which listen a notification belongs to.
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    /// What progress notifications of this request are to carry.
    pub const PROGRESS_TOKEN: &str = "progressToken";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_known_by_their_exact_names_and_sort_by_age() {
        assert_eq!(Version::parse("2025-06-18"), Some(Version::V2025_06_18));
        assert_eq!(Version::parse("2025-6-18"), None);
        assert_eq!(Version::names(Era::Modern), ["2026-07-28"]);
        assert_eq!(Version::names(Era::Legacy), ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]);
        assert!(Version::V2024_11_05 < Version::V2025_03_26 && Version::NEWEST.era() == Era::Modern);
    }
}
