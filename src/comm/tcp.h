/* tcp.h - the inside of the TCP engine: frames, and the sockets that joining leaves behind. */
#ifndef FV_COMM_TCP_H
#define FV_COMM_TCP_H

#include "comm/comm.h"

/* Sockets of this rank, by the rank at the other end; -1: none.  Rank 0 has one to each other rank,
 * the others one to rank 0.  They do not block. */
fv_status fv__tcp_join(int *fd, fv_comm *c, const fv__launch *launch, fv_err *e);
void fv__tcp_leave(int *fd, int size);

#endif
