/* page.js - the state of the page and what follows from it: panel, stage, readout, address, saved pictures. */
const NAMES = { encoder: "Encoder", decoder: "Decoder", cross: "Cross" };
const TITLES = { encoder: "Self-attention of the encoder", decoder: "Self-attention of the decoder", cross: "Cross-attention" };
const HINTS = {
  encoder: ["a token", "the tokens it looks at"],
  decoder: ["a token", "the tokens it looks at, itself and those before it"],
  cross: ["a token of the translation as it is written", "the source it looks at"],
};

/* ---- state ---- */

/* heads: "all", "mean" or a list of numbers.  token: {side, at}, an index of the map's tokens, whether or not words are
 * merged, so that it is kept when layer, head or view change. */
const state = { kind: data.begin.kind, layer: data.begin.layer, heads: "mean", rollout: data.begin.rollout, view: data.begin.view, words: false, pair: "", token: null };
if (data.begin.head >= 0) state.heads = [data.begin.head];

/* Makes what was asked for what there is. */
function settle() {
  if (!maps[state.kind]) state.kind = data.maps[data.maps.length - 1].kind;
  const m = maps[state.kind], last = m.head + m.heads - 1;
  if (!(state.layer >= m.layer && state.layer < m.layer + m.layers)) state.layer = m.layer + m.layers - 1;
  if (Array.isArray(state.heads)) {
    state.heads = [...new Set(state.heads)].filter(h => h >= m.head && h <= last).sort((a, b) => a - b);
    if (!state.heads.length) state.heads = "mean";
  }
  if (state.heads === "mean" && !m.mean) state.heads = [m.head];
  if (state.view === "image" && !m.cols_grid) state.view = "";
  if (!state.view && m.cols_grid) state.view = "image";
  if (!["lines", "heat", "image"].includes(state.view)) state.view = Math.max(m.rows.length, m.cols.length) > 60 ? "heat" : "lines";
  if (!m.rollout) state.rollout = false;
  if (!hasWords(m)) state.words = false;
  if (!hasTypes(m)) state.pair = "";
  if (state.token && !(state.token.at < (state.token.side ? m.cols : m.rows).length)) state.token = null;
}

/* The address holds the state, so that a link shows what was seen. */
function toAddress() {
  const a = new URLSearchParams({ kind: state.kind, layer: state.layer, head: Array.isArray(state.heads) ? state.heads.join(",") : state.heads, view: state.view });
  if (state.rollout) a.set("rollout", 1);
  if (state.words) a.set("words", 1);
  if (state.pair) a.set("sentences", state.pair);
  if (state.token) a.set("token", (state.token.side ? "c" : "r") + (state.token.at + (state.token.side ? 0 : maps[state.kind].first_row)));
  const hash = `#${a.toString().replace(/%2C/g, ",")}`;
  if (hash !== location.hash) try { history.replaceState(null, "", hash); } catch { /* a frame may forbid it */ }
}
function fromAddress() {
  const a = new URLSearchParams(location.hash.slice(1));
  if (a.has("kind")) state.kind = a.get("kind");
  if (a.has("layer")) state.layer = Number(a.get("layer"));
  if (a.has("view")) state.view = a.get("view");
  if (a.has("head")) state.heads = ["all", "mean"].includes(a.get("head")) ? a.get("head") : a.get("head").split(",").map(Number);
  if (a.size) Object.assign(state, { rollout: a.has("rollout"), words: a.has("words"), pair: /^[01][01]$/.test(a.get("sentences")) ? a.get("sentences") : "" });
  const t = /^([rc])(\d+)$/.exec(a.get("token") || "");
  const m = maps[state.kind];
  if (t) state.token = { side: t[1] === "c" ? 1 : 0, at: Number(t[2]) - (t[1] === "c" || !m ? 0 : m.first_row) };
}

function choose(layer, head, add) {
  const m = maps[state.kind];
  if (add && typeof head === "number" && layer === state.layer && !state.rollout) {
    const now = Array.isArray(state.heads) ? state.heads : state.heads === "all" ? [...Array(m.heads).keys()].map(h => m.head + h) : [];
    state.heads = now.includes(head) ? now.filter(h => h !== head) : [...now, head];
    if (!state.heads.length) state.heads = [head];
  } else {
    state.heads = typeof head === "number" ? [head] : head;
    if (head !== "mean") state.rollout = false;
  }
  state.layer = layer;
  refresh();
}

