/* pages.cu - memory that follows its use: addresses that are reserved, and pages mapped there.
 *
 * The driver maps 2 MiB at a time.  A kernel that touches an address without memory would end the
 * context, and kernels do: TMA loads whole tiles of keys, rows that only pad a batch are written.
 * So pages that are not committed show one page that all of them share, the filler:
 *
 *     addresses   [ row 0: a b f f f f ][ row 1: c f f f f f ] ...      f: filler
 *
 * What is written there by one row may be read by another, as numbers that count for nothing.  To
 * commit a page is to map another in the filler's stead, so no kernel may be under way that touches
 * it: the caller has waited for the stream.
 *
 * Pages that are discarded are kept for the next commit: the driver takes longer to give and to
 * take memory than to map it.  They go back with the reservation.
 *
 * The calls are the driver's, looked up at run time as in tensor_map.cu. */
#include <cuda.h>

#include <new>
#include <vector>

#include "pages.h"

typedef CUmemGenericAllocationHandle page_handle;

/* page[i]: of the i-th page; 0: the filler's. */
struct reservation {
    reservation *next;
    char *base;
    size_t bytes, each; /* each: of a page */
    page_handle filler;
    std::vector<page_handle> page, spare;
};

namespace
{

struct driver {
    decltype(&cuDeviceGetAttribute) attribute;
    decltype(&cuMemGetAllocationGranularity) granularity;
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemAddressFree) free;
    decltype(&cuMemCreate) create;
    decltype(&cuMemRelease) release;
    decltype(&cuMemMap) map;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemSetAccess) set_access;
    bool whole;
};

template <class F> bool find(F *to, const char *name)
{
    void *f = NULL;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found);
    *to = found == cudaDriverEntryPointSuccess ? (F)f : (F)NULL;
    return *to != NULL;
}

const driver &calls()
{
    static const driver all = [] {
        driver c = {};
        c.whole = find(&c.attribute, "cuDeviceGetAttribute") &&
                  find(&c.granularity, "cuMemGetAllocationGranularity") &&
                  find(&c.reserve, "cuMemAddressReserve") && find(&c.free, "cuMemAddressFree") &&
                  find(&c.create, "cuMemCreate") && find(&c.release, "cuMemRelease") &&
                  find(&c.map, "cuMemMap") && find(&c.unmap, "cuMemUnmap") &&
                  find(&c.set_access, "cuMemSetAccess");
        cudaGetLastError();
        return c;
    }();
    return all;
}

CUmemAllocationProp properties(const device *d)
{
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = d->number;
    return p;
}

/* Physical memory of a page; 0: none is left, also once the pool's free blocks have gone back. */
page_handle create_page(device *d, size_t bytes)
{
    CUmemAllocationProp of = properties(d);
    page_handle p = 0;
    cudaMemPool_t pool;
    if (calls().create(&p, bytes, &of, 0) == CUDA_SUCCESS) return p;
    cudaStreamSynchronize(d->stream);
    if (cudaDeviceGetDefaultMemPool(&pool, d->number) == cudaSuccess) cudaMemPoolTrimTo(pool, 0);
    cudaGetLastError();
    return calls().create(&p, bytes, &of, 0) == CUDA_SUCCESS ? p : 0;
}

bool allow_access(const device *d, char *at, size_t bytes)
{
    CUmemAccessDesc to = {};
    to.location = properties(d).location;
    to.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return calls().set_access((CUdeviceptr)at, bytes, &to, 1) == CUDA_SUCCESS;
}

bool map_page(const reservation *r, size_t i, page_handle p)
{
    return calls().map((CUdeviceptr)(r->base + i * r->each), r->each, 0, p, 0) == CUDA_SUCCESS;
}

/* Page i shows p instead of what it does.  False: it shows that again. */
bool exchange(const device *d, reservation *r, size_t i, page_handle p)
{
    char *at = r->base + i * r->each;
    page_handle old = r->page[i] ? r->page[i] : r->filler;
    if (calls().unmap((CUdeviceptr)at, r->each) != CUDA_SUCCESS) return false;
    bool mapped = map_page(r, i, p);
    if (mapped && allow_access(d, at, r->each)) return true;
    if (mapped) calls().unmap((CUdeviceptr)at, r->each);
    if (map_page(r, i, old)) allow_access(d, at, r->each);
    return false;
}

reservation *reservation_of(device *d, const void *p)
{
    reservation *r = d->reserved;
    while (r && !((const char *)p >= r->base && (const char *)p < r->base + r->bytes)) r = r->next;
    return r;
}

