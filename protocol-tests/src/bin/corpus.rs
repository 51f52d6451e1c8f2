//! Makes the fuzz targets' seed corpora anew from the vectors: `cargo run -p protocol-tests --bin corpus`.
//!
//! An input is named by the digest of its content, so that a run changes only what the vectors changed. What a fuzzer found is kept beside
//! them under a name that says what it is, and is left alone.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Longer inputs teach a fuzzer nothing that shorter ones do not.
const MAX_BYTES: usize = 2048;

fn main() -> io::Result<()> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut lines = BTreeSet::new();
    let mut framing = BTreeSet::new();
    for entry in fs::read_dir(home.join("vectors"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let file: Value = serde_json::from_slice(&fs::read(&path)?)?;
            for vector in file["vectors"].as_array().into_iter().flatten() {
                let mut session = Vec::new();
                for step in vector["steps"].as_array().into_iter().flatten() {
                    session.extend(sent(step));
                }
                if path.ends_with("messages.json") {
                    framing.extend(session.iter().cloned());
                }
                lines.extend(session.iter().cloned());
                lines.insert(session.join("\n"));
            }
        }
    }
    let corpora = home.join("../fuzz/corpus");
    let texts: Vec<&str> = lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
    // The first byte says where the reads are cut, or which version is spoken.
    fill(&corpora.join("jsonrpc_line"), framing.iter().map(|line| format!("\u{7}{line}\n").into_bytes()))?;
    fill(
        &corpora.join("mcp_message"),
        texts.iter().enumerate().map(|(number, line)| {
            let mut input = vec![u8::try_from(number % 5).unwrap_or(0)];
            input.extend_from_slice(line.as_bytes());
            input
        }),
    )?;
    let uris = [
        "agentworkspace:///read?path=dir%2Fa%20b.txt",
        "dax-workspace:///stat?path=.",
        "agentworkspace:///readdir?path=%E4%B8%96+x",
        "agentworkspace:///readlink?path=a&path=b",
        "agentworkspace://host/lstat?path=a",
        "agentworkspace:///read?path=%ff%",
        "file:///etc/passwd#x",
    ];
    fill(&corpora.join("uri"), uris.into_iter().map(|uri| uri.as_bytes().to_vec()))?;
    let globs = [
        "src/**/*.{rs,toml}\nsrc/a/b.rs",
        "**\na/b/c",
        "[a-c]?[!x]\nbzy",
        "{a,{b,c}/*}\nc/d",
        "{a,b\na",
        "a\\*b\na*b",
        "***/x\nx",
        "[]a]\n]",
        "*.{a,}\nx.",
    ];
    fill(&corpora.join("glob"), globs.into_iter().map(|glob| glob.as_bytes().to_vec()))?;
    let edits = ["abc\0b\0x", "aaa\0a\0bb", "a\r\nb\0a\nb\0c", "\0\0", "abab\0ab\0", "x\0y\0z", "a\u{fc}b\0\u{fc}\0u"];
    fill(&corpora.join("edit"), edits.into_iter().map(|edit| edit.as_bytes().to_vec()))
}

/// What a step sends, as text.
fn sent(step: &Value) -> Option<String> {
    if let Some(line) = step["line"].as_str() {
        return Some(line.to_owned());
    }
    let mut message = step.get("request").or_else(|| step.get("send"))?.clone();
    if let Some(message) = message.as_object_mut() {
        message.entry("jsonrpc").or_insert_with(|| "2.0".into());
        if step.get("request").is_some() {
            message.entry("id").or_insert_with(|| 1001.into());
        }
    }
    Some(message.to_string())
}

fn fill(corpus: &Path, inputs: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
    fs::create_dir_all(corpus)?;
    for entry in fs::read_dir(corpus)? {
        let path = entry?.path();
        let seed = |name: &str| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if path.file_name().and_then(|name| name.to_str()).is_some_and(seed) {
            fs::remove_file(path)?;
        }
    }
    for input in inputs.filter(|input| input.len() <= MAX_BYTES) {
        let digest = Sha256::digest(&input);
        let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        fs::write(corpus.join(name), input)?;
    }
    Ok(())
}
