/* test_hostile.c - files that are made to fill the memory or to take for ever: each ends in at most
 * two seconds and one gibibyte, with a result or a sentence.
 *
 * Every input has at most a megabyte (bombs: of compressed bytes).  The figures are printed, and
 * docs/reliability.md shows those of one machine.  Under a sanitizer, where both are many times
 * larger, only the endings are looked at. */
#include <endian.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#include "helper/files.h"

#define MEGA (1 << 20)
#define MODEL FOVEA_TESTS "/golden/stories260K"
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#define MOST_SECONDS (SANITIZED ? 900 : 60) /* of CPU time: what takes more never ends */

/* ---- running a command, with what it cost ---- */

typedef struct cost {
    int code; /* exit status, or -signal */
    double seconds;
    long mib;
    char error[400];
} cost;

/* Becomes "fovea ARGUMENTS" in the scratch folder; arguments are separated by single spaces. */
static void become_program(char *line)
{
    char *argv[32] = {(char *)(uintptr_t) "fovea"};
    int n = 1;
    for (char *s = strtok(line, " "); s && n < 31; s = strtok(NULL, " ")) argv[n++] = s;
    if (chdir(scratch("."))) _exit(126);
    if (!freopen("/dev/null", "w", stdout) || !freopen("err", "w", stderr)) _exit(126);
    setrlimit(RLIMIT_CPU, &(struct rlimit){MOST_SECONDS, MOST_SECONDS});
    execv(FOVEA_PROGRAM, argv);
    _exit(127);
}

static cost run(const char *arguments)
{
    char line[2000];
    struct rusage use;
    int status;
    size_t n;
    snprintf(line, sizeof line, "%s", arguments);
    pid_t pid = fork();
    if (!pid) become_program(line);
    assert_int_equal(wait4(pid, &status, 0, &use), pid);
    cost c = {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
              .seconds = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                         1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec),
              .mib = use.ru_maxrss / 1024};
    char *err = slurp(scratch("err"), &n);
    snprintf(c.error, sizeof c.error, "%.*s", (int)strcspn(err, "\n"), err);
    free(err);
    return c;
}

/* The command ends: with success where part is NULL, else with a sentence that has part. */
static void ends(const char *what, const char *part, const char *arguments)
{
    cost c = run(arguments);
    print_message("%-44s %5.2f s %5ld MiB  %.90s\n", what, c.seconds, c.mib, c.error);
    if (part ? c.code != 1 || !strstr(c.error, part) : c.code)
        fail_msg("%s: exit %d, \"%s\"", what, c.code, c.error);
    if (!SANITIZED && c.mib > 1024) fail_msg("%s: too much memory", what);
}

/* ---- files ---- */

static FILE *create(const char *name)
{
    FILE *f = fopen(scratch("%s", name), "wb");
    assert_non_null(f);
    return f;
}

static void times(FILE *f, int n, const char *s)
{
    while (n--) fputs(s, f);
}

/* A tokenizer.json with this model and one further member. */
static void tokenizer(const char *name, const char *member, const char *model)
{
    FILE *f = create(name);
    fprintf(f, "{\"version\": \"1.0\", %s \"model\": %s}", member, model);
    fclose(f);
}

static const char words[] = "{\"type\": \"WordLevel\", \"vocab\": {\"a\": 0, \"<unk>\": 1}, "
                            "\"unk_token\": \"<unk>\"}";

/* "normalizer": the same step n times. */
static void steps(const char *name, const char *key, const char *list, const char *step, int n)
{
    char *member;
    size_t size;
    FILE *f = open_memstream(&member, &size);
    fprintf(f, "\"%s\": {\"type\": \"Sequence\", \"%s\": [", key, list);
    for (int i = 0; i < n; i++) fprintf(f, "%s%s", i ? ", " : "", step);
    fputs("]},", f);
    fclose(f);
    tokenizer(name, member, words);
    free(member);
}

/* A model whose tokens are a, aa, aaa, ...: format gets the number of a's, the a's and the id. */
static void ladder(const char *name, const char *head, const char *format, int n, const char *tail)
{
    char *model, *as = malloc((size_t)n + 1);
    size_t size;
    memset(as, 'a', (size_t)n);
    FILE *f = open_memstream(&model, &size);
    fputs(head, f);
    for (int i = 1; i <= n; i++) fprintf(f, format, i, as, i);
    fputs(tail, f);
    fclose(f);
    tokenizer(name, "", model);
    free(model);
    free(as);
}

/* A gzip file of a megabyte that unpacks to a gigabyte of one line over and over.  One mebibyte is
 * compressed, and its bytes are repeated: behind a full flush they mean the same each time. */
