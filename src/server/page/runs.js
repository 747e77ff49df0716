/* runs.js - trainings of the directory that the server was given, drawn as they go on. */

const runs = {
  name: 'runs', title: 'Training', what: 'Trainings of the directory that the server was started with (--runs), as they go on: loss, rate and gradient norm.',
  fields: {run: []},
  async begin(f) {
    const list = (await call('/v1/runs')).data;
    for (const r of list) f.input('run').append(new Option(r.id, r.id));
    f.hide(!list.length);
  },
  async go(f) {
    const id = f.get('run');
    clearTimeout(runs.timer);
    if (!id) throw new Error('There is no training in the directory that --runs names.');
    const j = await call('/v1/runs/' + encodeURIComponent(id)), curves = {};
    for (const line of j.lines)
      for (const [key, name] of [['loss', 'loss'], ['valid_loss', 'loss in validation'], ['lr', 'learning rate'], ['norm', 'gradient norm']])
        if (typeof line[key] === 'number') (curves[name] = curves[name] || []).push([line.step, line[key]]);
    show('training', f.box('curves'), runs.paint(curves), j);
    /* again while the view is open */
    runs.timer = setTimeout(() => current === runs && f.guard(() => runs.go(f)), 3000);
  },
  paint(curves) {
    const wide = 640, high = 150, left = 70, parts = [];
    Object.entries(curves).forEach(([name, points], n) => {
      const x = points.map(p => p[0]), y = points.map(p => p[1]), [x0, x1, y0, y1] = [Math.min(...x), Math.max(...x), Math.min(...y), Math.max(...y)];
      const top = 24 + n * (high + 40), at = p => `${(left + (p[0] - x0) / (x1 - x0 || 1) * wide).toFixed(1)} ${(top + high - (p[1] - y0) / (y1 - y0 || 1) * high).toFixed(1)}`;
      const text = (tx, ty, t, anchor) => draw('text', {x: tx, y: ty, 'font-size': 12, 'text-anchor': anchor || 'start', fill: 'currentColor'}, t);
      parts.push(text(left, top - 8, `${name}: ${digits(y[y.length - 1])} at step ${x[x.length - 1]}`), text(left - 6, top + 10, digits(y1), 'end'), text(left - 6, top + high, digits(y0), 'end'),
        draw('rect', {x: left, y: top, width: wide, height: high, fill: 'none', stroke: 'rgba(128,128,128,.4)'}),
        draw('path', {d: 'M' + points.map(at).join('L'), fill: 'none', stroke: shade(1), 'stroke-width': 1.5, class: 'curve', 'data-name': name, 'data-last': y[y.length - 1]}));
    });
    return picture(left + wide + 10, 20 + Object.keys(curves).length * (high + 40), 'Curves of the training', parts);
  },
};
