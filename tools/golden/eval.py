"""Golden cases of fovea eval and fovea summarize: labelled files beside what transformers' models of tests/golden/tasks make of
them, judged by the reference implementations; and two tiny models that summarise.
Run: python3 tools/golden/eval.py tests/golden
(made with transformers 5.22.2, torch 2.15.0, scikit-learn 1.9.1, seqeval 1.2.2, rouge-score 0.1.2)"""
import json
import math
import os
import shutil
import sys
import warnings

import torch
import transformers as tf
from rouge_score import rouge_scorer
from seqeval.metrics import classification_report
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from squad import f1, normalised

warnings.filterwarnings("ignore")
ROOT = sys.argv[1]
OUT = os.path.join(ROOT, "eval")
TASKS = os.path.join(ROOT, "tasks")
LABELS = [("the cat sat on the mat", "good"), ("it was so good", "bad"), ("new york", "fair"), ("nobody knows why", "good"),
          ("was it born in hamburg?", "fair"), ("a", "bad"), ("they named it twice, so", "good"), ("who did it where", "fair"),
          ("the mat", "good"), ("so so", "bad"), ("cats and mats", "fair"), ("york, new york!", "good")]
TAGGED = [[("Angela", "I-PER"), ("Merkel", "I-PER"), ("was", "O"), ("born", "O"), ("in", "O"), ("Hamburg", "I-LOC")],
          [("Rome", "I-LOC"), ("Paris", "B-LOC"), ("New", "B-LOC"), ("York", "I-LOC"), ("sat", "O")],
          [("The", "O"), ("cat", "I-PER"), ("mat", "I-LOC"), (".", "O")],
          [(w, "I-PER" if i % 5 == 2 else "O") for i, w in enumerate(("the cat sat on the mat and it was good " * 5).split())]]
CONTEXT = "Angela Merkel was born in Hamburg. The cat sat on the mat, and it was good!"
QUESTIONS = ["Who was born?", "Where did the cat sit?", "Where?", "Was it good?"]
LINES = ["The cat sat on the mat.", "", "new york, so good"]
ARTICLES = ["The cat sat on the mat, and it was good. The cat sat on the mat again.",
            "Angela Merkel was born in Hamburg; nobody knows why.", "new york new york"]


def path(*names):
    return os.path.join(OUT, *names)


def task(name, head):
    folder = os.path.join(TASKS, name)
    return getattr(tf, head).from_pretrained(folder).eval(), tf.AutoTokenizer.from_pretrained(folder)


def level(name, source, head, texts):
    """A copy of a task's model whose mean scores over texts are the same for every label: so it gives several."""
    model, tok = task(source, head)
    model.classifier.bias -= torch.cat([model(**tok(t, return_tensors="pt")).logits.reshape(-1, model.num_labels)
                                        for t in texts]).mean(0)
    model.save_pretrained(path(name))
    tok.save_pretrained(path(name))
    return model, tok


def per_cent(x):
    return 100 * float(x)


def classify():
    model, tok = level("classify", "classify-bert", "BertForSequenceClassification", [t for t, _ in LABELS])
    names = [model.config.id2label[i] for i in range(3)]
    given = [names[int(model(**tok(t, return_tensors="pt")).logits.argmax())] for t, _ in LABELS]
    gold = [label for _, label in LABELS]
    with open(path("labels.tsv"), "w") as f:
        f.write("id\tlabel\ttext\n" + "".join(f"{i}\t{label}\t{text}\n" for i, (text, label) in enumerate(LABELS)))
    with open(path("words.label"), "wb") as f:
        f.write("".join(f"{label}:fine {text} é\n" for text, label in LABELS).encode("latin-1"))
    return dict(given=given, accuracy=per_cent(accuracy_score(gold, given)),
                macro_f1=per_cent(f1_score(gold, given, average="macro")),
                confusion=confusion_matrix(gold, given, labels=names).tolist())


def iob2(tags):
    out = []
    for i, t in enumerate(tags):
        begins = t.startswith("I-") and (i == 0 or tags[i - 1][2:] != t[2:])
        out.append("B-" + t[2:] if begins else t)
    return out