/* ---- the stage ---- */

let layout = null, hover = null;
const zoom = { heat: null, lines: null, image: null }; /* cell sizes; null: the view's own */
/* The lines of a window and of one above and below it: scrolling moves this picture, and draws it anew every other window. */
const base = document.createElement("canvas");
let baseKey = "", baseAt = 0;

/* The height a stage may have: down to the end of the window, or most of a window where it begins far below. */
function tallest() {
  const below = innerHeight - ($("stage").getBoundingClientRect().top + scrollY) - 20;
  return Math.max(280, Math.round(below > innerHeight * 0.5 ? below : innerHeight * 0.78));
}
function place() {
  const stage = $("stage"), room = stage.clientWidth, most = tallest();
  const n = Math.max(panel.rows.length, panel.cols.length), heat = state.view === "heat";
  if (state.view === "image") layout = imageLayout(panel, zoom.image || imageFit(panel, room, most));
  else {
    const cell = zoom[state.view] || (heat ? heatFit(panel, room, most) : linesDefault(n));
    layout = heat ? heatLayout(panel, cell) : linesLayout(panel, cell, room);
  }
  stage.style.height = `${Math.min(most, Math.ceil(layout.height) + 2)}px`;
  $("space").style.width = `${Math.floor(layout.width)}px`;
  $("space").style.height = `${Math.floor(layout.height)}px`;
}
const windowOf = () => ({ x: $("stage").scrollLeft, y: $("stage").scrollTop, w: $("stage").clientWidth, h: $("stage").clientHeight });

/* The chosen or pointed at token as an item of the panel. */
function marked() {
  if (hover) return hover;
  if (!state.token) return state.view === "image" ? { side: 0, i: imageDefault(panel, layout) } : null;
  const items = state.token.side ? panel.cols : panel.rows;
  const i = items.findIndex(t => state.token.at >= t.from && state.token.at < t.to);
  return i < 0 ? null : { side: state.token.side, i };
}

function drawView(s, win, at, all) {
  if (state.view === "image") imageDraw(s, panel, layout, win, at);
  else if (state.view === "heat") heatDraw(s, Object.assign(panel, { bitmap: panelBitmap() }), layout, win, at);
  else linesDraw(s, panel, layout, win, at, all);
}
function drawBase(win, scale) {
  const key = [panel.key, panel.version, layout.cell, win.x, win.w, win.h, scale, isDark()].join(), tall = Math.min(3 * win.h, Math.max(win.h, layout.height));
  if (key !== baseKey || win.y < baseAt || win.y + win.h > baseAt + tall) {
    baseAt = Math.max(0, Math.min(win.y - win.h, layout.height - tall));
    const strip = { ...win, y: baseAt, h: tall }, rows = range(baseAt - layout.top, baseAt + tall, layout.cell, panel.rows.length);
    drawEdges(new CanvasSurface(base, win.w, tall, scale), panel, layout, strip, strongest(panel, ...rows));
    baseKey = key;
  }
  return tall;
}
function drawStage() {
  const win = windowOf(), canvas = $("canvas"), scale = devicePixelRatio || 1, at = marked();
  need(win, at);
  const s = new CanvasSurface(canvas, win.w, win.h, scale);
  if (canvas.style.width !== `${win.w}px`) canvas.style.width = `${win.w}px`;
  if (canvas.style.height !== `${win.h}px`) canvas.style.height = `${win.h}px`;
  drawView(s, win, at, alpha => {
    const tall = drawBase(win, scale);
    s.image(base, 0, baseAt - win.y, win.w, tall, alpha);
  });
  drawOverview(win);
}

