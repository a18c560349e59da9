//! Charts as inline SVG, without outside resources. Names and points of the lines are in attributes, for the
//! page's script.

use super::{Bars, Chart, Series, Stroke, text};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
/// Left, right, top, bottom of the plotting area.
const BOX: (f64, f64, f64, f64) = (84.0, WIDTH - 28.0, 16.0, HEIGHT - 44.0);
/// At most this many points are drawn per line; more are thinned by keeping extremes.
const POINTS: usize = 1200;
/// Points of lines of at most so many are marked.
const MARKED: usize = 40;
/// Colours of lines; of more lines, some are dashed.
const COLOURS: usize = 8;

/// Escapes text for HTML and SVG; control characters are spelled out.
pub fn escape(s: &str) -> String {
    text::plain(s).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Round numbers that cover `[lo, hi]` in about `n` steps.
fn ticks(lo: f64, hi: f64, n: f64) -> Vec<f64> {
    let raw = (hi - lo).max(f64::MIN_POSITIVE) / n;
    let magnitude = 10f64.powf(raw.log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * magnitude).find(|s| *s >= raw).unwrap_or(raw);
    let first = (lo / step).ceil() as i64;
    let last = (hi / step).floor() as i64;
    (first..=last.min(first + 20)).map(|i| i as f64 * step).collect()
}

fn label(x: f64) -> String {
    let a = x.abs();
    if a != 0.0 && !(1e-3..1e5).contains(&a) {
        return format!("{x:.1e}").replace(".0e", "e");
    }
    let s = format!("{x:.4}");
    s.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Thins points to what can be seen: of each bucket its smallest and largest y, in order.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let finite: Vec<_> = points.iter().copied().filter(|p| p.0.is_finite() && p.1.is_finite()).collect();
    if finite.len() <= POINTS {
        return finite;
    }
    let size = finite.len().div_ceil(POINTS / 2);
    let mut out = Vec::with_capacity(POINTS);
    for bucket in finite.chunks(size) {
        let lo = bucket.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
        let hi = bucket.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
        let (Some(lo), Some(hi)) = (lo, hi) else { continue };
        if lo.0 <= hi.0 { out.extend([lo, hi]) } else { out.extend([hi, lo]) }
    }
    out
}

/// The mapping of a chart's y axis.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Linear,
    Log,
}

impl Scale {
    /// A value as a coordinate on the axis.
    fn of(self, y: f64) -> f64 {
        match self {
            Scale::Linear => y,
            Scale::Log => y.log10(),
        }
    }

    /// Values with a line and a label, between `lo` and `hi`.
    fn ticks(self, lo: f64, hi: f64) -> Vec<f64> {
        if self == Scale::Linear {
            return ticks(lo, hi, 5.0);
        }
        let (first, last) = (lo.log10().floor() as i32, hi.log10().ceil() as i32);
        let within = |steps: &[f64]| -> Vec<f64> {
            let decades = (first..=last).map(|e| 10f64.powi(e));
            let all = decades.flat_map(|d| steps.iter().map(move |s| s * d));
            all.filter(|t| (lo..=hi).contains(t)).collect()
        };
        let decades = within(&[1.0]);
        match decades.len() {
            0 | 1 if within(&[1.0, 2.0, 5.0]).len() < 3 => {
                ticks(lo, hi, 4.0).into_iter().filter(|t| *t > 0.0).collect()
            }
            0..=3 => within(&[1.0, 2.0, 5.0]),
            n => decades.into_iter().step_by(n.div_ceil(6)).collect(),
        }
    }
}

