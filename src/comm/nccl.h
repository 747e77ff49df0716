/* nccl.h - collectives among GPUs, by NCCL, which is opened at run time.
 *
 * NCCL carries memory of GPUs and nothing else.  Ranks, their number, what they tell each other on
 * the host and who is lost belong to a communicator of the host (MPI, TCP), which an fv__nccl goes
 * beside; that of one rank may be NULL.  Calls put work on a cudaStream_t, given as void *, and
 * return; what went wrong later is seen by fv__nccl_check when the stream has been waited for. */
#ifndef FV_NCCL_H
#define FV_NCCL_H

#include "comm/comm.h"

typedef struct fv__nccl fv__nccl;

/* Whether GPUs of this job are to talk by NCCL: $FOVEA_GPU_COMM = auto, nccl or host.  auto, the
 * default: where ranks are several, each of a machine has a GPU of its own and libnccl.so.2 is
 * there.  Every rank calls it, with the number of GPUs that it sees and the one it uses; all get
 * the same answer. */
fv_status fv__nccl_wanted(bool *wanted, fv_comm *c, int gpus, fv_err *e);

/* Every rank calls it, in the thread whose current CUDA device is the rank's. */
fv_status fv__nccl_open(fv__nccl **out, const fv_env *env, fv_comm *c, fv_err *e);
void fv__nccl_close(fv__nccl *n); /* NULL is allowed */
const char *fv__nccl_version(const fv__nccl *n);

/* As those of author/comm.h, over memory of the GPU. */
fv_status fv__nccl_exchange(fv__nccl *n, void *stream, const fv_comm_part *send, int n_send,
                            const fv_comm_part *recv, int n_recv, fv_err *e);
fv_status fv__nccl_all_gather(fv__nccl *n, void *stream, const fv_comm_part *part, fv_err *e);
fv_status fv__nccl_all_reduce(fv__nccl *n, void *stream, float *data, int64_t count, fv_err *e);
fv_status fv__nccl_reduce_scatter(fv__nccl *n, void *stream, float *data, const int64_t *from,
                                  const int64_t *count, fv_err *e);

/* After a wait for the stream: FV_OK, or why what was put on it has failed. */
fv_status fv__nccl_check(fv__nccl *n, fv_err *e);

#endif
