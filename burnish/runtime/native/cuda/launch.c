/* Launches of Triton kernels, many in one call: what Triton's own launcher does in Python for each.
 *
 * The driver's few types are declared here, so that no CUDA header is needed; tests/runtime/cuda/test_launcher.py compares
 * them with cuda.h. Nothing is linked either: bn_cuda_open looks the functions up in the library it is given. */
#include <dlfcn.h>
#include <stdint.h>

typedef int result; /* CUresult: 0 is success */

typedef struct {
    int32_t id;
    char pad[4];
    union {
        char pad[64];
        int32_t number;
        struct { uint32_t x, y, z; } dimensions;
    } value;
} attribute; /* CUlaunchAttribute */

typedef struct {
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared;
    void *stream;
    attribute *attributes;
    uint32_t attribute_count;
} config; /* CUlaunchConfig */

enum { COOPERATIVE = 2, CLUSTER_DIMENSION = 4, CLUSTER_POLICY = 5, PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
enum { CLUSTER_POLICY_SPREAD = 1 };
enum { MAX_THREADS_PER_BLOCK = 0, SHARED_SIZE_BYTES = 1, MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, NON_PORTABLE_CLUSTER = 14 };
enum { DEVICE_SHARED_OPT_IN = 97 };
enum { PREFER_SHARED = 1 };
enum { NO_LIBRARY = -1, NO_SYMBOL = -2, TOO_MUCH_SHARED = -3, TOO_MANY_THREADS = -4 };

typedef struct {
    result (*launch)(const config *, void *function, void **params, void **extra);
    result (*context_get)(void **context);
    result (*context_push)(void *context);
    result (*context_pop)(void **context);
    result (*context_retain)(void **context, int device);
    result (*device_get)(int *device, int ordinal);
    result (*device_attribute)(int *value, int attribute, int device);
    result (*module_load)(void **module, const void *image);
    result (*module_function)(void **function, void *module, const char *name);
    result (*function_attribute)(int *value, int attribute, void *function);
    result (*function_set)(void *function, int attribute, int value);
    result (*function_cache)(void *function, int preference);
    result (*error_string)(result code, const char **text);
    result (*function_module)(void **module, void *function);
    result (*module_unload)(void *module);
} driver;

/* One launch, everything in it known: `params` points at the table's slots, so it stays true when they change. */
typedef struct {
    void *function;
    void **params;
    uint32_t grid[3];
    uint32_t threads;
    uint32_t shared;
    uint32_t cluster;
    uint32_t dependent;   /* may begin before the kernel before it has ended */
    uint32_t cooperative;
} launch;

typedef struct {
    const driver *calls;
    void *context;
    void *stream;
    const launch *launches;
    int64_t count;
} segment;

int bn_cuda_open(const char *library, driver *out)
{
    static const char *const names[] = {
        "cuLaunchKernelEx", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
        "cuDevicePrimaryCtxRetain", "cuDeviceGet", "cuDeviceGetAttribute", "cuModuleLoadData",
        "cuModuleGetFunction", "cuFuncGetAttribute", "cuFuncSetAttribute", "cuFuncSetCacheConfig",
        "cuGetErrorString", "cuFuncGetModule", "cuModuleUnload",
    };
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return NO_LIBRARY;
    void **calls = (void **)out;
    for (unsigned k = 0; k < sizeof names / sizeof *names; k++)
        if (!(calls[k] = dlsym(handle, names[k])))
            return NO_SYMBOL;
    return 0;
}

const char *bn_cuda_error(const driver *d, int code)
{
    const char *text = 0;
    switch (code) {
    case NO_LIBRARY: return "the driver's library cannot be opened";
    case NO_SYMBOL: return "the driver's library lacks a function";
    case TOO_MUCH_SHARED: return "the kernel needs more shared memory than the device has";
    case TOO_MANY_THREADS: return "the kernel needs more threads than the device allows it";
    }
    return d->error_string(code, &text) || !text ? "unknown error" : text;
}

/* The context that torch uses on a device. */
int bn_cuda_context(const driver *d, int ordinal, void **context)
{
    int device;
    result code = d->device_get(&device, ordinal);
    return code ? code : d->context_retain(context, device);
}

static result load(const driver *d, int ordinal, const void *image, const char *name, int shared, int threads,
                   void **function)
{
    void *module;
    int device, most_shared, own_shared, most_threads;
    result code;
    if ((code = d->device_get(&device, ordinal))
        || (code = d->device_attribute(&most_shared, DEVICE_SHARED_OPT_IN, device)))
        return code;
    if (shared > most_shared)
        return TOO_MUCH_SHARED;
    if ((code = d->module_load(&module, image)) || (code = d->module_function(function, module, name))
        || (code = d->function_attribute(&most_threads, MAX_THREADS_PER_BLOCK, *function)))
        return code;
    if (threads > most_threads)
        return TOO_MANY_THREADS;
    if (shared <= 49152)
        return 0;
    if ((code = d->function_cache(*function, PREFER_SHARED))
        || (code = d->function_attribute(&own_shared, SHARED_SIZE_BYTES, *function)))
        return code;
    return d->function_set(*function, MAX_DYNAMIC_SHARED_SIZE_BYTES, most_shared - own_shared);
}

/* A kernel of a compiled image, ready to launch. */
int bn_cuda_load(const driver *d, void *context, int ordinal, const void *image, const char *name, int shared,
                 int threads, int cluster, void **function)
{
    void *popped;
    result code = d->context_push(context);
    if (code)
        return code;
    code = load(d, ordinal, image, name, shared, threads, function);
    if (!code && cluster == 16)
        code = d->function_set(*function, NON_PORTABLE_CLUSTER, 1);
    d->context_pop(&popped);
    return code;
}

/* Take an image off the device again. Nothing of it may run, or be in a graph, any more. */
int bn_cuda_unload(const driver *d, void *context, void *function)
{
    void *module, *popped;
    result code = d->context_push(context);
    if (code)
        return code;
    if (!(code = d->function_module(&module, function)))
        code = d->module_unload(module);
    d->context_pop(&popped);
    return code;
}

static uint32_t attributes_of(const launch *l, attribute *out)
{
    uint32_t n = 0;
    if (l->dependent)
        out[n++] = (attribute){.id = PROGRAMMATIC_STREAM_SERIALIZATION, .value.number = 1};
    if (l->cooperative)
        out[n++] = (attribute){.id = COOPERATIVE, .value.number = 1};
    if (l->cluster > 1) {
        out[n++] = (attribute){.id = CLUSTER_DIMENSION, .value.dimensions = {l->cluster, 1, 1}};
        out[n++] = (attribute){.id = CLUSTER_POLICY, .value.number = CLUSTER_POLICY_SPREAD};
    }
    return n;
}

/* All launches of a segment, in order, on its stream. The thread may have another device current, or none. */
int bn_cuda_launch(const segment *s)
{
    const driver *d = s->calls;
    void *current = 0;
    result code = d->context_get(&current);
    if (code)
        return code;
    int elsewhere = current != s->context;
    if (elsewhere && (code = d->context_push(s->context)))
        return code;
    attribute attributes[4];
    config c = {.block = {1, 1, 1}, .stream = s->stream, .attributes = attributes};
    for (const launch *l = s->launches, *end = l + s->count; l < end && !code; l++) {
        c.grid[0] = l->grid[0] * l->cluster;
        c.grid[1] = l->grid[1];
        c.grid[2] = l->grid[2];
        c.block[0] = l->threads;
        c.shared = l->shared;
        c.attribute_count = attributes_of(l, attributes);
        code = d->launch(&c, l->function, l->params, 0);
    }
    if (elsewhere)
        d->context_pop(&current);
    return code;
}
