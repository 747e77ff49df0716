/* passages.h - the files of a folder cut into passages, and those nearest to a question. */
#ifndef FOVEA_CLI_PASSAGES_H
#define FOVEA_CLI_PASSAGES_H

#include "texts.h"

typedef struct cli_passage {
    const char *file;
    fv_text text;
    int64_t from; /* characters of the file before it */
} cli_passage;

typedef struct cli_passages {
    cli_passage *at;
    int64_t n, capacity;
    cli_bytes *files;
    char **names;
    int64_t n_files;
} cli_passages;

/* All plain files of a folder (hidden ones and subfolders aside), in the order of their names. */
int cli_read_passages(const cli *c, const char *dir, cli_passages *out);
void cli_free_passages(cli_passages *p);

/* nearest: for each of the n questions the indices of `most` passages, nearest first, by the cosine
 * of their vectors. */
int cli_nearest_passages(const cli *c, fv_task *embedder, const cli_passages *p,
                         const fv_text *questions, int64_t n, int64_t most, int64_t *nearest);

#endif