/* All of the map, small, with a frame around what the stage shows. */
function drawOverview(win) {
  const box = $("overview"), whole = state.view === "image" || layout.height <= win.h + 4 && layout.width <= win.w + 4;
  box.hidden = whole;
  if (whole) return;
  if (state.view === "lines" && panel.theme !== isDark()) { /* the lines need no bitmap: it may come a frame later */
    setTimeout(() => { panelBitmap(); later(); }, 0);
    return;
  }
  const wide = panel.cols.length, high = panel.rows.length, k = Math.min(200 / wide, 150 / high);
  const s = new CanvasSurface(box, wide * k, high * k, devicePixelRatio || 1);
  box.style.width = `${wide * k}px`;
  box.style.height = `${high * k}px`;
  s.image(panelBitmap(), 0, 0, wide * k, high * k, 1, true);
  const heat = state.view === "heat", top = heat ? layout.top : 0, left = heat ? layout.left : 0;
  const y = win.y / layout.cell * k, h = (win.h - top) / layout.cell * k;
  const x = heat ? win.x / layout.cell * k : y, w = heat ? (win.w - left) / layout.cell * k : h;
  s.box(Math.max(1, x), Math.max(1, y), Math.min(w, wide * k - x) - 2, Math.min(h, high * k - y) - 2, { stroke: css("--held"), width: 2 });
  box.k = k;
}
$("overview").addEventListener("pointerdown", e => {
  const go = p => {
    const r = $("overview").getBoundingClientRect(), stage = $("stage"), k = $("overview").k, heat = state.view === "heat";
    stage.scrollTop = (p.clientY - r.top) / k * layout.cell - (stage.clientHeight - (heat ? layout.top : 0)) / 2;
    stage.scrollLeft = heat ? (p.clientX - r.left) / k * layout.cell - (stage.clientWidth - layout.left) / 2 : 0;
  };
  go(e);
  $("overview").setPointerCapture(e.pointerId);
  $("overview").onpointermove = go;
  $("overview").onpointerup = () => { $("overview").onpointermove = null; };
});

/* by: a factor, or 0 for all of the map; the point (x,y) of the stage stays where it is. */
function zoomBy(by, x, y) {
  const stage = $("stage"), old = layout.cell, heat = state.view !== "lines", image = state.view === "image";
  const { top } = layout, left = heat ? layout.left : 0;
  const px = x === undefined ? stage.clientWidth / 2 : x, py = y === undefined ? stage.clientHeight / 2 : y;
  const col = (px + stage.scrollLeft - left) / old, row = (py + stage.scrollTop - top) / old;
  const most = tallest();
  if (!by) zoom[state.view] = heat ? null : linesFit(panel, most);
  else zoom[state.view] = Math.min(image ? 200 : heat ? 60 : 44, Math.max(image ? 2 : 0.5, old * by));
  place();
  stage.scrollTop = row * layout.cell + layout.top - py;
  stage.scrollLeft = heat ? col * layout.cell + layout.left - px : stage.scrollLeft;
  later();
}

/* ---- a token ---- */

function hold(at) {
  const items = at && (at.side ? panel.cols : panel.rows);
  const t = at && { side: at.side, at: items[at.i].from };
  const same = t && state.token && state.token.side === t.side && t.at === state.token.at;
  state.token = same ? null : t;
  toAddress();
  later();
}
let told = "";
function readout() {
  const at = marked(), box = $("readout"), wide = panel.cols.length, key = JSON.stringify([panel.key, panel.version, at]);
  if (key === told) return; /* scrolling changes nothing here */
  told = key;
  if (!at) {
    box.replaceChildren(make("p", {}, "Point at a token to read its weights."));
    return;
  }
  const side = at.side, items = side ? panel.cols : panel.rows, others = side ? panel.rows : panel.cols, t = items[at.i];
  const v = k => side ? panel.mean[k * wide + at.i] : panel.mean[at.i * wide + k];
  const order = [...others.keys()].sort((a, b) => v(b) - v(a)), rest = order.slice(10).reduce((s, k) => s + v(k), 0);
  const who = make("div", { class: "who" }, t.text, make("sup", {}, t.at), side ? " is looked at by" : " looks at");
  const ol = make("ol", {}), line = (name, place, weight, on) => {
    const bar = make("i", {});
    bar.style.width = `${Math.max(1, Math.min(100, 100 * weight))}%`;
    ol.append(make("li", on ? { class: "on" } : {}, make("span", {}, name, make("sup", {}, place)), make("b", {}, percent(weight)), bar));
  };
  if (at.j !== undefined && order.indexOf(at.j) > 9) line(others[at.j].text, others[at.j].at, v(at.j), true);
  for (const k of order.slice(0, 10).filter((x, n) => !n || v(x) >= 0.0005)) line(others[k].text, others[k].at, v(k), k === at.j);
  if (!side && rest >= 0.0005) line("all others", "", rest, false);
  box.replaceChildren(who, ol);
}

/* ---- drawing once a frame, whatever happened in it ---- */

