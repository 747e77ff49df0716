/* lines.c - a few lines to train on, as files of the scratch folder. */
#include "lines.h"

#include <stdio.h>

#include "files.h"
#include "program.h"

void put_lines(void)
{
    scratch_text(
        "lines.txt",
        "the cat sat on the mat\nit was a good day\nthe dog ran in the park\nso bad a film\n");
}

void put_labels(void)
{
    scratch_text("labels.tsv",
                 "the cat sat\tgood\nso bad a film\tbad\nit was a day\tfair\nthe good dog\tgood\n");
}

void train_base(int layers)
{
    put_lines();
    put_labels();
    scratch_text("base.ini",
                 "[model]\nmodel_type = bert\narchitecture = BertForMaskedLM\nhidden_size = 16\n"
                 "num_attention_heads = 2\nintermediate_size = 24\nmax_position_embeddings = 40\n"
                 "[data]\nobjective = masked\ntrain = lines.txt\ncontext = 16\n"
                 "[tokenizer]\nkind = wordpiece\nvocab = 60\nmin_count = 1\n"
                 "[train]\nupdates = 3\nbatch_tokens = 64\n");
    succeeded(
        sh("$fovea train base.ini -o base --threads 1 --set model.num_hidden_layers=%d", layers));
}

void train_writer(void)
{
    scratch_text("writer.ini", "[model]\nmodel_type = gpt2\nn_embd = 16\nn_layer = 1\nn_head = 2\n"
                               "n_positions = 40\n[data]\nobjective = causal\ntrain = lines.txt\n"
                               "context = 16\n[tokenizer]\nkind = bpe\nvocab = 280\n"
                               "[train]\nupdates = 2\nbatch_tokens = 64\n");
    scratch_text("pairs.jsonl",
                 "{\"prompt\": \"the\", \"chosen\": \" cat\", \"rejected\": \" of\"}\n"
                 "{\"prompt\": \"a\", \"chosen\": \" dog\", \"rejected\": \" the the\"}\n"
                 "{\"prompt\": \"one\", \"chosen\": \" film\", \"rejected\": \" is is\"}\n");
    succeeded(sh("$fovea train writer.ini -o writer --threads 1"));
}

void put_classify(const char *file, const char *more)
{
    char text[2000];
    snprintf(text, sizeof text,
             "[model]\nfrom = base/model\narchitecture = BertForSequenceClassification\n"
             "[data]\nobjective = classify\ntrain = labels.tsv\nvalid = labels.tsv\n%s",
             more);
    scratch_text(file, text);
}
