//! What can be seen of a process from outside: its memory, its time, and whom it left behind.

use std::fs;
use std::time::{Duration, Instant};

/// The variable that marks every process a test started, however far down: children inherit it.
pub const MARK: &str = "BERTH_TEST_MARK";

/// Waits until `fact` gives something, looking again and again; `None` when it did not within `limit`.
///
/// For facts that nobody announces, such as a process that ended somewhere below; everything else is waited for where it happens.
pub fn eventually<T>(limit: Duration, mut fact: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = fact() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The processes that carry a mark, each with its id and what it runs. One that has ended and waits for its parent does not count; nor
/// does, unless root looks, one that hides itself as berth and its watchers do.
pub fn marked(mark: &str) -> Vec<(i32, String)> {
    let wanted = format!("{MARK}={mark}").into_bytes();
    let mut all = processes();
    all.retain(|(pid, _)| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted)
    });
    all
}

/// All processes, each with its id and what it runs.
pub fn processes() -> Vec<(i32, String)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()));
    pids.map(|pid: i32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (pid, String::from_utf8_lossy(&command).replace('\0', " "))
    })
    .collect()
}

/// A figure of `/proc/PID/status` in bytes, such as `VmRSS` (memory now) or `VmHWM` (memory at its highest).
///
/// # Panics
/// When the process is gone.
pub fn memory(pid: i32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line =
        status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_else(|| panic!("{field} in {status}"));
    let kibibytes: u64 = line.trim_matches([':', '\t', ' ', 'k', 'B']).trim().parse().expect("a number of KiB");
    kibibytes * 1024
}

/// How long a process has run on a processor, in clock ticks (a hundredth of a second); also of one that has ended and was not reaped.
///
/// # Panics
/// When the process is gone.
pub fn ticks(pid: i32) -> u64 {
    let fields = stat(pid).expect("the process is there");
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).expect("a number of ticks");
    number(11) + number(12)
}

/// How many threads a process has.
///
/// # Panics
/// When the process is gone.
pub fn threads(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there").count()
}

/// How many files a process has open; `None` where it hides that.
pub fn open_files(pid: i32) -> Option<usize> {
    fs::read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count)
}

/// The processes that have ended and that their parent has not reaped.
pub fn unreaped(parent: i32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()));
    pids.filter(|pid: &i32| {
        let fields = stat(*pid).unwrap_or_default();
        fields.first().is_some_and(|state| state == "Z") && fields.get(1) == Some(&parent.to_string())
    })
    .collect()
}

/// Whether a process has a controlling terminal.
pub fn has_terminal(pid: i32) -> bool {
    stat(pid).is_some_and(|fields| fields.get(4).is_some_and(|terminal| terminal != "0"))
}

/// Whether a process has ended, reaped or not.
pub fn ended(pid: i32) -> bool {
    stat(pid).is_none_or(|fields| fields.first().is_some_and(|state| state == "Z" || state == "X"))
}

/// The fields of `/proc/PID/stat` after the name, which may hold anything.
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}
