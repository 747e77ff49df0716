/* api.js - the server as the page calls it, and what every view is made of.  Nothing is fetched but from this server. */
'use strict';
const $ = id => document.getElementById(id);
let models = [];

/* An answer, or its error as an exception.  Where the server wants an API key the page asks for one and keeps it for as long as the
 * tab is open; the page in the frame reads it from there, too. */
async function ask(path, body, signal) {
  const key = sessionStorage.getItem('fovea-key'), headers = key ? {Authorization: `Bearer ${key}`} : {};
  const r = await fetch(path, body ? {method: 'POST', body: JSON.stringify(body), headers, signal} : {headers});
  if (r.ok) return r;
  if (r.status === 401) $('key').hidden = false;
  const said = await r.json().catch(() => null); /* a proxy in front answers in its own words */
  throw new Error(said && said.error ? said.error.message : `status ${r.status} ${r.statusText}`);
}
const call = async (path, body) => (await ask(path, body)).json();

$('key').onsubmit = e => {
  e.preventDefault();
  sessionStorage.setItem('fovea-key', $('key-value').value);
  location.reload();
};

/* Calls take(chunk) for every event of a stream. */
async function stream(path, body, signal, take) {
  const reader = (await ask(path, body, signal)).body.getReader(), text = new TextDecoder();
  for (let rest = ''; ;) {
    const {value, done} = await reader.read();
    if (done) return;
    const lines = (rest + text.decode(value, {stream: true})).split('\n\n');
    rest = lines.pop();
    for (const line of lines) {
      const data = line.slice(6);
      if (data === '[DONE]') return;
      const j = JSON.parse(data);
      if (j.error) throw new Error(j.error.message);
      take(j);
    }
  }
}

/* ---- elements ---- */

function put(e, attributes, children) {
  for (const [k, v] of Object.entries(attributes || {})) {
    if (k.startsWith('on')) e[k] = v;
    else if (v !== false && v !== undefined) e.setAttribute(k, v === true ? '' : v);
  }
  e.append(...children.flat().filter(c => c !== null && c !== undefined));
  return e;
}
const make = (name, attributes, ...children) => put(document.createElement(name), attributes, children);
const SVG = 'http://www.w3.org/2000/svg';
const draw = (name, attributes, ...children) => put(document.createElementNS(SVG, name), attributes, children);

/* A drawing of w x h that shrinks with the page; what it shows is said in words too. */
/* On a phone it shrinks as far as its words can be read, and is scrolled from there on. */
const picture = (w, h, label, ...children) =>
  draw('svg', {viewBox: `0 0 ${w} ${h}`, width: w, height: h, style: `min-width:${Math.round(0.75 * w)}px`, role: 'img', 'aria-label': label, xmlns: SVG, 'font-family': 'system-ui, sans-serif'},
       draw('title', {}, label), ...children);

const digits = x => x === null || x === undefined ? '-' : Number(x).toPrecision(4);
const plain = piece => piece.replace(/[▁Ġ]/g, ' ').replace(/Ċ/g, '\n');
/* From paper to a colour, by a number between 0 and 1; below 0: to another colour. */
const shade = x => x >= 0 ? `rgba(214, 96, 10, ${Math.min(1, x).toFixed(3)})` : `rgba(20, 110, 190, ${Math.min(1, -x).toFixed(3)})`;

/* ---- saving ---- */

/* What the view shows: its drawing, or what makes one of a text that is shown as such, and its numbers. */
const shown = {name: '', svg: null, make: null, numbers: null};

function show(name, box, svg, numbers) {
  Object.assign(shown, {name, svg, make: null, numbers});
  if (svg) box.replaceChildren(svg);
  $('save').hidden = !svg;
}

function showText(name, make, numbers) {
  Object.assign(shown, {name, svg: null, make, numbers});
  $('save').hidden = false;
}

/* Words on lines: [text, shade between -1 and 1, whether it is framed]. */
function wordsPicture(words, label) {
  const parts = [], wide = 760;
  let x = 10, y = 26;
  for (const [word, w, framed] of words) {
    const room = 8.6 * [...word].length + 4, breaks = word.includes('\n');
    if (x + room > wide || breaks) { x = 10; y += 28; }
    if (w || framed) parts.push(draw('rect', {x: x - 1, y: y - 16, width: room, height: 22, rx: 3, fill: w ? shade(w) : 'none', stroke: framed ? 'currentColor' : 'none'}));
    parts.push(draw('text', {x, y, 'font-size': 14, 'font-family': 'monospace', 'xml:space': 'preserve', fill: 'currentColor'}, word.replace(/\n/g, '')));
    x += room;
  }
  return picture(wide + 20, y + 16, label, parts);
}

function download(data, ending) {
  const a = make('a', {download: `${shown.name}.${ending}`, href: data});
  document.body.append(a);
  a.click();
  a.remove();
}

/* The drawing alone: colours that come from the page's style are written into it. */
function svgText() {
  if (shown.make) shown.svg = shown.make();
  const copy = shown.svg.cloneNode(true), ink = getComputedStyle(document.body).color;
  copy.setAttribute('color', ink);
  for (const e of copy.querySelectorAll('[fill=currentColor], [stroke=currentColor]'))
    for (const k of ['fill', 'stroke']) if (e.getAttribute(k) === 'currentColor') e.setAttribute(k, ink);
  return new XMLSerializer().serializeToString(copy);
}

async function pngData() {
  const text = svgText(), image = new Image(), box = shown.svg.viewBox.baseVal, canvas = make('canvas', {width: 2 * box.width, height: 2 * box.height});
  image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(text);
  await image.decode();
  canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL();
}

$('save-svg').onclick = () => download('data:image/svg+xml;charset=utf-8,' + encodeURIComponent(svgText()), 'svg');
$('save-png').onclick = async () => download(await pngData(), 'png');
$('save-numbers').onclick = () => download('data:application/json;charset=utf-8,' + encodeURIComponent(JSON.stringify(typeof shown.numbers === 'function' ? shown.numbers() : shown.numbers)), 'json');
