/* seeds.c - the small models, tokenizers, recipes and data of this repository, as directories in
 * memory. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "folder.h"

enum { MOST_SEEDS = 2048 };

static seed seeds[MOST_SEEDS];
static int n_seeds;

static bytes read_file(const char *path)
{
    bytes b = {0};
    FILE *f = fopen(path, "rb");
    if (!f) return b;
    b.s = malloc(4u << 20);
    b.n = fread(b.s, 1, 4u << 20, f);
    b.s = realloc(b.s, b.n + 1);
    fclose(f);
    return b;
}

static seed *new_seed(const char *name, use_fn *use)
{
    seed *s = &seeds[n_seeds++];
    if (n_seeds == MOST_SEEDS) exit((fprintf(stderr, "too many seeds\n"), 1));
    snprintf(s->name, sizeof s->name, "%.70s", name);
    s->use = use;
    return s;
}

static void add_bytes(seed *s, const char *name, const void *data, size_t n)
{
    if (s->n == MAX_FILES) return;
    bytes *b = &s->content[s->n];
    *b = (bytes){malloc(n + 1), n};
    memcpy(b->s, data, n);
    snprintf(s->file[s->n++], sizeof s->file[0], "%.60s", name);
}

/* The files of a directory and of those in it, without what only the tests read. */
static void add_files(seed *s, const char *dir, const char *below)
{
    char path[600], name[300];
    struct dirent **list;
    int n = scandir(dir, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        const char *x = list[i]->d_name;
        snprintf(path, sizeof path, "%s/%s", dir, x);
        snprintf(name, sizeof name, "%s%s%s", below, *below ? "/" : "", x);
        if (list[i]->d_type == DT_DIR && *x != '.') add_files(s, path, name);
        if (list[i]->d_type == DT_REG && !strstr(x, "expect") && strcmp(x, "out.safetensors")) {
            bytes b = read_file(path);
            if (b.s) add_bytes(s, name, b.s, b.n);
            free(b.s);
        }
        free(list[i]);
    }
    if (n >= 0) free(list);
}

static void add_dir(const char *root, const char *dir, use_fn *use)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", root, dir);
    seed *s = new_seed(dir, use);
    add_files(s, path, "");
    if (!s->n) n_seeds--;
}

/* Every directory, or with single every file, below one. */
static void add_all(const char *root, const char *dir, use_fn *use, const char *single)
{
    char path[600], name[400];
    struct dirent **list;
    snprintf(path, sizeof path, "%s/%s", root, dir);
    int n = scandir(path, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s/%s", dir, list[i]->d_name);
        if (*list[i]->d_name != '.' && !single) add_dir(root, name, use);
        if (*list[i]->d_name != '.' && single) {
            snprintf(path, sizeof path, "%s/%s", root, name);
            bytes b = read_file(path);
            if (b.n) add_bytes(new_seed(name, use), *single ? single : list[i]->d_name, b.s, b.n);
            free(b.s);
        }
        free(list[i]);
    }
    if (n >= 0) free(list);
}

/* ---- collecting the seeds ---- */

static void add_tokenizers(const char *golden)
{
    static const char vocab[] =
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n##s\na\nb\n##a\nhello\n,\n!\n",
                      json[] = "{\"<|endoftext|>\":0,\"a\":1,\"b\":2,\"c\":3,\"ab\":4,\"\\u0120\":"
                               "5,\"\\u0120c\":6,\"abc\":7}",
                      merges[] = "#version: 0.2\na b\n\xc4\xa0 c\nab c\n";
    char path[600];
    seed *s = new_seed("vocab.txt", use_tokenizer);
    add_bytes(s, "vocab.txt", vocab, sizeof vocab - 1);
    add_bytes(s, "tokenizer_config.json",
              "{\"tokenizer_class\": \"BertTokenizer\", \"do_lower_case\": true}", 59);
    s = new_seed("merges.txt", use_tokenizer);
    add_bytes(s, "vocab.json", json, sizeof json - 1);
    add_bytes(s, "merges.txt", merges, sizeof merges - 1);
    add_all(golden, "tok/spm", use_tokenizer, "spiece.model");
    snprintf(path, sizeof path, "%s/tok/components.jsonl", golden);
    bytes all = read_file(path);
    for (char *at = all.s, *end; at && (end = memchr(at, '\n', (size_t)(all.s + all.n - at)));
         at = end + 1) {
        char *from = strstr(at, "\"tokenizer\":"), *to = from ? strstr(from, ",\"texts\"") : NULL;
        if (!to || to > end) to = from ? memmem(from, (size_t)(end - from), ",\"cases\"", 8) : NULL;
        if (to)
            add_bytes(new_seed("component", use_tokenizer), "tokenizer.json", from + 12,
                      (size_t)(to - from - 12));
    }
    free(all.s);
}

