/* page.js - the views of the page: a tab and a form for each, and the address, which carries the state of the one that is
 * open, so that a view can be shared. */

const VIEWS = [live, explore, heads, through, compare, classify, answer, translate, image, audio, runs];
let current = live;

/* The form of a view, made from its fields: a select of models, a text, words to choose from, a number. */
class Form {
  constructor(view) {
    this.view = view;
    this.inputs = {};
    const usable = models.filter(m => !view.tasks || view.tasks(m)), labels = {input: 'Text', input2: 'Second text', model: 'Model', model2: 'Second model'};
    const named = name => labels[name] || name[0].toUpperCase() + name.slice(1);
    const row = make('div', {class: 'row'}), form = make('form', {onsubmit: e => { e.preventDefault(); this.run(); }});
    for (const [name, kind] of Object.entries(view.fields)) {
      const id = `${view.name}-${name}`, changed = () => { view.changed && view.changed(this, name); keep(); };
      const e = kind === 'text' ? make('textarea', {id, rows: 3, spellcheck: 'false'}) :
        kind === 'model' || Array.isArray(kind) ? make('select', {id, onchange: changed}) : make('input', {id, type: kind === 'line' ? 'text' : kind, min: 0, accept: kind === 'file' && 'image/png,image/jpeg'});
      if (kind === 'model') e.append(...usable.map(m => new Option(m.id, m.id)));
      if (Array.isArray(kind)) e.append(...kind.map(w => new Option(w, w)));
      if (view.value && view.value[name] !== undefined) e.value = view.value[name];
      this.inputs[name] = e;
      if (kind === 'hidden') continue;
      (kind === 'text' || kind === 'line' ? form : row).append(make('label', {for: id}, named(name), ' ', kind === 'text' || kind === 'line' ? null : e), kind === 'text' || kind === 'line' ? e : '');
    }
    row.append(make('button', {type: 'submit', id: `${view.name}-go`}, 'Show'));
    form.append(row);
    this.section = make('section', {class: 'view', id: `view-${view.name}`, 'aria-label': view.title, hidden: true}, make('p', {class: 'what'}, view.what), form);
    this.boxes = {};
    this.hide(!usable.length && 'model' in view.fields);
  }
  input(name) { return this.inputs[name]; }
  get(name) { return this.inputs[name].value; }
  set(name, value) { this.inputs[name].value = value; keep(); }
  values() { return Object.fromEntries(Object.entries(this.view.fields).filter(([, kind]) => kind !== 'hidden').map(([k]) => [k, this.get(k)])); }
  /* A part of the view by its name, made when it is first needed. */
  box(name) {
    if (!this.boxes[name]) this.section.append(this.boxes[name] = make('div', {class: 'box', id: `${this.view.name}-${name}`}));
    return this.boxes[name];
  }
  /* Nothing that the view needs is served. */
  hide(yes) { this.unusable = yes; }
  async guard(fn) {
    try {
      $('status').textContent = '';
      await fn();
      $('status').textContent = 'ready';
    } catch (e) {
      $('status').textContent = e.message;
    }
  }
  async run() {
    await this.guard(() => this.view.go(this));
    this.ran = true;
    keep();
  }
}

function open(view) {
  current = view;
  $('save').hidden = true;
  $('status').textContent = '';
  for (const v of VIEWS) $(`view-${v.name}`).hidden = v !== view;
  for (const b of $('views').children) b.setAttribute('aria-current', b.dataset.view === view.name ? 'page' : 'false');
}

function keep() {
  const state = current === live ? live.state() : Object.fromEntries(Object.entries(current.form.inputs).filter(([, e]) => e.type !== 'file').map(([k, e]) => [k, e.value]));
  if (current !== live && current.form.ran) state.go = 1;
  const kept = new URLSearchParams(Object.entries({view: current.name, ...state}).filter(([, v]) => v !== '' && v !== undefined));
  history.replaceState(null, '', '#' + kept);
}

async function restore() {
  const state = new URLSearchParams(location.hash.slice(1)), view = VIEWS.find(v => v.name === state.get('view')) || live;
  open(view);
  if (view === live) return live.restore(state);
  for (const [k, e] of Object.entries(view.form.inputs)) if (state.has(k) && e.type !== 'file') e.value = state.get(k);
  if (state.has('go')) await view.form.run();
}

async function begin() {
  try {
    models = (await call('/v1/models')).data;
  } catch (e) {
    $('status').textContent = e.message;
  }
  live.begin();
  for (const v of VIEWS) {
    if (v !== live) $('others').append((v.form = new Form(v)).section);
    $('views').append(make('button', {type: 'button', 'data-view': v.name, disabled: v !== live && v.form.unusable, onclick: () => { open(v); keep(); }}, v.title));
  }
  /* the view of the address is not kept waiting by what others ask the server for */
  const state = new URLSearchParams(location.hash.slice(1)), others = VIEWS.filter(v => v !== live && v.begin);
  const usable = v => { document.querySelector(`[data-view=${v.name}]`).disabled = v.form.unusable; };
  const begun = others.map(v => ({v, done: (async () => v.begin(v.form))().catch(e => { $('status').textContent = e.message; }).then(() => usable(v))}));
  const own = begun.find(x => x.v.name === state.get('view'));
  if (own) await own.done;
  await restore();
}
addEventListener('hashchange', () => restore());
begin();