static void bomb(const char *name, const char *line)
{
    enum { BLOCKS = 1000, CAPACITY = 4096 };
    unsigned char *block = malloc(MEGA), packed[CAPACITY];
    size_t n = strlen(line);
    for (size_t i = 0; i < MEGA; i++) block[i] = n ? (unsigned char)line[i % n] : 0;
    z_stream z = {.next_in = block, .avail_in = MEGA, .next_out = packed, .avail_out = CAPACITY};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FULL_FLUSH), Z_OK);
    assert_true(!z.avail_in && z.avail_out);
    deflateEnd(&z);
    unsigned long one = crc32(0, block, MEGA), all = one;
    for (int i = 1; i < BLOCKS; i++) all = crc32_combine(all, one, MEGA);
    uint32_t end[2] = {htole32((uint32_t)all), htole32((uint32_t)BLOCKS * MEGA)};
    FILE *f = create(name);
    fwrite("\x1f\x8b\x08\0\0\0\0\0\2\3", 1, 10, f);
    for (int i = 0; i < BLOCKS; i++) fwrite(packed, 1, CAPACITY - z.avail_out, f);
    fwrite("\3\0", 1, 2, f); /* an empty last block */
    fwrite(end, 1, sizeof end, f);
    fclose(f);
    free(block);
}

/* A piece of a SentencePiece model: n a's, and a character of its own where own is not 0. */
static void piece(FILE *f, int n, int own, float score, int type)
{
    unsigned char body[2048], head[8];
    int at = 0, text = n + (own ? 3 : 0);
    body[at++] = 1 << 3 | 2;
    body[at++] = (unsigned char)(text & 127) | 128;
    body[at++] = (unsigned char)(text >> 7);
    memset(body + at, 'a', (size_t)n), at += n;
    if (own) {
        body[at++] = (unsigned char)(0xE4 + (own >> 12));
        body[at++] = (unsigned char)(0x80 | (own >> 6 & 63));
        body[at++] = (unsigned char)(0x80 | (own & 63));
    }
    body[at++] = 2 << 3 | 5;
    memcpy(body + at, &score, 4), at += 4;
    body[at++] = 3 << 3;
    body[at++] = (unsigned char)type;
    head[0] = 1 << 3 | 2;
    head[1] = (unsigned char)(at & 127) | 128;
    head[2] = (unsigned char)(at >> 7);
    fwrite(head, 1, 3, f);
    fwrite(body, 1, (size_t)at, f);
}

/* kind: 1 Unigram, 2 BPE. */
static FILE *pieces(const char *name, int kind)
{
    FILE *f = create(name);
    fputs("\x0a\x0e\x0a\x05<unk>\x15", f);
    fwrite("\0\0\0\0\x18\x02\x12\x02\x18", 1, 9, f);
    fputc(kind, f);
    return f;
}

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    FILE *f = create("a.txt");
    times(f, MEGA, "a");
    fclose(f);
    f = create("marks.txt"); /* combining marks in the wrong order */
    times(f, MEGA / 4, "\xCC\x81\xCC\x96");
    fclose(f);
    f = create("grows.txt"); /* a ligature of 18 characters in NFKC */
    times(f, MEGA / 3, "\xEF\xB7\xBA");
    fclose(f);
    f = create("ids.txt");
    times(f, MEGA / 2, "0 ");
    fclose(f);
    f = create("long.txt");
    for (int i = 0; i < 17; i++) times(f, MEGA, "a");
    fclose(f);
    bomb("zeros.gz", "");
    bomb("line.gz", "a");
    bomb("lines.gz", "a b\n");
    return 0;
}

/* ---- the cases ---- */

static void files_without_an_end(void **state)
{
    (void)state;
    ends("tokenizer from /dev/zero", "too many to read", "tokenize -m /dev/zero a.txt");
    ends("recipe from /dev/zero", "too many to read", "train /dev/zero -o run");
    ends("arrays from /dev/zero", "too many to read", "attend --q /dev/zero --k a --v a");
    ends("tokenizer trained on /dev/zero", "too many to read",
         "tokenizer train --kind byte-bpe --vocab 300 -o t.json /dev/zero");
    ends("text from /dev/zero", "too many for one text", "tokenize -m " MODEL " /dev/zero");
    ends("lines from /dev/zero", "has more than 16777216 bytes", "score -m " MODEL " /dev/zero");
    ends("a text of 17 MiB", "too many for one text", "tokenize -m " MODEL " long.txt");
    ends("a line of 17 MiB", "has more than 16777216 bytes", "score -m " MODEL " long.txt");
}

static void gzip_bombs(void **state)
{
    (void)state;
    ends("gzip: tokenizer", "which is refused", "tokenize -m zeros.gz a.txt");
    ends("gzip: text", "which is refused", "tokenize -m " MODEL " line.gz");
    ends("gzip: one line", "which is refused", "score -m " MODEL " line.gz");
    ends("gzip: lines", "which is refused",
         "tokenizer train --kind byte-bpe --vocab 300 -o t.json lines.gz");
    scratch_text("r.ini",
                 "[model]\nmodel_type = llama\nhidden_size = 16\nnum_hidden_layers = 1\n"
                 "num_attention_heads = 2\nintermediate_size = 24\n[data]\nobjective = causal\n"
                 "train = lines.gz\ncontext = 16\n[tokenizer]\nkind = byte_bpe\nvocab = 270\n"
                 "[train]\nupdates = 1\nbatch_tokens = 64\n");
    ends("gzip: training data", "which is refused", "train r.ini -o run");
}

