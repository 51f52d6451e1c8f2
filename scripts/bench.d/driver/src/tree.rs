//! The tree that is searched: 20,000 files of made-up source, the same on every machine.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::Outcome;

const FILES: usize = 20_000;
const FILES_IN_A_FOLDER: usize = 40;
const NAMES: [&str; 24] = [
    "buffer", "channel", "client", "config", "cursor", "driver", "encode", "entry", "event", "field", "frame", "index",
    "limit", "message", "number", "offset", "parser", "reader", "record", "socket", "stream", "string", "window",
    "writer",
];
const ENDINGS: [&str; 8] = ["rs", "rs", "rs", "py", "py", "js", "c", "md"];

/// A small generator (xorshift): good enough to make no two files alike, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.throw(NAMES.len())]
    }
}

/// Makes the tree at `folder`, which must not exist.
pub fn make(folder: &Path) -> Outcome<()> {
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let mut text = String::new();
    for number in 0..FILES {
        let place = number / FILES_IN_A_FOLDER;
        let folder = folder.join(format!("part{}", place % 10)).join(middle_folder(place)).join(format!("m{place}"));
        fs::create_dir_all(&folder)?;
        text.clear();
        // From a few lines to some hundred, about 4 KiB in the middle, as source is.
        for line in 0..10 + dice.throw(190) {
            match dice.throw(6) {
                0 => writeln!(text, "fn {}_{}({}: usize) -> usize {{", dice.name(), dice.name(), dice.name())?,
                1 => {
                    writeln!(text, "    let {} = {}.{}({});", dice.name(), dice.name(), dice.name(), dice.throw(9999))?
                }
                2 => writeln!(text, "    // the {} of a {} is {} bytes", dice.name(), dice.name(), dice.throw(512))?,
                3 => writeln!(text, "    if {} > {} {{ return {}; }}", dice.name(), dice.throw(100), dice.name())?,
                4 => writeln!(text, "}}\n")?,
                _ => writeln!(text, "    {}_{} += {};", dice.name(), dice.name(), line)?,
            }
        }
        // One file in a hundred holds what is looked for.
        if number % 100 == 37 {
            writeln!(text, "fn find_needle_{number}() {{}}")?;
        }
        let name = format!("{}_{number}.{}", dice.name(), ENDINGS[number % ENDINGS.len()]);
        fs::write(folder.join(name), &text)?;
    }
    Ok(())
}

fn middle_folder(place: usize) -> &'static str {
    NAMES[place % NAMES.len()]
}
