//! The program's log: a line an event on standard error, cleaned of control characters (GHSA-34r5: forged log lines).

use std::io::{self, Write};

use super::clean;

struct Stderr;

static STDERR: Stderr = Stderr;

/// Sends the log to standard error from level warning on, or as `BERTH_LOG` says: off, error, warn, info, debug, trace.
pub(super) fn start() {
    let level = std::env::var("BERTH_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(log::LevelFilter::Warn);
    // A second logger can only mean that a program built on the library has one of its own, which stands.
    if log::set_logger(&STDERR).is_ok() {
        log::set_max_level(level);
    }
}

impl log::Log for Stderr {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = record.level().as_str().to_lowercase();
            let line = format!("berth: {level}: {}\n", clean::line(&record.args().to_string()));
            // One write, so that lines do not mix; nobody is left to be told when it fails.
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}
