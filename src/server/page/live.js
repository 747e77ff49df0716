/* live.js - the live view: a completion is streamed with probabilities and attention weights, and drawn token by token. */
let tokens = [], running = null, here = -1;

/* ---- tokens ---- */

/* A token: its id and text; of those that were generated also p, top and weights[layer][head]. */
function showToken(i) {
  const t = tokens[i], s = document.createElement('span');
  s.className = 'token' + (t.weights ? ' made' : '');
  s.textContent = t.text;
  if (t.p !== undefined) s.style.setProperty('--p', (1 - t.p).toFixed(3));
  s.dataset.i = i;
  if (t.weights) s.tabIndex = 0;
  t.span = s;
  $('text').append(s);
}

function take(chunk) {
  const c = chunk.choices[0];
  if (!c || !c.logprobs) return;
  const l = c.logprobs, rows = c.attention ? c.attention.rows : [];
  l.tokens.forEach((text, k) => {
    const top = Object.entries(l.top_logprobs[k]).map(([word, lp], n) => ({word, p: Math.exp(lp), id: l.top_ids[k][n]}));
    tokens.push({id: l.token_ids[k], text, p: Math.exp(l.token_logprobs[k]), top, weights: rows[k] ? rows[k].weights : null});
    showToken(tokens.length - 1);
  });
}

/* ---- looking ---- */

/* The weights of a token's row: of one head, or the mean of what "all" stands for. */
function looks(t) {
  const layer = $('layer').value, head = $('head').value, out = [];
  let n = 0;
  t.weights.forEach((heads, l) => heads.forEach((row, h) => {
    if ((layer !== 'all' && +layer !== l) || (head !== 'all' && +head !== h)) return;
    row.forEach((w, j) => { out[j] = (out[j] || 0) + w; });
    n++;
  }));
  return out.map(w => w / n);
}

function look(i) {
  here = i;
  for (const t of tokens) t.span.classList.remove('looked', 'here');
  const t = tokens[i];
  if (!t || !t.weights) return;
  const w = looks(t), most = Math.max(...w);
  t.span.classList.add('here');
  w.forEach((x, j) => {
    if (!tokens[j]) return;
    tokens[j].span.classList.add('looked');
    tokens[j].span.style.setProperty('--w', (x / most * 0.85).toFixed(3));
    tokens[j].span.title = 'weight ' + x.toPrecision(4);
  });
  tell(i, w);
  drawGrid(t);
}

function tell(i, w) {
  const t = tokens[i], about = $('about');
  const best = w.indexOf(Math.max(...w));
  about.textContent = '';
  const p = document.createElement('p');
  p.textContent = `“${t.text}” with probability ${t.p.toFixed(3)}; it attended most to “${tokens[best].text}” (${w[best].toFixed(3)}). It could have been:`;
  const list = document.createElement('ul');
  for (const a of t.top) {
    const item = document.createElement('li'), b = document.createElement('button');
    b.type = 'button';
    b.textContent = `${JSON.stringify(a.word)} ${a.p.toFixed(3)}`;
    b.onclick = () => branch(i, a.id);
    item.append(b);
    list.append(item);
  }
  about.append(p, list);
}

/* One cell for each layer (downwards) and head: the greatest weight in it. */
function drawGrid(t) {
  const c = $('grid'), size = 14, g = c.getContext('2d');
  c.height = t.weights.length * size;
  c.width = t.weights[0].length * size;
  const ink = getComputedStyle(document.body).getPropertyValue('--look');
  t.weights.forEach((heads, l) => heads.forEach((row, h) => {
    g.fillStyle = `rgba(${ink}, ${Math.max(...row).toFixed(3)})`;
    g.fillRect(h * size, l * size, size - 1, size - 1);
  }));
}

/* ---- writing ---- */

async function ids() {
  const model = $('model').value;
  let text = $('prompt').value, special = true;
  if ($('chat').checked) {
    text = (await call('/apply-template', {model, messages: [{role: 'user', content: text}]})).prompt;
    special = false;
  }
  const e = await call('/tokenize', {model, text, add_special_tokens: special});
  return e.tokens.map((id, i) => ({id, text: plain(e.pieces[i])}));
}

