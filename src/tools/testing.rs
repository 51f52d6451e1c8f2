//! What the tests of the tools share.

use std::sync::Arc;

use serde_json::Value;

use super::{Arguments, Call, Progress};
use crate::os::cancel::Cancel;
use crate::os::scratch::Scratch;
use crate::workspace::{Options, Workspace};

/// A workspace on a scratch directory's root.
pub(super) fn open(scratch: &Scratch) -> Arc<Workspace> {
    Arc::new(Workspace::open(&scratch.root(), Options::default()).unwrap())
}

/// Arguments from JSON text.
pub(super) fn arguments(text: &str) -> Arguments {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => map.into(),
        other => panic!("not an object: {other:?}"),
    }
}

/// Makes a call that nobody cancels but `work`, and that nobody listens to.
pub(super) fn call<T>(work: impl FnOnce(&Call<'_>) -> T) -> T {
    struct Nobody;
    impl Progress for Nobody {
        fn wanted(&self) -> bool {
            false
        }
        fn report(&self, _message: &str) {}
    }
    work(&Call { cancel: &Cancel::new(), progress: &Nobody })
}
