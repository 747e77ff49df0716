/* page.js - the page that shows attention: chooses a map, draws it, and follows the pointer or the keys. */
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const MEAN = -1, ALL = -2;             /* heads: the mean of them, or all in colours */
const LEAST = 0.02;                    /* lines below this are not drawn */
const LIGHT = ["#f4f7fb", "#d6e4f2", "#abcae7", "#74a8d8", "#3f7fbe", "#1b5796", "#08285a"];
const DARK = ["#18202a", "#1d3450", "#22507f", "#2f74b5", "#58a0e0", "#9accff", "#e9f5ff"];
const HEADS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777", "#a89a00"];
const NAMES = { encoder: "Encoder", decoder: "Decoder", cross: "Cross" };
const TITLES = { encoder: "Self-attention of the encoder", decoder: "Self-attention of the decoder", cross: "Cross-attention" };
const HINTS = {
  encoder: "Left: a token. Right: the tokens it looks at.",
  decoder: "Left: a token. Right: the tokens it looks at, itself and those before it.",
  cross: "Left: a token of the translation as it is written. Right: the source it looks at.",
};

/* ---- the numbers ---- */

const unpack = text => {
  if (!text) return null;
  const raw = atob(text), out = new Uint16Array(raw.length / 2);
  for (let i = 0; i < out.length; i++) out[i] = raw.charCodeAt(2 * i) | raw.charCodeAt(2 * i + 1) << 8;
  return out;
};
const maps = {};
for (const m of data.maps) {
  m.size = m.rows.length * m.cols.length;
  m.weights = unpack(m.weights);
  m.rollout = unpack(m.rollout);
  maps[m.kind] = m;
}
const alone = data.maps.length === 1;

/* Weights of one map as numbers in [0,1], row by row. */
function weights(m, layer, head, rollout) {
  const out = new Float32Array(m.size);
  const add = (from, at, by) => { for (let i = 0; i < m.size; i++) out[i] += from[at + i] / 65535 * by; };
  if (rollout) add(m.rollout, layer * m.size, 1);
  else if (head >= 0) add(m.weights, (layer * m.heads + head) * m.size, 1);
  else for (let h = 0; h < m.heads; h++) add(m.weights, (layer * m.heads + h) * m.size, 1 / m.heads);
  return out;
}
const most = w => w.reduce((a, b) => Math.max(a, b), 1e-6);

/* ---- state ---- */

const state = Object.assign({}, data.begin);
if (!maps[state.kind]) state.kind = data.maps[data.maps.length - 1].kind;
let held = null, shown = null; /* tokens: {side: 0 or 1, i} */
function settle() {
  const m = maps[state.kind];
  if (state.layer < 0 || state.layer >= m.layers) state.layer = m.layers - 1;
  if (state.head >= m.heads) state.head = MEAN;
  if (state.view !== "lines" && state.head === ALL) state.head = MEAN;
  if (!m.rollout) state.rollout = false;
  held = shown = null;
}

/* ---- colours ---- */

const dark = () => document.documentElement.dataset.theme === "dark";
const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
function shade(t) {
  const stops = dark() ? DARK : LIGHT, at = Math.min(1, Math.max(0, t)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(at)), a = rgb(stops[i]), b = rgb(stops[i + 1]);
  return a.map((x, k) => Math.round(x + (at - i) * (b[k] - x)));
}
const byRoot = m => m.cols.length > 40; /* in large maps weights are small */
function paint(canvas, m, w) {
  canvas.width = m.cols.length;
  canvas.height = m.rows.length;
  const g = canvas.getContext("2d"), image = g.createImageData(canvas.width, canvas.height), top = most(w);
  const curve = byRoot(m) ? Math.sqrt : x => x;
  for (let i = 0; i < m.size; i++) image.data.set([...shade(curve(w[i] / top)), 255], 4 * i);
  g.putImageData(image, 0, 0);
}

