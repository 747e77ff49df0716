/* keys.c - API keys: read from a file, compared in time that does not depend on them.
 *
 * A comparison that stops at the first difference tells, by its time, how many bytes were right.
 * So every byte of every key is looked at, whatever was given, and keys are padded to one length.
 * The file is read again by SIGHUP; a file that is wrong leaves the old keys in place. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* A key a line; empty lines and those that begin with # are passed over. */
fv_status sv_keys_read(sv_keys **out, const char *path, fv_err *e)
{
    char *line = NULL;
    size_t cap = 0;
    int number = 0;
    fv_status st = FV_OK;
    sv_keys *keys = calloc(1, sizeof *keys);
    FILE *f = fopen(path, "re");
    *out = NULL;
    if (!f) st = fv_fail(e, FV_EIO, "%s: %s", path, strerror(errno));
    if (!keys) st = fv_fail(e, FV_ENOMEM, "out of memory");
    for (ssize_t n; !st && (n = getline(&line, &cap, f)) >= 0;) {
        number++;
        while (n > 0 && strchr(" \t\r\n", line[n - 1])) n--;
        if (!n || line[0] == '#') continue;
        if (keys->n == SV_MAX_KEYS || n < 8 || (size_t)n > sizeof keys->at[0].bytes)
            st = fv_fail(e, FV_EFORMAT,
                         "%s: line %d: a key of 8 to 128 characters was expected, at most %d of "
                         "them",
                         path, number, SV_MAX_KEYS);
        else
            memcpy(keys->at[keys->n].bytes, line, keys->at[keys->n].n = (size_t)n), keys->n++;
    }
    if (!st && !keys->n) st = fv_fail(e, FV_EFORMAT, "%s: there is no key in it", path);
    free(line);
    if (f) fclose(f);
    if (st)
        free(keys);
    else
        *out = keys;
    return st;
}

/* Every byte of every key is looked at, whatever was given. */
bool sv_keys_allow(sv_server *s, const char *authorization)
{
    unsigned char given[sizeof s->keys->at[0].bytes] = {0};
    const char *key = authorization && !strncasecmp(authorization, "Bearer ", 7) ? authorization + 7
                                                                                 : "";
    size_t n = strlen(key);
    int found = 0;
    memcpy(given, key, n < sizeof given ? n : sizeof given);
    pthread_mutex_lock(&s->lock);
    const sv_keys *k = s->keys;
    for (int i = 0; k && i < k->n; i++) {
        unsigned different = (unsigned)(k->at[i].n ^ n);
        for (size_t j = 0; j < sizeof given; j++) different |= given[j] ^ k->at[i].bytes[j];
        found |= !different;
    }
    bool allowed = !k || found;
    pthread_mutex_unlock(&s->lock);
    return allowed;
}
