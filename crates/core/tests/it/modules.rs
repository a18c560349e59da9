//! The module graph of the workspace: the files that name each other. Siblings of a folder do not import each
//! other in circles. The only exceptions are operators that are each other's derivatives, and [`MUTUAL`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Circles that stay, with the reason.
const MUTUAL: &[(&str, &str, &[&str], &str)] =
    &[("core", "", &["graph", "ops"], "a node names its operator, whose derivative rule builds nodes")];

/// A module by the names from its crate's root.
type Module = Vec<String>;

/// Text without comments, strings and characters, up to the unit tests at its end.
fn code(text: &str) -> String {
    let mut out = String::new();
    let all: Vec<char> = text.chars().collect();
    let mut i = 0;
    while i < all.len() {
        let rest = &all[i..];
        let starts = |what: &str| what.chars().eq(rest.iter().copied().take(what.chars().count()));
        let word = i > 0 && (all[i - 1].is_alphanumeric() || all[i - 1] == '_');
        let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
        if starts("#[cfg(test)]\nmod ") {
            break;
        } else if starts("//") {
            i += rest.iter().take_while(|c| **c != '\n').count();
        } else if rest[0] == 'r' && !word && rest.get(1 + hashes) == Some(&'"') {
            let end: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            let body: String = rest[2 + hashes..].iter().collect();
            let length = body.find(&end).map_or(body.chars().count(), |at| body[..at].chars().count());
            i += 2 + hashes + length + end.len();
        } else if rest[0] == '"' {
            i += 1;
            while i < all.len() && all[i] != '"' {
                i += if all[i] == '\\' { 2 } else { 1 };
            }
            i += 1;
        } else if rest[0] == '\'' && (rest.get(1) == Some(&'\\') || rest.get(2) == Some(&'\'')) {
            i += 2;
            while i < all.len() && all[i] != '\'' {
                i += 1;
            }
            i += 1;
        } else {
            out.push(rest[0]);
            i += 1;
        }
    }
    out
}

/// Names, `::` and single signs.
fn tokens(code: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            c if c.is_alphanumeric() || c == '_' => {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        out.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    out
}

/// The paths of a tree of imports from token `at` on; leaves `at` after it.
fn tree(tokens: &[&str], at: &mut usize, before: &[String], out: &mut Vec<Module>) {
    let mut path = before.to_vec();
    while let Some(&token) = tokens.get(*at) {
        match token {
            "::" => *at += 1,
            "{" => {
                *at += 1;
                while tokens.get(*at).is_some_and(|t| !["}", ";"].contains(t)) {
                    tree(tokens, at, &path, out);
                    *at += tokens.get(*at).is_some_and(|t| *t == ",") as usize;
                }
                *at += 1;
                return;
            }
            "as" => *at += 2,
            "," | "}" | ";" => break,
            name => {
                path.push(name.to_string());
                *at += 1;
            }
        }
    }
    out.push(path);
}

/// All paths that a file names: imports, and paths that begin at the crate, above, or here.
fn paths(text: &str) -> Vec<Module> {
    let code = code(text);
    let tokens = tokens(&code);
    let mut out = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let begins = ["crate", "super", "self"].contains(&tokens[at]) && tokens.get(at + 1) == Some(&"::");
        // Not the `use<'a>` of a type.
        if tokens[at] == "use" && tokens.get(at + 1) != Some(&"<") {
            at += 1;
            tree(&tokens, &mut at, &[], &mut out);
        } else if begins {
            let mut path = vec![tokens[at].to_string()];
            while tokens.get(at + 1) == Some(&"::") && at + 2 < tokens.len() {
                path.push(tokens[at + 2].to_string());
                at += 2;
            }
            out.push(path);
        }
        at += 1;
    }
    out
}

