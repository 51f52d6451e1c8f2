//! Where in a file a text nearly is: the answer to an edit that did not match, so that the next one does.

use std::collections::HashMap;
use std::fmt::Write;

/// The most bytes of the file that are looked at; its start is.
const MAX_TEXT: usize = 4 * 1024 * 1024;

/// The most lines of the wanted text that are compared.
const MAX_WANTED: usize = 4096;

/// The most lines of the file that are looked at.
const MAX_LINES: usize = 200_000;

/// The most bytes of one line by which it is found similar to another.
const MAX_LINE: usize = 512;

/// The most that one line counts where lines are equal, in bytes.
const MAX_WEIGHT: usize = 16;

/// How many lines of the file are shown, and how many bytes of each: some 2 KiB in all.
const SHOWN_LINES: usize = 10;
const SHOWN_LINE: usize = 160;

/// Says where `wanted`, which is not in `text`, nearly is: sentences and a few numbered lines, at most some 2 KiB. The work is linear
/// in the text's first 4 MiB.
pub(super) fn nearest(text: &[u8], wanted: &str) -> String {
    let mut answer = String::new();
    let numbered = is_numbered(wanted);
    if numbered {
        answer += "Leave out the line numbers that read shows before each line. ";
    }
    let is_crlf = |text: &[u8]| text.windows(2).any(|pair| pair == b"\r\n");
    let text = text.get(..MAX_TEXT).unwrap_or(text);
    match (is_crlf(text), is_crlf(wanted.as_bytes())) {
        (true, false) if wanted.contains('\n') => {
            answer += "The file's lines end in CRLF (\\r\\n), those of old_string in LF. "
        }
        (false, true) => answer += "The file's lines end in LF, those of old_string in CRLF (\\r\\n). ",
        _ => {}
    }
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').take(MAX_LINES).collect();
    let wanted: Vec<&[u8]> = wanted
        .lines()
        .map(|line| if numbered { without_number(line).unwrap_or(line) } else { line }.as_bytes())
        .skip_while(|line| squeezed(line).next().is_none())
        .take(MAX_WANTED)
        .collect();
    let from = match aligned(&lines, &wanted) {
        Some(Aligned { start, matching, of, first_difference: Some(line) }) => {
            let _ = write!(
                answer,
                "Nearest is line {}, where {matching} of {of} lines match and line {} differs:",
                start + 1,
                line + 1
            );
            // A long text is shown from where it stops matching.
            if line - start < SHOWN_LINES { start } else { line.saturating_sub(2) }
        }
        Some(Aligned { start, .. }) => {
            let _ = write!(answer, "It matches at line {} but for white space:", start + 1);
            start
        }
        None => match wanted.first().and_then(|first| most_similar(&lines, first)) {
            Some(line) => {
                let _ = write!(answer, "The line most like its first is line {}:", line + 1);
                line
            }
            None => return answer + "Nothing in the file is like it.",
        },
    };
    let count = wanted.len().clamp(1, SHOWN_LINES);
    for (index, line) in lines.iter().enumerate().skip(from).take(count) {
        let shown = line.strip_suffix(b"\r").unwrap_or(line);
        let cut = if shown.len() > SHOWN_LINE { "..." } else { "" };
        let shown = String::from_utf8_lossy(shown.get(..SHOWN_LINE).unwrap_or(shown));
        let _ = write!(answer, "\n{:>6}\t{shown}{cut}", index + 1);
    }
    answer
}

/// Where the wanted lines lie best on the file's, white space aside.
struct Aligned {
    /// The file's line, counted from 0, on which the first wanted one lies.
    start: usize,
    /// How many wanted lines that are not blank match, and how many there are.
    matching: usize,
    of: usize,
    /// The file's line on which the first that does not match lies.
    first_difference: Option<usize>,
}

/// Each line of the file that equals a wanted one votes for the place where both would meet, by its length up to [`MAX_WEIGHT`]: many
/// lines are a brace. `None` where less than half of the text, so weighed, matches anywhere.
fn aligned(lines: &[&[u8]], wanted: &[&[u8]]) -> Option<Aligned> {
    let mut places: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut total = 0;
    for (index, line) in wanted.iter().enumerate() {
        let same = places.entry(digest(line)).or_default();
        // A line that comes again and again votes for its first few places, which bounds the work.
        if same.len() < 4 {
            same.push(index);
        }
        total += weight(line);
    }
    let mut votes = vec![0; lines.len()];
    for (index, line) in lines.iter().enumerate() {
        let Some(places) = places.get(&digest(line)) else { continue };
        let weight = weight(line);
        for place in places {
            if let Some(votes) = index.checked_sub(*place).and_then(|start| votes.get_mut(start)) {
                *votes += weight;
            }
        }
    }
    // The first of the best.
    let (start, _) = votes.iter().enumerate().rev().max_by_key(|(_, votes)| **votes)?;
    let mut aligned = Aligned { start, matching: 0, of: 0, first_difference: None };
    let mut matching = 0;
    for (index, line) in wanted.iter().enumerate().filter(|(_, line)| weight(line) > 0) {
        aligned.of += 1;
        if lines.get(start + index).is_some_and(|other| squeezed(other).eq(squeezed(line))) {
            aligned.matching += 1;
            matching += weight(line);
        } else if aligned.first_difference.is_none() {
            aligned.first_difference = Some((start + index).min(lines.len() - 1));
        }
    }
    (matching > 0 && matching * 2 >= total).then_some(aligned)
}

