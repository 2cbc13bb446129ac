//! Text of others as it may go to a terminal: what would move the cursor, change colours, turn the writing direction or cannot be
//! seen is shown as its number.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Longest word of a message, characters: a longer one keeps its two ends.
const MOST_WORD: usize = 160;
/// Longest message, characters: a longer one keeps its two ends, as the remedy stands last.
const MOST_MESSAGE: usize = 1600;

/// Characters that do something else than be seen.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(
            u32::from(c),
            // Soft hyphen, Arabic and Mongolian marks.
            0xad | 0x61c | 0x180e
            // Zero width, writing direction.
            | 0x200b..=0x200f
            // Line and paragraph separator, writing direction.
            | 0x2028..=0x202e
            | 0x2060..=0x206f
            // Byte order mark, annotations, tags.
            | 0xfeff
            | 0xfff9..=0xfffb
            | 0xe0000..=0xe007f
        )
}

fn escape(text: &str, keep: fn(char) -> bool) -> Cow<'_, str> {
    let hidden = |c: char| is_unseen(c) && !keep(c);
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !hidden(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    Cow::Owned(out)
}

/// In one line.
pub fn line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Ends of lines stay.
pub fn page(text: &str) -> Cow<'_, str> {
    escape(text, |c| c == '\n')
}

/// JSON text in which only its own spaces and ends of lines are left: inside strings the rest is written as `\u....`, which means
/// the same.
pub fn json(text: &str) -> Cow<'_, str> {
    let keep = |c: char| matches!(c, '\n' | '\r' | '\t');
    if !text.contains(|c: char| is_unseen(c) && !keep(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unseen(c) && !keep(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Both ends of a text that is too long.
fn shorten(text: &str, most: usize) -> Cow<'_, str> {
    let n = text.chars().count();
    if n <= most {
        return Cow::Borrowed(text);
    }
    let half = most / 2;
    let at = |i: usize| text.char_indices().nth(i).map_or(text.len(), |(at, _)| at);
    Cow::Owned(format!("{}…({} characters)…{}", &text[..at(half)], n - 2 * half, &text[at(n - half)..]))
}

/// A message in one line of a length that can be read, whatever stands in it.
pub fn message(text: &str) -> String {
    // Ends of lines come along with causes; they divide words.
    let words: Vec<String> = text.split_whitespace().map(|w| shorten(&line(w), MOST_WORD).into_owned()).collect();
    shorten(&words.join(" "), MOST_MESSAGE).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a terminal would act on is shown as its number; what people write stays.
    #[test]
    fn nothing_acts_on_a_terminal() {
        assert_eq!(line("a\u{1b}[31mb\r\n\u{9b}2J\u{7f}\0"), "a\\u{1b}[31mb\\r\\n\\u{9b}2J\\u{7f}\\u{0}");
        assert_eq!(line("a\u{202e}b\u{2066}\u{feff}\u{200b}"), "a\\u{202e}b\\u{2066}\\u{feff}\\u{200b}");
        assert_eq!(line("±µ é 名前 …"), "±µ é 名前 …");
        assert_eq!(page("a\n\tb\u{85}"), "a\n\\tb\\u{85}");
    }

    /// JSON is the same value afterwards, with nothing left that acts.
    #[test]
    fn json_means_the_same() {
        let v = serde_json::json!({ "a\u{7f}": "\u{9b}31m\u{202e}\u{e0001}\n" });
        let text = v.to_string();
        let safe = json(&text);
        assert!(safe.chars().all(|c| !is_unseen(c)), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), v);
    }

    /// A message is one line, and neither a word nor all of it grows with its input; the end stays.
    #[test]
    fn messages_are_short() {
        let long = message(&format!("file: {} is unknown. Mend it", "x".repeat(100_000)));
        assert!(long.starts_with("file: xxx") && long.ends_with("is unknown. Mend it") && long.len() < 300, "{long}");
        let many = message(&"ab ".repeat(100_000));
        assert!(many.chars().count() < MOST_MESSAGE + 40);
        assert_eq!(message("a\n  b\u{1b}c"), "a b\\u{1b}c");
        // Many characters of several bytes are cut between characters.
        assert!(message(&"é".repeat(1000)).contains("(840 characters)"));
    }
}