/// Rust files below a folder.
fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The modules of a crate, each with those that it names. Files of unit tests are left out.
fn modules(src: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut files = Vec::new();
    sources(src, &mut files);
    let mut texts: BTreeMap<Module, String> = BTreeMap::new();
    for file in files {
        let path = file.strip_prefix(src).unwrap().with_extension("");
        let mut module: Module = path.iter().map(|p| p.to_string_lossy().into_owned()).collect();
        if module.last().is_some_and(|l| l == "mod") || module == ["lib"] {
            module.pop();
        }
        if module != ["main"] && !module.iter().any(|m| m.starts_with("tests")) {
            texts.insert(module, std::fs::read_to_string(&file).unwrap());
        }
    }
    let named = |own: &Module, path: Module| -> Option<Module> {
        let mut names = path.into_iter().peekable();
        let mut at = match names.peek()?.as_str() {
            "crate" => Vec::new(),
            "self" | "super" => own.clone(),
            child if texts.contains_key(&[&own[..], &[child.to_string()]].concat()) => own.clone(),
            _ => return None,
        };
        while let Some(name) = names.next_if(|n| ["crate", "self", "super"].contains(&n.as_str())) {
            if name == "super" {
                at.pop();
            }
        }
        for name in names {
            at.push(name);
            if !texts.contains_key(&at) {
                at.pop();
                break;
            }
        }
        Some(at)
    };
    let imports = |own: &Module, text: &str| {
        let all = paths(text).into_iter().filter_map(|path| named(own, path));
        all.filter(|m| m != own).collect()
    };
    texts.iter().map(|(module, text)| (module.clone(), imports(module, text))).collect()
}

/// Groups of names that reach each other.
fn circles(edges: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<Vec<String>> {
    let reach = |from: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_string()]);
        while let Some(name) = next.pop() {
            for to in edges.get(name.as_str()).into_iter().flatten() {
                if seen.insert(to.to_string()) {
                    next.push(to.to_string());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<String>> = edges.keys().map(|n| (*n, reach(n))).collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (name, all) in reached.iter().filter(|(name, all)| all.contains(**name)) {
        let back = all.iter().filter(|to| reached.get(to.as_str()).is_some_and(|r| r.contains(*name)));
        found.insert(back.cloned().collect());
    }
    found.into_iter().collect()
}

#[test]
fn siblings_do_not_import_each_other_in_circles() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found: Vec<(String, String, Vec<String>)> = Vec::new();
    let mut files = 0;
    for entry in std::fs::read_dir(&crates).unwrap() {
        let entry = entry.unwrap();
        let src = entry.path().join("src");
        if !src.is_dir() {
            continue;
        }
        let own = modules(&src);
        files += own.len();
        let folders: BTreeSet<&[String]> =
            own.keys().flat_map(|m| (0..m.len()).map(move |n| &m[..n])).collect();
        for folder in folders {
            let below = |m: &&Module| m.len() > folder.len() && m.starts_with(folder);
            let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for (module, imports) in own.iter().filter(|(m, _)| below(m)) {
                let from = module[folder.len()].as_str();
                let to = imports.iter().filter(below).map(|m| m[folder.len()].as_str());
                edges.entry(from).or_default().extend(to.filter(|to| *to != from));
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            // Operators name each other in their derivatives.
            let derivatives = name == "core" && folder.first().is_some_and(|f| f == "ops");
            if !derivatives {
                found.extend(circles(&edges).into_iter().map(|c| (name.clone(), folder.join("::"), c)));
            }
        }
    }
    assert!(files > 500, "only {files} modules found");
    found.sort();
    let stays = |(c, folder, m, _): &(&str, &str, &[&str], &str)| {
        (c.to_string(), folder.to_string(), m.iter().map(|m| m.to_string()).collect())
    };
    let mut mutual: Vec<(String, String, Vec<String>)> = MUTUAL.iter().map(stays).collect();
    mutual.sort();
    let list = |all: &[(String, String, Vec<String>)]| {
        all.iter().map(|(c, f, m)| format!("    ({c:?}, {f:?}, &{m:?}),\n")).collect::<String>()
    };
    assert!(found == mutual, "circles of imports are\n{}and MUTUAL has\n{}", list(&found), list(&mutual));
}

#[test]
fn imports_are_read_as_the_compiler_reads_them() {
    let text = r##"//! crate::comment::X
use super::a::{self, B, c::{D, E as F}};
pub use child::G;
fn f<'a>(x: &'a str) -> char { let _ = (r#"crate::raw"#, "crate::\"text", '"', '\''); crate::h::i(x) }
#[cfg(test)]
mod tests { use crate::j; }
"##;
    let got: Vec<String> = paths(text).into_iter().map(|p| p.join("::")).collect();
    assert_eq!(
        got,
        ["super::a::self", "super::a::B", "super::a::c::D", "super::a::c::E", "child::G", "crate::h::i"]
    );
    let edges = BTreeMap::from([
        ("a", BTreeSet::from(["b"])),
        ("b", BTreeSet::from(["c"])),
        ("c", BTreeSet::from(["b", "d"])),
        ("d", BTreeSet::new()),
    ]);
    assert_eq!(circles(&edges), [["b", "c"]]);
}