let waiting = false, drawn = null;
function later() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    takeFresh();
    drawStage();
    readout();
    if (!drawn && panel.maps.some(map => !map.have || map.have.includes(2))) drawn = performance.mark("drawn"); /* for who measures */
  });
}

function caption() {
  const what = alone ? "Self-attention" : TITLES[state.kind];
  if (state.rollout) return `Rollout of the ${what[0].toLowerCase()}${what.slice(1)}, up to layer ${state.layer}`;
  const h = state.heads, head = h === "all" ? "all heads" : h === "mean" ? "mean of all heads" : `head${h.length > 1 ? "s" : ""} ${h.join(", ")}`;
  return `${what}, layer ${state.layer}, ${head}`;
}
function hint() {
  if (state.view === "image" && data.image.seconds) return "Tinted where the chosen word attends; click a position or a word. Its greatest weight is the scale.";
  if (state.view === "image") return "Dimmed where the chosen token does not attend; click a patch or a name. Its greatest weight is the scale.";
  const [from, to] = HINTS[state.kind], heat = state.view === "heat", more = [];
  if (heat && Array.isArray(state.heads) && state.heads.length > 1 || heat && state.heads === "all") more.push("The mean of the chosen heads.");
  if (heat && byRoot(panel.cols.length)) more.push("Shades go by the square root.");
  if (!heat && isLong(panel)) more.push("The strongest lines of the tokens in view; point at one for all of its own.");
  else if (!heat && strongest(panel) && panel.left_out) more.push("The strongest lines; point at a token for all of its own.");
  if (state.words) more.push("Words: columns of tokens added up, rows averaged.");
  return `${heat ? "Rows" : "Left"}: ${from}. ${heat ? "Columns" : "Right"}: ${to}. ${more.join(" ")}`;
}
function legend() {
  const box = $("legend"), several = panel.list.length > 1;
  box.hidden = !several;
  if (!several) return;
  box.replaceChildren(...panel.list.map(({ head }) => {
    const dash = headDash(head), line = make("i", {});
    line.style.borderTop = `4px ${dash.length ? dash[0] > 4 ? "dashed" : "dotted" : "solid"} ${headColor(head)}`;
    const b = make("button", { type: "button", title: `only head ${head}; with Shift or Ctrl, leave it out` }, line, `head ${head}`);
    b.addEventListener("click", e => choose(state.layer, head, e.shiftKey || e.ctrlKey || e.metaKey));
    return b;
  }));
}

function refresh() {
  settle();
  const m = maps[state.kind];
  for (const input of document.querySelectorAll("nav input[type=radio]")) input.checked = input.value === state[input.name];
  $("rollout").checked = state.rollout;
  $("rollout").disabled = !m.rollout;
  $("words").checked = state.words;
  $("words").disabled = !hasWords(m);
  $("pairs").hidden = !hasTypes(m);
  const kept = panel && panel.m === m;
  makePanel();
  if (!kept) hover = null;
  showGrid();
  legend();
  $("caption").textContent = caption();
  $("hint").textContent = hint();
  place();
  toAddress();
  later();
  soon();
}

/* The other heads of the layer are likely to come next: they are decoded one at a time while nothing happens. */
function prepare(deadline) {
  if (data.ask) return; /* a server has others to serve */
  if (deadline.timeRemaining() < 8) { soon(); return; }
  const m = maps[state.kind], layer = state.layer;
  const h = [...Array(m.heads).keys()].map(k => m.head + k).find(k => !decoded.has(`${m.kind}.${layer}.${k}`));
  if (h === undefined || m.heads * m.size * 4 > KEPT / 2) return;
  weights(m, layer, h);
  soon();
}
let idle = 0;
function soon() {
  if (!window.requestIdleCallback) return;
  cancelIdleCallback(idle);
  idle = requestIdleCallback(prepare);
}

/* ---- saving ---- */

