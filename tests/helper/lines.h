/* lines.h - a few lines to train on, as files of the scratch folder. */
#ifndef HELPER_LINES_H
#define HELPER_LINES_H

void put_lines(void);  /* lines.txt: four sentences */
void put_labels(void); /* labels.tsv: four, each good, bad or fair */

#endif
