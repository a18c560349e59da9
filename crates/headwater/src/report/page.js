// Charts: the numbers under the pointer, and a part at its full width. The page is complete without this script.
const LEFT = 84, RIGHT = 732, TOP = 16, BOTTOM = 256;
const made = (parent, name, attributes) => {
  const child = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
  for (const key in attributes) child.setAttribute(key, attributes[key]);
  return child;
};
const charts = root => {
  for (const svg of root.querySelectorAll("svg.linear, svg.log")) {
    const lines = [...svg.querySelectorAll("path.line")].reverse().map(path => {
      const at = path.getAttribute("d").slice(1).split(" L").map(p => p.split(" ").map(Number));
      return { path, name: path.dataset.name, at, values: path.dataset.points.split(",").map(p => p.split(" ")) };
    });
    if (!lines.length) continue;
    const whole = lines.map(line => ({ ...line, d: line.path.getAttribute("d") }));
    const figure = svg.closest("figure"), log = svg.classList.contains("log");
    const tip = figure.appendChild(document.createElement("div"));
    tip.className = "tip";
    tip.hidden = true;
    const mark = made(svg, "line", { class: "mark", y1: TOP, y2: BOTTOM });
    const chosen = made(svg, "rect", { class: "chosen", y: TOP, height: BOTTOM - TOP });
    const hide = () => { tip.hidden = true; mark.style.display = "none"; };
    hide();
    const place = event => {
      const box = svg.getBoundingClientRect();
      return (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    };
    const show = event => {
      const box = svg.getBoundingClientRect(), frame = figure.getBoundingClientRect();
      const x = place(event);
      const near = line => {
        let low = 0, high = line.at.length - 1;
        while (high - low > 1) {
          const middle = (low + high) >> 1;
          if (line.at[middle][0] < x) low = middle; else high = middle;
        }
        return Math.abs(line.at[low][0] - x) <= Math.abs(line.at[high][0] - x) ? low : high;
      };
      const drawn = lines.filter(line => line.at.length);
      if (!drawn.length) return;
      const at = drawn[0].at[near(drawn[0])][0];
      mark.setAttribute("x1", at); mark.setAttribute("x2", at);
      mark.style.display = "";
      const rows = drawn.map(line => [line.name, line.values[near(line)]]);
      tip.textContent = [svg.dataset.x + " " + rows[0][1][0]].concat(rows.map(([name, v]) => name + ": " + v[1])).join("\n");
      tip.hidden = false;
      const left = box.left - frame.left + at / svg.viewBox.baseVal.width * box.width;
      const room = frame.width - tip.offsetWidth;
      tip.style.left = Math.max(0, Math.min(room, left + 12)) + "px";
      tip.style.top = event.clientY - frame.top - tip.offsetHeight - 12 + "px";
    };
    // A number of the axis at a place: between the two points of `axis` (0 or 1) that lie furthest apart.
    const points = whole.flatMap(line => line.at.map((at, i) => [at, line.values[i].map(Number)]));
    const scale = axis => {
      const by = (a, b) => a[0][axis] - b[0][axis];
      const low = points.reduce((a, b) => by(a, b) <= 0 ? a : b), high = points.reduce((a, b) => by(a, b) >= 0 ? a : b);
      const of = axis && log ? Math.log10 : x => x, back = axis && log ? x => 10 ** x : x => x;
      const [a, b] = [low, high].map(p => of(p[1][axis]));
      const span = high[0][axis] - low[0][axis];
      return at => back(span ? a + (at - low[0][axis]) / span * (b - a) : a);
    };
    const number = x => String(Number(x.toPrecision(4)));
    let part = null;
    const reset = () => {
      if (part) part.remove();
      part = null;
      svg.classList.remove("part");
      whole.forEach((line, i) => { lines[i].at = line.at; lines[i].values = line.values; line.path.setAttribute("d", line.d); });
      hide();
    };
    const zoom = (from, to) => {
      reset();
      const inside = whole.map(line => line.at.map((at, i) => i).filter(i => line.at[i][0] >= from && line.at[i][0] <= to));
      const heights = inside.flatMap((some, l) => some.map(i => whole[l].at[i][1]));
      if (inside.every(some => some.length < 2)) return;
      let high = Math.min(...heights), low = Math.max(...heights);
      if (low - high < 1e-6) { high -= 1; low += 1; }
      const x = at => LEFT + (at - from) / (to - from) * (RIGHT - LEFT), y = at => TOP + (at - high) / (low - high) * (BOTTOM - TOP);
      lines.forEach((line, l) => {
        line.at = inside[l].map(i => [x(whole[l].at[i][0]), y(whole[l].at[i][1])]);
        line.values = inside[l].map(i => whole[l].values[i]);
        line.path.setAttribute("d", line.at.length ? "M" + line.at.map(p => p.join(" ")).join(" L") : "M0 0");
      });
      part = made(svg, "g", {});
      svg.insertBefore(part, svg.firstChild);
      const [horizontal, vertical] = [scale(0), scale(1)];
      for (let i = 0; i <= 4; i++) {
        const at = high + (low - high) * i / 4, row = y(at), column = LEFT + (RIGHT - LEFT) * i / 4;
        made(part, "line", { class: "grid", x1: LEFT, x2: RIGHT, y1: row, y2: row });
        made(part, "text", { class: "tick", x: LEFT - 8, y: row + 4, "text-anchor": "end" }).textContent = number(vertical(at));
        made(part, "text", { class: "tick", x: column, y: BOTTOM + 18, "text-anchor": "middle" }).textContent =
          number(Number(horizontal(from + (to - from) * i / 4).toPrecision(3)));
      }
      svg.classList.add("part");
    };
    // Places in the whole chart, of a drag over what is shown of it.
    let begin = null, shown = [LEFT, RIGHT];
    const within = x => shown[0] + (Math.max(LEFT, Math.min(RIGHT, x)) - LEFT) / (RIGHT - LEFT) * (shown[1] - shown[0]);
    const choose = event => {
      const ends = [begin, place(event)].map(x => Math.max(LEFT, Math.min(RIGHT, x))).sort((a, b) => a - b);
      chosen.setAttribute("x", ends[0]); chosen.setAttribute("width", ends[1] - ends[0]);
      return ends;
    };
    svg.addEventListener("pointermove", event => { show(event); if (begin !== null) choose(event); });
    svg.addEventListener("pointerdown", event => { show(event); if (event.button === 0) begin = place(event); });
    svg.addEventListener("pointerup", event => {
      if (begin === null) return;
      const [from, to] = choose(event);
      begin = null;
      chosen.setAttribute("width", 0);
      if (to - from < 12) return;
      const ends = [within(from), within(to)];
      zoom(...ends);
      shown = part ? ends : [LEFT, RIGHT];
    });
    svg.addEventListener("dblclick", () => { reset(); shown = [LEFT, RIGHT]; });
    svg.addEventListener("pointerleave", () => { hide(); begin = null; chosen.setAttribute("width", 0); });
    made(svg, "title", {}).textContent = "Drag to see a part, double-click to see all";
  }
};

// Tables: rows in the order of a column whose head is chosen; of a long one also a search among them, and all of it as CSV.
const UNITS = { "": 1, "%": 1, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, "µs": 1e-6, ms: 1e-3, s: 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12 };
const size = text => {
  const [, x, unit] = /^([-+]?[\d.]+(?:e[-+]?\d+)?)\s*(\S*)$/.exec(text.trim()) || [];
  return unit in UNITS ? Number(x) * UNITS[unit] : NaN;
};
const tables = root => {
  for (const table of root.querySelectorAll("table")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], rows = [...body.rows];
    const text = row => [...row.cells].map(cell => cell.textContent);
    if (rows.length < 3) continue;
    heads.forEach((head, column) => {
      const order = () => {
        const down = head.ariaSort ? head.ariaSort === "ascending" : head.classList.contains("r");
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.ariaSort = down ? "descending" : "ascending";
        const by = (a, b) => {
          const [x, y] = [a, b].map(row => text(row)[column] || ""), [m, n] = [size(x), size(y)];
          // Texts stay below the numbers, whichever way these are ordered.
          if (isNaN(m) !== isNaN(n)) return isNaN(m) ? 1 : -1;
          return (isNaN(m) ? x.localeCompare(y, undefined, { numeric: true }) : m - n) * (down ? -1 : 1);
        };
        body.append(...rows.sort(by));
      };
      head.tabIndex = 0;
      head.addEventListener("click", order);
      head.addEventListener("keydown", event => { if (event.key === "Enter") order(); });
    });
    const long = table.closest("details");
    if (!long) continue;
    const bar = document.createElement("div"), search = document.createElement("input"), save = document.createElement("a");
    bar.className = "tools";
    search.type = "search";
    search.placeholder = "rows with …";
    search.addEventListener("input", () => {
      const wanted = search.value.toLowerCase();
      rows.forEach(row => { row.hidden = !text(row).join("\n").toLowerCase().includes(wanted); });
    });
    const title = long.querySelector("summary").textContent.replace(/ \(\d+ rows\)$/, "");
    // Names in a model come from strangers, and what begins like a formula is one to a spreadsheet.
    const plain = cell => /^[=+@-]/.test(cell) && isNaN(size(cell)) ? "'" + cell : cell;
    const quoted = cell => '"' + plain(cell).replaceAll('"', '""') + '"';
    save.textContent = "as CSV";
    save.href = "#";
    save.download = title.toLowerCase().replace(/[^a-z0-9]+/g, "-") + ".csv";
    save.addEventListener("click", () => {
      const lines = [heads.map(head => head.textContent), ...rows.map(text)];
      save.href = "data:text/csv;charset=utf-8," + encodeURIComponent(lines.map(cells => cells.map(quoted).join(",")).join("\r\n"));
    });
    bar.append(search, save);
    table.parentElement.before(bar);
  }
};

// A table that is wider than the page says so.
const wide = new ResizeObserver(boxes => {
  for (const { target } of boxes) target.classList.toggle("more", target.scrollWidth > target.clientWidth + 1);
});
const enliven = root => {
  charts(root);
  tables(root);
  for (const box of root.querySelectorAll(".scroll")) wide.observe(box);
};
