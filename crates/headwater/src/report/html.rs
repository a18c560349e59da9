//! A report as one HTML page that needs nothing else: no fonts, no links out. Its script shows numbers under
//! the pointer and orders tables; the page is complete without it.

use super::chart::{bars, escape, lines};
use super::{Block, Report, Section, Table};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = concat!(include_str!("page.js"), include_str!("live.js"));

/// Facts of more bytes have a line of their own.
const WIDE: usize = 32;

/// The page. With `refresh`, browsers load it again after so many seconds: by its script, without a flash and
/// with the choices of its reader, or else as a whole.
pub fn page(r: &Report, refresh: Option<u64>) -> String {
    let mut s = String::new();
    let _ = write!(
        s,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         {}<title>{}</title><style>{STYLE}</style></head><body{}><main>",
        refresh.map_or(String::new(), |s| {
            format!("<noscript><meta http-equiv=\"refresh\" content=\"{s}\"></noscript>")
        }),
        escape(&r.title),
        refresh.map_or(String::new(), |s| format!(" data-refresh=\"{s}\""))
    );
    let (class, word) = match (r.passed(), refresh) {
        _ if r.sections.len() == 1 => (class_of(&r.sections[0]), word_of(&r.sections[0]).to_string()),
        (false, _) => ("fail", r.conclusion()),
        (true, Some(_)) => ("note", "running".to_string()),
        (true, None) if r.sections.iter().any(|s| s.idle) => ("note", r.conclusion()),
        (true, None) => ("pass", r.conclusion()),
    };
    let _ = write!(s, "<header><h1>{}</h1>{}</header>", escape(&r.title), badge("p", class, &word));
    s.push_str("<dl class=\"facts\">");
    for (name, value) in &r.facts {
        let wide = if value.len() > WIDE { " class=\"wide\"" } else { "" };
        let _ = write!(s, "<div{wide}><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value));
    }
    s.push_str("</dl>");
    // A report of one section is its own table of contents.
    let listed = if r.sections.len() > 1 { &r.sections[..] } else { &[] };
    s.push_str(if listed.is_empty() { "" } else { "<ol class=\"steps\">" });
    for (i, section) in listed.iter().enumerate() {
        let _ = write!(
            s,
            "<li><a href=\"#s{i}\"><span class=\"dot {}\"></span>{}</a><span>{}</span></li>",
            class_of(section),
            escape(&section.title),
            escape(&section.summary)
        );
    }
    s.push_str(if listed.is_empty() { "" } else { "</ol>" });
    for (i, section) in r.sections.iter().enumerate() {
        write_section(&mut s, i, section);
    }
    let _ = writeln!(s, "</main><script>{SCRIPT}</script></body></html>");
    s
}

fn class_of(section: &Section) -> &'static str {
    match section.verdict {
        super::Verdict::Pass => "pass",
        super::Verdict::Note => "note",
        super::Verdict::Fail => "fail",
    }
}

/// The word for the end of a section.
fn word_of(section: &Section) -> &str {
    section.word.unwrap_or(section.verdict.word())
}

/// A word in a frame, if there is one.
fn badge(element: &str, class: &str, word: &str) -> String {
    if word.is_empty() {
        return String::new();
    }
    format!("<{element} class=\"badge {class}\">{}</{element}>", escape(word))
}

fn write_section(s: &mut String, i: usize, section: &Section) {
    let _ = write!(
        s,
        "<section id=\"s{i}\"><h2><span class=\"number\">{}</span>{}{}\
         <span class=\"time\">{}</span></h2><p>{}</p>",
        i + 1,
        escape(&section.title),
        badge("span", class_of(section), word_of(section)),
        section.time().unwrap_or_default(),
        escape(&section.summary)
    );
    if let Some(next) = &section.next {
        let _ = write!(s, "<p class=\"next\"><b>Next</b> {}</p>", escape(next));
    }
    for block in &section.blocks {
        match block {
            Block::Chart(c) => s.push_str(&lines(c)),
            Block::Bars(b) => s.push_str(&bars(b)),
            Block::Table(t) => write_table(s, t),
        }
    }
    s.push_str("</section>");
}

/// Tables longer than this start closed.
const LONG: usize = 18;

fn write_table(s: &mut String, t: &Table) {
    let long = t.rows.len() > LONG;
    if long {
        let _ = write!(s, "<details><summary>{} ({} rows)</summary>", escape(&t.title), t.rows.len());
    } else if !t.title.is_empty() {
        let _ = write!(s, "<h3>{}</h3>", escape(&t.title));
    }
    s.push_str("<div class=\"scroll\"><table><thead><tr>");
    let align = |i: usize| if t.head(i).1 { " class=\"r\"" } else { "" };
    for i in 0..t.columns.len() {
        let _ = write!(s, "<th{}>{}</th>", align(i), escape(t.head(i).0));
    }
    s.push_str("</tr></thead><tbody>");
    for row in &t.rows {
        s.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            let _ = write!(s, "<td{}>{}</td>", align(i), escape(cell));
        }
        s.push_str("</tr>");
    }
    s.push_str("</tbody></table></div>");
    if long {
        s.push_str("</details>");
    }
}
