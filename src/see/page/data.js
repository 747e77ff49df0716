/* data.js - what the page holds: labels at once, maps decoded when they are shown (or asked for: remote.js).
 *
 * A map is an element of base64 text with 16-bit numbers v; the weight is (v / 65535)^2.  Decoding one of 512 x 512 takes a
 * few milliseconds, so only maps that are shown are decoded, and the last ones are kept. */
const $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const MEAN = -1, ROLLOUT = -2;            /* heads that are no heads */
const KEPT = 96e6;                        /* bytes of decoded maps that are kept */
const maps = {};
for (const m of data.maps) maps[m.kind] = Object.assign(m, { size: m.rows.length * m.cols.length });
const alone = data.maps.length === 1;

function bytesOf(id) {
  const text = $(id).textContent;
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

/* 65536 squares once, instead of a multiplication and a division a weight */
const SQUARES = new Float32Array(65536);
for (let v = 0; v < 65536; v++) SQUARES[v] = (v / 65535) ** 2;

function decode(m, layer, head) {
  const name = head === MEAN ? "mean" : head === ROLLOUT ? "rollout" : head;
  const bytes = bytesOf(`${m.kind}.${layer}.${name}`);
  const v = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length >> 1), out = new Float32Array(m.size);
  const wide = m.cols.length;
  if (!m.triangle) {
    for (let i = 0; i < m.size; i++) out[i] = SQUARES[v[i]];
    return out;
  }
  for (let i = 0, from = 0; i < m.rows.length; i++) {
    const n = m.first_row + i + 1, at = i * wide;
    for (let j = 0; j < n; j++) out[at + j] = SQUARES[v[from + j]];
    from += n;
  }
  return out;
}

/* A map as views read it: weights, the greatest of them, and the rows that are there (null: all). */
const decoded = new Map(); /* in the order of their last use */
function weights(m, layer, head) {
  const key = `${m.kind}.${layer}.${head}`;
  let map = decoded.get(key);
  if (!map) {
    map = data.ask ? remoteMap(m, layer, head) : { w: decode(m, layer, head), have: null };
    if (!map.have) map.most = greatest(map.w);
  }
  decoded.delete(key);
  decoded.set(key, map);
  for (const [old, { w }] of decoded) {
    if (decoded.size * w.byteLength <= KEPT || decoded.size < 14) break;
    decoded.delete(old);
  }
  return map;
}

/* ---- the tokens along a map, or the words they make ---- */

const isSpecial = t => /^(<.+>|\[.+\])$/.test(t);

/* The text of a word: continuations lose their mark, a character cut into tokens ("x 1/2") is written once. */
function joined(parts) {
  return parts.map((t, k) => {
    const cut = /^(.*) (\d)\/(\d)$/.exec(t);
    if (cut) return cut[2] === "1" || k === 0 ? cut[1] : "";
    return k ? t.replace(/^##/, "") : t;
  }).join("");
}

/* Items of one side: {text, from, to (tokens, exclusive), at (position as text), type}. */
function axis(m, side, words) {
  const key = `${side ? "cols" : "rows"}`, texts = m[key], first = side ? 0 : m.first_row;
  const word = words && m[`${key}_words`], type = m[`${key}_types`], items = [];
  for (let i = 0; i < texts.length; i++) {
    if (i && word && word[i] === word[i - 1]) items[items.length - 1].to = i + 1;
    else items.push({ from: i, to: i + 1 });
  }
  for (const t of items) {
    t.text = t.to - t.from > 1 ? joined(texts.slice(t.from, t.to)) : texts[t.from];
    t.at = t.to - t.from > 1 ? `${first + t.from}\u2013${first + t.to - 1}` : `${first + t.from}`;
    t.special = isSpecial(t.text);
    t.type = type ? type[t.from] : 0;
  }
  items.pieces = texts.length;
  return items;
}
const hasWords = m => Boolean(m.rows_words || m.cols_words);
const hasTypes = m => Boolean(m.rows_types && new Set(m.rows_types).size > 1);

/* Weights between words: columns of a word add up, rows of a word are averaged. */
function merge(w, rows, cols) {
  if (rows.length === rows.pieces && cols.length === cols.pieces) return w;
  const out = new Float32Array(rows.length * cols.length), wide = cols.pieces;
  rows.forEach((r, i) => {
    for (let k = r.from; k < r.to; k++)
      for (let j = 0; j < cols.length; j++) {
        let sum = 0;
        for (let x = cols[j].from; x < cols[j].to; x++) sum += w[k * wide + x];
        out[i * cols.length + j] += sum / (r.to - r.from);
      }
  });
  return out;
}

/* Only attention from sentences of one type to another: "00", "01", "10", "11"; "" is everything. */
function filterTypes(w, rows, cols, pair) {
  if (!pair) return w;
  const out = new Float32Array(w.length);
  rows.forEach((r, i) => {
    if (r.type !== Number(pair[0])) return;
    for (let j = 0; j < cols.length; j++) if (cols[j].type === Number(pair[1])) out[i * cols.length + j] = w[i * cols.length + j];
  });
  return out;
}

/* The mean of maps, into out; of the weights [from,to) alone. */
function mean(list, out, from, to) {
  out.fill(0, from, to);
  for (const w of list) for (let i = from; i < to; i++) out[i] += w[i];
  for (let i = from; i < to; i++) out[i] /= list.length;
  return out;
}
