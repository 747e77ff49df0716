/* seeds_images.c - images of every kind, IDX files, archives of images, boxes of VOC and COCO. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "folder.h"

static bytes read_image(const char *golden, const char *name)
{
    char path[600];
    bytes b = {malloc(1 << 16), 0};
    snprintf(path, sizeof path, "%s/images/%s", golden, name);
    FILE *f = fopen(path, "rb");
    if (f) b.n = fread(b.s, 1, 1 << 16, f);
    if (f) fclose(f);
    return b;
}

/* One more file of a tar archive; the sum over the header is written by mutate.c's repair, too. */
static void tar_add(bytes *a, const char *name, const void *data, size_t n)
{
    size_t whole = (n + 511) / 512 * 512;
    a->s = realloc(a->s, a->n + 512 + whole + 1024);
    char *h = a->s + a->n;
    memset(h, 0, 512 + whole + 1024);
    snprintf(h, 100, "%s", name);
    snprintf(h + 124, 12, "%011zo", n);
    memcpy(h + 257, "ustar", 5);
    h[156] = '0';
    memcpy(h + 512, data, n);
    repair_tar_header(h);
    a->n += 512 + whole;
}

static void add_archives(const char *golden)
{
    static const char xml[] =
        "<annotation>\n <object><name>cell</name>\n<bndbox><xmin>3</xmin><ymin>4</ymin><xmax>20"
        "</xmax><ymax>21</ymax></bndbox></object>\n <!-- no more -->\n</annotation>\n",
                      json[] = "{\"images\":[{\"id\":7,\"file_name\":\"a.png\"}],\"annotations\":"
                               "[{\"image_id\":7,\"category_id\":1,\"bbox\":[1,2,9,8]}],"
                               "\"categories\":[{\"id\":1,\"name\":\"cell\"}]}";
    bytes png = read_image(golden, "turn6.png"), jpg = read_image(golden, "turn2.jpg");
    bytes folders = {0}, voc = {0}, coco = {0};
    tar_add(&folders, "t/cat/1.png", png.s, png.n);
    tar_add(&folders, "t/dog/2.jpg", jpg.s, jpg.n);
    tar_add(&voc, "v/Annotations/1.xml", xml, sizeof xml - 1);
    tar_add(&voc, "v/JPEGImages/1.jpg", jpg.s, jpg.n);
    tar_add(&coco, "c/a.png", png.s, png.n);
    tar_add(&coco, "c/boxes.json", json, sizeof json - 1);
    seeds_add("folders.tar", use_images, "folders.tar", (bytes){folders.s, folders.n + 1024});
    seeds_add("voc.tar", use_boxes, "voc.tar", (bytes){voc.s, voc.n + 1024});
    seeds_add("coco.tar", use_boxes, "coco.tar", (bytes){coco.s, coco.n + 1024});
    free(png.s), free(jpg.s), free(folders.s), free(voc.s), free(coco.s);
}

void seeds_add_images(const char *golden)
{
    static const char *const names[] = {"rgb.png",        "grey.png",    "alpha.png",
                                        "grey_alpha.png", "palette.png", "turn6.png",
                                        "rgb16.png",      "bits1.png",   "palette_clear.png",
                                        "rgb.jpg",        "grey.jpg",    "turn5.jpg",
                                        "progressive.jpg"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bytes b = read_image(golden, names[i]);
        if (b.n) seeds_add(names[i], use_image, names[i], b);
        free(b.s);
    }
    static const uint8_t idx[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3,  0,  0,
                                  0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    char both[2][sizeof idx];
    memcpy(both[0], idx, sizeof idx);
    seeds_add("a-idx3-ubyte", use_images, "a-idx3-ubyte", (bytes){both[0], sizeof idx});
    add_archives(golden);
}