/* ---- small helpers ---- */

function make(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  e.append(...children);
  return e;
}
function draw(parent, tag, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  parent.append(e);
  return e;
}
const ruler = document.createElement("canvas").getContext("2d");
function fit(text, width, size) {
  ruler.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  if (ruler.measureText(text).width <= width) return { text, width: ruler.measureText(text).width };
  const c = [...text];
  let keep = c.length;
  const cut = () => c.slice(0, Math.ceil(keep / 2)).join("") + "\u2026" + c.slice(c.length - Math.floor(keep / 2)).join("");
  while (keep > 1 && ruler.measureText(cut()).width > width) keep--;
  return { text: cut(), width: ruler.measureText(cut()).width };
}
const special = t => /^(<.+>|\[.+\])$/.test(t);
const percent = v => v >= 0.0995 ? `${(v * 100).toFixed(0)} %` : `${(v * 100).toFixed(1)} %`;

/* ---- the choices above ---- */

function radios(box, name, entries, chosen, choose) {
  for (const [value, text] of entries) {
    const input = make("input", { type: "radio", name, value });
    input.checked = value === chosen;
    input.addEventListener("change", () => choose(value));
    box.append(make("label", {}, input, make("span", {}, text)));
  }
}
radios($("kinds"), "kind", data.maps.map(m => [m.kind, alone ? "Self-attention" : NAMES[m.kind]]), state.kind, kind => {
  state.kind = kind;
  refresh();
});
radios($("views"), "view", [["lines", "Lines"], ["heat", "Heat map"]], state.view, view => { state.view = view; refresh(); });
$("rollout").addEventListener("change", e => { state.rollout = e.target.checked; refresh(); });

const stored = () => { try { return localStorage.getItem("fovea-theme"); } catch { return null; } };
const wish = matchMedia("(prefers-color-scheme: dark)");
const theme = t => { document.documentElement.dataset.theme = t; };
theme(stored() || (wish.matches ? "dark" : "light"));
wish.addEventListener("change", () => { if (!stored()) { theme(wish.matches ? "dark" : "light"); refresh(); } });
$("theme").addEventListener("click", () => {
  theme(dark() ? "light" : "dark");
  try { localStorage.setItem("fovea-theme", document.documentElement.dataset.theme); } catch { /* a page from a file may not store */ }
  refresh();
});

/* ---- the grid of small maps ---- */

function grid() {
  const m = maps[state.kind], box = $("grid"), heads = [...Array(m.heads).keys(), MEAN];
  const focus = box.contains(document.activeElement);
  box.replaceChildren();
  box.style.gridTemplateColumns = `auto repeat(${heads.length}, minmax(44px, 1fr))`;
  box.append(make("span", {}));
  for (const h of heads) box.append(make("span", { class: "name" }, h === MEAN ? "mean" : `head ${h}`));
  for (let l = 0; l < m.layers; l++) {
    const all = make("button", { type: "button", class: "all", title: `all heads of layer ${l}, in colours` }, `layer ${l}`);
    cell(all, l, ALL);
    box.append(all);
    for (const h of heads) {
      const canvas = make("canvas", {}), b = make("button", { type: "button", title: `layer ${l}, ${h === MEAN ? "mean" : `head ${h}`}` }, canvas);
      paint(canvas, m, weights(m, l, h, false));
      cell(b, l, h);
      box.append(b);
    }
  }
  const on = box.querySelector("[aria-pressed=true]") || box.querySelector("button");
  on.tabIndex = 0;
  if (focus) on.focus();
}
function cell(b, l, h) {
  const on = !state.rollout && l === state.layer && h === state.head || state.rollout && l === state.layer && h === MEAN;
  b.setAttribute("aria-pressed", on);
  b.tabIndex = -1;
  b.addEventListener("click", () => choose(l, h));
  b.addEventListener("keydown", e => {
    const m = maps[state.kind], order = [ALL, ...Array(m.heads).keys(), MEAN], at = order.indexOf(h);
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
    if (!step) return;
    e.preventDefault();
    const to = order[at + step[1]], layer = l + step[0];
    if (to !== undefined && layer >= 0 && layer < m.layers) choose(layer, to);
  });
}
function choose(layer, head) {
  if (head !== MEAN) state.rollout = false;
  Object.assign(state, { layer, head });
  if (head === ALL) state.view = "lines";
  refresh();
}