def tag():
    model, tok = level("tag", "tag-bert", "BertForTokenClassification", [" ".join(w for w, _ in s) for s in TAGGED[:3]])
    gold, given = [], []
    for sentence in TAGGED:
        words, room, labels = [w for w, _ in sentence], 46, []
        parts, n = [[]], 0  # words as long as there is room: the model sees 48 tokens
        for w in words:
            k = len(tok(w, add_special_tokens=False).input_ids)
            if n + k > room and parts[-1]:
                parts.append([])
                n = 0
            parts[-1].append(w)
            n += k
        for part in parts:
            x = tok(part, is_split_into_words=True, return_tensors="pt")
            best = model(**x).logits[0].argmax(-1).tolist()
            seen = {}
            for at, w in enumerate(x.word_ids()):
                if w is not None:
                    seen.setdefault(w, best[at])
            labels += [model.config.id2label[seen[i]] for i in range(len(part))]
        given.append(labels)
        gold.append(iob2([t for _, t in sentence]))
    with open(path("tags.conll"), "w") as f:
        f.write("-DOCSTART- -X- -X- O\n\n" + "\n".join("".join(f"{w} X X {t}\n" for w, t in s) for s in TAGGED))
    report = classification_report(gold, given, output_dict=True, zero_division=0)
    pick = lambda r: [per_cent(r["precision"]), per_cent(r["recall"]), per_cent(r["f1-score"]), int(r["support"])]
    same = [a == b for x, y in zip(gold, given) for a, b in zip(x, y)]
    lines = "".join("".join(f"{w} {g} {p}\n" for (w, _), g, p in zip(s, a, b)) + "\n" for s, a, b in zip(TAGGED, gold, given))
    return dict(all=pick(report["micro avg"]), accuracy=per_cent(sum(same) / len(same)), predictions=lines,
                types={k: pick(v) for k, v in report.items() if not k.endswith(" avg")})


def best_span(model, tok, question):
    """The pipeline of transformers 4 on one window: spans widened to words, those that read alike added up."""
    x = tok(question, CONTEXT, return_tensors="pt", return_offsets_mapping=True)
    spans = x.pop("offset_mapping")[0].tolist()
    own = [i for i, s in enumerate(x.sequence_ids()) if s == 1]
    y = model(**x)
    p = []
    for logits in (y.start_logits[0], y.end_logits[0]):
        kept = torch.full_like(logits, -math.inf)
        for i in [0] + own:
            kept[i] = logits[i]
        p.append(kept.softmax(-1).tolist())
    found = sorted(((p[0][a] * p[1][b], a, b) for a in own for b in own if a <= b < a + 15), key=lambda s: -s[0])[:12]
    words, scores = x.word_ids(), {}
    for score, a, b in found:
        while a - 1 in own and words[a - 1] == words[a]:
            a -= 1
        while b + 1 in own and words[b + 1] == words[b]:
            b += 1
        text = CONTEXT[spans[a][0]:spans[b][1]]
        first, total = scores.get(text.lower(), (text, 0))
        scores[text.lower()] = (first, total + score)
    return max(scores.values(), key=lambda s: s[1])[0]


def answer():
    model, tok = task("answer-bert", "BertForQuestionAnswering")
    given = [best_span(model, tok, q) for q in QUESTIONS]
    right = [[given[0].upper() + "!", "x"], ["The " + given[1].split()[-1], "nothing"], ["nobody"],
             [" ".join(given[3].split()[:2]), given[3] + " again"]]
    qas = [dict(id=f"q{i}", question=q, answers=[dict(text=a, answer_start=max(0, CONTEXT.find(a))) for a in answers])
           for i, (q, answers) in enumerate(zip(QUESTIONS, right))]
    json.dump(dict(version="1.1", data=[dict(title="x", paragraphs=[dict(context=CONTEXT, qas=qas)])]), open(path("squad.json"), "w"),
              indent=1)
    exact = [max(normalised(g) == normalised(a) for a in answers) for g, answers in zip(given, right)]
    best = [max(f1(g, a) for a in answers) for g, answers in zip(given, right)]
    return dict(given=given, exact=per_cent(sum(exact) / len(exact)), f1=per_cent(sum(best) / len(best)))


