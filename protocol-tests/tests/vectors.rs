//! Runs every vector of `vectors/` and reports each: `cargo test -p protocol-tests --test vectors [-- WORDS...]`, where a vector runs
//! when its name holds one of the words. `BERTH_BIN` names another server to run them against.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use protocol_tests::vector::{Case, cases};

fn main() -> ExitCode {
    // Options are for the standard harness (`--nocapture`, `--test-threads=1`); what is left are words.
    let words: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let listing = std::env::args().any(|argument| argument == "--list");
    let mut cases = cases(&Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors"));
    let all = cases.len();
    cases.retain(|case| words.is_empty() || words.iter().any(|word| case.name.contains(word.as_str())));
    if listing {
        cases.iter().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} vectors", cases.len());
    let start = Instant::now();
    let failures = run(&cases);
    for (name, why) in &failures {
        println!("\n---- {name} ----\n    {why}");
    }
    let (passed, failed) = (cases.len() - failures.len(), failures.len());
    println!(
        "\nvector result: {passed} passed; {failed} failed; {} filtered out; finished in {:.2}s\n",
        all - cases.len(),
        start.elapsed().as_secs_f64()
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the cases on a few threads; gives the failures in the order of the cases.
fn run(cases: &[Case]) -> Vec<(&str, String)> {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((n, case)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, cases.get(n)?)))
                {
                    let outcome = catch_unwind(AssertUnwindSafe(|| case.run()))
                        .unwrap_or_else(|panic| Err(words_of(panic.as_ref())));
                    match outcome {
                        Ok(()) => println!("vector {} ... ok", case.name),
                        Err(why) => {
                            println!("vector {} ... FAILED", case.name);
                            failures.lock().expect("no thread panics with the lock").push((n, case.name.as_str(), why));
                        }
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no thread panicked with the lock");
    failures.sort_by_key(|(n, _, _)| *n);
    failures.into_iter().map(|(_, name, why)| (name, why)).collect()
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}
