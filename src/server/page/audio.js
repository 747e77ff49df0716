/* audio.js - a sound, chosen or recorded: what a model writes about it, and where in the sound each of its tokens looked.  The
 * browser decodes it and makes it 16 kHz mono, so that any file it plays will do; the sound goes to this server alone, as WAV in
 * a data: URI, and is not kept there. */

const RATE = 16000;

/* Samples between -1 and 1 as the bytes of a WAV file of 16 bits. */
function wavBytes(x) {
  const out = new DataView(new ArrayBuffer(44 + 2 * x.length)), text = (at, s) => [...s].forEach((c, i) => out.setUint8(at + i, c.charCodeAt(0)));
  text(0, 'RIFF'); out.setUint32(4, 36 + 2 * x.length, true); text(8, 'WAVEfmt '); out.setUint32(16, 16, true);
  out.setUint16(20, 1, true); out.setUint16(22, 1, true); out.setUint32(24, RATE, true); out.setUint32(28, 2 * RATE, true);
  out.setUint16(32, 2, true); out.setUint16(34, 16, true); text(36, 'data'); out.setUint32(40, 2 * x.length, true);
  x.forEach((v, i) => out.setInt16(44 + 2 * i, Math.max(-1, Math.min(1, v)) * 32767, true));
  return new Blob([out.buffer], {type: 'audio/wav'});
}

/* Any sound that the browser plays, as samples of one channel. */
async function samplesOf(blob) {
  const decoder = new OfflineAudioContext(1, 1, RATE), sound = await decoder.decodeAudioData(await blob.arrayBuffer()), out = new Float32Array(sound.length);
  for (let c = 0; c < sound.numberOfChannels; c++) sound.getChannelData(c).forEach((v, i) => { out[i] += v / sound.numberOfChannels; });
  return out;
}

/* In place, of 2^k complex numbers: the usual butterflies. */
function fft(re, im) {
  const n = re.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) { [re[i], re[j]] = [re[j], re[i]]; [im[i], im[j]] = [im[j], im[i]]; }
  }
  for (let len = 2; len <= n; len <<= 1)
    for (let i = 0; i < n; i += len)
      for (let k = 0; k < len / 2; k++) {
        const angle = -2 * Math.PI * k / len, c = Math.cos(angle), s = Math.sin(angle), a = i + k, b = a + len / 2;
        const x = re[b] * c - im[b] * s, y = re[b] * s + im[b] * c;
        re[b] = re[a] - x; im[b] = im[a] - y; re[a] += x; im[a] += y;
      }
}

/* Levels in dB, at most `columns` frames of 257 frequencies up to 8 kHz, as a picture: dark is loud. */
function spectrogram(x, columns) {
  const size = 512, wide = Math.max(1, Math.min(columns, Math.floor((x.length - size) / 160) + 1)), step = wide > 1 ? (x.length - size) / (wide - 1) : 0;
  const canvas = make('canvas', {width: wide, height: size / 2}), to = canvas.getContext('2d'), picture = to.createImageData(wide, size / 2), levels = [];
  for (let t = 0; t < wide; t++) {
    const re = new Float64Array(size), im = new Float64Array(size), at = Math.round(t * step);
    for (let i = 0; i < size; i++) re[i] = (x[at + i] || 0) * (0.5 - 0.5 * Math.cos(2 * Math.PI * i / size));
    fft(re, im);
    levels.push(Array.from({length: size / 2}, (_, f) => 10 * Math.log10(re[f] * re[f] + im[f] * im[f] + 1e-10)));
  }
  const most = levels.reduce((m, row) => Math.max(m, ...row), -Infinity);
  levels.forEach((row, t) => row.forEach((v, f) => {
    const dark = Math.max(0, Math.min(1, 1 - (most - v) / 80)), at = 4 * ((size / 2 - 1 - f) * wide + t);
    picture.data.set([255 - 215 * dark, 255 - 190 * dark, 255 - 150 * dark, 255], at);
  }));
  to.putImageData(picture, 0, 0);
  return canvas.toDataURL();
}

