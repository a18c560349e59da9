// The numbers of a chart under the pointer. The page is complete without it.
for (const svg of document.querySelectorAll("svg.linear, svg.log")) {
  const lines = [...svg.querySelectorAll("path.line")].reverse().map(path => {
    const at = path.getAttribute("d").slice(1).split(" L").map(p => p.split(" ").map(Number));
    return { name: path.dataset.name, at, values: path.dataset.points.split(",").map(p => p.split(" ")) };
  });
  if (!lines.length) continue;
  const figure = svg.closest("figure");
  const tip = figure.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;
  const mark = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "line"));
  mark.setAttribute("class", "mark");
  const hide = () => { tip.hidden = true; mark.style.display = "none"; };
  hide();
  const show = event => {
    const box = svg.getBoundingClientRect(), frame = figure.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const near = line => {
      let low = 0, high = line.at.length - 1;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (line.at[middle][0] < x) low = middle; else high = middle;
      }
      return Math.abs(line.at[low][0] - x) <= Math.abs(line.at[high][0] - x) ? low : high;
    };
    const first = near(lines[0]), place = lines[0].at[first][0];
    mark.setAttribute("x1", place); mark.setAttribute("x2", place);
    mark.setAttribute("y1", 16); mark.setAttribute("y2", svg.viewBox.baseVal.height - 44);
    mark.style.display = "";
    const rows = lines.map(line => [line.name, line.values[near(line)]]);
    tip.textContent = [svg.dataset.x + " " + rows[0][1][0]].concat(rows.map(([name, v]) => name + ": " + v[1])).join("\n");
    tip.hidden = false;
    const left = box.left - frame.left + place / svg.viewBox.baseVal.width * box.width;
    const room = frame.width - tip.offsetWidth;
    tip.style.left = Math.max(0, Math.min(room, left + 12)) + "px";
    tip.style.top = event.clientY - frame.top - tip.offsetHeight - 12 + "px";
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
}
