/* panel.js - what is shown of the state: the items of both sides, the maps between them, their mean and its bitmap.
 *
 * Maps of a page without them fill up row by row as these come from the server: rows that came are taken over once a frame. */

/* maps: those that are shown, and that of the mean where it is one of its own; fresh: rows of theirs that have come since the
 * last frame; version: counts what has come. */
let panel = null;
function makePanel() {
  const m = maps[state.kind], heads = Array.isArray(state.heads) ? state.heads : null;
  const key = JSON.stringify([state.kind, state.layer, state.heads, state.rollout, state.words, state.pair, state.view]);
  if (panel && panel.key === key) return;
  const same = panel && panel.m === m && panel.words === state.words;
  const rows = same ? panel.rows : axis(m, 0, state.words), cols = same ? panel.cols : axis(m, 1, state.words);
  let shown = heads || [MEAN];
  if (state.rollout) shown = [ROLLOUT];
  /* a heat map shows the mean only: the single heads need not be decoded */
  else if (state.heads === "all" && (state.view === "lines" || !m.mean)) shown = [...Array(m.heads).keys()].map(h => m.head + h);
  const list = shown.map(head => ({ head, map: weights(m, state.layer, head) })), all = state.heads === "all" && m.mean && !state.rollout;
  const middle = all ? weights(m, state.layer, MEAN) : list.length > 1 ? null : list[0].map;
  panel = { key, m, rows, cols, words: state.words, plain: !state.words && !state.pair, list, middle, maps: [...new Set([...list.map(x => x.map), middle])].filter(Boolean),
    fresh: [], version: 0, theme: null, thumb: `${state.layer}.${shown[0]}` };
  fillPanel();
}
/* The weights between items, of all rows that there are. */
function fillPanel() {
  const p = panel, get = map => filterTypes(merge(map.w, p.rows, p.cols), p.rows, p.cols, state.pair);
  for (const x of p.list) x.w = get(x.map);
  const size = p.rows.length * p.cols.length;
  p.mean = p.middle ? p.list.length === 1 ? p.list[0].w : get(p.middle) : mean(p.list.map(x => x.w), new Float32Array(size), 0, size);
  p.most = Math.max(1e-6, p.plain && p.middle ? p.middle.most : greatest(p.mean));
}

/* Rows of a map have come from the server. */
function arrived(map, from, to) {
  if (!panel || !panel.maps.includes(map)) return;
  panel.fresh.push([from, to]);
  later();
}
function takeFresh() {
  const p = panel, wide = p.cols.length, most = p.most, fresh = p.fresh.splice(0);
  if (!fresh.length) return;
  p.version++;
  if (!p.plain) { fillPanel(); p.theme = null; return; }
  if (p.middle) p.most = Math.max(1e-6, p.middle.most);
  else for (const [from, to] of fresh) {
    mean(p.list.map(x => x.w), p.mean, from * wide, to * wide);
    p.most = Math.max(p.most, greatest(p.mean.subarray(from * wide, to * wide)));
  }
  if (p.most > most) p.theme = null; /* another scale */
  else if (p.theme === isDark()) for (const [from, to] of fresh) paintRows(p.bitmap, p.mean, p.most, from, to);
}

/* Of rows that are still to come the thumbnail, enlarged. */
function panelBitmap() {
  const p = panel, g = grids[p.m.kind];
  if (p.theme === isDark()) return p.bitmap;
  const canvas = p.bitmap = p.bitmap || document.createElement("canvas"), missing = p.maps.some(x => x.have), thumb = missing && g && g.thumbs.get(p.thumb);
  if (canvas.width !== p.cols.length || canvas.height !== p.rows.length) [canvas.width, canvas.height] = [p.cols.length, p.rows.length];
  p.theme = isDark();
  if (!missing || !p.plain) paintRows(canvas, p.mean, p.most, 0, p.rows.length);
  if (!missing) return canvas;
  if (thumb && thumb.bytes && p.plain) canvas.getContext("2d").drawImage(thumb.canvas, 0, 0, canvas.width, canvas.height);
  const { block } = p.maps.find(x => x.have), there = b => p.maps.every(x => !x.have || x.have[b] === 2);
  for (let b = 0; p.plain && b * block < p.rows.length; b++)
    if (there(b)) paintRows(canvas, p.mean, p.most, b * block, Math.min(p.rows.length, (b + 1) * block));
  canvas.version = (canvas.version || 0) + 1;
  return canvas;
}

/* Asks for what the stage shows of the panel's maps: the rows in the window, and all of them for a column. */
function need(win, at) {
  if (!panel.maps.some(map => map.have)) return;
  const n = panel.rows.length, [r0, r1] = state.view === "image" || at && at.side === 1 ? [0, n] : range(win.y - layout.top, win.y + win.h, layout.cell, n);
  if (r1 > r0) for (const map of panel.maps) needRows(map, panel.rows[r0].from, panel.rows[r1 - 1].to);
}
