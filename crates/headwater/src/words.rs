//! Words of a small vocabulary that are misspelled: what was likely meant, and what there is.

use std::path::Path;

/// A message for a word that is none of `all`: `it is own or vendor; did you mean own?`.
pub fn meant<'a>(word: &str, all: impl IntoIterator<Item = &'a str>) -> String {
    let all: Vec<&str> = all.into_iter().collect();
    let listed = match all.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => all.concat(),
    };
    let near = nearest(word, &all).map_or(String::new(), |near| format!("; did you mean {near}?"));
    format!("it is {listed}{near}")
}

/// The word of `all` that is nearest to `word`, if it is near enough: at most a third of it differs, or one
/// begins with the other.
pub fn nearest<'a>(word: &str, all: &[&'a str]) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let of = |other: &&'a str| {
        let begins = lower.len() > 1 && (other.starts_with(&lower) || lower.starts_with(*other));
        let far = distance(&lower, &other.to_lowercase());
        (if begins { far.min(1) } else { far }, far)
    };
    let best = all.iter().copied().min_by_key(of)?;
    (of(&best).0 <= 1.max(word.chars().count() / 3)).then_some(best)
}

/// For a file that does not exist: `; did you mean m.pt2?` if one of these endings beside it has a similar
/// name, or is the only one; else nothing.
pub fn near_file(path: &Path, endings: &[&str]) -> String {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let ends = |p: &Path| p.extension().and_then(|e| e.to_str()).is_some_and(|e| endings.contains(&e));
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    let mut names: Vec<String> =
        entries.filter(|p| ends(p)).filter_map(|p| Some(p.file_name()?.to_str()?.to_string())).collect();
    names.sort();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let wanted = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let near = nearest(wanted, &all).or_else(|| if let [one] = all[..] { Some(one) } else { None });
    near.map_or(String::new(), |name| format!("; did you mean {}?", path.with_file_name(name).display()))
}

/// Insertions, deletions, replacements and exchanges of neighbours between two words (Damerau 1964; the
/// restricted form).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let same = usize::from(a[i - 1] != b[j - 1]);
                    let mut best =
                        (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + same);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        best = best.min(rows[i - 2][j - 2] + 1);
                    }
                    best
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_proposed_if_it_is_near() {
        let all = ["adam", "adamw", "adamax", "sgd", "lion"];
        for (word, want) in [("adamw2", "adamw"), ("AdamW", "adamw"), ("sdg", "sgd"), ("lino", "lion")] {
            assert_eq!(nearest(word, &all), Some(want), "{word}");
        }
        assert_eq!(nearest("shampoo", &all), None);
        assert_eq!(nearest("acc", &["loss", "accuracy"]), Some("accuracy"));
        assert_eq!(meant("vendr", ["own", "vendor"]), "it is own or vendor; did you mean vendor?");
        assert_eq!(meant("x", ["own", "vendor"]), "it is own or vendor");
        assert_eq!((distance("", "abc"), distance("kitten", "sitting"), distance("ab", "ba")), (3, 3, 1));
    }
}