/* ---- the stage ---- */

let now = null; /* what is drawn: the map, its weights, the tokens' elements, how to light them up */

function token(svg, side, i, x, y, w, h, text, anchor, label, turn) {
  const g = draw(svg, "g", { class: "token", tabindex: -1, role: "button", "aria-label": label });
  const around = turn ? { transform: `translate(${x} ${y}) rotate(${turn})` } : { transform: `translate(${x} ${y})` };
  const body = draw(g, "g", around);
  draw(body, "rect", { class: "back", x: anchor === "end" ? -w - 5 : -5, y: -h / 2, width: w + 10, height: h });
  draw(body, "text", { "text-anchor": anchor, dy: "0.35em", class: special(label) ? "quiet" : "" }, text);
  draw(g, "title", {}, label);
  g.addEventListener("pointerenter", () => light({ side, i }));
  g.addEventListener("pointerleave", () => light(held));
  g.addEventListener("focus", () => light({ side, i }));
  g.addEventListener("click", () => hold({ side, i }));
  g.addEventListener("keydown", e => keys(e, side, i));
  return g;
}
function keys(e, side, i) {
  const step = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[e.key];
  const lists = now.tokens;
  if (step) {
    const next = lists[side][i + step];
    if (next) move(next);
    e.preventDefault();
  } else if (e.key === "Home" || e.key === "End") {
    move(lists[side][e.key === "Home" ? 0 : lists[side].length - 1]);
    e.preventDefault();
  } else if (e.key === "Enter" || e.key === " ") {
    hold({ side, i });
    e.preventDefault();
  }
}
function move(g) {
  for (const list of now.tokens) for (const t of list) t.tabIndex = -1;
  now.tokens[0][0].tabIndex = now.tokens[1][0].tabIndex = 0;
  g.tabIndex = 0;
  g.focus();
}
document.addEventListener("keydown", e => { if (e.key === "Escape") { held = null; light(null); } });

function lines(m, list) {
  const n = Math.max(m.rows.length, m.cols.length), few = n <= 14, step = few ? 36 : n <= 40 ? 27 : 21, size = few ? 17 : 14;
  const left = m.rows.map(t => fit(t, 190, size)), right = m.cols.map(t => fit(t, 190, size));
  const lw = Math.max(40, ...left.map(t => t.width)), rw = Math.max(40, ...right.map(t => t.width));
  const between = Math.max(120, Math.min(few ? 320 : 220, $("stage").clientWidth - lw - rw - 40));
  const x0 = lw + 18, x1 = x0 + between, y = i => step / 2 + i * step;
  const svg = draw($("stage"), "svg", { width: x1 + rw + 18, height: n * step + 10, role: "group", "aria-label": "tokens and where they look" });
  svg.style.fontSize = `${size}px`;
  const layer = draw(svg, "g", {}), paths = [];
  list.forEach((w, h) => {
    const aside = (h - (list.length - 1) / 2) * Math.min(2.8, 16 / list.length); /* heads beside one another, not over */
    for (let k = 0; k < m.size; k++) {
      if (w[k] < LEAST) continue;
      const i = Math.floor(k / m.cols.length), j = k % m.cols.length, mid = (x0 + x1) / 2, a = y(i) + aside, b = y(j) + aside;
      const stroke = list.length > 1 ? HEADS[h % 8] : "rgb(var(--line))";
      const p = draw(layer, "path", { d: `M${x0 + 8} ${a}C${mid} ${a} ${mid} ${b} ${x1 - 8} ${b}`, fill: "none", stroke,
        "stroke-width": 0.7 + (list.length > 1 ? 2.2 : 4) * w[k], "stroke-opacity": 0.1 + 0.9 * w[k] });
      paths.push({ p, i, j });
    }
  });
  const tokens = [
    left.map((t, i) => token(svg, 0, i, x0, y(i), t.width, step - 5, t.text, "end", m.rows[i])),
    right.map((t, j) => token(svg, 1, j, x1, y(j), t.width, step - 5, t.text, "start", m.cols[j])),
  ];
  return { tokens, light(at) {
    for (const q of paths) q.p.style.opacity = !at || (at.side ? q.j : q.i) === at.i ? 1 : 0.06;
  } };
}

