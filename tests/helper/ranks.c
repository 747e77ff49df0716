/* ranks.c - see ranks.h. */
#include "helper/ranks.h"

#include <stdio.h>

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
