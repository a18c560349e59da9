//! Pages in Chinese are kept in step with the English ones: the same headings, commands, code and tables.

use std::path::Path;

/// A page's skeleton, which does not depend on its language.
#[derive(Debug, PartialEq)]
struct Skeleton {
    /// Levels of the headings, in order.
    headings: Vec<usize>,
    /// Commands and lines of Python, without comments.
    code: Vec<String>,
    /// Rows of each table.
    tables: Vec<usize>,
}

fn skeleton(page: &str) -> Skeleton {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
    let (mut headings, mut code, mut tables): (Vec<usize>, Vec<String>, Vec<usize>) = Default::default();
    let (mut fence, mut row) = (None, false);
    for line in text.lines() {
        if let Some(language) = line.strip_prefix("```") {
            fence = match fence {
                None => Some(language),
                Some(_) => None,
            };
            continue;
        }
        let command = fence.is_none() && line.starts_with("    ");
        if command || fence == Some("python") {
            let plain = line.split("  #").next().unwrap().trim();
            code.extend(Some(plain.to_string()).filter(|l| !l.is_empty()));
            continue;
        }
        if fence.is_some() {
            continue;
        }
        if line.starts_with('#') {
            headings.push(line.chars().take_while(|c| *c == '#').count());
        }
        let in_table = line.starts_with('|');
        match (row, in_table) {
            (false, true) => tables.push(1),
            (true, true) => *tables.last_mut().unwrap() += 1,
            _ => {}
        }
        row = in_table;
    }
    Skeleton { headings, code, tables }
}

#[test]
fn chinese_pages_follow_the_english_ones() {
    for (english, chinese) in [
        ("README.md", "README.zh-CN.md"),
        ("docs/first-hour.md", "docs/zh-CN/first-hour.md"),
        ("docs/ascend.md", "docs/zh-CN/ascend.md"),
        ("docs/proof.md", "docs/zh-CN/proof.md"),
        ("docs/python.md", "docs/zh-CN/python.md"),
    ] {
        let want = skeleton(english);
        assert!(
            want.headings.len() > 3 && want.code.len() > 5 && !want.tables.is_empty(),
            "{english}: {want:?}"
        );
        assert_eq!(skeleton(chinese), want, "{chinese} is not in step with {english}");
    }
    // Every Chinese page has an English one.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for page in std::fs::read_dir(folder.join("zh-CN")).unwrap() {
        let name = page.unwrap().file_name();
        assert!(folder.join(&name).exists(), "docs/zh-CN/{name:?} translates nothing");
    }
}
