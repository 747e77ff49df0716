/* ranks.c - see ranks.h. */
#include "helper/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fovea/store.h"
#include "helper/files.h"

int ranks_exchange(fv_comm *c)
{
    int n = fv_comm_size(c), me = fv_comm_rank(c), out[RANKS_MOST][2], in[RANKS_MOST][2];
    fv_comm_part send[2 * RANKS_MOST], recv[2 * RANKS_MOST];
    for (int r = 0; r < n; r++)
        for (int k = 0; k < 2; k++) {
            out[r][k] = 100 * me + 10 * r + k;
            send[2 * r + k] = (fv_comm_part){r, &out[r][k], sizeof(int)};
            recv[2 * r + k] = (fv_comm_part){r, &in[r][k], sizeof(int)};
        }
    if (fv_comm_exchange(c, send, 2 * n, recv, 2 * n, NULL)) return 1;
    for (int r = 0; r < n; r++)
        for (int k = 0; k < 2; k++)
            if (in[r][k] != 100 * r + 10 * me + k) return 2;
    return 0;
}

void ranks_recipe(const char *recipe)
{
    char text[8000];
    size_t n = 0;
    for (int i = 0; i < 150; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "line %d has the word %d\n", i,
                              i * 7 % 31);
    scratch_text("lines.txt", text);
    scratch_text("r.ini", recipe);
}

static fv_st *open_moments(const char *dir)
{
    char path[1024];
    fv_st *f = NULL;
    snprintf(path, sizeof path, "%s/moments.safetensors", dir);
    if (access(path, R_OK)) snprintf(path, sizeof path, "%s/moments.safetensors.index.json", dir);
    return fv_st_open(&f, NULL, path, NULL) ? NULL : f;
}

bool same_moments(const char *a, const char *b)
{
    fv_st *x = open_moments(a), *y = open_moments(b);
    bool same = x && y && fv_st_count(x) == fv_st_count(y);
    for (int i = 0; same && i < fv_st_count(x); i++) {
        fv_st_info t = fv_st_at(x, i), u;
        same = !fv_st_find(y, t.name, &u, NULL) && t.count == u.count;
        size_t bytes = (size_t)t.count * sizeof(float);
        float *p = malloc(2 * bytes + 1), *q = p + t.count;
        same = same && p && !fv_st_read(x, &t, p, FV_F32, t.count, NULL) &&
               !fv_st_read(y, &u, q, FV_F32, t.count, NULL) && !memcmp(p, q, bytes);
        free(p);
    }
    fv_st_close(x);
    fv_st_close(y);
    return same;
}
