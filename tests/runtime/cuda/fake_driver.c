/* Stands for libcuda.so.1: does nothing but write down what it is told. */
#include <stdint.h>
#include <string.h>

typedef struct { int32_t id; char pad[4]; union { char pad[64]; int32_t number; uint32_t dims[3]; } value; } attribute;
typedef struct {
    uint32_t grid[3], block[3], shared;
    void *stream;
    attribute *attributes;
    uint32_t attribute_count;
} config;

/* One launch: function, stream, grid x 3, threads, shared, attributes as (id, value) x 4, context, first 6 params. */
int64_t log_launches[64][24];
int64_t log_count, fail_at = -1, current_context = 7, pushes, pops;
int64_t param_count = 3; /* parameters read of each launch, 8 bytes each */
int64_t kernels_run;     /* a kernel is a function of its parameters, and is called */

int cuLaunchKernelEx(const config *c, void *function, void **params, void **extra)
{
    (void)extra;
    if (log_count == fail_at)
        return 701;
    int64_t *row = log_launches[log_count++ % 64];
    memset(row, 0, sizeof log_launches[0]);
    row[0] = (int64_t)function;
    row[1] = (int64_t)c->stream;
    for (int k = 0; k < 3; k++)
        row[2 + k] = c->grid[k];
    row[5] = c->block[0] * c->block[1] * c->block[2];
    row[6] = c->shared;
    for (uint32_t k = 0; k < c->attribute_count; k++) {
        row[7 + 2 * k] = c->attributes[k].id;
        row[8 + 2 * k] = c->attributes[k].value.number;
    }
    row[15] = current_context;
    for (int k = 0; k < param_count; k++)
        row[16 + k] = *(int64_t *)params[k];
    if (kernels_run)
        ((void (*)(void **))function)(params);
    return 0;
}
int cuCtxGetCurrent(void **c) { *c = (void *)current_context; return 0; }
int cuCtxPushCurrent_v2(void *c) { current_context = (int64_t)c; pushes++; return 0; }
int cuCtxPopCurrent_v2(void **c) { *c = (void *)current_context; current_context = 7; pops++; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)(int64_t)(7 + d); return 0; }
int cuDeviceGet(int *d, int ordinal) { *d = ordinal; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { (void)d; *v = a == 97 ? 232448 : -1; return 0; }
extern int64_t no_ptx;
int cuModuleLoadData(void **m, const void *image)
{
    *m = (void *)image;
    return no_ptx && !strncmp(image, ".version", 8) ? 221 : 0;
}
int cuModuleGetFunction(void **f, void *m, const char *name) { (void)m; *f = (void *)(int64_t)name[0]; return 0; }
int64_t modules_unloaded;
int cuFuncGetModule(void **m, void *f) { *m = f; return 0; }
int cuModuleUnload(void *m) { modules_unloaded += (int64_t)m; return 0; }
int cuFuncGetAttribute(int *v, int a, void *f) { (void)f; *v = a == 0 ? 1024 : 16; return 0; }
int64_t function_attributes[8][2], function_attribute_count;
int cuFuncSetAttribute(void *f, int a, int v)
{
    (void)f;
    function_attributes[function_attribute_count][0] = a;
    function_attributes[function_attribute_count++][1] = v;
    return 0;
}
int cuFuncSetCacheConfig(void *f, int p) { (void)f; return p != 1; }
int cuGetErrorString(int code, const char **text) { *text = code == 701 ? "too many resources requested" : "?"; return 0; }

/* A graph is a function; copies are made at once, and written down: into, out of, bytes, stream. */
int64_t graph_launches, graph_fails, copy_count, log_copies[64][4];

int cuGraphLaunch(void *graph, void *stream)
{
    (void)stream;
    if (graph_fails)
        return 700;
    graph_launches++;
    ((void (*)(void))graph)();
    return 0;
}

int cuMemcpyDtoDAsync_v2(uint64_t into, uint64_t out_of, size_t bytes, void *stream)
{
    int64_t row[4] = {(int64_t)into, (int64_t)out_of, (int64_t)bytes, (int64_t)stream};
    memcpy(log_copies[copy_count++ % 64], row, sizeof row);
    memmove((void *)into, (const void *)out_of, bytes);
    return 0;
}

/* The kernel that copies, a function of its own here: what (x, y) blocks are told to copy is. */
int64_t copy_launches, no_ptx, copy_nothing;

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra)
{
    (void)shared, (void)extra;
    const uint64_t (*copies)[3] = params[0];
    if ((int64_t)function != 'b' || z * by * bz != 1 || threads != 256)
        return 1;
    copy_launches++;
    for (unsigned k = 0; k < y && !copy_nothing; k++) {
        if ((copies[k][0] | copies[k][1]) % 16 || (uint64_t)x * threads < copies[k][2] % 16)
            return 716;
        cuMemcpyDtoDAsync_v2(copies[k][0], copies[k][1], copies[k][2], stream);
    }
    return 0;
}
