/* surface.js - the few shapes that views draw, on a canvas or as SVG: what is saved is what is shown. */
const FONT = 'Inter, "Source Sans 3", "Noto Sans", system-ui, sans-serif';
const fontOf = (size, bold) => `${bold ? "600 " : ""}${size}px ${FONT}`;

const ruler = document.createElement("canvas").getContext("2d");
const widths = new Map();
function textWidth(text, size) {
  let w = widths.get(text);
  if (w === undefined) {
    ruler.font = fontOf(100);
    widths.set(text, w = ruler.measureText(text).width / 100);
  }
  return w * size;
}

/* Leaves out the middle of a text that is wider than it may be. */
function fit(text, width, size) {
  if (textWidth(text, size) <= width) return text;
  const c = [...text];
  let keep = Math.max(2, Math.floor(c.length * width / textWidth(text, size)) - 1);
  return c.slice(0, Math.ceil(keep / 2)).join("") + "\u2026" + c.slice(c.length - Math.floor(keep / 2)).join("");
}

/* The same by words; a single word that is too wide loses its middle. */
function fitWords(text, width, size) {
  const word = text.split(" ");
  for (let kept = word.length; kept >= 2; kept--) {
    const cut = kept === word.length ? text : [...word.slice(0, Math.ceil(kept / 2)), "\u2026", ...word.slice(word.length - Math.floor(kept / 2))].join(" ");
    if (textWidth(cut, size) <= width) return cut;
  }
  return fit(text, width, size);
}

/* A bitmap made smaller, kept as long as it does not change: 2,000 x 2,000 pixels are too many to go through in each frame. */
const small = new WeakMap();
function shrunk(canvas, w, h) {
  const kept = small.get(canvas) || new Map(), key = `${w}x${h}`;
  let one = kept.get(key);
  if (!one || one.version !== canvas.version) {
    if (kept.size > 3) kept.clear();
    one = one || document.createElement("canvas");
    [one.width, one.height, one.version] = [w, h, canvas.version];
    one.getContext("2d").drawImage(canvas, 0, 0, w, h);
    kept.set(key, one);
    small.set(canvas, kept);
  }
  return one;
}

class CanvasSurface {
  constructor(canvas, width, height, scale) {
    Object.assign(this, { canvas, width, height, scale });
    const w = Math.round(width * scale), h = Math.round(height * scale);
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    this.g = canvas.getContext("2d");
    this.g.setTransform(scale, 0, 0, scale, 0, 0);
    this.g.clearRect(0, 0, width, height);
  }
  clip(x, y, w, h, draw) {
    const g = this.g;
    g.save();
    g.beginPath();
    g.rect(x, y, w, h);
    g.clip();
    draw();
    g.restore();
  }
  image(canvas, x, y, w, h, alpha = 1, smooth = false) {
    const g = this.g;
    g.globalAlpha = alpha;
    g.imageSmoothingEnabled = smooth;
    const sx = canvas.width / w, sy = canvas.height / h;
    if (smooth && sx > 1.01 * this.scale) g.drawImage(shrunk(canvas, Math.max(1, Math.round(w * this.scale)), Math.max(1, Math.round(h * this.scale))), x, y, w, h);
    else { /* of a bitmap that is larger than the surface what is inside it */
      const a = Math.max(0, Math.floor(-x * sx)), b = Math.min(canvas.width, Math.ceil((this.width - x) * sx));
      const c = Math.max(0, Math.floor(-y * sy)), d = Math.min(canvas.height, Math.ceil((this.height - y) * sy));
      if (b > a && d > c) g.drawImage(canvas, a, c, b - a, d - c, x + a / sx, y + c / sy, (b - a) / sx, (d - c) / sy);
    }
    g.globalAlpha = 1;
  }
  curve(x0, y0, x1, y1, color, width, alpha, dash) {
    const g = this.g, mid = (x0 + x1) / 2;
    g.globalAlpha = alpha;
    g.strokeStyle = color;
    g.lineWidth = width;
    g.setLineDash(dash || []);
    g.beginPath();
    g.moveTo(x0, y0);
    g.bezierCurveTo(mid, y0, mid, y1, x1, y1);
    g.stroke();
    g.globalAlpha = 1;
  }
  curves(list, color, width, alpha, dash) { /* [x0, y0, x1, y1] each: stroked as one path, which is many times as fast */
    const g = this.g;
    g.globalAlpha = alpha;
    g.strokeStyle = color;
    g.lineWidth = width;
    g.setLineDash(dash || []);
    g.beginPath();
    for (const [x0, y0, x1, y1] of list) {
      const mid = (x0 + x1) / 2;
      g.moveTo(x0, y0);
      g.bezierCurveTo(mid, y0, mid, y1, x1, y1);
    }
    g.stroke();
    g.globalAlpha = 1;
  }
  rules(lines, color) { /* [x0, y0, x1, y1] each */
    const g = this.g;
    g.strokeStyle = color;
    g.lineWidth = 1;
    g.setLineDash([]);
    g.beginPath();
    for (const [x0, y0, x1, y1] of lines) { g.moveTo(x0, y0); g.lineTo(x1, y1); }
    g.stroke();
  }
  box(x, y, w, h, { fill, stroke, alpha = 1, width = 1.5 }) {
    const g = this.g;
    g.globalAlpha = alpha;
    if (fill) { g.fillStyle = fill; g.fillRect(x, y, w, h); }
    g.globalAlpha = 1;
    if (stroke) { g.strokeStyle = stroke; g.lineWidth = width; g.setLineDash([]); g.strokeRect(x, y, w, h); }
  }
  /* anchor: 0 left, 0.5 middle, 1 right; y is the middle of the line; angle in degrees */
  text(x, y, text, { size, color, anchor = 0, angle = 0, bold = false, alpha = 1 }) {
    const g = this.g;
    g.font = fontOf(size, bold);
    g.fillStyle = color;
    g.globalAlpha = alpha;
    g.textBaseline = "middle";
    g.textAlign = ["left", "center", "right"][anchor * 2];
    if (!angle) g.fillText(text, x, y);
    else {
      g.save();
      g.translate(x, y);
      g.rotate(angle * Math.PI / 180);
      g.fillText(text, 0, 0);
      g.restore();
    }
    g.globalAlpha = 1;
  }
}