static void texts_that_grow(void **state)
{
    (void)state;
    const char *ten = "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": "
                      "\"aaaaaaaaaa\"}";
    steps("replace.json", "normalizer", "normalizers", ten, 20);
    ends("20 replacements by ten times as much", "makes more than",
         "tokenize -m replace.json a.txt");
    steps("decode.json", "decoder", "decoders", ten, 20);
    ends("the same in a decoder", "makes more than", "tokenize --decode -m decode.json ids.txt");
    steps("bytes.json", "pre_tokenizer", "pretokenizers",
          "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
          "\"use_regex\": false}",
          20);
    ends("20 byte-level steps", "which is refused", "tokenize -m bytes.json grows.txt");
    steps("nfkc.json", "normalizer", "normalizers", "{\"type\": \"NFKC\"}", 1);
    ends("NFKC, 18 characters for one", NULL, "tokenize -m nfkc.json grows.txt");
    ends("NFKC, combining marks out of order", NULL, "tokenize -m nfkc.json marks.txt");
    steps("many.json", "normalizer", "normalizers", "{\"type\": \"NFKD\"}", 300);
    ends("300 normalisers", "which is refused", "tokenize -m many.json grows.txt");
}

static void long_tokens(void **state)
{
    (void)state;
    ladder("unigram.json", "{\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", -1]",
           ", [\"%.*s\", -%d]", 1000, "]}");
    ends("Unigram, tokens of 1 to 1000 bytes", "steps", "tokenize -m unigram.json a.txt");
    ladder("wordpiece.json",
           "{\"type\": \"WordPiece\", \"unk_token\": \"u\", \"continuing_subword_prefix\": \"\", "
           "\"max_input_chars_per_word\": 10000000, \"vocab\": {\"u\": 0, \"a\": 5000",
           ", \"%.*sb\": %d", 1000, "}}");
    ends("WordPiece, tokens of 1 to 1001 bytes", "steps", "tokenize -m wordpiece.json a.txt");
    char *member;
    size_t size;
    FILE *f = open_memstream(&member, &size);
    fputs("\"added_tokens\": [{\"id\": 2, \"special\": true, \"normalized\": false, \"lstrip\": "
          "false, \"rstrip\": false, \"single_word\": false, \"content\": \"",
          f);
    times(f, MEGA / 2, "a");
    fputs("b\"}],", f);
    fclose(f);
    tokenizer("added.json", member, words);
    free(member);
    ends("an added token of 512 KiB", "steps", "tokenize -m added.json a.txt");
    f = pieces("bpe.model", 2);
    piece(f, 1, 0, -1, 1);
    for (int i = 1; i < 1000; i++) piece(f, 1000, i, (float)-i, 1);
    fclose(f);
    ends("SentencePiece BPE, 1000 long pieces", NULL, "tokenize -m bpe.model a.txt");
    f = pieces("symbols.model", 2);
    piece(f, 1, 0, -1, 1);
    piece(f, 1000, 1, 0, 4);
    fclose(f);
    ends("SentencePiece, a symbol of 1003 bytes", "steps", "tokenize -m symbols.model a.txt");
}

static void split_by(const char *regex, const char *file)
{
    char member[400], what[80], arguments[80];
    snprintf(member, sizeof member,
             "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"%s\"}, "
             "\"behavior\": \"Isolated\", \"invert\": false},",
             regex);
    snprintf(what, sizeof what, "regex %s", regex);
    snprintf(arguments, sizeof arguments, "tokenize -m regex.json %s", file);
    tokenizer("regex.json", member, words);
    ends(what, "gave up on this text", arguments);
}

static void patterns(void **state)
{
    (void)state;
    static const char *const bad[] = {"(a+)+b", "a*a*a*a*b", "(a?){500}a{500}b", "(?=.*b)a",
                                      "(?<=a)b|(?=a*b)a",
                                      /* quadratic from one starting position, by scans that
                                       * PCRE2's limit on backtracking does not count */
                                      "(?:a(?!.*b))*", "(?:a(?=.*a))*", "(?:a(?=a*))*",
                                      "(?:(?=a*b)|a)*", "a*a*+b", "(?:(?=a{8000}b)|a)*"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) split_by(bad[i], "a.txt");
    /* costly only in the second half, so that what the first half took tells nothing */
    FILE *f = create("halves.txt");
    times(f, MEGA / 2, "x");
    times(f, MEGA / 2, "a");
    fclose(f);
    split_by("a(?=.*b)", "halves.txt");
    /* of the fourth degree in half a kilobyte */
    f = create("short.txt");
    times(f, 450, "a");
    fclose(f);
    split_by("(?:a(?!(?:a(?!.*b)(?!.*c)(?!.*d)(?!.*e)(?!.*f))*[cf]))*[de]", "short.txt");
    steps("split.json", "pre_tokenizer", "pretokenizers",
          "{\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Isolated\", "
          "\"invert\": false}",
          500);
    ends("500 splits", "steps", "tokenize -m split.json a.txt");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_without_an_end),
        cmocka_unit_test(gzip_bombs),
        cmocka_unit_test(texts_that_grow),
        cmocka_unit_test(long_tokens),
        cmocka_unit_test(patterns),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
