/* missing_rank.h - who keeps ranks waiting that have not met yet. */
#ifndef FV_MISSING_RANK_H
#define FV_MISSING_RANK_H

#include "base/launcher.h"

/* Looks at the processes of this machine.  A rank that is stopped will not come: true, and `why`
 * names it.  Else `why` says what is known of those that have not come. */
bool fv__comm_missing(char *why, size_t size, const fv_env *env, const fv__launch *launch);

#endif
