/* threads.c - what the server's threads have in common. */
#include "http.h"

/* glibc's adaptive kind: whoever meets it held spins for a moment before it sleeps.  What is held
 * for a microsecond at a time would cost an engine's thread fifty otherwise. */
void sv_quick_lock(pthread_mutex_t *m)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    pthread_mutex_init(m, &kind);
    pthread_mutexattr_destroy(&kind);
}

/* As `top -H` shows it. */
void sv_name_thread(const char *name) { pthread_setname_np(pthread_self(), name); }
