"""Golden cases of the tasks: tiny random models with a tokenizer, texts, and what transformers' pipelines and
sentence-transformers make of them, as tests/golden/tasks/<case>/expect.json beside the model.
Run: python3 tools/golden/tasks.py tests/golden/tasks
(made with transformers 5.22.2, torch 2.15.0, tokenizers 0.23.3, sentence-transformers 6.2.0)

The pipeline for questions is gone from transformers 5.  With 4.x on PYTHONPATH (made with 4.56.2):
    python3 tools/golden/tasks.py tests/golden/tasks answers"""
import json
import os
import shutil
import sys

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import BertConfig, RobertaConfig, pipeline
import transformers as tf

OUT = sys.argv[1]
TEXTS = ["Angela Merkel was born in Hamburg.", "The cat sat on the mat, and it was good!", "Ünïcode naïve façade — ☃ in Köln",
         "a", "new york new york, so good they named it twice; nobody knows why it is so", "Was it?"]
QUESTIONS = ["Who was born in Hamburg?", "Where did the cat sit?"]
CONTEXT = " ".join(TEXTS) + "\n" + " ".join(t[::-1] for t in TEXTS) + " The cat sat on the mat. THE CAT sat on the mat again."
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def names(labels):
    return dict(id2label=dict(enumerate(labels)), label2id={label: i for i, label in enumerate(labels)})


def bert_tokenizer(folder):
    words = "the cat sat on mat and it was good new york so they named in born who where did ##s ##ed ##ing".split()
    letters = sorted(set("".join(TEXTS + QUESTIONS).lower()) | set("abcdefghijklmnopqrstuvwxyz0123456789")) + [".", ",", "!", "?", ";"]
    letters = [c for c in dict.fromkeys(letters) if not c.isspace() and c not in "ïüçö☃"]
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + words + letters + ["##" + c for c in letters if c.isalnum()]
    tok = tf.BertTokenizerFast(vocab={w: i for i, w in enumerate(vocab)}, model_max_length=48)
    tok.save_pretrained(folder)
    return tok


