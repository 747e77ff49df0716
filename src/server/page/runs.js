/* runs.js - trainings of the directory that the server was given, as they go on: curves from their logs, and from each of
 * their checkpoints what it writes behind a text and what one of its heads does with it. */

const CURVES = [['loss', 'loss'], ['valid_loss', 'loss in validation'], ['lr', 'learning rate'], ['norm', 'gradient norm']];
const FOLLOWED = 8; /* checkpoints that are drawn: the latest */

const runs = {
  name: 'runs', title: 'Training', what: 'Trainings of the directory that the server was started with (--runs), as they go on: loss, rate and gradient norm, and for each checkpoint how it goes on behind the text and what a head attends to.',
  fields: {run: [], input: 'text', layer: 'number', head: 'number'},
  value: {input: 'Once upon a time there was a cat', layer: 0, head: 0},
  seen: new Map(), /* what checkpoints gave: they are asked once, and those that the training has removed stay */
  async begin(f) {
    const list = (await call('/v1/runs')).data;
    for (const r of list) f.input('run').append(new Option(r.id, r.id));
    f.hide(!list.length);
  },
  async go(f) {
    const v = f.values();
    clearTimeout(runs.timer);
    if (!v.run) throw new Error('There is no training in the directory that --runs names.');
    const log = await call('/v1/runs/' + encodeURIComponent(v.run)), curves = {};
    for (const line of log.lines)
      for (const [key, name] of CURVES)
        if (typeof line[key] === 'number') (curves[name] = curves[name] || []).push([line.step, line[key]]);
    await runs.follow(v, log.checkpoints.slice(-FOLLOWED));
    const learnt = runs.learnt(v);
    show('training', f.box('curves'), runs.paint(curves, learnt), {...log, learnt});
    /* again while the view is open */
    runs.timer = setTimeout(() => current === runs && f.guard(() => runs.go(f)), 3000);
  },
  key: v => [v.run, v.input, v.layer, v.head].join('\n'),
  /* One checkpoint after another: the server has two of them open at most.  A model that writes no text, or has no such
   * head, says so in words. */
  async follow(v, steps) {
    const all = runs.seen.get(runs.key(v)) || new Map(), model = step => `runs/${v.run}/step-${step}`;
    runs.seen.set(runs.key(v), all);
    for (const step of steps.filter(s => v.input.trim() && !all.has(s))) {
      const entry = {step};
      try {
        entry.attention = await call('/v1/attention', {model: model(step), input: v.input, attention: {layers: [+v.layer], heads: [+v.head]}});
        entry.text = (await call('/v1/completions', {model: model(step), prompt: v.input, max_tokens: 24, temperature: 0})).choices[0].text;
      } catch (e) {
        entry.why = e.message;
      }
      all.set(step, entry);
    }
  },
  learnt: v => [...runs.seen.get(runs.key(v)).values()].sort((a, b) => a.step - b.step).slice(-FOLLOWED),
  paint(curves, learnt) {
    const wide = 640, high = 150, left = 70, parts = [];
    const text = (tx, ty, t, anchor) => draw('text', {x: tx, y: ty, 'font-size': 12, 'text-anchor': anchor || 'start', fill: 'currentColor'}, t);
    Object.entries(curves).forEach(([name, points], n) => {
      const x = points.map(p => p[0]), y = points.map(p => p[1]), [x0, x1, y0, y1] = [Math.min(...x), Math.max(...x), Math.min(...y), Math.max(...y)];
      const top = 24 + n * (high + 40), at = p => `${(left + (p[0] - x0) / (x1 - x0 || 1) * wide).toFixed(1)} ${(top + high - (p[1] - y0) / (y1 - y0 || 1) * high).toFixed(1)}`;
      parts.push(text(left, top - 8, `${name}: ${digits(y[y.length - 1])} at step ${x[x.length - 1]}`), text(left - 6, top + 10, digits(y1), 'end'), text(left - 6, top + high, digits(y0), 'end'),
        draw('rect', {x: left, y: top, width: wide, height: high, fill: 'none', stroke: 'rgba(128,128,128,.4)'}),
        draw('path', {d: 'M' + points.map(at).join('L'), fill: 'none', stroke: shade(1), 'stroke-width': 1.5, class: 'curve', 'data-name': name, 'data-last': y[y.length - 1]}));
    });
    let y = 20 + Object.keys(curves).length * (high + 40);
    for (const entry of learnt) y = runs.paintCheckpoint(parts, entry, y, left, text);
    return picture(left + wide + 10, y, 'Curves of the training, and what its checkpoints have learnt', parts);
  },
  /* The map of the head, its text beside it on lines of so many characters. */
  paintCheckpoint(parts, {step, attention, text: said, why}, y, left, text) {
    const w = attention ? attention.weights[0][0] : [], size = w.length ? Math.max(4, Math.min(14, 190 / w.length)) : 0, top = y + 60;
    const beside = left + (w.length ? w.length * size + 30 : 0), lines = (said === undefined ? why : '… ' + said.trim()).match(/.{1,44}(\s|$)|\S{1,44}/gs) || [];
    parts.push(draw('text', {x: left, y: y + 14, 'font-size': 13, 'font-weight': 600, fill: 'currentColor', class: 'checkpoint', 'data-step': step, 'data-text': said}, `step ${step}`));
    if (w.length) parts.push(draw('g', {class: 'attended', 'data-step': step, 'data-weights': JSON.stringify(w)}, heat(w, attention.row_tokens, left, top, size)));
    lines.forEach((line, i) => parts.push(text(beside, top + 12 + 18 * i, line)));
    return Math.max(top + w.length * size, top + 18 * lines.length) + 24;
  },
};