const LARGEST = 6000; /* pixels; of a larger view what the stage shows is saved */
function figure(makeSurface) {
  const full = { x: 0, y: 0, w: layout.width + 8, h: layout.height + 4 }, win = full.w > LARGEST || full.h > LARGEST ? windowOf() : full;
  const margin = 24, width = Math.max(win.w, textWidth(caption(), 17), 320) + 2 * margin, several = panel.list.length > 1;
  const legendHeight = several ? 22 * Math.ceil(panel.list.length / Math.max(1, Math.floor((width - 2 * margin) / 84))) + 6 : 0;
  const text = fitWords(data.title || "", width - 2 * margin, 13), top = margin + 48 + legendHeight;
  const s = makeSurface(width, top + win.h + margin), c = colors();
  s.box(0, 0, width, top + win.h + margin, { fill: c.paper });
  s.text(margin, margin + 8, caption(), { size: 17, bold: true, color: c.ink });
  s.text(margin, margin + 31, text, { size: 13, color: c.muted });
  panel.list.forEach(({ head }, k) => {
    if (!several) return;
    const each = Math.max(1, Math.floor((width - 2 * margin) / 84)), x = margin + k % each * 84, y = margin + 56 + 22 * Math.floor(k / each);
    s.box(x, y - 2, 16, 4, { fill: headColor(head) });
    s.text(x + 22, y, `head ${head}`, { size: 12, color: c.muted });
  });
  const shifted = shift(s, margin, top);
  drawView(shifted, win, marked(), alpha => { if (alpha === 1) drawEdges(shifted, panel, layout, win, strongest(panel, ...range(win.y - layout.top, win.y + win.h, layout.cell, panel.rows.length))); });
  return s;
}
/* The surface s with its origin at (dx,dy). */
function shift(s, dx, dy) {
  return {
    clip: (x, y, w, h, f) => s.clip(x + dx, y + dy, w, h, f),
    image: (c, x, y, ...a) => s.image(c, x + dx, y + dy, ...a),
    curve: (a, b, c, d, ...r) => s.curve(a + dx, b + dy, c + dx, d + dy, ...r),
    curves: (l, ...r) => s.curves(l.map(q => [q[0] + dx, q[1] + dy, q[2] + dx, q[3] + dy]), ...r),
    rules: (l, c) => s.rules(l.map(r => [r[0] + dx, r[1] + dy, r[2] + dx, r[3] + dy]), c),
    box: (x, y, w, h, o) => s.box(x + dx, y + dy, w, h, o),
    text: (x, y, t, o) => s.text(x + dx, y + dy, t, o),
  };
}
function download(blob, ending) {
  const a = make("a", { href: URL.createObjectURL(blob), download: `${caption().toLowerCase().replace(/[^a-z0-9]+/g, "-")}.${ending}` });
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}
const svgText = () => figure((w, h) => new SvgSurface(w, h)).end();
/* What is saved is whole: rows that were not on the screen come first.  Numbers are those of the view, as they are drawn. */
const saved = async save => { await whole(panel.maps); takeFresh(); save(); };
function numbersText() {
  const of = items => items.map(t => t.text), table = w => panel.rows.map((_, i) => Array.from(w.subarray(i * panel.cols.length, (i + 1) * panel.cols.length), x => Number(x.toPrecision(6))));
  return JSON.stringify({ what: caption(), text: data.title, rows: of(panel.rows), columns: of(panel.cols),
    maps: panel.list.map(({ head, w }) => ({ head: head === MEAN ? "mean" : head === ROLLOUT ? "rollout" : head, weights: table(w) })) });
}
$("numbers").addEventListener("click", () => saved(() => download(new Blob([numbersText()], { type: "application/json" }), "json")));
$("png").addEventListener("click", () => saved(() => figure((w, h) => new CanvasSurface(document.createElement("canvas"), w, h, 2)).canvas.toBlob(b => download(b, "png"))));
$("svg").addEventListener("click", () => saved(() => download(new Blob([svgText()], { type: "image/svg+xml" }), "svg")));

/* ---- input ---- */

function radios(box, name, entries) {
  for (const [value, text] of entries) {
    const input = make("input", { type: "radio", name, value });
    input.addEventListener("change", () => {
      if (name === "kind" && state.kind !== value) state.token = null;
      state[name] = value;
      refresh();
    });
    box.append(make("label", {}, input, make("span", {}, text)));
  }
}
radios($("kinds"), "kind", data.maps.map(m => [m.kind, alone ? "Self-attention" : NAMES[m.kind]]));
radios($("views"), "view", [...(data.image ? [["image", "Image"]] : []), ["lines", "Lines"], ["heat", "Heat map"]]);
radios($("pairs"), "pair", [["", "all"], ["00", "A \u2192 A"], ["01", "A \u2192 B"], ["10", "B \u2192 A"], ["11", "B \u2192 B"]]);
$("rollout").addEventListener("change", e => { state.rollout = e.target.checked; refresh(); });
$("words").addEventListener("change", e => { state.words = e.target.checked; refresh(); });
$("zoom-in").addEventListener("click", () => zoomBy(1.4));
$("zoom-out").addEventListener("click", () => zoomBy(1 / 1.4));
$("zoom-fit").addEventListener("click", () => zoomBy(0));