const audio = {
  name: 'audio', title: 'Sound', what: 'What a model writes about a sound, and where in the sound each of its tokens looked: choose a file or record. A click on a token shows its weights over the spectrogram.',
  fields: {model: 'model', sound: 'file', layer: 'number', head: 'number', token: 'hidden'},
  tasks: m => m.takes === 'sound',
  begin(f) {
    f.input('sound').accept = 'audio/*';
    const button = make('button', {type: 'button', id: 'audio-record'}, 'Record');
    button.onclick = () => f.guard(() => audio.record(f, button));
    f.input('sound').after(button);
  },
  /* From the first click to the second. */
  async record(f, button) {
    if (audio.recorder) { audio.recorder.stop(); return; }
    const stream = await navigator.mediaDevices.getUserMedia({audio: true}), parts = [], recorder = audio.recorder = new MediaRecorder(stream);
    recorder.ondataavailable = e => parts.push(e.data);
    recorder.onstop = () => {
      stream.getTracks().forEach(t => t.stop());
      audio.recorder = null;
      button.textContent = 'Record';
      f.guard(() => audio.hear(f, new Blob(parts, {type: recorder.mimeType})));
    };
    button.textContent = 'Stop recording';
    recorder.start();
  },
  async go(f) {
    const [file] = f.input('sound').files;
    if (!file) throw new Error('choose a sound');
    await audio.hear(f, file);
  },
  /* Of all heads of the last layer unless one is named. */
  async hear(f, blob) {
    const samples = await samplesOf(blob), input = await asUri(wavBytes(samples)), {model, layer, head} = f.values();
    const attention = {layers: layer === '' ? -1 : +layer};
    if (head !== '') attention.heads = +head;
    const j = await call('/v1/attention', {model, input, attention});
    audio.data = {...j, seconds: samples.length / RATE, picture: spectrogram(samples, 900)};
    f.set('token', '');
    audio.paint(f);
  },
  /* Weights of row i: the mean of the heads that were asked for. */
  row: i => {
    const heads = audio.data.weights[0], out = heads[0][i].map(() => 0);
    heads.forEach(h => h[i].forEach((w, k) => { out[k] += w / heads.length; }));
    return out;
  },
  paint(f) {
    const {row_tokens: names, column_tokens: times, seconds, picture: drawn} = audio.data, wide = 900, high = 180, left = 10, top = 40, under = 90;
    /* what a window has behind the sound is padding, and not drawn */
    const token = f.get('token') === '' ? 0 : Math.min(+f.get('token'), names.length - 1), w = audio.row(token).filter((_, k) => times[k] !== 'padding'), most = Math.max(1e-9, ...w), scale = wide / seconds;
    const text = (x, y, t, more) => draw('text', {x, y, 'font-size': 13, fill: 'currentColor', ...more}, t), parts = [];
    let x = left;
    names.forEach((name, i) => {
      const room = 9 * Math.max(1, [...plain(name)].length) + 12;
      parts.push(draw('g', {class: 'head', tabindex: 0, role: 'button', 'aria-pressed': String(i === token), 'aria-label': `where ${plain(name)} looked`, onclick: () => audio.pick(f, i), onkeydown: e => { if (e.key === 'Enter') audio.pick(f, i); }},
        draw('rect', {x, y: 6, width: room - 3, height: 23, rx: 4, fill: i === token ? shade(0.6) : 'none', stroke: 'rgba(128,128,128,.4)'}), text(x + 5, 22, plain(name))));
      x += room;
    });
    parts.push(draw('image', {href: drawn, x: left, y: top, width: wide, height: high, preserveAspectRatio: 'none'}),
      draw('rect', {x: left, y: top, width: wide, height: high, fill: 'none', stroke: 'rgba(128,128,128,.4)'}));
    const each = wide / w.length, base = top + high + under;
    w.forEach((v, k) => {
      const at = left + k * each;
      if (v / most > 0.02) parts.push(draw('rect', {x: at, y: top, width: each, height: high, fill: shade(v / most * 0.45)}));
      parts.push(draw('rect', {x: at, y: base - under * 0.85 * v / most, width: Math.max(0.5, each - 0.3), height: under * 0.85 * v / most, fill: shade(0.9), class: 'heard', 'data-weight': v}, draw('title', {}, `${times[k]}: ${digits(v)}`)));
    });
    const every = Math.max(0.1, Math.ceil(seconds * 2) / 20);
    for (let s = 0; s <= seconds + 1e-6; s += every) parts.push(text(left + s * scale, base + 16, `${+s.toFixed(2)} s`, {'font-size': 11}));
    show('sound', f.box('heard'), picture(Math.max(wide + 40, x + 10), base + 26, `Where “${plain(names[token])}” looked in the sound`, parts), {...audio.data, picture: undefined});
    f.box('heard').prepend(make('p', {id: 'audio-said'}, names.map(plain).join('')));
  },
  pick(f, i) {
    f.set('token', i);
    audio.paint(f);
  },
};