const escapeXml = t => t.replace(/[<>&"]/g, c => ({ "<": "&lt;", ">": "&gt;", "&": "&amp;", '"': "&quot;" })[c]);
const round = x => Math.round(x * 100) / 100;

class SvgSurface {
  constructor(width, height) {
    this.out = [`<svg xmlns="http://www.w3.org/2000/svg" width="${round(width)}" height="${round(height)}" viewBox="0 0 ${round(width)} ${round(height)}" font-family='${FONT}'>`];
    this.clips = 0;
  }
  clip(x, y, w, h, draw) {
    const id = `c${this.clips++}`;
    this.out.push(`<clipPath id="${id}"><rect x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}"/></clipPath><g clip-path="url(#${id})">`);
    draw();
    this.out.push("</g>");
  }
  image(canvas, x, y, w, h, alpha = 1) {
    this.out.push(`<image x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}" opacity="${alpha}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${canvas.toDataURL()}"/>`);
  }
  curve(x0, y0, x1, y1, color, width, alpha, dash) {
    const mid = round((x0 + x1) / 2), more = dash && dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    this.out.push(`<path d="M${round(x0)} ${round(y0)}C${mid} ${round(y0)} ${mid} ${round(y1)} ${round(x1)} ${round(y1)}" fill="none" stroke="${color}" stroke-width="${round(width)}" stroke-opacity="${round(alpha)}"${more}/>`);
  }
  curves(list, ...how) { for (const [x0, y0, x1, y1] of list) this.curve(x0, y0, x1, y1, ...how); }
  rules(lines, color) {
    this.out.push(`<path d="${lines.map(l => `M${round(l[0])} ${round(l[1])}L${round(l[2])} ${round(l[3])}`).join("")}" stroke="${color}"/>`);
  }
  box(x, y, w, h, { fill, stroke, alpha = 1, width = 1.5 }) {
    this.out.push(`<rect x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}" fill="${fill || "none"}" fill-opacity="${alpha}"${stroke ? ` stroke="${stroke}" stroke-width="${width}"` : ""}/>`);
  }
  text(x, y, text, { size, color, anchor = 0, angle = 0, bold = false, alpha = 1 }) {
    const turn = angle ? ` transform="rotate(${angle} ${round(x)} ${round(y)})"` : "";
    this.out.push(`<text x="${round(x)}" y="${round(y)}" dy="0.35em" font-size="${size}" fill="${color}" opacity="${alpha}" text-anchor="${["start", "middle", "end"][anchor * 2]}"${bold ? ' font-weight="600"' : ""}${turn}>${escapeXml(text)}</text>`);
  }
  end() { return this.out.join("\n") + "\n</svg>\n"; }
}
