/* remote.js - maps of a page that came without them: the server that made the page is asked, for what is shown.
 *
 * Thumbnails come a layer at a time, pooled by the server; of the chosen maps come the rows that the stage shows, in blocks of
 * about a megabyte of f32 (safetensors).  So 2,000 tokens of 12 x 12 heads, more than two gigabytes, cost what is looked at.
 * The server works for one page's request at a time, so no more than two are under way, and of those that wait the latest
 * goes first: it is what is on the screen now.  Rows before thumbnails, which wait while the reader moves or scrolls: on a machine
 * that serves itself their computing would take the frames' time. */
const ABREAST = 2, WEIGHTS = 262144; /* requests under way; weights in a block of rows */
const rowsWanted = [], thumbsWanted = [];
const STILL = 300; /* milliseconds after the last move */
let asking = 0, failure = "", moved = -STILL, waking = 0;
for (const name of ["pointermove", "wheel", "scroll", "keydown"]) addEventListener(name, () => { moved = performance.now(); }, { capture: true, passive: true });

async function ask(m, layer, head, more) {
  const attention = { layers: [layer] }, body = { ...data.ask, kind: m.kind, format: "safetensors", attention, ...more };
  if (head === ROLLOUT) body.through = "rollout";
  else attention.heads = head === MEAN ? "mean" : head === "all" ? "all" : [head];
  const key = sessionStorage.getItem("fovea-key"), headers = key ? { Authorization: `Bearer ${key}` } : {}; /* of the page around */
  const r = await fetch("/v1/attention", { method: "POST", body: JSON.stringify(body), headers });
  if (!r.ok) {
    const said = await r.json().catch(() => null); /* a proxy in front answers in its own words */
    throw new Error(said && said.error ? said.error.message : `status ${r.status} ${r.statusText}`);
  }
  const bytes = await r.arrayBuffer(), n = Number(new DataView(bytes).getBigUint64(0, true));
  return new Float32Array(bytes, 8 + n);
}

function next() {
  const rest = moved + STILL - performance.now();
  if (!rowsWanted.length && thumbsWanted.length && rest > 0) {
    clearTimeout(waking);
    waking = setTimeout(next, rest);
    return;
  }
  for (; asking < ABREAST && rowsWanted.length + thumbsWanted.length; asking++) {
    if (!rowsWanted.length && asking) return; /* one at a time */
    const job = rowsWanted.pop() || thumbsWanted.shift();
    job().then(() => { failure = ""; }, e => { failure = e.message; $("hint").textContent = failure; }).finally(() => { asking--; next(); });
  }
}

/* ---- rows ---- */

/* have: 0 not asked for, 1 asked for, 2 there; one a block of rows. */
function remoteMap(m, layer, head) {
  const rows = m.rows.length, block = head === ROLLOUT ? rows : Math.max(1, Math.min(rows, Math.floor(WEIGHTS / m.cols.length)));
  return { m, layer, head, w: new Float32Array(m.size), most: 0, block, have: new Uint8Array(Math.ceil(rows / block)), left: Math.ceil(rows / block) };
}

/* Asks for the rows [from,to) of a map, as far as they are not there. */
function needRows(map, from, to) {
  if (!map.have) return;
  for (let b = Math.ceil(Math.min(to, map.m.rows.length) / map.block) - 1; b >= 0 && (b + 1) * map.block > from; b--) {
    if (map.have[b]) continue;
    map.have[b] = 1;
    rowsWanted.push(() => fetchBlock(map, b));
  }
  next();
}

async function fetchBlock(map, b) {
  const { m } = map, from = b * map.block, to = Math.min(m.rows.length, from + map.block);
  try {
    const w = await ask(m, map.layer, map.head, { rows: [from, to] });
    map.w.set(w, from * m.cols.length);
    map.most = Math.max(map.most, greatest(w));
  } catch (e) {
    map.have[b] = 0;
    throw e;
  }
  map.have[b] = 2;
  if (!--map.left) map.have = null;
  arrived(map, from, to);
}

/* When all of some maps is there: for what is saved. */
function whole(list) {
  for (const map of list) needRows(map, 0, map.w.length);
  return new Promise(done => {
    const look = () => { if (failure || list.every(map => !map.have)) done(); else setTimeout(look, 20); };
    look();
  });
}

/* ---- thumbnails ---- */

/* Those of a layer, as bytes by head, when they have come: take(head, bytes). */
function needThumbs(m, layers, take) {
  const one = head => layer => async () => {
    const all = await ask(m, layer, head, { pool: Math.max(...m.thumb) }), size = m.thumb[0] * m.thumb[1];
    for (let h = 0; h * size < all.length; h++) {
      const w = all.subarray(h * size, (h + 1) * size), most = greatest(w), root = byRoot(m.cols.length);
      take(layer, head === MEAN ? MEAN : m.head + h, Uint8Array.from(w, x => 255 * (root ? Math.sqrt(x / most) : x / most) + 0.5));
    }
  };
  thumbsWanted.push(...layers.map(one("all")), ...(m.mean ? layers.map(one(MEAN)) : []));
  next();
}
