/* lines.c - a few lines to train on, as files of the scratch folder. */
#include "lines.h"

#include "files.h"

void put_lines(void)
{
    scratch_text(
        "lines.txt",
        "the cat sat on the mat\nit was a good day\nthe dog ran in the park\nso bad a film\n");
}

void put_labels(void)
{
    scratch_text("labels.tsv",
                 "the cat sat\tgood\nso bad a film\tbad\nit was a day\tfair\nthe good dog\tgood\n");
}
