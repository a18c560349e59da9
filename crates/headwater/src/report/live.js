
// A run that goes on: every few seconds the page loads its file again in a hidden frame, which hands its content over. So nothing
// flashes, and what the reader has chosen stays. A frame of the same address would not be loaded: hence the query.
const main = document.querySelector("main"), FRESH = "?fresh=";
if (parent !== window && location.search.startsWith(FRESH)) {
  const content = { headwater: main.innerHTML, title: document.title, refresh: document.body.dataset.refresh };
  // Pages of files have no origin that could be named.
  parent.postMessage(content, location.protocol === "file:" ? "*" : location.origin);
} else {
  enliven(main);
  const words = (of, what) => (of.querySelector(what)?.textContent || "").replace(/ \(\d+ rows\)$/, "");
  const figures = () => [...main.querySelectorAll("figure")].map(figure => [words(figure, "figcaption"), figure]);
  const details = () => [...main.querySelectorAll("details")].map(part => [words(part, "summary"), part]);
  const heads = () => [...main.querySelectorAll("table")].map((table, i) => [i, [...table.tHead.rows[0].cells]]);
  const take = content => {
    const charts = new Map(figures()), parts = new Map(details()), orders = new Map(heads()), at = [scrollX, scrollY];
    main.innerHTML = content;
    enliven(main);
    for (const [name, figure] of figures()) {
      const old = charts.get(name), box = figure.querySelector(".scale input");
      // A part that was chosen stays as it was.
      if (old?.querySelector(".part")) figure.replaceWith(old);
      else if (box) box.checked = Boolean(old?.querySelector(".scale input")?.checked);
    }
    for (const [name, part] of details()) {
      const old = parts.get(name), search = part.querySelector("input[type=search]");
      part.open = Boolean(old?.open);
      if (search) {
        search.value = old?.querySelector("input[type=search]")?.value || "";
        search.dispatchEvent(new Event("input"));
      }
    }
    for (const [i, cells] of heads()) {
      const chosen = orders.get(i)?.find(head => head.ariaSort), head = cells.find(head => head.textContent === chosen?.textContent);
      for (let turns = 0; head && head.ariaSort !== chosen.ariaSort && turns < 2; turns++) head.click();
    }
    scrollTo(...at);
  };
  let frame = null, timer = 0;
  const wait = seconds => { clearTimeout(timer); timer = setTimeout(load, seconds * 1000); };
  const load = () => {
    frame?.remove();
    const address = new URL(location.href);
    address.hash = "";
    address.search = FRESH + Date.now();
    frame = document.createElement("iframe");
    frame.hidden = true;
    frame.src = address;
    document.body.append(frame);
    wait(60);
  };
  addEventListener("message", event => {
    if (!frame || event.source !== frame.contentWindow || typeof event.data?.headwater !== "string") return;
    const { headwater, title, refresh } = event.data;
    frame.remove();
    frame = null;
    // Somebody who types is not disturbed.
    const busy = document.activeElement?.matches("input[type=search]");
    if (!busy) {
      document.title = title;
      take(headwater);
    }
    clearTimeout(timer);
    if (refresh || busy) wait(Number(refresh) || 10);
  });
  if (document.body.dataset.refresh) wait(Number(document.body.dataset.refresh));
}
