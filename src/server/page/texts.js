/* texts.js - a text explored (the page of `fovea see`), two texts compared, labels with attributions, an answer in its
 * context, a translation with its alignment. */

const explore = {
  name: 'explore', title: 'Explore', what: 'All layers and heads of a text: lines, maps, rollout. Shift and a click choose several heads; a head alone by a click on its map.',
  fields: {model: 'model', input: 'text', target: 'hidden'},
  value: {input: 'The cat sat on the mat because it was tired'},
  async go(f) {
    const {model, input} = f.values(), m = models.find(x => x.id === model), wanted = {model, input, format: 'view'};
    if (m.tasks.includes('translate')) wanted.target = (await call('/v1/translate', {model, input})).data[0].text;
    const r = await ask('/v1/attention', wanted);
    show('explore', f.box('page'), null, null);
    f.box('page').replaceChildren(make('iframe', {title: 'Attention of the text', srcdoc: await r.text()}));
  },
};

/* ---- two texts, or two models ---- */

/* A heat map of (rows, cols) weights below its tokens. */
function heat(w, tokens, x0, y0, size) {
  const parts = [], most = Math.max(1e-9, ...w.flat().map(Math.abs));
  tokens.forEach((t, i) => {
    parts.push(draw('text', {x: x0 - 4, y: y0 + i * size + size * 0.7, 'font-size': Math.min(12, size), 'text-anchor': 'end', fill: 'currentColor'}, plain(t)));
    parts.push(draw('text', {x: 0, y: 0, transform: `translate(${x0 + i * size + size * 0.7} ${y0 - 4}) rotate(-60)`, 'font-size': Math.min(12, size), fill: 'currentColor'}, plain(t)));
  });
  w.forEach((row, i) => row.forEach((v, j) => parts.push(draw('rect', {x: x0 + j * size, y: y0 + i * size, width: size - 0.5, height: size - 0.5, fill: shade(v / most)}, draw('title', {}, digits(v))))));
  return parts;
}

const compare = {
  name: 'compare', title: 'Compare', what: 'One head on two texts, or in two models; where both have as many tokens, the difference too.',
  fields: {model: 'model', input: 'text', model2: 'model', input2: 'text', layer: 'number', head: 'number'},
  tasks: m => !m.tasks.includes('translate'),
  value: {input: 'The cat sat on the mat', input2: 'The dog sat on the mat', layer: 0, head: 0},
  async go(f) {
    const v = f.values(), ask = (model, input) => call('/v1/attention', {model, input, attention: {layers: [+v.layer], heads: [+v.head]}});
    const [a, b] = await Promise.all([ask(v.model, v.input), ask(v.model2, v.input2)]), A = a.weights[0][0], B = b.weights[0][0];
    const size = Math.max(8, Math.min(26, 360 / Math.max(A.length, B.length))), left = 90, top = 80, step = wide => left + wide * size + 20;
    const parts = [...heat(A, a.row_tokens, left, top, size), ...heat(B, b.row_tokens, step(A.length) + left, top, size)];
    let width = step(A.length) + step(B.length), numbers = {first: a, second: b};
    if (A.length === B.length) {
      const D = A.map((row, i) => row.map((x, j) => B[i][j] - x));
      parts.push(...heat(D, b.row_tokens, width + left, top, size));
      width += step(D.length);
      numbers.difference = D;
    }
    ['first', 'second', 'second - first'].forEach((t, i) => i < 2 || numbers.difference ? parts.push(draw('text', {x: [0, step(A.length), step(A.length) + step(B.length)][i] + left, y: 14, 'font-size': 13, 'font-weight': 600, fill: 'currentColor'}, t)) : 0);
    show('compare', f.box('maps'), picture(width, top + Math.max(A.length, B.length) * size + 10, `Layer ${v.layer}, head ${v.head} on two texts`, parts), numbers);
  },
};

/* ---- through all layers ---- */

const THROUGH = {rollout: 'Rollout: what share of each token reaches the row, layers multiplied', flow: 'Flow: the most that can go from the row down to each token'};

