/* memory.h - what the process takes from malloc, of whichever library: most at once, the largest
 * piece, what is still held. */
#ifndef FUZZ_MEMORY_H
#define FUZZ_MEMORY_H

#include <stddef.h>

typedef struct memory {
    size_t live, peak, largest;
} memory;

/* Since memory_watch; requests above limit get nothing.  peak and live count from the level at that
 * time. */
void memory_watch(size_t limit);
memory memory_seen(void);
/* What was seen at the first memory_mark since then, or is now if there was none. */
void memory_mark(void);
memory memory_marked(void);

#endif
