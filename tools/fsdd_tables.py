"""Tables of the spoken digits (FSDD) for the recipes: python3 tools/fsdd_tables.py DIR, where DIR has recordings.tar.gz.

train.tsv, test.tsv: path and digit, no header; takes 0 to 4 of each speaker and digit are the official test set.
train-words.tsv, test-words.tsv: path, text ("seven"), speaker, with a header.
without-WHO.tsv, only-WHO.tsv and, with words, without-WHO-words.tsv, only-WHO-words.tsv: one speaker left out, all takes.
With --strings N, strings.tsv and N sound files strings/*.wav: one to seven test recordings of one speaker with gaps of
0.05 to 0.4 s between them and white noise 10 to 40 dB below, drawn from a fixed seed."""
import io
import os
import random
import struct
import sys
import tarfile
import wave

WORDS = "zero one two three four five six seven eight nine".split()
RATE = 8000


def read(archive, name):
    with wave.open(io.BytesIO(archive.extractfile(name).read())) as w:
        raw = w.readframes(w.getnframes())
    return [x / 32768 for (x,) in struct.iter_unpack("<h", raw)]


def string(sounds, clips, draw):
    """Samples and words of one string."""
    def gap():
        return [0.0] * int(draw.uniform(0.05, 0.4) * RATE)
    chosen = [draw.choice(clips) for _ in range(draw.randint(1, 7))]
    x = gap()
    for name, _, _ in chosen:
        x += sounds[name] + gap()
    level = (sum(v * v for v in x) / len(x)) ** 0.5 * 10 ** (-draw.uniform(10, 40) / 20)
    return [v + draw.gauss(0, level) for v in x], " ".join(word for _, word, _ in chosen)


def write_strings(archive, folder, test, n):
    draw = random.Random(20)
    os.makedirs(os.path.join(folder, "strings"), exist_ok=True)
    speakers = sorted({who for _, _, who in test})
    sounds = {name: read(archive, name) for name, _, _ in test}  # once, in order: going back in a gzip file reads it again
    with open(os.path.join(folder, "strings.tsv"), "w") as table:
        for i in range(n):
            who = speakers[i % len(speakers)]
            x, text = string(sounds, [row for row in test if row[2] == who], draw)
            name = f"strings/{i:04d}.wav"
            with wave.open(os.path.join(folder, name), "wb") as w:
                w.setparams((1, 2, RATE, 0, "NONE", ""))
                w.writeframes(b"".join(struct.pack("<h", max(-32768, min(32767, round(v * 32768)))) for v in x))
            table.write(f"{os.path.join(folder, name)}\t{text}\n")


def write_tables(folder, name, rows):
    """Path and digit; and path, word and speaker, with a header."""
    with open(os.path.join(folder, name + ".tsv"), "w") as digits, open(os.path.join(folder, name + "-words.tsv"), "w") as words:
        words.write("path\ttext\tspeaker\n")
        for path, word, who in rows:
            digits.write(f"{path}\t{WORDS.index(word)}\n")
            words.write(f"{path}\t{word}\t{who}\n")


def main():
    folder = sys.argv[1]
    archive = tarfile.open(os.path.join(folder, "recordings.tar.gz"))
    rows, test = [], []
    for name in sorted(m for m in archive.getnames() if m.endswith(".wav")):
        digit, who, take = os.path.basename(name)[:-4].split("_")
        rows.append((name, WORDS[int(digit)], who))
        if int(take) < 5:
            test.append(rows[-1])
    write_tables(folder, "train", [row for row in rows if row not in set(test)])
    write_tables(folder, "test", test)
    for who in sorted({who for _, _, who in rows}):
        write_tables(folder, "without-" + who, [row for row in rows if row[2] != who])
        write_tables(folder, "only-" + who, [row for row in rows if row[2] == who])
    if "--strings" in sys.argv:
        write_strings(archive, folder, test, int(sys.argv[sys.argv.index("--strings") + 1]))


if __name__ == "__main__":
    main()