/// The line, counted from 0, that shares most pairs of neighbouring characters with `wanted`, which are at least 6 in 10 of its own;
/// of those with equally many one that is little longer.
fn most_similar(lines: &[&[u8]], wanted: &[u8]) -> Option<usize> {
    let mut left = [0u16; 1024];
    let mut own = 0i64;
    for pair in pairs(wanted) {
        if let Some(count) = left.get_mut(pair) {
            *count += 1;
            own += 1;
        }
    }
    let mut best: Option<(i64, usize)> = None;
    let mut taken = Vec::with_capacity(MAX_LINE);
    for (index, line) in lines.iter().enumerate() {
        let mut length = 0i64;
        taken.clear();
        for pair in pairs(line) {
            length += 1;
            if let Some(count) = left.get_mut(pair).filter(|count| **count > 0) {
                *count -= 1;
                taken.push(pair);
            }
        }
        let common = i64::try_from(taken.len()).unwrap_or(0);
        for pair in &taken {
            if let Some(count) = left.get_mut(*pair) {
                *count += 1;
            }
        }
        let score = common * 16 - (length - own).clamp(0, 4 * own);
        if common > 0 && common * 10 >= own * 6 && best.is_none_or(|(other, _)| score > other) {
            best = Some((score, index));
        }
    }
    best.map(|(_, index)| index)
}

/// A line's pairs of neighbouring characters in one case, white space aside, as small numbers. Of a long line only the start.
fn pairs(line: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut before = None;
    squeezed(line.get(..MAX_LINE).unwrap_or(line)).filter_map(move |byte| {
        let byte = byte.to_ascii_lowercase();
        before.replace(byte).map(|before| (usize::from(before) * 31 + usize::from(byte)) % 1024)
    })
}

/// A line's bytes that are no white space.
fn squeezed(line: &[u8]) -> impl Iterator<Item = u8> + '_ {
    line.iter().copied().filter(|byte| !byte.is_ascii_whitespace())
}

fn weight(line: &[u8]) -> usize {
    squeezed(line).take(MAX_WEIGHT).count()
}

/// FNV-1a, of what a comparison looks at. A collision costs a worse hint.
fn digest(line: &[u8]) -> u64 {
    squeezed(line).fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Whether every line of a text that is not blank begins as `read` shows it.
fn is_numbered(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty()).peekable();
    lines.peek().is_some() && lines.all(|line| without_number(line).is_some())
}

fn without_number(line: &str) -> Option<&str> {
    let (number, rest) = line.split_once('\t')?;
    let digits = number.trim_start_matches(' ');
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "fn main() {\n    let first = 1;\n    let second = 2;\n\n    println!(\"{first}\");\n}\n\nfn other() {\n    return;\n}\n";

    #[test]
    fn it_says_where_and_why_a_text_did_not_match() {
        for (wanted, answer) in [
            (
                "let first = 1;\nlet second = 2;",
                "It matches at line 2 but for white space:\n     2\t    let first = 1;\n     3\t    let second = 2;",
            ),
            (
                "\n    let  first=1;\n\tlet second = 2;\n\n    println!(\"{first}\");\n",
                "It matches at line 2 but for white space:\n     2\t    let first = 1;\n     3\t    let second = 2;\n     4\t\n     5\t    println!(\"{first}\");",
            ),
            (
                "    let first = 1;\n    let third = 3;\n\n    println!(\"{first}\");\n",
                "Nearest is line 2, where 2 of 3 lines match and line 3 differs:\n     2\t    let first = 1;\n     3\t    let second = 2;\n     4\t\n     5\t    println!(\"{first}\");",
            ),
            ("    let frist = 1;", "The line most like its first is line 2:\n     2\t    let first = 1;"),
            ("FN OTHER()", "The line most like its first is line 8:\n     8\tfn other() {"),
            ("}\nunheard of, whatever it is\n", "Nothing in the file is like it."),
            (" ", "Nothing in the file is like it."),
            (
                "     8\tfn other() {\n     9\t    return;",
                "Leave out the line numbers that read shows before each line. It matches at line 8 but for white space:\n     8\tfn other() {\n     9\t    return;",
            ),
            (
                "    return;\r\n}",
                "The file's lines end in LF, those of old_string in CRLF (\\r\\n). It matches at line 9 but for white space:\n     9\t    return;\n    10\t}",
            ),
        ] {
            assert_eq!(nearest(TEXT.as_bytes(), wanted), answer, "{wanted:?}");
        }
        assert_eq!(nearest(b"", "text"), "Nothing in the file is like it.");
    }

    #[test]
    fn it_says_when_only_the_line_ends_differ() {
        let answer = nearest(b"a = 1\r\nb = 2\r\n", "a = 1\nb = 2\n");
        let (reason, place) = answer.split_once(". ").unwrap();
        assert_eq!(reason, "The file's lines end in CRLF (\\r\\n), those of old_string in LF");
        assert_eq!(place, "It matches at line 1 but for white space:\n     1\ta = 1\n     2\tb = 2");
    }

    #[test]
    fn the_answer_is_short_and_the_work_bounded() {
        let started = std::time::Instant::now();
        let same = "}\n".repeat(400_000);
        let long = "x".repeat(400_000);
        let both = format!("{same}{long}\n{long}");
        let binary: Vec<u8> = (0..400_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for text in [same.as_bytes(), long.as_bytes(), both.as_bytes(), &binary] {
            for wanted in [&*"}\n ".repeat(100_000), &long[..], "{\n}\n", "\n\n\n", "xx xy"] {
                let answer = nearest(text, wanted);
                assert!(answer.len() < 2048 + 512, "{}", answer.len());
            }
        }
        // Twenty searches of a few megabytes, unoptimised; what is quadratic would take hours.
        assert!(started.elapsed().as_secs() < 120, "{:?}", started.elapsed());
    }
}
