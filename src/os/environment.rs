//! This process's own environment, with its secrets hidden from whoever can read `/proc/PID/environ`: other processes of the same user,
//! commands it starts, and the `read` tool when the root is `/`.
//!
//! The kernel shows the memory the environment was passed in, as it is now. So the strings are copied elsewhere and the secret originals
//! zeroed.

#![allow(unsafe_code)] // The original strings are reached through `environ` alone, and only their owner may write there.

use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Moves the variables of which `is_secret` says so, by name and value, out of sight; what `std::env` answers stays the same. To be called
/// before any thread is started. Later forks inherit what is left.
pub fn hide(is_secret: impl Fn(&OsStr, &OsStr) -> bool) {
    let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    // SAFETY: no other thread exists yet, so nobody reads or changes the environment meanwhile. Each entry up to the null is a string of
    // this process's initial memory, which it may write; it is zeroed within its own length.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry).to_bytes();
            if let Some(equals) = text.iter().position(|byte| *byte == b'=') {
                let (name, value) = text.split_at(equals);
                let length = value.len() - 1;
                if is_secret(OsStr::from_bytes(name), OsStr::from_bytes(value.strip_prefix(b"=").unwrap_or(value))) {
                    ptr::write_bytes((*entry).add(equals + 1), 0, length);
                }
            }
            entry = entry.add(1);
        }
        nix::libc::clearenv();
        for (name, value) in variables {
            // The C library copies both into memory of its own.
            std::env::set_var(name, value);
        }
    }
}