/* How much of it there is decides what is undone. */
void destroy(device *d, reservation *r, size_t mapped)
{
    cudaStreamSynchronize(d->stream);
    for (size_t i = 0; i < mapped; i++)
        calls().unmap((CUdeviceptr)(r->base + i * r->each), r->each);
    for (page_handle p : r->page)
        if (p) calls().release(p);
    for (page_handle p : r->spare) calls().release(p);
    if (r->filler) calls().release(r->filler);
    if (r->base) calls().free((CUdeviceptr)r->base, r->bytes);
    delete r;
}

reservation *build(device *d, size_t bytes, size_t each)
{
    reservation *r = new (std::nothrow) reservation{};
    CUdeviceptr base = 0;
    size_t n = 0;
    if (!r) return NULL;
    r->bytes = (bytes + each - 1) / each * each;
    r->each = each;
    r->filler = create_page(d, each);
    if (r->filler && calls().reserve(&base, r->bytes, each, 0, 0) == CUDA_SUCCESS)
        r->base = (char *)base;
    while (r->base && n < r->bytes / each && map_page(r, n, r->filler)) n++;
    if (r->base && n == r->bytes / each && allow_access(d, r->base, r->bytes)) {
        cudaMemsetAsync(r->base, 0, each, d->stream);
        r->page.resize(n);
        r->spare.reserve(n);
        return r;
    }
    destroy(d, r, n);
    return NULL;
}

} // namespace

size_t fv_cuda_page_size(fv_device *dev)
{
    device *d = (device *)dev->impl;
    int supported = 0;
    size_t each = 0;
    CUmemAllocationProp of = properties(d);
    cudaSetDevice(d->number);
    if (!calls().whole) return 0;
    calls().attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                      d->number);
    if (!supported || calls().granularity(&each, &of, CU_MEM_ALLOC_GRANULARITY_MINIMUM)) return 0;
    return each;
}

void *fv_cuda_reserve(fv_device *dev, size_t bytes)
{
    device *d = (device *)dev->impl;
    size_t each = fv_cuda_page_size(dev);
    reservation *r = each ? build(d, bytes, each) : NULL;
    if (!r) return NULL;
    std::lock_guard<std::mutex> hold(d->pages_mutex);
    r->next = d->reserved;
    d->reserved = r;
    return r->base;
}

/* A page that was in use holds numbers of other tokens, which may be none as another dtype: all are
 * zeroed. */
bool fv_cuda_commit(fv_device *dev, void *p, size_t bytes)
{
    device *d = (device *)dev->impl;
    std::lock_guard<std::mutex> hold(d->pages_mutex);
    reservation *r = reservation_of(d, p);
    if (!r || !bytes) return r != NULL;
    cudaSetDevice(d->number);
    size_t from = (size_t)((char *)p - r->base) / r->each,
           end = ((size_t)((char *)p - r->base) + bytes + r->each - 1) / r->each;
    for (size_t i = from; i < end; i++) {
        if (r->page[i]) continue;
        page_handle page = r->spare.empty() ? create_page(d, r->each) : r->spare.back();
        if (!page) return false;
        if (!r->spare.empty()) r->spare.pop_back();
        if (!exchange(d, r, i, page)) {
            r->spare.push_back(page);
            return false;
        }
        r->page[i] = page;
        cudaMemsetAsync(r->base + i * r->each, 0, r->each, d->stream);
    }
    return true;
}

void fv_cuda_discard(fv_device *dev, void *p, size_t bytes)
{
    device *d = (device *)dev->impl;
    std::lock_guard<std::mutex> hold(d->pages_mutex);
    reservation *r = reservation_of(d, p);
    if (!r) return;
    cudaSetDevice(d->number);
    size_t at = (size_t)((char *)p - r->base), from = (at + r->each - 1) / r->each,
           end = (at + bytes) / r->each;
    for (size_t i = from; i < end; i++) {
        if (!r->page[i] || !exchange(d, r, i, r->filler)) continue;
        r->spare.push_back(r->page[i]);
        r->page[i] = 0;
    }
}

bool fv_cuda_unreserve(device *d, void *p)
{
    std::lock_guard<std::mutex> hold(d->pages_mutex);
    reservation **at = &d->reserved, *r = reservation_of(d, p);
    if (!r) return false;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    destroy(d, r, r->page.size());
    return true;
}

void fv_cuda_unreserve_all(device *d)
{
    while (d->reserved) fv_cuda_unreserve(d, d->reserved->base);
}
