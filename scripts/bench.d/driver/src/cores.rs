//! Which processor cores the driver and a server may use while one calls the other.
//!
//! Where the kernel wakes the two decides the time of a call more than the server does: waking a core that sleeps costs
//! several times what a switch on one core costs, and the kernel chooses as it likes. So both are measured, on purpose.

use std::process::{Command, Stdio};

use crate::Outcome;

/// Where a server runs while it is called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the driver's core: what a call costs in work.
    OneCore,
    /// On any core but the driver's: what a call costs a client that waits for it.
    TwoCores,
}

/// The cores this process was allowed at its start, the first of which is the driver's.
pub struct Cores(Vec<usize>);

impl Cores {
    pub fn allowed() -> Outcome<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).ok_or("no list of cores")?;
        let mut cores = Vec::new();
        for range in list.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            cores.extend(first.parse::<usize>()?..=last.parse::<usize>()?);
        }
        Ok(Self(cores))
    }

    /// Puts the driver and the server `pid` in place; false where this machine has no such place.
    pub fn place(&self, place: Place, pid: u32) -> Outcome<bool> {
        let (first, others) = self.0.split_first().ok_or("no core")?;
        pin(std::process::id(), &[*first])?;
        match place {
            Place::OneCore => pin(pid, &[*first])?,
            Place::TwoCores if others.is_empty() => return Ok(false),
            Place::TwoCores => pin(pid, others)?,
        }
        Ok(true)
    }

    /// Lets the driver and the server `pid` run where they like again.
    pub fn free(&self, pid: u32) -> Outcome<()> {
        pin(std::process::id(), &self.0)?;
        pin(pid, &self.0)
    }
}

/// Keeps every thread of the process to the cores.
fn pin(pid: u32, cores: &[usize]) -> Outcome<()> {
    let list: Vec<String> = cores.iter().map(usize::to_string).collect();
    let mut command = Command::new("taskset");
    command.args(["-a", "-c", "-p", &list.join(","), &pid.to_string()]);
    let status =
        command.stdin(Stdio::null()).stdout(Stdio::null()).status().map_err(|error| format!("taskset: {error}"))?;
    if status.success() { Ok(()) } else { Err("taskset failed".into()) }
}
