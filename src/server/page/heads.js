/* heads.js - what heads do (entropy, previous, first, induction), heads switched off, and the neurons of one. */

const MEASURES = {
  entropy: 'Entropy of the weights, in nats: pale heads look at one token, strong colours at many',
  previous: 'Weight of the token before',
  first: 'Weight of the first token',
  self: 'Weight of the token itself',
  induction: 'Weight of what followed an earlier occurrence of the token',
};

const heads = {
  name: 'heads', title: 'Heads', what: 'What each head does with a text. A click switches a head off, and the next token is predicted without it; a double click shows its neurons.',
  fields: {model: 'model', input: 'text', measure: Object.keys(MEASURES), off: 'hidden', neuron: 'hidden', row: 'hidden'},
  tasks: m => !m.tasks.includes('translate'),
  value: {input: 'Lily saw a cat. Lily saw a dog'},

  async go(f) {
    const {model, input} = f.values();
    heads.data = await call('/v1/heads', {model, input});
    heads.paint(f);
    await heads.ablate(f);
    await heads.neurons(f);
  },
  changed(f, name) {
    if (name === 'measure' && heads.data) heads.paint(f);
  },

  off: f => new Set((f.get('off') || '').split(' ').filter(Boolean)),

  paint(f) {
    const table = heads.data[f.get('measure')], off = heads.off(f), H = table[0].length, L = table.length, size = 34, left = 60, top = 40;
    const most = Math.max(1e-9, ...table.flat()), cells = [];
    for (let h = 0; h < H; h++) cells.push(draw('text', {x: left + h * size + size / 2, y: top - 8, 'text-anchor': 'middle', 'font-size': 12, fill: 'currentColor'}, h));
    table.forEach((row, l) => {
      cells.push(draw('text', {x: left - 8, y: top + l * size + size / 2 + 4, 'text-anchor': 'end', 'font-size': 12, fill: 'currentColor'}, `layer ${l}`));
      row.forEach((x, h) => {
        const name = `${l}.${h}`, silent = off.has(name), at = {x: left + h * size, y: top + l * size};
        cells.push(draw('g', {class: 'head', 'data-head': name, 'data-value': x, tabindex: 0, role: 'button', 'aria-pressed': String(silent), 'aria-label': `layer ${l}, head ${h}: ${digits(x)}${silent ? ', off' : ''}`,
                              onclick: e => heads.toggle(f, name, e), ondblclick: () => heads.pick(f, name), onkeydown: e => heads.key(f, name, e)},
          draw('title', {}, `layer ${l}, head ${h}: ${digits(x)}`),
          draw('rect', {...at, width: size - 2, height: size - 2, fill: shade(x / most), stroke: f.get('neuron') === name ? 'currentColor' : 'rgba(128,128,128,.4)'}),
          silent ? draw('path', {d: `M${at.x + 4} ${at.y + 4}l${size - 10} ${size - 10}m0 ${10 - size}l${10 - size} ${size - 10}`, stroke: 'currentColor', 'stroke-width': 2}) : null));
      });
    });
    const svg = picture(left + H * size + 10, top + L * size + 10, MEASURES[f.get('measure')], cells);
    show('heads', f.box('map'), svg, heads.data);
    f.box('map').append(make('p', {class: 'what'}, MEASURES[f.get('measure')]));
  },

  /* A double click is two clicks: they switch off and on again. */
  async toggle(f, name) {
    const off = heads.off(f);
    off[off.has(name) ? 'delete' : 'add'](name);
    f.set('off', [...off].join(' '));
    heads.paint(f);
    await f.guard(() => heads.ablate(f));
  },
  async pick(f, name) {
    f.set('neuron', name);
    heads.paint(f);
    await f.guard(() => heads.neurons(f));
  },
  key(f, name, e) {
    if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); heads.toggle(f, name); }
    if (e.key === 'n') heads.pick(f, name);
  },

  async ablate(f) {
    const off = [...heads.off(f)].map(x => x.split('.').map(Number)), {model, input} = f.values(), box = f.box('ablation');
    if (!off.length) { box.replaceChildren(); return; }
    const j = await call('/v1/ablate', {model, input, heads: off, top: 8});
    const column = (name, x) => make('div', {}, make('h3', {}, name), make('p', {class: 'what'}, `loss of the text ${digits(x.loss)}`),
      make('ol', {class: 'bars'}, x.top.map(t => make('li', {style: `--w:${Math.exp(t.logprob).toFixed(4)}`}, make('span', {}, JSON.stringify(t.token)), make('b', {}, Math.exp(t.logprob).toFixed(4))))));
    box.replaceChildren(make('div', {class: 'two', id: 'ablated'}, column('The next token, as the model is', j.before), column(`Without ${off.length} head${off.length > 1 ? 's' : ''}`, j.after)));
    heads.data.ablation = j;
  },

  /* A line for each column: its key, the product with the query, and the weight that came of it. */
  async neurons(f) {
    const name = f.get('neuron'), box = f.box('neurons'), {model, input} = f.values();
    if (!name) { box.replaceChildren(); return; }
    const [layer, head] = name.split('.').map(Number), ask = {model, input, layer, head};
    if (f.get('row')) ask.row = +f.get('row');
    const j = await call('/v1/neurons', ask), W = j.query.length, cell = Math.max(4, Math.min(14, 520 / W)), high = 18, left = 110;
    const strip = (values, x, y, most) => values.map((v, i) => draw('rect', {x: x + i * cell, y, width: cell - 0.5, height: high - 4, fill: shade(v / most)}));
    const text = (x, y, t, anchor) => draw('text', {x, y: y + 11, 'font-size': 11, 'text-anchor': anchor || 'start', fill: 'currentColor'}, t);
    const greatest = list => Math.max(1e-9, ...list.map(Math.abs)), q = greatest(j.query), k = greatest(j.keys.flat());
    const products = j.keys.map(key => key.map((v, i) => v * j.query[i])), p = greatest(products.flat());
    const wide = W * cell, parts = [text(left - 8, 22, `query of “${plain(j.row_tokens[j.row])}”`, 'end'), ...strip(j.query, left, 22, q), text(left, 2, 'key'), text(left + wide + 20, 2, 'query × key'), text(left + 2 * wide + 40, 2, 'weight')];
    j.column_tokens.forEach((token, i) => {
      const y = 22 + (i + 1.5) * high;
      parts.push(text(left - 8, y, `${plain(token)} ${i}`, 'end'), ...strip(j.keys[i], left, y, k), ...strip(products[i], left + wide + 20, y, p),
        draw('rect', {x: left + 2 * wide + 40, y, width: 100 * j.weights[i], height: high - 4, fill: shade(0.8)}), text(left + 2 * wide + 150, y, digits(j.weights[i])));
    });
    const svg = picture(left + 2 * wide + 210, 40 + (j.column_tokens.length + 1.5) * high, `Query, keys and their products of layer ${layer}, head ${head}`, parts);
    svg.id = 'neuron';
    const rows = make('select', {id: 'neuron-row', onchange: e => { f.set('row', e.target.value); f.guard(() => heads.neurons(f)); }}, j.row_tokens.map((t, i) => make('option', {value: i}, `${i} ${plain(t)}`)));
    rows.value = j.row;
    box.replaceChildren(make('h3', {}, `Neurons of layer ${layer}, head ${head}`), make('label', {}, 'Row ', rows), make('div', {class: 'wide'}, svg));
    heads.data.neurons = j;
  },
};
