/* absent.h - who keeps ranks waiting that have not met yet. */
#ifndef FV_ABSENT_H
#define FV_ABSENT_H

#include "base/place.h"

/* Looks at the processes of this machine.  A rank that is stopped will not come: true, and `why`
 * names it.  Else `why` says what is known of those that have not come. */
bool fv__comm_absent(char *why, size_t size, const fv_env *env, const fv__place *place);

#endif