def perplexity():
    model, tok = task("fill-bert", "BertForMaskedLM")
    open(path("lines.txt"), "w").write("".join(line + "\n" for line in LINES))
    total, n = 0.0, 0
    for line in LINES:
        ids = tok(line, return_tensors="pt").input_ids
        for i in range(1, ids.shape[1] - 1):
            hidden = ids.clone()
            hidden[0, i] = tok.mask_token_id
            total += float(model(hidden).logits[0, i].log_softmax(-1)[ids[0, i]])
            n += 1
    words = sum(len(line.split()) for line in LINES)
    text = open(os.path.join(ROOT, "stories260K", "greedy.txt")).read()
    import sentencepiece
    pieces = sentencepiece.SentencePieceProcessor(model_file=os.path.join(ROOT, "stories260K", "tokenizer.model"))
    story = torch.tensor([[1] + pieces.encode(text)])
    model = tf.LlamaForCausalLM.from_pretrained(os.path.join(ROOT, "stories260K")).eval()
    logits = model(story).logits[0, :-1].log_softmax(-1)
    log_p = float(logits.gather(1, story[0, 1:, None]).double().sum())
    n_story = story.shape[1] - 1
    return dict(masked=dict(tokens=n, words=words, log_probability=total, perplexity=math.exp(-total / n),
                            word_perplexity=math.exp(-total / words)),
                story=dict(tokens=n_story, words=len(text.split()), characters=len(text), bytes=len(text.encode()),
                           log_probability=log_p, perplexity=math.exp(-log_p / n_story),
                           word_perplexity=math.exp(-log_p / len(text.split())),
                           bits_per_character=-log_p / math.log(2) / len(text),
                           bits_per_byte=-log_p / math.log(2) / len(text.encode())))


def summarize():
    """A T5 that asks for words before a text, and a BART; both say in config.json how they summarise."""
    out, short = {}, None
    how = dict(num_beams=3, max_length=14, min_length=5, length_penalty=2.0, no_repeat_ngram_size=2, early_stopping=True)
    for name, head in (("t5", "T5ForConditionalGeneration"), ("bart", "BartForConditionalGeneration")):
        folder = path("summarize-" + name)
        shutil.rmtree(folder, ignore_errors=True)
        tok = tf.AutoTokenizer.from_pretrained(os.path.join(TASKS, "fill-bert"))
        ids = dict(pad_token_id=tok.pad_token_id, eos_token_id=tok.sep_token_id, decoder_start_token_id=tok.sep_token_id)
        prefix = "so good: " if name == "t5" else ""
        if name == "t5":
            config = tf.T5Config(vocab_size=len(tok), d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, **ids)
        else:
            config = tf.BartConfig(vocab_size=len(tok), d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
                                   decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=60,
                                   bos_token_id=tok.cls_token_id, forced_eos_token_id=tok.sep_token_id, **ids)
        torch.manual_seed(11)
        model = getattr(tf, head)(config).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.4 * torch.randn_like(p))
        model.save_pretrained(folder)
        tok.save_pretrained(folder)
        os.remove(os.path.join(folder, "generation_config.json"))
        said = json.load(open(os.path.join(folder, "config.json")))
        said["task_specific_params"] = dict(summarization=dict(how, **(dict(prefix=prefix) if prefix else {})))
        json.dump(said, open(os.path.join(folder, "config.json"), "w"), indent=1)
        given = []
        for a in ARTICLES:
            y = model.generate(**tok(prefix + a, return_tensors="pt", truncation=True, max_length=48, return_token_type_ids=False), **how)
            given.append(tok.decode(y[0], skip_special_tokens=True))
        if not short:  # what is right has something of what the first model writes
            short = [" ".join(g.split()[::2][:4] + a.split()[:2]) for a, g in zip(ARTICLES, given)]
        scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)
        rows = [scorer.score(h, g) for g, h in zip(given, short)]
        out[name] = dict(given=given, **{k: per_cent(sum(r[k].fmeasure for r in rows) / len(rows)) for k in rows[0]})
    with open(path("articles.jsonl"), "w") as f:
        f.write("".join(json.dumps(dict(article=a, highlights=h)) + "\n" for a, h in zip(ARTICLES, short)))
    return out


os.makedirs(OUT, exist_ok=True)
with torch.no_grad():
    expect = dict(classify=classify(), tag=tag(), answer=answer(), perplexity=perplexity(), summarize=summarize())
json.dump(expect, open(path("expect.json"), "w"), indent=1)
print(json.dumps(expect, indent=1))