const through = {
  name: 'through', title: 'Rollout and flow', what: 'What a token has come to depend on through all layers, by attention rollout and by attention flow (at most 128 tokens). A click on a token follows it.',
  fields: {model: 'model', input: 'text', layer: 'number', row: 'hidden'},
  tasks: m => !m.takes && !m.tasks.includes('translate'),
  value: {input: 'The cat sat on the mat because it was tired'},
  async go(f) {
    const {model, input, layer} = f.values(), attention = {layers: layer === '' ? -1 : +layer};
    const [a, b] = await Promise.all(Object.keys(THROUGH).map(way => call('/v1/attention', {model, input, through: way, attention})));
    through.data = {rollout: a, flow: b};
    through.paint(f);
  },
  /* The row that is followed: its tokens shaded by both, above the whole maps. */
  paint(f) {
    const {rollout, flow} = through.data, names = rollout.row_tokens, n = names.length, row = f.get('row') === '' || +f.get('row') >= n ? n - 1 : +f.get('row');
    const size = Math.max(6, Math.min(24, 380 / n)), left = 100, wide = left + n * size + 24, parts = [];
    const text = (x, y, t, more) => draw('text', {x, y, 'font-size': 13, fill: 'currentColor', ...more}, t);
    let y = 20;
    Object.entries(THROUGH).forEach(([way, what]) => {
      const w = through.data[way].weights[0][0][row], most = Math.max(1e-9, ...w);
      parts.push(text(10, y, `${what}, from “${plain(names[row])}”`, {'font-weight': 600}));
      let x = 10;
      y += 24;
      names.forEach((t, j) => {
        const room = 8.5 * Math.max(1, [...plain(t)].length) + 12;
        if (x + room > 2 * wide) { x = 10; y += 30; }
        parts.push(draw('g', {class: 'head', tabindex: 0, role: 'button', 'aria-label': `follow ${plain(t)}, ${digits(w[j])}`, onclick: () => through.follow(f, j), onkeydown: e => { if (e.key === 'Enter') through.follow(f, j); }},
          draw('rect', {x, y: y - 16, width: room - 3, height: 23, rx: 4, fill: shade(w[j] / most * 0.85), stroke: j === row ? 'currentColor' : 'none', class: `through-${way}`, 'data-weight': w[j]}, draw('title', {}, digits(w[j]))),
          text(x + 4, y, plain(t))));
        x += room;
      });
      y += 34;
    });
    const top = y + 70;
    parts.push(...heat(rollout.weights[0][0], names, left, top, size), ...heat(flow.weights[0][0], names, wide + left, top, size));
    parts.push(text(left, y, 'rollout', {'font-weight': 600}), text(wide + left, y, 'flow', {'font-weight': 600}));
    show('rollout-and-flow', f.box('maps'), picture(2 * wide, top + n * size + 10, `Rollout and flow from ${plain(names[row])}`, parts), through.data);
  },
  follow(f, row) {
    f.set('row', row);
    through.paint(f);
  },
};

/* ---- labels ---- */

