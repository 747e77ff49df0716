/* summarize.h - how a text is read to be summarised, for the command and for judging summaries. */
#ifndef FOVEA_CLI_SUMMARIZE_H
#define FOVEA_CLI_SUMMARIZE_H

#include "write.h"

/* unless the model or the command line says otherwise */
enum { SUMMARY_TOKENS = 142, SUMMARY_BATCH = 8 };

/* The ids of a text behind what the model asks to have before it, or behind prefix where that is
 * not NULL.  What does not fit into the model is cut off. */
int summarize_encode(writer *w, const char *prefix, ids *out, const fv_text *text);

#endif
