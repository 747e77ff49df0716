/* images.h - images that tests make for themselves. */
#ifndef HELPER_IMAGES_H
#define HELPER_IMAGES_H

/* Writes a square of RGB noise, from level to level + 31, as the path ends (.png). */
void put_noise(int side, const char *path, int level, unsigned seed);

#endif
