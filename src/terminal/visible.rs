//! Texts of others on a terminal: what would move its cursor, change its colours or turn letters
//! around is shown escaped.

/// Adds a letter, or what stands for it where a terminal would obey it; how many columns that
/// takes.
pub fn push_visible(out: &mut String, letter: char) -> usize {
    let turns_text = matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    if !letter.is_control() && !turns_text {
        out.push(letter);
        return 1;
    }
    let escaped = letter.escape_default();
    out.extend(escaped.clone());
    escaped.len()
}

/// A text from a file, a name or another program as it can be shown on a terminal.
pub fn visible(text: &str) -> String {
    let mut out = String::new();
    text.chars().for_each(|letter| {
        push_visible(&mut out, letter);
    });
    out
}
