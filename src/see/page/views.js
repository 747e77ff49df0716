/* views.js - the two views, heat map and lines.
 *
 * A view is laid out once for a panel (what is shown: items of both sides and weights) and a cell size, and then drawn for
 * any window of it: {x, y} scrolled, {w, h} visible.  Only what is inside the window is drawn, so a frame costs the same for
 * 20 tokens and for 2,000.  Labels stay at the edges of the window, as many as do not overlap. */
const LEAST = 0.02;        /* lines below this are not drawn */
const MOST_LINES = 2000;   /* when no token is chosen: the strongest */
const TURN = 50;           /* degrees by which column labels lean */
const SIN = Math.sin(TURN * Math.PI / 180), COS = Math.cos(TURN * Math.PI / 180);

const widest = (items, size, most) => items.reduce((w, t) => Math.max(w, Math.min(most, textWidth(t.text, size))), 0);
const percent = v => v >= 0.0995 ? `${(v * 100).toFixed(0)} %` : v >= 0.00095 ? `${(v * 100).toFixed(1)} %` : `${(v * 100).toPrecision(1)} %`;
const colors = () => ({ ink: css("--ink"), muted: css("--muted"), paper: css("--paper"), held: css("--held"), accent: css("--accent") });

/* Indices of [0,n) that a window shows: those of the cells between two offsets. */
const range = (from, to, cell, n) => [Math.max(0, Math.floor(from / cell)), Math.min(n, Math.ceil(to / cell))];

/* ---- heat map ---- */

function heatLayout(p, cell) {
  const size = Math.max(9, Math.min(13.5, cell * 0.72)), most = cell < 12 ? 100 : 150, number = size * 0.8;
  const left = widest(p.rows, size, most) + textWidth(p.rows[p.rows.length - 1].at, number) + 22;
  const names = Math.max(...[0, p.cols.length - 1].map(j => textWidth(p.cols[j].at, number)));
  const long = widest(p.cols, size, most) + names + 10, top = long * SIN + 18;
  const over = Math.min(cell < 12 ? 50 : 90, long * COS) + 8; /* where the last labels lean to */
  return { view: "heat", cell, size, left, top, most, number, over,
    width: left + p.cols.length * cell + over, height: top + p.rows.length * cell + 10 };
}
/* The cell size at which all of a map is visible. */
function heatFit(p, w, h) {
  let cell = 10;
  for (let k = 0; k < 3; k++) { /* labels grow with cells */
    const l = heatLayout(p, cell);
    cell = Math.max(0.5, Math.min(36, (w - l.left - l.over - 2) / p.cols.length, (h - l.top - 14) / p.rows.length));
  }
  return cell;
}

function heatDraw(s, p, l, win, at) {
  const c = colors(), { cell, left, top, size } = l, wide = p.cols.length, high = p.rows.length;
  const x0 = left - win.x, y0 = top - win.y;
  const [r0, r1] = range(win.y, win.y + win.h - top, cell, high), [c0, c1] = range(win.x, win.x + win.w - left, cell, wide);
  s.clip(left, top, win.w - left, win.h - top, () => {
    s.image(p.bitmap, x0, y0, wide * cell, high * cell, 1, cell < 1);
    if (cell >= 14) {
      const lines = [];
      for (let i = r0; i <= r1; i++) lines.push([x0 + c0 * cell, y0 + i * cell, x0 + c1 * cell, y0 + i * cell]);
      for (let j = c0; j <= c1; j++) lines.push([x0 + j * cell, y0 + r0 * cell, x0 + j * cell, y0 + r1 * cell]);
      s.rules(lines, c.paper);
    }
    if (cell >= 28) heatNumbers(s, p, l, x0, y0, r0, r1, c0, c1);
    if (!at) return;
    const mark = { stroke: c.held, width: 2 };
    if (at.side === 0 || at.j !== undefined) s.box(x0, y0 + at.i * cell, wide * cell, cell, mark);
    if (at.side === 1) s.box(x0 + at.i * cell, y0, cell, high * cell, mark);
    if (at.j !== undefined) s.box(x0 + at.j * cell, y0 + at.i * cell, cell, cell, mark);
  });
  heatLabels(s, p, l, win, at, c, [r0, r1, c0, c1]);
}

function heatNumbers(s, p, l, x0, y0, r0, r1, c0, c1) {
  for (let i = r0; i < r1; i++)
    for (let j = c0; j < c1; j++) {
      const v = p.mean[i * p.cols.length + j];
      if (v < 0.095) continue; /* two digits: what is less is pale enough to see */
      const strong = v > 0.5 * p.most;
      s.text(x0 + (j + 0.5) * l.cell, y0 + (i + 0.5) * l.cell, (v * 100).toFixed(0),
        { size: 10.5, anchor: 0.5, color: strong === isDark() ? "#1b2430" : "#ffffff" });
    }
}