def roberta_tokenizer(folder):
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(TEXTS * 4 + QUESTIONS, vocab_size=300, min_frequency=2,
                            special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    os.makedirs(folder, exist_ok=True)
    bpe.save_model(folder)
    data = json.load(open(os.path.join(folder, "vocab.json")))
    merges = [tuple(line.split()) for line in open(os.path.join(folder, "merges.txt")) if line[0] != "#"]
    tok = tf.RobertaTokenizerFast(vocab=data, merges=merges, model_max_length=48)
    for f in ("vocab.json", "merges.txt"):
        os.remove(os.path.join(folder, f))
    tok.save_pretrained(folder)
    return tok


def made(name, family, head, **more):
    """A folder with a random model of that head, and its tokenizer."""
    folder = os.path.join(OUT, name)
    shutil.rmtree(folder, ignore_errors=True)
    tok = (bert_tokenizer if family == "bert" else roberta_tokenizer)(folder)
    size = dict(vocab_size=len(tok), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                max_position_embeddings=50, pad_token_id=tok.pad_token_id)
    config = BertConfig(**size, **more) if family == "bert" else RobertaConfig(**size, type_vocab_size=1, **more)
    torch.manual_seed(3)
    model = getattr(tf, head)(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    model.save_pretrained(folder)
    return folder, model, tok


def write(folder, **expect):
    with open(os.path.join(folder, "expect.json"), "w") as f:
        json.dump(expect, f, indent=1, ensure_ascii=False, default=float)
    print(folder, sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)) // 1024, "KiB")


def pipe(task, folder, **more):
    return pipeline(task, model=folder, tokenizer=folder, device="cpu", **more)


def tagged_by_word(p, text):
    """Aggregation "first" with the tokenizer's own words.  For WordPiece they are the pipeline's; for others it goes by blanks,
    warning that it guesses, and would join a full stop to the word before it."""
    words, gather = p.tokenizer(text, truncation=True).word_ids(), p.gather_pre_entities

    def gathered(*args, **more):
        found = gather(*args, **more)
        for x in found:
            x["is_subword"] = words[x["index"]] == words[x["index"] - 1]
        return found

    plain = p(text, aggregation_strategy="first")
    p.gather_pre_entities = gathered
    found = p(text, aggregation_strategy="first")
    p.gather_pre_entities = gather
    assert found == plain or "Roberta" in type(p.model).__name__
    return found


def main():
    for name, family, head in (("fill-bert", "bert", "BertForMaskedLM"), ("fill-roberta", "roberta", "RobertaForMaskedLM")):
        folder, _, tok = made(name, family, head)
        masked = [f"The {tok.mask_token} sat on the mat.", f"{tok.mask_token} york so {tok.mask_token}!"]
        p = pipe("fill-mask", folder)
        results = [p(t, top_k=4) for t in masked]
        write(folder, texts=masked, results=[r if isinstance(r[0], list) else [r] for r in results])

    pairs = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, TEXTS[1:])]
    for name, family, head, labels, more in (
            ("classify-bert", "bert", "BertForSequenceClassification", ["bad", "fair", "good"], {}),
            ("classify-roberta", "roberta", "RobertaForSequenceClassification", ["no", "yes"], {}),
            ("classify-many", "bert", "BertForSequenceClassification", ["a", "b", "c"],
             dict(problem_type="multi_label_classification"))):
        folder, _, _ = made(name, family, head, **names(labels), **more)
        p = pipe("text-classification", folder, top_k=None)
        write(folder, texts=TEXTS, results=p(TEXTS), pairs=[[q["text"], q["text_pair"]] for q in pairs],
              pair_results=[p(q, truncation=True) for q in pairs])

    folder, _, _ = made("zero-shot", "bert", "BertForSequenceClassification", **names(["contradiction", "neutral", "entailment"]))
    p = pipe("zero-shot-classification", folder)
    few = [TEXTS[1], TEXTS[3], TEXTS[5]]
    write(folder, texts=few, results=p(few, candidate_labels=["good", "bad", "so so"]),
          many_results=p(few, candidate_labels=["good", "bad", "so so"], multi_label=True))

    for name, family, head in (("tag-bert", "bert", "BertForTokenClassification"),
                               ("tag-roberta", "roberta", "RobertaForTokenClassification")):
        folder, _, _ = made(name, family, head, **names(TAGS))
        p = pipe("token-classification", folder, aggregation_strategy="simple")
        simple = [p(t) for t in TEXTS]
        write(folder, texts=TEXTS, results=simple, first_results=[tagged_by_word(p, t) for t in TEXTS])

    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as models
    for name, mode in (("mean", "mean"), ("cls", "cls"), ("max", "max"), ("lasttoken", "lasttoken"), ("weightedmean", "weightedmean"),
                       ("root", "mean_sqrt_len_tokens"), ("dense", "mean"), ("prompt", "mean")):
        folder, _, _ = made("embed-" + name, "bert", "BertModel")
        body = models.Transformer(folder, max_seq_length=20)
        parts = [body, models.Pooling(body.get_embedding_dimension(), pooling_mode=mode)]
        torch.manual_seed(5)
        if name == "dense":  # two of them, one wider and one narrower than the model
            parts += [models.Dense(16, 20), models.Dense(20, 6, bias=False, activation_function=torch.nn.Identity())]
        prompts = dict(prompts={"query": "the cat: ", "other": "x"}, default_prompt_name="query") if name == "prompt" else {}
        st = SentenceTransformer(modules=parts + ([models.Normalize()] if mode != "cls" else []), device="cpu", **prompts)
        st.save(folder)
        for extra in ("README.md",) + (() if prompts else ("config_sentence_transformers.json",)):
            path = os.path.join(folder, extra)
            if os.path.exists(path):
                os.remove(path)
        write(folder, texts=TEXTS, results=st.encode(TEXTS).tolist())

    for name, family, head in (("answer-bert", "bert", "BertForQuestionAnswering"),
                               ("answer-roberta", "roberta", "RobertaForQuestionAnswering")):
        made(name, family, head)


def answers():
    for name in ("answer-bert", "answer-roberta"):
        folder = os.path.join(OUT, name)
        p = pipe("question-answering", folder)
        asked = dict(question=QUESTIONS, context=[CONTEXT] * len(QUESTIONS))
        long = [p(question=q, context=CONTEXT, top_k=5, max_seq_len=40, doc_stride=8) for q in QUESTIONS]
        none = [p(question=q, context=TEXTS[4], top_k=3, max_answer_len=4, handle_impossible_answer=True, max_seq_len=48)
                for q in QUESTIONS]
        write(folder, **asked, results=long, none_results=none, none_context=TEXTS[4])


if __name__ == "__main__":
    answers() if "answers" in sys.argv else main()