const classify = {
  name: 'classify', title: 'Classify', what: 'Labels of a text, and how much each word has to do with the first: its score with the word minus its score without.',
  fields: {model: 'model', input: 'text'},
  tasks: m => m.tasks.includes('classify'),
  value: {input: 'a fine film with a weak end'},
  async go(f) {
    const {model, input} = f.values(), words = input.split(/(\s+)/), at = [...words.keys()].filter(i => words[i].trim());
    const without = at.map(i => words.filter((_, k) => k !== i).join('') || ' ');
    const j = await call('/v1/classify', {model, input: [input, ...without], top: 1000}), {labels} = j.data[0];
    const best = labels[0].label, score = one => one.labels.find(x => x.label === best).score;
    const gains = at.map((_, k) => score(j.data[0]) - score(j.data[k + 1])), most = Math.max(1e-9, ...gains.map(Math.abs));
    let x = 10, y = 30;
    const parts = at.flatMap((i, k) => {
      const wide = 8.5 * words[i].length + 14;
      if (x + wide > 700) { x = 10; y += 34; }
      const here = [draw('rect', {x, y: y - 18, width: wide - 4, height: 26, rx: 4, fill: shade(gains[k] / most * 0.8), class: 'word', 'data-gain': gains[k]}, draw('title', {}, digits(gains[k]))),
                    draw('text', {x: x + 5, y, 'font-size': 15, fill: 'currentColor'}, words[i])];
      x += wide;
      return here;
    });
    const bars = labels.slice(0, 10).flatMap((l, i) => [draw('text', {x: 10, y: y + 50 + i * 22, 'font-size': 13, fill: 'currentColor'}, `${l.label} ${digits(l.score)}`),
      draw('rect', {x: 220, y: y + 38 + i * 22, width: 460 * l.score, height: 15, fill: shade(0.7), class: 'label', 'data-score': l.score})]);
    show('classify', f.box('labels'), picture(700, y + 60 + 22 * Math.min(10, labels.length), `The label ${best}, and the part of each word`, parts, bars), {answer: j, words: at.map(i => words[i]), attribution: gains});
  },
};

/* ---- answers ---- */

const answer = {
  name: 'answer', title: 'Answer', what: 'The span of a text that answers a question.',
  fields: {model: 'model', question: 'line', context: 'text'},
  tasks: m => m.tasks.includes('answer'),
  value: {question: 'Who wrote it?', context: 'Ada wrote it in London, and Grace read it.'},
  async go(f) {
    const v = f.values(), j = await call('/v1/answer', {...v, top: 3}), all = j.answers, best = all[0];
    const {from, to} = best;
    const text = [...v.context], part = (a, b) => text.slice(a, b).join(''); /* offsets count characters */
    showText('answer', () => wordsPicture([...part(0, from).split(/(?<=\s)/).map(t => [t, 0]), [part(from, to), 0.6], ...part(to, text.length).split(/(?<=\s)/).map(t => [t, 0])], `The answer to ${v.question}`), j);
    f.box('span').replaceChildren(
      make('p', {class: 'context'}, part(0, from), make('mark', {id: 'span'}, part(from, to)), part(to, text.length)),
      make('ol', {class: 'bars'}, all.map(a => make('li', {style: `--w:${a.score}`}, make('span', {}, a.text), make('b', {}, digits(a.score))))));
  },
};

/* ---- translation ---- */

const translate = {
  name: 'translate', title: 'Translate', what: 'A translation, and what of the source each of its tokens looked at: mean of all layers and heads.',
  fields: {model: 'model', input: 'text'},
  tasks: m => m.tasks.includes('translate'),
  value: {input: 'a b c'},
  async go(f) {
    const v = f.values(), j = await call('/v1/translate', {...v, attention: true}), d = j.data[0];
    const place = list => { let x = 10; return list.map(t => { const wide = 9 * [...plain(t)].length + 16, at = x + wide / 2; x += wide; return at; }); };
    const above = place(d.source_tokens), below = place(d.target_tokens);
    const word = (t, x, y) => draw('text', {x, y, 'text-anchor': 'middle', 'font-size': 14, fill: 'currentColor'}, plain(t));
    const lines = d.attention.flatMap((row, i) => row.map((w, k) => w < 0.02 ? null : draw('path', {d: `M${below[i]} 150C${below[i]} 90 ${above[k]} 90 ${above[k]} 30`, fill: 'none', stroke: shade(1), 'stroke-opacity': w.toFixed(3), 'stroke-width': 1 + 3 * w, class: 'link', 'data-weight': w})));
    show('translate', f.box('alignment'), picture(Math.max(...above, ...below, 100) + 60, 180, `${v.input}: ${d.text}`, lines, d.source_tokens.map((t, i) => word(t, above[i], 22)), d.target_tokens.map((t, i) => word(t, below[i], 168))), j);
    f.box('alignment').prepend(make('p', {id: 'translated'}, d.text));
  },
};