function heat(m, w) {
  const n = Math.max(m.rows.length, m.cols.length), cell = Math.max(3, Math.min(36, 1500 / n)), size = Math.min(14, cell * 0.75);
  const names = cell >= 10, left = m.rows.map(t => fit(t, 170, 14)), up = m.cols.map(t => fit(t, 170, 14));
  const lw = names ? Math.max(...left.map(t => t.width)) + 16 : 8, turn = -50, a = 50 * Math.PI / 180;
  const tall = names ? Math.max(...up.map(t => t.width)) * Math.sin(a) + 22 : 8;
  const over = names ? Math.max(...up.map((t, j) => (j + 0.5) * cell + t.width * Math.cos(a))) - m.cols.length * cell : 0;
  const wide = m.cols.length * cell, high = m.rows.length * cell;
  const svg = draw($("stage"), "svg", { width: lw + wide + Math.max(0, over) + 20, height: tall + high + 10, role: "group", "aria-label": "heat map" });
  svg.style.fontSize = `${size}px`;
  const canvas = document.createElement("canvas");
  paint(canvas, m, w);
  const image = draw(svg, "image", { x: lw, y: tall, width: wide, height: high, href: canvas.toDataURL(), preserveAspectRatio: "none",
    style: "image-rendering:pixelated" });
  if (cell >= 14) {
    const d = [];
    for (let i = 0; i <= m.rows.length; i++) d.push(`M${lw} ${tall + i * cell}h${wide}`);
    for (let j = 0; j <= m.cols.length; j++) d.push(`M${lw + j * cell} ${tall}v${high}`);
    draw(svg, "path", { d: d.join(""), stroke: "var(--paper)", "stroke-width": 1, "pointer-events": "none" });
  }
  const mark = draw(svg, "rect", { class: "mark", rx: 3, visibility: "hidden" });
  const scale = size / 14;
  const tokens = [
    left.map((t, i) => token(svg, 0, i, lw - 8, tall + (i + 0.5) * cell, t.width * scale, cell - 2, names ? t.text : "", "end", m.rows[i])),
    up.map((t, j) => token(svg, 1, j, lw + (j + 0.5) * cell, tall - 9, t.width * scale, Math.min(cell, 22) - 2, names ? t.text : "", "start", m.cols[j], turn)),
  ];
  const at = e => {
    const box = image.getBoundingClientRect();
    return { side: 0, i: Math.floor((e.clientY - box.top) / box.height * m.rows.length), j: Math.floor((e.clientX - box.left) / box.width * m.cols.length) };
  };
  image.addEventListener("pointermove", e => light(at(e)));
  image.addEventListener("pointerleave", () => light(held));
  image.addEventListener("click", e => hold(at(e)));
  return { tokens, light(t) {
    mark.setAttribute("visibility", t ? "visible" : "hidden");
    if (!t) return;
    const box = t.side ? { x: lw + t.i * cell, y: tall, width: cell, height: high } : { x: lw, y: tall + t.i * cell, width: wide, height: cell };
    for (const [k, v] of Object.entries(box)) mark.setAttribute(k, v);
  } };
}