/* Every so many labels that they do not overlap, and always that of the chosen token. */
function heatLabels(s, p, l, win, at, c, [r0, r1, c0, c1]) {
  const { cell, left, top, size, most, number } = l, rowStep = Math.ceil(size * 1.2 / cell), colStep = Math.ceil(size * 1.2 / (cell * SIN));
  const row = at && (at.side === 0 || at.j !== undefined) ? at.i : -1, col = at ? at.j !== undefined ? at.j : at.side === 1 ? at.i : -1 : -1;
  const tone = (t, on) => on ? c.held : t.special ? c.muted : c.ink;
  s.clip(0, top - 7, left, win.h - top + 7, () => {
    for (let i = r0 - r0 % rowStep; i < r1; i += 1) {
      const on = i === row;
      if (!on && (i % rowStep || row >= 0 && Math.abs(i - row) < rowStep && rowStep > 1)) continue;
      const y = top + (i + 0.5) * cell - win.y, t = p.rows[i];
      s.text(left - 8, y, fit(t.text, most, size), { size, anchor: 1, color: tone(t, on), bold: on });
      s.text(4, y, t.at, { size: number, color: c.muted });
    }
  });
  s.clip(left - 6, 0, win.w - left + 6, top, () => {
    for (let j = c0 - c0 % colStep; j < c1; j += 1) {
      const on = j === col;
      if (!on && (j % colStep || col >= 0 && Math.abs(j - col) < colStep && colStep > 1)) continue;
      const x = left + (j + 0.5) * cell - win.x, t = p.cols[j], text = fit(t.text, most, size), w = textWidth(text, size) + 6;
      s.text(x, top - 8, text, { size, angle: -TURN, color: tone(t, on), bold: on });
      s.text(x + w * COS, top - 8 - w * SIN, t.at, { size: number, angle: -TURN, color: c.muted });
    }
  });
}

/* What a point of the window is on. */
function heatHit(p, l, win, x, y) {
  const i = Math.floor((y - l.top + win.y) / l.cell), j = Math.floor((x - l.left + win.x) / l.cell);
  const row = i >= 0 && i < p.rows.length, col = j >= 0 && j < p.cols.length;
  if (x < l.left) return row && y >= l.top ? { side: 0, i } : null;
  if (y >= l.top) return row && col ? { side: 0, i, j } : null;
  /* labels lean: go down along the label to the map */
  const along = Math.floor((x - (l.top - 8 - y) / SIN * COS - l.left + win.x) / l.cell);
  return along >= 0 && along < p.cols.length ? { side: 1, i: along } : null;
}

/* ---- lines ---- */

function linesLayout(p, cell, room) {
  const size = Math.max(9, Math.min(16, cell * 0.62)), most = 180, number = size * 0.8;
  const n = Math.max(p.rows.length, p.cols.length), numbers = textWidth(`${p.rows[p.rows.length - 1].at}`, number) + 14;
  const lw = widest(p.rows, size, most) + numbers + 14, rw = widest(p.cols, size, most) + numbers + 14;
  const between = Math.max(120, Math.min(320, room - lw - rw - 8));
  return { view: "lines", cell, size, most, number, left: lw, right: lw + between, top: 6, width: lw + between + rw, height: n * cell + 14 };
}
const linesDefault = n => n <= 14 ? 34 : n <= 40 ? 26 : 19;
const linesFit = (p, h) => Math.max(0.6, Math.min(34, (h - 16) / Math.max(p.rows.length, p.cols.length)));

/* The strongest lines of a panel, the same number whatever the length of the text.  Of a long one those of the rows [r0,r1)
 * alone, which are near the window: to look through all weights takes seconds, and they need not be there. */
