/* lines.h - a few lines to train on, as files of the scratch folder. */
#ifndef HELPER_LINES_H
#define HELPER_LINES_H

void put_lines(void);  /* lines.txt: four sentences */
void put_labels(void); /* labels.tsv: four, each good, bad or fair */
/* Both files, and base/model: a BERT of so many layers that was trained on lines.txt for a
 * moment. */
void train_base(int layers);
/* writer/model, a GPT-2 that was trained on lines.txt for a moment, and pairs.jsonl: which of two
 * continuations is preferred. */
void train_writer(void);
/* A recipe that makes a classifier of base/model from labels.tsv; more: its other sections. */
void put_classify(const char *file, const char *more);

#endif
