/* ranks.h - what tests of ranks do alike, whichever engine carries the bytes. */
#ifndef HELPER_RANKS_H
#define HELPER_RANKS_H

#include "comm/comm.h"

enum { RANKS_MOST = 16 };

/* Every rank sends two numbers to every rank, itself too; 0: all of them have arrived, else which
 * step failed. */
int ranks_exchange(fv_comm *c);

/* Writes lines.txt, 150 lines for a small language model, and r.ini into the scratch folder. */
void ranks_recipe(const char *recipe);

/* Whether two checkpoints, "run/checkpoints/step-4", hold the same moments, in one file or in one
 * of each rank. */
bool same_moments(const char *a, const char *b);

#endif