static void add_quantised(const char *golden, fv_device *d)
{
    static const char *const names[] = {"models/bert-sequence", "models/gpt2-language",
                                        "models/t5-text", "models/llama-language"};
    static const fv_dtype dtypes[] = {FV_Q8, FV_Q4, FV_I8};
    char root[] = "/tmp/fovea-fuzz-XXXXXX", from[600], to[700], line[800];
    if (!mkdtemp(root)) return;
    for (int i = 0; i < 12; i++) {
        fv_quantised q;
        snprintf(from, sizeof from, "%s/%s", golden, names[i / 3]);
        snprintf(to, sizeof to, "%s/%s-%d", root, fv_dtype_name(dtypes[i % 3]), i / 3);
        if (!fv_model_quantize(d, from, to, dtypes[i % 3], &q, NULL))
            add_dir(root, strrchr(to, '/') + 1, use_model);
    }
    snprintf(line, sizeof line, "rm -r %s", root);
    if (system(line)) fprintf(stderr, "%s: cannot be removed\n", root);
}

void seeds_collect(void)
{
    const char *golden = FOVEA_TESTS "/golden";
    fv_device *d;
    add_all(golden, "models", use_model, NULL);
    add_all(golden, "models", use_trained, NULL);
    add_all(golden, "models", use_tensors, NULL);
    add_all(golden, "tasks", use_task, NULL);
    add_dir(golden, "eval/classify", use_task);
    add_dir(golden, "eval/tag", use_task);
    add_dir(golden, "eval/summarize-t5", use_writer);
    add_dir(golden, "eval/summarize-bart", use_writer);
    add_dir(golden, "translate", use_writer);
    add_dir(golden, "marian-shared", use_model);
    add_tokenizers(golden);
    add_all(FOVEA_TESTS "/..", "recipes", use_recipe, "recipe.ini");
    add_all(golden, "store", use_array, "x");
    static const char *const labelled[] = {"labels.tsv", "words.label", "articles.jsonl",
                                           "tags.conll", "squad.json"};
    for (int i = 0; i < 5; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/eval/%s", golden, labelled[i]);
        bytes b = read_file(path);
        if (b.n) add_bytes(new_seed(labelled[i], use_data), labelled[i], b.s, b.n);
        free(b.s);
    }
    seeds_add_images(golden);
    if (!fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1}, NULL)) add_quantised(golden, d);
    fv_device_close(d);
}

int seeds_count(void) { return n_seeds; }

static bool images_only;
void seeds_images_only(void) { images_only = true; }

void seeds_add(const char *name, use_fn *use, const char *file, bytes content)
{
    add_bytes(new_seed(name, use), file, content.s, content.n);
}

const seed *seeds_pick(dice *d)
{
    static use_fn *const ways[] = {use_model,  use_trained, use_tensors,   use_task,
                                   use_writer, use_array,   use_tokenizer, use_recipe,
                                   use_data,   use_image,   use_images,    use_boxes};
    enum { WAYS = sizeof ways / sizeof *ways, IMAGES = 3 };
    size_t first = images_only ? WAYS - IMAGES : 0;
    use_fn *impl = ways[first + below(d, WAYS - first)];
    const seed *s;
    do s = &seeds[below(d, (size_t)n_seeds)];
    while (s->use != impl);
    return s;
}
