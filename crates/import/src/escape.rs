//! Names from files as messages show them.

/// A name from the file, cut and escaped so that a hostile one cannot flood a message.
pub(crate) fn shown(name: &str) -> String {
    let mut s: String = name.chars().take(120).flat_map(char::escape_debug).collect();
    if name.chars().nth(120).is_some() {
        s.push('…');
    }
    s
}