const isLong = p => p.rows.length * p.cols.length * p.list.length > 4e6;
function strongest(p, r0, r1) {
  const key = isLong(p) ? `${p.version} ${r0} ${r1}` : `${p.version}`, wide = p.cols.length, bins = new Uint32Array(1024), edges = [];
  if (p.edges && p.edgesKey === key) return p.edges;
  const from = isLong(p) ? r0 * wide : 0, to = isLong(p) ? r1 * wide : p.rows.length * wide;
  for (const { w } of p.list) for (let k = from; k < to; k++) if (w[k] >= LEAST) bins[w[k] * 1023 | 0]++;
  let bin = 1023, sum = 0;
  while (bin > 0 && sum + bins[bin] <= MOST_LINES) sum += bins[bin--];
  const least = Math.max(LEAST, (bin + 1) / 1023);
  p.list.forEach(({ w }, h) => {
    for (let k = from; k < to; k++) if (w[k] >= least) edges.push({ h, i: Math.floor(k / wide), j: k % wide, v: w[k] });
  });
  p.left_out = bin > 0 && least > LEAST;
  p.edgesKey = key;
  return p.edges = edges;
}
/* Of one token, all lines of any weight that is visible. */
function edgesOf(p, at) {
  const edges = [], wide = p.cols.length, n = at.side ? p.rows.length : wide;
  p.list.forEach(({ w }, h) => {
    for (let k = 0; k < n; k++) {
      const i = at.side ? k : at.i, j = at.side ? at.i : k, v = w[i * wide + j];
      if (v >= 0.005) edges.push({ h, i, j, v });
    }
  });
  return edges;
}

/* Many lines are drawn in LEVELS strengths, those of a strength at once. */
const LEVELS = 12, FEW_LINES = 200;
function drawEdges(s, p, l, win, edges) {
  const n = p.list.length, several = n > 1, line = css("--accent"), { cell } = l, alike = new Map(), many = edges.length > FEW_LINES;
  const spread = Math.min(2.8, 16 / n, cell / n), y = i => l.top + (i + 0.5) * cell - win.y;
  for (const { h, i, j, v } of edges) {
    const aside = (h - (n - 1) / 2) * spread, a = y(i) + aside, b = y(j) + aside; /* heads side by side, not on top of one another */
    if (Math.max(a, b) < -20 || Math.min(a, b) > win.h + 20) continue;
    const strength = many ? (Math.min(LEVELS - 1, Math.floor(v * LEVELS)) + 0.5) / LEVELS : v, key = `${h} ${strength}`;
    if (!alike.has(key)) alike.set(key, { h, strength, list: [] });
    alike.get(key).list.push([l.left + 4 - win.x, a, l.right - 4 - win.x, b]);
  }
  for (const { h, strength, list } of [...alike.values()].sort((a, b) => a.strength - b.strength))
    s.curves(list, several ? headColor(p.list[h].head) : line, 0.7 + (several ? 2.2 : 4) * strength, 0.1 + 0.9 * strength,
      several ? headDash(p.list[h].head) : null);
}

/* base: a function that draws all lines, kept by the caller from frame to frame. */
function linesDraw(s, p, l, win, at, base) {
  const c = colors();
  base(at ? 0.1 : 1);
  if (at) drawEdges(s, p, l, win, edgesOf(p, at));
  [p.rows, p.cols].forEach((items, side) => {
    const step = Math.ceil(l.size * 1.2 / l.cell), [from, to] = range(win.y - l.top, win.y + win.h, l.cell, items.length);
    const mine = at && at.side === side ? at.i : -1, wide = p.cols.length;
    for (let k = from - from % step; k < to; k++) {
      const t = items[k], y = l.top + (k + 0.5) * l.cell - win.y, on = k === mine;
      const v = at && at.side !== side ? p.mean[side ? at.i * wide + k : k * wide + at.i] : 0;
      const text = fit(t.text, l.most, l.size), w = textWidth(text, l.size), x = (side ? l.right + 4 : l.left - 4) - win.x;
      const far = side ? x + w + 8 : x - w - 8;
      if (v >= 0.01) s.box(side ? x - 3 : x - w - 3, y - l.cell * 0.42, w + 6, l.cell * 0.84, { fill: c.accent, alpha: Math.min(1, v) * 0.5 });
      if (!on && (k % step || mine >= 0 && Math.abs(k - mine) < step && step > 1)) continue;
      if (on) s.box(side ? x - 3 : x - w - 3, y - l.size * 0.75, w + 6, l.size * 1.5, { stroke: c.held });
      const dim = at && at.side !== side && v < LEAST;
      s.text(x, y, text, { size: l.size, anchor: side ? 0 : 1, color: t.special ? c.muted : c.ink, alpha: dim ? 0.4 : 1 });
      s.text(far, y, t.at, { size: l.number, anchor: side ? 0 : 1, color: c.muted, alpha: dim ? 0.4 : 0.8 });
    }
  });
}

function linesHit(p, l, win, x, y) {
  const i = Math.floor((y + win.y - l.top) / l.cell), px = x + win.x;
  const side = px < l.left + 10 ? 0 : px > l.right - 10 ? 1 : -1;
  if (side < 0) return null;
  return i >= 0 && i < (side ? p.cols : p.rows).length ? { side, i } : null;
}
