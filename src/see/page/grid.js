/* grid.js - one small map for each layer and head.  A grid is built once for a kind; its thumbnails come pooled with the
 * data, or from the server, and are painted once for a theme.  Choosing a map only moves the frame. */
function make(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

const grids = {};
const columnsOf = m => [...Array(m.heads).keys()].map(h => m.head + h).concat(m.mean ? [MEAN] : []);
const headName = h => h === MEAN ? "mean" : `head ${h}`;

function buildGrid(m) {
  const box = make("div", { class: "cells" }), heads = columnsOf(m), cells = new Map(), pictures = [];
  const bytes = data.ask ? null : bytesOf(`${m.kind}.thumbs`), size = m.thumb[0] * m.thumb[1];
  const perLayer = m.heads + (m.mean ? 1 : 0) + (m.rollout ? 1 : 0), thumbs = new Map();
  box.style.gridTemplateColumns = `max-content repeat(${heads.length}, minmax(0, 3.4rem))`;
  box.append(make("span", { class: "name corner" }, "head"));
  for (const h of heads) box.append(make("span", { class: "name" }, h === MEAN ? "mean" : `${h}`));
  for (let k = 0; k < m.layers; k++) {
    const layer = m.layer + k;
    const all = make("button", { type: "button", class: "all", title: `all heads of layer ${layer}, in colours` }, `layer ${layer}`);
    box.append(all);
    cells.set(`${layer}.all`, listen(all, m, layer, "all"));
    heads.forEach((h, x) => {
      const canvas = make("canvas", {}), b = make("button", { type: "button", "aria-label": `layer ${layer}, ${headName(h)}`, title: `layer ${layer}, ${headName(h)}` }, canvas);
      const from = (k * perLayer + x) * size, thumb = { canvas, bytes: bytes && bytes.subarray(from, from + size) };
      [canvas.width, canvas.height] = m.thumb;
      thumb.paint = () => { if (thumb.bytes) paint(canvas, m.thumb[0], m.thumb[1], i => thumb.bytes[i]); };
      thumbs.set(`${layer}.${h}`, thumb);
      pictures.push(thumb.paint);
      box.append(b);
      cells.set(`${layer}.${h === MEAN ? "mean" : h}`, listen(b, m, layer, h === MEAN ? "mean" : h));
    });
  }
  if (data.ask) {
    const shown = state.layer, order = [...Array(m.layers).keys()].map(k => m.layer + k).sort((a, b) => Math.abs(a - shown) - Math.abs(b - shown));
    needThumbs(m, order, (layer, head, v) => {
      const thumb = thumbs.get(`${layer}.${head}`);
      thumb.bytes = v;
      thumb.paint();
    });
  }
  return { box, cells, pictures, theme: null, pressed: [], thumbs };
}

/* Arrow keys move through the grid; with Shift, Ctrl or Cmd a click adds a head or takes it away. */
function listen(b, m, layer, head) {
  b.tabIndex = -1;
  b.setAttribute("aria-pressed", "false");
  b.addEventListener("click", e => choose(layer, head, e.shiftKey || e.ctrlKey || e.metaKey));
  b.addEventListener("keydown", e => {
    const order = ["all", ...columnsOf(m).map(h => h === MEAN ? "mean" : h)], at = order.indexOf(head);
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
    if (!step) return;
    e.preventDefault();
    const to = order[at + step[1]], next = layer + step[0];
    if (to === undefined || next < m.layer || next >= m.layer + m.layers) return;
    choose(next, to, false);
    grids[m.kind].cells.get(`${next}.${to}`).focus();
  });
  return b;
}

function showGrid() {
  const m = maps[state.kind], g = grids[m.kind] = grids[m.kind] || buildGrid(m), theme = isDark();
  if ($("grid").firstChild !== g.box) $("grid").replaceChildren(g.box);
  if (g.theme !== theme) {
    for (const p of g.pictures) p();
    g.theme = theme;
  }
  for (const b of g.pressed) { b.setAttribute("aria-pressed", "false"); b.tabIndex = -1; }
  const heads = state.rollout ? ["mean"] : Array.isArray(state.heads) ? state.heads : [state.heads];
  g.pressed = heads.map(h => g.cells.get(`${state.layer}.${h}`)).filter(Boolean);
  for (const b of g.pressed) b.setAttribute("aria-pressed", "true");
  (g.pressed[0] || g.cells.values().next().value).tabIndex = 0;
}