/// A line chart. One whose y axis may be logarithmic is drawn twice, and a box says which is shown.
pub fn lines(c: &Chart) -> String {
    let series: Vec<_> = c.series.iter().map(|s| thin(&s.points)).collect();
    if series.iter().all(Vec::is_empty) {
        return String::new();
    }
    let positive = series.iter().flatten().all(|p| p.1 > 0.0);
    let mut s = String::new();
    let _ = write!(s, "<figure><figcaption>{}</figcaption>", escape(&c.title));
    if c.log && positive {
        s.push_str(r#"<label class="scale"><input type="checkbox"> log scale</label>"#);
        draw(&mut s, c, &series, Scale::Linear);
        draw(&mut s, c, &series, Scale::Log);
    } else {
        draw(&mut s, c, &series, Scale::Linear);
    }
    if c.series.len() > 1 {
        s.push_str(r#"<div class="legend">"#);
        for (i, line) in c.series.iter().enumerate() {
            let _ = write!(s, r#"<span><i class="{}"></i>{}</span>"#, class(line, i), escape(&line.name));
        }
        s.push_str("</div>");
    }
    s.push_str("</figure>");
    s
}

/// Classes of a line by its colour and stroke: `s3`, or `s3 dashed` for the second line of that colour.
fn class(line: &Series, place: usize) -> String {
    let number = line.colour.unwrap_or(place);
    let dashed = if number / COLOURS % 2 == 1 { " dashed" } else { "" };
    let stroke = match line.stroke {
        Stroke::Plain => "",
        Stroke::Faint => " faint",
        Stroke::Wide => " wide",
    };
    format!("s{}{dashed}{stroke}", number % COLOURS)
}

/// One drawing of a chart. Each line carries its points for the script that shows them under the pointer.
fn draw(s: &mut String, c: &Chart, series: &[Vec<(f64, f64)>], scale: Scale) {
    let all = || series.iter().flatten();
    let fold =
        |f: fn(f64, f64) -> f64, from: f64, pick: fn(&(f64, f64)) -> f64| all().map(pick).fold(from, f);
    let (x0, x1) = (fold(f64::min, f64::INFINITY, |p| p.0), fold(f64::max, f64::NEG_INFINITY, |p| p.0));
    let (mut y0, mut y1) =
        (fold(f64::min, f64::INFINITY, |p| p.1), fold(f64::max, f64::NEG_INFINITY, |p| p.1));
    if c.filled && scale == Scale::Linear {
        y0 = y0.min(0.0);
    }
    if y0 == y1 {
        (y0, y1) = match scale {
            Scale::Linear if y0 == 0.0 => (-0.5, 0.5),
            Scale::Linear => (y0 - y0.abs() / 2.0, y1 + y0.abs() / 2.0),
            Scale::Log => (y0 / 2.0, y1 * 2.0),
        };
    }
    let mut marks = scale.ticks(y0, y1);
    // The axis ends at marks, so that both of its ends have a number.
    if let (Scale::Linear, [first, second, ..]) = (scale, &marks[..]) {
        let step = second - first;
        let (low, high) = ((y0 / step + 1e-9).floor(), (y1 / step - 1e-9).ceil());
        (y0, y1) = (low * step, high * step);
        marks = (0..=(high - low) as u32).map(|i| (low + i as f64) * step).collect();
    }
    let x1 = if x0 == x1 { x0 + 1.0 } else { x1 };
    let (left, right, top, bottom) = BOX;
    let px = |x: f64| left + (x - x0) / (x1 - x0) * (right - left);
    let (low, high) = (scale.of(y0), scale.of(y1));
    let py = |y: f64| bottom - (scale.of(y) - low) / (high - low) * (bottom - top);
    let kind = if scale == Scale::Log { "log" } else { "linear" };
    let _ = write!(
        s,
        r#"<svg class="{kind}" data-x="{}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#,
        escape(&c.x),
        escape(&c.title)
    );
    for t in marks {
        let y = py(t);
        let _ = write!(s, r#"<line class="grid" x1="{left}" x2="{right}" y1="{y:.1}" y2="{y:.1}"/>"#);
        let _ = write!(
            s,
            r#"<text class="tick" x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
            left - 8.0,
            y + 4.0,
            label(t)
        );
    }
    for (i, t) in ticks(x0, x1, 8.0).into_iter().enumerate() {
        let odd = if i % 2 == 1 { " odd" } else { "" };
        let _ = write!(
            s,
            r#"<text class="tick x{odd}" x="{:.1}" y="{}" text-anchor="middle">{}</text>"#,
            px(t),
            bottom + 18.0,
            label(t)
        );
    }
    let _ = write!(s, r#"<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>"#);
    let middle = (left + right) / 2.0;
    let _ = write!(
        s,
        r#"<text class="label x" x="{middle}" y="{}" text-anchor="middle">{}</text>"#,
        HEIGHT - 6.0,
        escape(&c.x)
    );
    let turn = (top + bottom) / 2.0;
    let _ = write!(
        s,
        r#"<text class="label y" transform="translate(14 {turn}) rotate(-90)" text-anchor="middle">{}</text>"#,
        escape(&c.y)
    );
    let layer = |i: usize| match c.series[i].stroke {
        Stroke::Wide => 0,
        Stroke::Faint => 1,
        Stroke::Plain => 2,
    };
    // Within a layer the first series is drawn last, on top.
    let mut order: Vec<usize> = (0..series.len()).rev().collect();
    order.sort_by_key(|&i| layer(i));
    for i in order {
        let points = &series[i];
        if points.is_empty() {
            continue;
        }
        let of = class(&c.series[i], i);
        let path: Vec<String> = points.iter().map(|&(x, y)| format!("{:.1} {:.1}", px(x), py(y))).collect();
        if c.filled {
            let (first, last) = (px(points[0].0), px(points[points.len() - 1].0));
            let base = py(0.0f64.max(y0));
            let area = path.join(" L");
            let _ = write!(
                s,
                r#"<path class="fill {of}" d="M{first:.1} {base:.1} L{area} L{last:.1} {base:.1} Z"/>"#
            );
        }
        let values: Vec<String> =
            points.iter().map(|&(x, y)| format!("{} {}", text::number(x), text::number(y))).collect();
        let _ = write!(
            s,
            r#"<path class="line {of}" d="M{}" data-name="{}" data-points="{}"/>"#,
            path.join(" L"),
            escape(&c.series[i].name),
            values.join(",")
        );
        // A line of one point is not seen otherwise.
        if points.len() == 1 || (points.len() <= MARKED && layer(i) == 2 && c.series.len() > 1) {
            let dot =
                |&(x, y): &(f64, f64)| format!(r#"<circle cx="{:.1}" cy="{:.1}" r="3"/>"#, px(x), py(y));
            let dots: String = points.iter().map(dot).collect();
            let _ = write!(s, r#"<g class="dots {of}">{dots}</g>"#);
        }
    }
    s.push_str("</svg>");
}

/// Horizontal bars with their share of the sum.
pub fn bars(b: &Bars) -> String {
    let total: f64 = b.bars.iter().map(|x| x.1).sum();
    let largest = b.bars.iter().map(|x| x.1).fold(0.0, f64::max);
    let mut s = String::new();
    let _ = write!(s, r#"<figure><figcaption>{}</figcaption><div class="bars">"#, escape(&b.title));
    for (name, value) in &b.bars {
        let wide = if largest > 0.0 { 100.0 * value / largest } else { 0.0 };
        let share = if total > 0.0 { 100.0 * value / total } else { 0.0 };
        let _ = write!(
            s,
            r#"<div><span class="name">{}</span><span class="track"><i style="width:{wide:.1}%"></i></span><span class="num">{} {} · {share:.0} %</span></div>"#,
            escape(name),
            label((value * 1000.0).round() / 1000.0),
            escape(&b.unit),
        );
    }
    s.push_str("</div></figure>");
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover() {
        assert_eq!(ticks(0.0, 1.0, 5.0), vec![0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(0.0, 100.0, 5.0), vec![0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    }

    #[test]
    fn axes_end_at_numbers_and_show_what_is_constant() {
        let svg = |points: Vec<(f64, f64)>| lines(&Chart::new("t", "x", "y", vec![Series::new("a", points)]));
        let marks = |svg: &str| -> Vec<String> {
            let ends = svg.split("text-anchor=\"end\">").skip(1);
            ends.map(|t| t.split('<').next().unwrap().to_string()).collect()
        };
        let falling = svg(vec![(0.0, 2.57), (9.0, 0.77)]);
        assert_eq!(marks(&falling), ["0.5", "1", "1.5", "2", "2.5", "3"]);
        let constant = svg(vec![(0.0, 1e-3), (9.0, 1e-3)]);
        let shown = |m: &String| ["0.001", "1.0e-3"].contains(&m.as_str());
        assert!(marks(&constant).iter().any(shown), "{:?}", marks(&constant));
    }

    #[test]
    fn a_trend_is_above_its_noise_and_below_it_is_what_should_coincide() {
        let line = |name: &str, stroke| Series::new(name, vec![(1.0, 2.0), (2.0, 1.0)]).stroke(stroke);
        let series = vec![
            line("trend", Stroke::Plain),
            line("recorded", Stroke::Wide),
            line("noise", Stroke::Faint).colour(0),
            line("held-out", Stroke::Plain).colour(10),
        ];
        let svg = lines(&Chart::new("t", "x", "y", series));
        let drawn: Vec<&str> =
            svg.split("data-name=\"").skip(1).map(|t| t.split('"').next().unwrap()).collect();
        assert_eq!(drawn, ["recorded", "noise", "held-out", "trend"]);
        for class in
            ["line s0\"", "line s1 wide\"", "line s0 faint\"", "line s2 dashed\"", "i class=\"s0 faint\""]
        {
            assert!(svg.contains(class), "{class}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 4, "points of two plain lines");
        let one = lines(&Chart::new("t", "x", "y", vec![Series::new("a", vec![(3.0, 1.0)])]));
        assert_eq!(one.matches("<circle").count(), 1);
    }

    #[test]
    fn charts_survive_odd_data() {
        for points in [
            vec![],
            vec![(1.0, 2.0)],
            vec![(0.0, f64::NAN), (1.0, f64::INFINITY)],
            vec![(0.0, 3.0), (5.0, 3.0)],
        ] {
            let series = vec![Series::new("<a>", points)];
            for (log, filled) in [(false, true), (true, false)] {
                let svg = lines(&Chart::new("t", "x", "y", series.clone()).log(log).filled(filled));
                assert!(!svg.contains("NaN") && !svg.contains("inf"));
            }
        }
    }

    #[test]
    fn a_log_scale_is_offered_for_positive_numbers_and_marks_them() {
        let chart = |points| {
            let series = vec![Series::new("l\"<x>", points)];
            lines(&Chart::new("t", "step", "loss", series).log(true))
        };
        let both = chart(vec![(1.0, 0.002), (2.0, 30.0)]);
        assert!(both.contains("class=\"linear\"") && both.contains("class=\"log\""), "{both}");
        assert!(both.contains("data-points=\"1 0.002,2 30\"") && both.contains("l&quot;&lt;x&gt;"));
        assert!(!chart(vec![(1.0, 0.0), (2.0, 30.0)]).contains("class=\"log\""));
        assert_eq!(Scale::Log.ticks(0.002, 30.0), [0.01, 0.1, 1.0, 10.0]);
        assert_eq!(Scale::Log.ticks(0.3, 2.4), [0.5, 1.0, 2.0]);
        assert!(Scale::Log.ticks(0.50, 0.55).len() > 2);
    }

    #[test]
    fn pages_hold_names_and_nothing_that_acts() {
        assert_eq!(escape("a<b>&\"\u{1b}[2J\u{202e}"), "a&lt;b&gt;&amp;&quot;\\u{1b}[2J\\u{202e}");
    }

    #[test]
    fn thinning_keeps_extremes() {
        let points: Vec<_> = (0..100_000).map(|i| (i as f64, if i == 54_321 { 9.0 } else { 1.0 })).collect();
        let t = thin(&points);
        assert!(t.len() <= POINTS + 2 && t.iter().any(|p| p.1 == 9.0));
    }
}
