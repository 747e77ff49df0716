/* events.c - records of a TensorBoard event file.
 *
 * A record is: length (u64), masked CRC-32C of the length, data, masked CRC-32C of the data; little
 * endian.  The data is a protocol buffer `Event`: 1 wall_time (double), 2 step (varint), 3
 * file_version (text), 5 summary.  A summary holds values (1), each with tag (1) and simple_value
 * (2, float). */
#include "train/log.h"

/* Castagnoli's polynomial, bit by bit: a few hundred bytes a line need no table. */
static uint32_t crc32c(const unsigned char *s, size_t n)
{
    uint32_t c = 0xffffffffu;
    while (n--) {
        c ^= *s++;
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0);
    }
    return ~c;
}

/* Data that holds its own checksum would confuse the plain one. */
static uint32_t masked(const void *s, size_t n)
{
    uint32_t c = crc32c(s, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

/* Little endian. */
static void put_fixed(unsigned char *to, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++) to[i] = (unsigned char)(x >> 8 * i);
}

/* A message that is being written; all of ours are small. */
typedef struct message {
    unsigned char s[400];
    size_t n;
} message;

/* Seven bits a byte, least significant first; the high bit says that more follow. */
static void varint(message *m, uint64_t x)
{
    for (; x >= 128; x >>= 7) m->s[m->n++] = (unsigned char)(x | 128);
    m->s[m->n++] = (unsigned char)x;
}

/* protobuf: field number and wire type in one varint. */
static void key(message *m, int field, int wire) { varint(m, (uint64_t)(field << 3 | wire)); }

static void put_double(message *m, int field, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    key(m, field, 1);
    put_fixed(m->s + m->n, bits, 8);
    m->n += 8;
}

static void put_float(message *m, int field, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    key(m, field, 5);
    put_fixed(m->s + m->n, bits, 4);
    m->n += 4;
}

static void put_bytes(message *m, int field, const void *s, size_t n)
{
    key(m, field, 2);
    varint(m, n);
    memcpy(m->s + m->n, s, n);
    m->n += n;
}

/* Length, data and both checksums. */
static void record(fv_buf *b, const message *m)
{
    unsigned char head[12], tail[4];
    put_fixed(head, m->n, 8);
    put_fixed(head + 8, masked(head, 8), 4);
    put_fixed(tail, masked(m->s, m->n), 4);
    fv__buf_add(b, head, sizeof head);
    fv__buf_add(b, m->s, m->n);
    fv__buf_add(b, tail, sizeof tail);
}

/* The first record of a file, which TensorBoard looks for. */
void fv__event_version(fv_buf *b, double time)
{
    message m = {.n = 0};
    put_double(&m, 1, time);
    put_bytes(&m, 3, "brain.Event:2", 13);
    record(b, &m);
}

/* Event { wall_time, step, summary { value { tag, simple_value } } } */
void fv__event_scalar(fv_buf *b, double time, int64_t step, const char *tag, double value)
{
    message v = {.n = 0}, summary = {.n = 0}, m = {.n = 0};
    size_t n = strlen(tag);
    put_bytes(&v, 1, tag, n < 100 ? n : 100);
    put_float(&v, 2, (float)value);
    put_bytes(&summary, 1, v.s, v.n);
    put_double(&m, 1, time);
    key(&m, 2, 0);
    varint(&m, (uint64_t)step);
    put_bytes(&m, 5, summary.s, summary.n);
    record(b, &m);
}
