//! Pages in Chinese are kept in step with the English ones: the same headings, commands, code, tables, names.

use std::collections::BTreeSet;
use std::path::Path;

/// A page's skeleton, which does not depend on its language.
#[derive(Debug, Default)]
struct Skeleton {
    /// Levels of the headings, in order.
    headings: Vec<usize>,
    /// Commands and lines of Python and TOML, without comments.
    code: Vec<String>,
    /// Rows of each table.
    tables: Vec<usize>,
    /// For each row its names and its numbers, such as a setting and its default.
    rows: Vec<BTreeSet<String>>,
    /// For each heading the names below it and in it, in any order.
    sections: Vec<(String, BTreeSet<String>)>,
}

/// Code spans of a text, and the error codes outside them.
fn names(text: &str) -> impl Iterator<Item = String> + '_ {
    let spans = text.split('`').skip(1).step_by(2);
    // A translation refers to translations.
    let spans = spans.map(|s| s.replace("docs/zh-CN/", "docs/").replace(".zh-CN.md", ".md"));
    let codes = text.match_indices("HW-").filter_map(|(at, _)| text.get(at..at + 7));
    spans.chain(codes.filter(|c| c.ends_with(|d: char| d.is_ascii_digit())).map(str::to_string))
}

/// Whole numbers of a text outside code spans, or the digits of others.
fn numbers(text: &str) -> impl Iterator<Item = String> + '_ {
    let plain = text.split('`').step_by(2);
    let digits = plain.flat_map(|t| t.split(|c: char| !c.is_ascii_digit()));
    digits.filter(|n| !n.is_empty()).map(str::to_string)
}

fn skeleton(page: &str) -> Skeleton {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
    let mut found = Skeleton { sections: vec![("the head".into(), BTreeSet::new())], ..Default::default() };
    let (mut fence, mut row, mut below) = (None, false, Vec::new());
    // The last heading ends the section before it.
    for line in text.lines().chain(["# "]) {
        if let Some(language) = line.strip_prefix("```") {
            fence = match fence {
                None => Some(language),
                Some(_) => None,
            };
            continue;
        }
        let command = fence.is_none() && line.starts_with("    ");
        if command || matches!(fence, Some("python" | "toml")) {
            let plain = line.split("  #").next().unwrap().trim();
            let comment = plain.is_empty() || plain.starts_with('#');
            found.code.extend(Some(plain.to_string()).filter(|_| !comment));
            continue;
        }
        if fence.is_some() {
            continue;
        }
        if line.starts_with('#') {
            // Joined, since a span may go across the end of a line.
            let text = std::mem::take(&mut below).join(" ");
            found.sections.last_mut().unwrap().1.extend(names(&text));
            found.headings.push(line.chars().take_while(|c| *c == '#').count());
            found.sections.push((line.into(), BTreeSet::new()));
        }
        below.push(line);
        let in_table = line.starts_with('|');
        match (row, in_table) {
            (false, true) => found.tables.push(1),
            (true, true) => *found.tables.last_mut().unwrap() += 1,
            _ => {}
        }
        if in_table {
            found.rows.push(names(line).chain(numbers(line)).collect());
        }
        row = in_table;
    }
    found
}

#[test]
fn chinese_pages_follow_the_english_ones() {
    for (english, chinese) in [
        ("README.md", "README.zh-CN.md"),
        ("tools/README.md", "tools/README.zh-CN.md"),
        ("docs/ascend.md", "docs/zh-CN/ascend.md"),
        ("docs/data.md", "docs/zh-CN/data.md"),
        ("docs/errors.md", "docs/zh-CN/errors.md"),
        ("docs/first-hour.md", "docs/zh-CN/first-hour.md"),
        ("docs/following.md", "docs/zh-CN/following.md"),
        ("docs/mixed-precision.md", "docs/zh-CN/mixed-precision.md"),
        ("docs/proof.md", "docs/zh-CN/proof.md"),
        ("docs/python.md", "docs/zh-CN/python.md"),
        ("docs/ranks.md", "docs/zh-CN/ranks.md"),
        ("docs/settings.md", "docs/zh-CN/settings.md"),
    ] {
        let (want, got) = (skeleton(english), skeleton(chinese));
        assert!(want.headings.len() > 4 && want.sections.len() > 4, "{english}: {want:?}");
        assert_eq!(got.headings, want.headings, "headings of {chinese} and {english}");
        assert_eq!(got.code, want.code, "code of {chinese} and {english}");
        assert_eq!(got.tables, want.tables, "tables of {chinese} and {english}");
        for (got, want) in got.rows.iter().zip(&want.rows) {
            assert_eq!(got, want, "a row of {chinese} and {english}");
        }
        // The Chinese page of the Python package has one sentence for each name.
        let summary = english == "docs/python.md";
        for ((heading, want), (_, got)) in want.sections.iter().zip(&got.sections).filter(|_| !summary) {
            let missing: Vec<_> = want.difference(got).collect();
            let surplus: Vec<_> = got.difference(want).collect();
            assert!(
                missing.is_empty() && surplus.is_empty(),
                "{chinese} lacks {missing:?} and has {surplus:?} in addition, in the section that {english} calls {heading:?}"
            );
        }
    }
    let (settings, errors) = (skeleton("docs/zh-CN/settings.md"), skeleton("docs/zh-CN/errors.md"));
    assert!(settings.rows.len() > 200 && settings.rows.iter().any(|r| r.contains("memory_budget")));
    assert!(errors.sections.iter().any(|(_, names)| names.contains("HW-A111")));
    // Every Chinese page has an English one.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for page in std::fs::read_dir(folder.join("zh-CN")).unwrap() {
        let name = page.unwrap().file_name();
        assert!(folder.join(&name).exists(), "docs/zh-CN/{name:?} translates nothing");
    }
}
