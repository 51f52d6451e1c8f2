//! Replays the fuzz targets' checked-in corpora, so that what was found once stays found on a stable toolchain too.

use std::path::Path;

use protocol_tests::fuzz;

#[test]
fn every_input_of_the_corpora_is_taken() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    type Target = fn(&[u8]);
    let targets: [(&str, Target); 5] = [
        ("jsonrpc_line", fuzz::jsonrpc_line),
        ("mcp_message", fuzz::mcp_message),
        ("uri", fuzz::uri),
        ("glob", fuzz::glob),
        ("edit", fuzz::edit),
    ];
    for (name, target) in targets {
        let mut count = 0;
        for entry in std::fs::read_dir(corpora.join(name)).unwrap_or_else(|error| panic!("corpus {name}: {error}")) {
            target(&std::fs::read(entry.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count >= 5, "the corpus of {name} has {count} inputs");
    }
}