const stage = $("stage");
function hit(e) {
  const r = stage.getBoundingClientRect(), x = e.clientX - r.left - stage.clientLeft, y = e.clientY - r.top - stage.clientTop;
  if (state.view === "image") return imageHit(panel, layout, windowOf(), x, y);
  return state.view === "heat" ? heatHit(panel, layout, windowOf(), x, y) : linesHit(panel, layout, windowOf(), x, y);
}
const sameMark = (a, b) => a === b || Boolean(a && b && a.side === b.side && a.i === b.i && a.j === b.j);
function point(at) {
  if (sameMark(at, hover)) return;
  hover = at;
  stage.style.cursor = at ? "pointer" : "";
  later();
}
stage.addEventListener("pointermove", e => point(hit(e)));
stage.addEventListener("pointerleave", () => point(null));
stage.addEventListener("click", e => { const at = hit(e); if (at) hold(at); });
stage.addEventListener("scroll", later);
stage.addEventListener("wheel", e => {
  if (!e.ctrlKey && !e.metaKey) return;
  e.preventDefault();
  const r = stage.getBoundingClientRect();
  zoomBy(Math.exp(-e.deltaY / 300), e.clientX - r.left, e.clientY - r.top);
}, { passive: false });

/* The tokens by keyboard: up and down on one side, left and right between the sides. */
stage.addEventListener("keydown", e => {
  const at = marked() || { side: 0, i: -1 }, items = s => s ? panel.cols : panel.rows;
  let { side, i } = at;
  if (e.key === "+" || e.key === "-") return zoomBy(e.key === "+" ? 1.4 : 1 / 1.4);
  if (e.key === "0") return zoomBy(0);
  if (e.key === "ArrowDown") i++;
  else if (e.key === "ArrowUp") i--;
  else if (e.key === "ArrowLeft" || e.key === "ArrowRight") side = e.key === "ArrowRight" ? 1 : 0;
  else if (e.key === "Home") i = 0;
  else if (e.key === "End") i = items(side).length - 1;
  else return undefined;
  e.preventDefault();
  i = Math.max(0, Math.min(items(side).length - 1, i));
  hover = null;
  state.token = { side, at: items(side)[i].from };
  reveal(side, i);
  toAddress();
  return later();
});
/* Scrolls until item i is visible. */
function reveal(side, i) {
  if (state.view === "image") return;
  const heat = state.view === "heat", a = i * layout.cell, across = heat && side === 1;
  const size = across ? stage.clientWidth - layout.left : stage.clientHeight - layout.top, name = across ? "scrollLeft" : "scrollTop";
  if (a < stage[name]) stage[name] = a;
  if (a + layout.cell > stage[name] + size) stage[name] = a + layout.cell - size + 12;
}
document.addEventListener("keydown", e => { if (e.key === "Escape") { state.token = hover = null; toAddress(); later(); } });

/* ---- theme, size, start ---- */

const stored = () => { try { return localStorage.getItem("fovea-theme"); } catch { return null; } };
const wish = matchMedia("(prefers-color-scheme: dark)");
const theme = t => { document.documentElement.dataset.theme = t; };
theme(stored() || (wish.matches ? "dark" : "light"));
wish.addEventListener("change", () => { if (!stored()) { theme(wish.matches ? "dark" : "light"); refresh(); } });
$("theme").addEventListener("click", () => {
  theme(isDark() ? "light" : "dark");
  try { localStorage.setItem("fovea-theme", document.documentElement.dataset.theme); } catch { /* a page from a file may not store */ }
  refresh();
});
addEventListener("resize", () => { place(); later(); });
addEventListener("hashchange", () => { fromAddress(); refresh(); });
$("title").textContent = data.title || "Attention";
$("title").classList.toggle("long", data.title.length > 130);
$("note").textContent = data.note;
if (data.title) document.title = `${data.title} - attention`;
fromAddress();
refresh();
