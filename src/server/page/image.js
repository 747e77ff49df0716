/* image.js - an image that is chosen from the reader's files: what a model says of it, and where it looked.  The image goes to
 * this server alone, as a data: URI, and is not kept there. */

const asUri = file => new Promise((done, failed) => {
  const r = new FileReader();
  r.onload = () => done(r.result);
  r.onerror = () => failed(new Error('the file cannot be read'));
  r.readAsDataURL(file);
});

/* What the model's task says, as lines of [text, score]; a caption has no score. */
const SAID = {
  classify: one => one.labels.slice(0, 10).map(l => [l.label, l.score]),
  detect: one => one.objects.map(o => [o.label, o.score]),
  caption: one => [[one.caption]],
};

const image = {
  name: 'image', title: 'Image', what: 'What a model says of an image, and where it looked: choose a patch, the class token, an object or a written word.',
  fields: {model: 'model', image: 'file'},
  tasks: m => m.takes === 'images',
  async go(f) {
    const [file] = f.input('image').files, model = f.get('model'), [task] = models.find(m => m.id === model).tasks;
    if (!file) throw new Error('choose an image');
    const input = await asUri(file), [said, r] = await Promise.all([call(`/v1/${task}`, {model, input}),
      ask('/v1/attention', {model, input, format: 'html'})]);
    const lines = SAID[task](said.data[0]);
    f.box('said').replaceChildren(make('ol', {class: 'bars'}, lines.map(([text, score]) =>
      make('li', score === undefined ? {} : {style: `--w:${score}`}, make('span', {}, text), score === undefined ? null : make('b', {}, digits(score))))));
    f.box('page').replaceChildren(make('iframe', {title: 'Where the model looked', srcdoc: await r.text()}));
  },
};
