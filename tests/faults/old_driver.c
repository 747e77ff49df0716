/* old_driver.c - a libcuda.so.1 that is older than any CUDA this builds with: to see what is said
 * then. */
int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);

int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}

int cuDriverGetVersion(int *version)
{
    *version = 11040; /* 11.4 */
    return 0;
}
