//! `docs/compiler.md`: every line that it shows of a stage is in what the compiler writes after that stage.

use std::path::Path;
use std::process::Command;

/// Numbers of values and places change with every pass: `%12` counts as `%`, `$0[64]` as `$0[]`.
fn unnumbered(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        if c == '%' {
            while chars.next_if(char::is_ascii_digit).is_some() {}
        }
    }
    out
}

/// True if the pieces of a shown line, cut at `…`, are in a line in this order.
fn shows(shown: &str, line: &str) -> bool {
    let mut rest = line;
    shown.split('…').map(str::trim).all(|piece| match rest.find(piece) {
        Some(at) => {
            rest = &rest[at + piece.len()..];
            true
        }
        None => false,
    })
}

#[test]
fn the_page_shows_what_the_compiler_writes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = tempfile::tempdir().unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_headwater"))
        .args(["compile", "goldens/llama/llama.train.pt2", "--dump-after", "all", "--out"])
        .arg(out.path())
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let page = std::fs::read_to_string(root.join("docs/compiler.md")).unwrap();
    let (mut dump, mut compared) = (None, 0);
    for line in page.lines() {
        match line.strip_prefix("```text ") {
            Some(file) => {
                let text = std::fs::read_to_string(out.path().join(file));
                dump = Some((file, text.unwrap_or_else(|e| panic!("{file}: {e}"))));
            }
            None if line.starts_with("```") => dump = None,
            None => {
                if let Some((file, text)) = &dump {
                    let shown = unnumbered(line);
                    let found = text.lines().any(|line| shows(&shown, &unnumbered(line)));
                    assert!(found, "no line of {file} is as docs/compiler.md shows it: {line}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 10, "only {compared} lines were compared");
    // The table: the nodes and steps that each stage leaves.
    let report = String::from_utf8(run.stdout).unwrap();
    for stage in ["recognize", "products", "differentiate", "simplify", "distribute", "fuse", "plan"] {
        let row = report.lines().find(|l| l.trim_start().starts_with(stage)).unwrap();
        let after: Vec<&str> = row.split_whitespace().collect();
        let shown = page.lines().find(|l| l.starts_with(&format!("| `{stage}` |"))).unwrap();
        let count = shown.split('|').nth(2).unwrap().trim();
        let count = count.trim_end_matches(" steps");
        assert_eq!(count, after[2], "{stage}: {row}");
    }
    let steps = std::fs::read_to_string(out.path().join("25-plan.plan")).unwrap();
    assert!(steps.lines().filter(|l| l.starts_with("step cat")).count() == 0, "copies are left");
}