async function write(prompt) {
  const m = models.find(x => x.id === $('model').value), most = +$('tokens').value;
  if (running) running.abort();
  running = new AbortController();
  tokens = prompt;
  const before = prompt.length;
  $('text').textContent = $('about').textContent = '';
  tokens.forEach((t, i) => showToken(i));
  /* where all heads of all layers would be too much, the last layer */
  const all = m.layers * m.heads * most * (prompt.length + most) < 3e6;
  choose(all ? m.layers : 1, m.heads);
  $('status').textContent = 'writing …';
  $('stop').disabled = false;
  try {
    await stream('/v1/completions', {
      model: m.id, prompt: prompt.map(t => t.id), max_tokens: most, temperature: +$('temperature').value,
      seed: +$('seed').value, stream: true, logprobs: 8,
      attention: {layers: all ? 'all' : -1, heads: 'all', rows: 'generated'},
    }, running.signal, take);
    $('status').textContent = `${tokens.length - before} tokens written`;
  } catch (e) {
    $('status').textContent = e.name === 'AbortError' ? 'stopped' : e.message;
  }
  $('stop').disabled = true;
  if (current === live) offerSaving();
}

/* Goes on from another token in the place of one that was chosen. */
function branch(i, id) {
  const kept = tokens.slice(0, i).map(t => ({...t}));
  const word = tokens[i].top.find(a => a.id === id).word;
  write([...kept, {id, text: word}]);
}

function choose(layers, heads) {
  for (const [name, n] of [['layer', layers], ['head', heads]]) {
    const s = $(name), was = s.value;
    s.textContent = '';
    s.append(new Option('all (mean)', 'all'));
    for (let i = 0; i < n; i++) s.append(new Option(String(i), String(i)));
    s.value = [...s.options].some(o => o.value === was) ? was : 'all';
  }
}

/* What is saved of it: the text as it is shaded now, and of every written token all that came with it. */
function offerSaving() {
  const weights = () => here >= 0 && tokens[here] && tokens[here].weights ? looks(tokens[here]) : [];
  showText('live', () => {
    const w = weights(), most = Math.max(1e-9, ...w);
    return wordsPicture(tokens.map((t, j) => [t.text, w[j] ? w[j] / most * 0.85 : 0, j === here]), 'A text that a model has written');
  }, () => tokens.map(({id, text, p, top, weights: all}) => ({id, text, probability: p, alternatives: top, weights: all})));
}

/* ---- the view ---- */

function offer() {
  const m = models.find(x => x.id === $('model').value);
  if (!m) return;
  $('chat').disabled = !m.tasks.includes('chat');
  $('chat').checked = m.tasks.includes('chat');
  choose(m.layers, m.heads);
}

async function send() {
  try {
    await write(await ids());
  } catch (err) {
    $('status').textContent = err.message;
  }
}

/* The address carries the state, so that a view can be shared: #prompt=..&seed=..&look=12&go=1 */
const LIVE = ['model', 'prompt', 'tokens', 'temperature', 'seed', 'layer', 'head'];

const live = {
  name: 'live', title: 'Live',
  begin() {
    const writers = models.filter(m => m.tasks.includes('completions'));
    for (const m of writers) $('model').append(new Option(m.id, m.id));
    if (!writers.length) $('status').textContent = 'No model that writes text is served.';
    $('go').disabled = !writers.length;
    offer();
  },
  state() {
    const state = Object.fromEntries(LIVE.map(k => [k, $(k).value]));
    if (here >= 0) state.look = here;
    return {...state, chat: $('chat').checked ? 1 : 0, go: tokens.length ? 1 : undefined};
  },
  async restore(state) {
    for (const k of LIVE) if (state.has(k) && k !== 'layer' && k !== 'head') $(k).value = state.get(k);
    offer();
    if (state.has('chat')) $('chat').checked = state.get('chat') === '1';
    if (!state.has('go') || $('go').disabled) return;
    await send();
    for (const k of ['layer', 'head']) if (state.has(k)) $(k).value = state.get(k);
    if (state.has('look')) look(+state.get('look'));
  },
};

$('ask').onsubmit = e => {
  e.preventDefault();
  here = -1;
  send().then(keep);
};
$('stop').onclick = () => running && running.abort();
$('model').onchange = offer;
$('layer').onchange = $('head').onchange = () => { look(here); keep(); };
$('text').addEventListener('click', () => keep());
for (const event of ['pointerover', 'focusin'])
  $('text').addEventListener(event, e => e.target.dataset.i && look(+e.target.dataset.i));
