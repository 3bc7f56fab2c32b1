//! Untrusted text on a terminal: characters that would move the cursor, change colours or reverse
//! the text direction are escaped.

/// Appends a character, escaped if a terminal would interpret it; returns the columns that it
/// takes.
pub fn push_visible(out: &mut String, letter: char) -> usize {
    if !letter.is_control() && !is_format(letter) {
        out.push(letter);
        return 1;
    }
    let escaped = letter.escape_default();
    out.extend(escaped.clone());
    escaped.len()
}

/// Whether the character is invisible, or turns the direction of the text.
fn is_format(letter: char) -> bool {
    matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Escapes a text from a file, a name or another program for display on a terminal.
pub fn visible(text: &str) -> String {
    let mut out = String::new();
    text.chars().for_each(|letter| {
        push_visible(&mut out, letter);
    });
    out
}
