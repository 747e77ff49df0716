/* image.js - the view of a map whose columns are patches of an image: the image under a veil where the chosen token does not look.
 *
 * Beside it stand the tokens that are no patches (the class token, found objects, written words), which are chosen like
 * patches.  Each token has its greatest weight over the patches as its scale. */
const VEIL = 0.86, BLACK = 48, FEW = 5; /* opacity; levels below are black; an image has much of it where a fifth is: as draw/overlay.c */
const TINT = 0.7, TINTED = "#e66100"; /* of a sound, whose spectrogram is white: what is attended to */
const LINE = 22;           /* pixels from one token beside the image to the next */
let photo = null;          /* the image as a canvas, made when it is first shown */
let veil = "#0a1428";      /* over an image with much black a middle blue */
function photograph() {
  if (photo) return photo;
  const [w, h] = data.image.size, bytes = bytesOf("image"), canvas = make("canvas", { width: w, height: h });
  const g = canvas.getContext("2d"), pixels = g.createImageData(w, h);
  let black = 0;
  for (let i = 0; i < w * h; i++) {
    for (let k = 0; k < 3; k++) pixels.data[4 * i + k] = bytes[3 * i + k];
    pixels.data[4 * i + 3] = 255;
    black += Math.max(bytes[3 * i], bytes[3 * i + 1], bytes[3 * i + 2]) < BLACK;
  }
  if (FEW * black > w * h) veil = "#6d80b4";
  g.putImageData(pixels, 0, 0);
  return photo = canvas;
}

/* Rows that are no patches, as indices of panel.rows; the page may hold some of the rows only. */
function besideImage(p) {
  const [at, high, wide] = p.m.rows_grid || [0, 0, 0], first = p.m.first_row, found = new Set((data.image.boxes || []).map(b => b[0]));
  const inside = i => first + i >= at && first + i < at + high * wide;
  /* objects that were not found would be a long list of nothing */
  return [...p.rows.keys()].filter(i => !inside(i) && (!high || first + i < at || !found.size || found.has(first + i)));
}
const rowOfPatch = (p, k) => { const g = p.m.rows_grid; const i = g ? g[0] + k - p.m.first_row : -1; return i >= 0 && i < p.rows.length ? i : -1; };
const patchOfRow = (p, i) => { const g = p.m.rows_grid, k = g ? p.m.first_row + i - g[0] : -1; return g && k >= 0 && k < g[1] * g[2] ? k : -1; };

/* cell: pixels of the stage for one patch */
function imageLayout(p, cell) {
  const [, high, wide] = p.m.cols_grid, [w, h] = data.image.size, left = 6, top = 6;
  const across = wide * cell, down = across * h / w, names = besideImage(p);
  const column = names.length ? widest(names.map(i => p.rows[i]), 14, 220) + 30 : 0;
  return { view: "image", cell, left, top, across, down, ch: down / high, names, at: left + across + 18,
    width: left + across + 18 + column, height: Math.max(top + down, top + names.length * LINE) + 10 };
}
function imageFit(p, room, most) {
  const [, , wide] = p.m.cols_grid, [w, h] = data.image.size, l = imageLayout(p, 1);
  return Math.max(data.image.seconds ? 0.2 : 2, Math.min((room - (l.width - l.across) - 4) / wide, (most - 20) / wide * w / h));
}

/* The token that is shown where none is chosen: the first beside the image, else the middle patch. */
function imageDefault(p, l) {
  if (l.names.length) return l.names[0];
  const [, high, wide] = p.m.cols_grid;
  return Math.max(0, rowOfPatch(p, Math.floor(high / 2) * wide + Math.floor(wide / 2)));
}

function imageDraw(s, p, l, win, at) {
  const c = colors(), [from, high, wide] = p.m.cols_grid, n = p.cols.length, x0 = l.left - win.x, y0 = l.top - win.y;
  const side = at && at.side === 1 ? 1 : 0, row = at && !side ? at.i : imageDefault(p, l);
  s.image(photograph(), x0, y0, l.across, l.down, 1, data.image.size[0] > 64);
  if (!side) {
    let most = 1e-9;
    for (let k = 0; k < high * wide; k++) most = Math.max(most, p.mean[row * n + from + k]);
    for (let k = 0; k < high * wide; k++) {
      const t = p.mean[row * n + from + k] / most, hidden = data.image.seconds ? TINT * t : VEIL * (1 - t), x = x0 + k % wide * l.cell, y = y0 + Math.floor(k / wide) * l.ch;
      if (hidden > 0.004) s.box(x, y, l.cell + 0.3, l.ch + 0.3, { fill: data.image.seconds ? TINTED : veil, alpha: hidden });
    }
  }
  const mark = k => s.box(x0 + k % wide * l.cell, y0 + Math.floor(k / wide) * l.ch, l.cell, l.ch, { stroke: c.held, width: 2.5 });
  if (side) mark(at.i - from);
  else if (patchOfRow(p, row) >= 0) mark(patchOfRow(p, row));
  for (const [r, a, b, d, e] of data.image.boxes)
    if (!side && p.m.rows_grid && r === p.m.first_row + row)
      s.box(x0 + a * l.across, y0 + b * l.down, (d - a) * l.across, (e - b) * l.down, { stroke: c.held, width: 2.5 });
  l.names.forEach((i, k) => {
    const y = y0 + (k + 0.5) * LINE, x = l.at - win.x, on = !side && i === row, v = side ? p.mean[i * n + at.i] / p.most : 0;
    const text = fit(p.rows[i].text, 220, 14), w = textWidth(text, 14);
    if (v > 0.01) s.box(x - 4, y - LINE / 2 + 1, w + 8, LINE - 2, { fill: c.accent, alpha: Math.min(1, v) * 0.5 });
    if (on) s.box(x - 4, y - LINE / 2 + 1, w + 8, LINE - 2, { stroke: c.held });
    s.text(x, y, text, { size: 14, color: c.ink, bold: on });
  });
}

/* A patch is a row where rows are patches, else what written words look at. */
function imageHit(p, l, win, x, y) {
  const px = x + win.x - l.left, py = y + win.y - l.top, [from, high, wide] = p.m.cols_grid;
  const j = Math.floor(px / l.cell), i = Math.floor(py / l.ch);
  if (j >= 0 && j < wide && i >= 0 && i < high) {
    const k = i * wide + j, row = rowOfPatch(p, k);
    return row >= 0 ? { side: 0, i: row } : { side: 1, i: from + k };
  }
  const name = Math.floor(py / LINE);
  return x + win.x >= l.at - 6 && name >= 0 && name < l.names.length ? { side: 0, i: l.names[name] } : null;
}
