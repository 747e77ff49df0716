"""small_gpt2.py - the training whose communication the benchmarks of hosts look at: a GPT-2 of a given size on lines that are made here."""

RECIPE = """[model]
model_type = gpt2
n_embd = {width}
n_layer = {layers}
n_head = {heads}
n_positions = {positions}
[data]
objective = causal
train = lines.txt
context = {context}
[tokenizer]
kind = byte_bpe
vocab = 400
min_count = 1
[train]
updates = {updates}
batch_tokens = {batch}
warmup = 1
shards = {shards}
save_every = 0
eval_every = 0
log_every = 1
"""


def write(folder, **sizes):
    """lines.txt and r.ini; sizes: what stands in braces above."""
    with open(folder + "/lines.txt", "w") as f:
        for i in range(3000):
            f.write("line %d has the word %d and the number %d beside %d\n" % (i, i * 7 % 31, i * 11 % 17, i * 13 % 101))
    with open(folder + "/r.ini", "w") as f:
        f.write(RECIPE.format(**sizes))
