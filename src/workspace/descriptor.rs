//! What the record says of a workspace: what kind of place it is, which one, and where in it the root lies (spec executor 3.1).

use std::fmt;
use std::str::FromStr;

/// What kind of place a workspace is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The machine of whoever runs the session.
    Local,
    /// A container.
    Container,
    /// Another machine.
    #[default]
    Remote,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Local, Self::Container, Self::Remote];

    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Container => "container",
            Self::Remote => "remote",
        }
    }
}

/// Why a text names no kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKind(String);

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is none of local, container and remote", self.0)
    }
}

impl std::error::Error for UnknownKind {}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| UnknownKind(text.to_owned()))
    }
}

/// Which place a workspace is in. Where in it the root lies is [`super::Workspace::root`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// What kind of place it is.
    pub kind: Kind,
    /// Which one: an image, a host, an instance. Free text.
    pub reference: String,
}

impl Descriptor {
    /// A place of `kind`, named `reference`, or by this host's name.
    pub fn new(kind: Kind, reference: Option<String>) -> Self {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { kind, reference: reference.unwrap_or_else(host) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_read_back_and_others_are_refused() {
        for kind in Kind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        let error = "boat".parse::<Kind>().unwrap_err().to_string();
        assert!(error.contains("boat") && error.contains("container"), "{error}");
    }

    #[test]
    fn a_place_without_a_name_has_the_hosts() {
        assert_eq!(Descriptor::new(Kind::Local, Some("box".into())).reference, "box");
        assert!(!Descriptor::new(Kind::Local, None).reference.is_empty());
    }
}
