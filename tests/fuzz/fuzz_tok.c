/* fuzz_tok.c - libFuzzer target: any bytes as a tokenizer.json or a SentencePiece model, then used.
 *
 * From the root of the repository:
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -std=gnu17 -D_GNU_SOURCE -Iinclude -Isrc \
 *       -o fuzz_tok tests/fuzz/fuzz_tok.c src/base/[a-z]*.c \
 *       src/base/json/[a-z]*.c $(find src/tok -name '*.c') \
 *       -lutf8proc -lpcre2-8 -lz -lm
 *   ./fuzz_tok -max_len=20000 corpus tests/golden/tok/spm
 * A corpus of tokenizers, one a file:
 *   jq -c .tokenizer tests/golden/tok/components.jsonl | split -l 1 - corpus/ */
#include <stdlib.h>
#include <string.h>

#include "fovea/tok.h"
#include "fovea/author/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const texts[] = {"", "Hello  world",
                                    "<s> a\xcc\x81 \xe6\xbc\xa2\xe5\xad\x97 [MASK] 12\n\t",
                                    "\xff\xf0\x9f \xe2\x96\x81x"};

static void use(const fv_tok *t)
{
    fv_encoding *enc;
    fv_err e;
    if (fv_encoding_new(&enc, t, &e)) abort();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *text;
        size_t n, len = strlen(texts[i]);
        fv_tok_opts o = {.specials = true,
                         .offsets = i & 1 ? FV_OFFSETS_BYTES : FV_OFFSETS_CHARS,
                         .pair = i & 2 ? texts[1] : NULL,
                         .pair_len = 12};
        if (fv_tok_encode(enc, texts[i], len, o, &e)) continue;
        for (int64_t k = 0; k < enc->n && !o.pair; k++)
            if (enc->spans[k].from > enc->spans[k].to || enc->spans[k].to > (int64_t)len) abort();
        if (!fv_tok_decode(t, &text, &n, enc->ids, enc->n, false, &e)) fv_tok_free_text(t, text, n);
    }
    fv_encoding_free(enc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fv_mem_counter mem;
    fv_tok *t;
    fv_err e = {0};
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    fv_status st = fv_tok_read(&t, &env, data, size, "x", &e);
    if (st && !e.text[0]) abort();
    if (!st) use(t);
    fv_tok_close(t);
    if (mem.live) abort();
    return 0;
}