/* ---- following a token ---- */

function hold(t) {
  const same = held && t && held.side === t.side && held.i === t.i;
  held = same ? null : t;
  light(held);
}
function light(t) {
  shown = t;
  const { m, mean, tokens } = now, width = m.cols.length;
  now.light(t);
  tokens.forEach((list, side) => list.forEach((g, k) => {
    const back = g.querySelector(".back");
    const me = t && t.side === side && t.i === k, other = t && t.side !== side;
    const w = other ? mean[side ? t.i * width + k : k * width + t.i] : 0;
    g.classList.toggle("on", Boolean(me));
    g.classList.toggle("dim", Boolean(other) && w < LEAST);
    back.style.fillOpacity = other ? w * 0.55 : 0;
  }));
  readout(t);
}
function readout(t) {
  const { m, mean } = now, box = $("readout"), width = m.cols.length;
  box.replaceChildren();
  if (!t) {
    box.append(make("p", {}, "Point at one to read its weights."));
    return;
  }
  const others = t.side ? m.rows : m.cols;
  const list = others.map((name, k) => ({ name, v: t.side ? mean[k * width + t.i] : mean[t.i * width + k] }));
  list.sort((a, b) => b.v - a.v);
  box.append(make("div", { class: "who" }, `${(t.side ? m.cols : m.rows)[t.i]} ${t.side ? "is looked at by" : "looks at"}`));
  const ol = make("ol", {});
  for (const { name, v } of list.slice(0, 10).filter((x, k) => !k || x.v >= 0.0005)) {
    const bar = make("i", {});
    bar.style.width = `${Math.max(1, 100 * v)}%`;
    ol.append(make("li", {}, make("span", {}, name), make("b", {}, percent(v)), bar));
  }
  box.append(ol);
}

/* ---- all of it ---- */

function caption() {
  const what = alone ? "Self-attention" : TITLES[state.kind];
  if (state.rollout) return `Rollout of the ${what.toLowerCase()}, up to layer ${state.layer}`;
  const head = state.head === ALL ? "all heads" : state.head === MEAN ? "mean of all heads" : `head ${state.head}`;
  return `${what}, layer ${state.layer}, ${head}`;
}
function stage() {
  const m = maps[state.kind], all = state.head === ALL && !state.rollout;
  const mean = weights(m, state.layer, all ? MEAN : state.head, state.rollout);
  $("stage").replaceChildren();
  if (all) {
    const legend = make("div", { class: "legend" });
    for (let h = 0; h < m.heads; h++) {
      const dot = make("i", {});
      dot.style.background = HEADS[h % 8];
      legend.append(make("span", {}, dot, `head ${h}`));
    }
    $("stage").append(legend);
  }
  const list = all ? [...Array(m.heads).keys()].map(h => weights(m, state.layer, h, false)) : [mean];
  now = Object.assign(state.view === "heat" ? heat(m, mean) : lines(m, list), { m, mean });
  now.tokens[0][0].tabIndex = now.tokens[1][0].tabIndex = 0;
  $("caption").textContent = caption();
  const hint = HINTS[state.kind];
  $("hint").textContent = state.view !== "heat" ? hint : hint.replace("Left:", "Rows:").replace("Right:", "Columns:") +
    (byRoot(m) ? " Shades go by the square root." : "");
  light(null);
}
function refresh() {
  settle();
  for (const input of document.querySelectorAll("nav input[type=radio]")) input.checked = input.value === state[input.name];
  $("rollout").checked = state.rollout;
  $("rollout").disabled = !maps[state.kind].rollout;
  grid();
  stage();
}
$("title").textContent = data.title || "Attention";
$("title").classList.toggle("long", data.title.length > 130);
$("note").textContent = data.note;
if (data.title) document.title = `${data.title} - attention`;
refresh();
})();
