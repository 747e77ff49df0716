/* mega_region.h - what memory an op of the megakernel reads or writes, for its planner. */
#ifndef FV_CUDA_DECODE_MEGA_REGION_H
#define FV_CUDA_DECODE_MEGA_REGION_H

#include <cstdint>

struct region {
    const char *from, *end;
    int64_t row;         /* bytes from one sequence to the next */
    int64_t step, width; /* of a cache: from one position to the next, and of one; else 0 */
    bool overlaps(const region &r) const { return from < r.end && r.from < end && !in_turn(r); }
    /* Two caches of a paged session: of every position the bytes of one lie beside the other's. */
    bool in_turn(const region &r) const
    {
        int64_t by = r.from - from;
        bool apart = by >= 0 ? by >= width && by + r.width <= step
                             : -by >= r.width && width - by <= step;
        return step && step == r.step && row == r.row && apart;
    }
    bool is(const region &r) const { return from == r.from && end == r.end && from != end; }
    /* A byte may be row i's here and row j's there. */
    bool crosses_rows(const region &r) const
    {
        return overlaps(r) && !(from == r.from && row == r.row);
    }
};

static inline region range_of(const void *p, int64_t rows, int64_t row_bytes)
{
    return {(const char *)p, (const char *)p + (p ? rows * row_bytes : 0), row_bytes, 0, 0};
}

/* Keys or values of `rows` sequences of T positions; sizes in bytes. */
static inline region cache_range(const void *p, int64_t rows, int64_t row, int64_t T, int64_t step,
                                 int64_t width)
{
    const char *from = (const char *)p;
    return {from, from + (p ? (rows - 1) * row + (T - 1) * step + width : 0), row, step, width};
}

#endif
