/* palette.js - colours, and maps as bitmaps.  The colours come with the data: pictures have the same. */
const isDark = () => document.documentElement.dataset.theme === "dark";
const headColor = h => data.heads[h % data.heads.length];
const DASHES = [[], [7, 4], [2, 3]]; /* heads beyond the colours there are */
const headDash = h => DASHES[Math.floor(h / data.heads.length) % DASHES.length];
const byRoot = columns => columns > 40; /* in large maps weights are small */

/* 256 shades as pixels (little-endian RGBA), made once a theme. */
const tables = {};
function shades() {
  const name = isDark() ? "dark" : "light";
  if (tables[name]) return tables[name];
  const stops = data[name].map(hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)));
  const out = new Uint32Array(256);
  for (let t = 0; t < 256; t++) {
    const at = t / 255 * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at)), f = at - i;
    const [r, g, b] = [0, 1, 2].map(k => Math.round(stops[i][k] + f * (stops[i + 1][k] - stops[i][k])));
    out[t] = (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  }
  tables[name] = out;
  return out;
}
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function paint(canvas, wide, high, shadeOf) {
  canvas.width = wide;
  canvas.height = high;
  const g = canvas.getContext("2d"), image = g.createImageData(wide, high);
  const pixels = new Uint32Array(image.data.buffer), table = shades();
  for (let i = 0; i < pixels.length; i++) pixels[i] = table[shadeOf(i)];
  g.putImageData(image, 0, 0);
  return canvas;
}

function greatest(w) {
  let most = 1e-6;
  for (let i = 0; i < w.length; i++) if (w[i] > most) most = w[i];
  return most;
}

/* Rows [from,to) of weights, one pixel each, onto a canvas of the whole map; its version counts what was painted. */
function paintRows(canvas, w, most, from, to) {
  const wide = canvas.width, g = canvas.getContext("2d"), table = shades(), root = byRoot(wide), step = Math.max(1, Math.floor(1048576 / wide));
  for (let at = from; at < to; at += step) { /* pixels are copied: not of a whole large map at once */
    const n = Math.min(step, to - at), image = g.createImageData(wide, n), pixels = new Uint32Array(image.data.buffer), first = at * wide;
    for (let i = 0; i < pixels.length; i++) {
      const t = Math.min(1, w[first + i] / most);
      pixels[i] = table[(root ? Math.sqrt(t) : t) * 255 | 0];
    }
    g.putImageData(image, 0, at);
  }
  canvas.version = (canvas.version || 0) + 1;
}
