/* ranks.h - one model that the ranks of a job share: rank 0 serves it, the others follow. */
#ifndef SV_RANKS_H
#define SV_RANKS_H

#include "server.h"

bool sv_shared(const sv_opt *o);
bool sv_follows(const sv_opt *o); /* this is not rank 0 */
/* What a server of several ranks cannot have. */
fv_status sv_check_ranks(const sv_opt *o, fv_err *e);
/* Makes the steps of rank 0 until it stops serving. */
fv_status sv_follow(const sv_opt *o, fv_err *e);
/* On every rank, or on none. */
fv_status sv_open_device(fv_device **out, const sv_opt *o, fv_err *e);
/* How every rank opens a model that generates. */
fv_writer_opt sv_writer_opt(const sv_opt *o);
/* A model that ranks share answers through its scheduler alone. */
fv_status sv_refuse_shared(fv_err *e);

#endif
