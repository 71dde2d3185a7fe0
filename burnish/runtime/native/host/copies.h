/* The driver's few functions, and several copies on the device in one launch.
 *
 * They are looked up in the library that is given, and declared here, so that no CUDA header is needed. A copy by itself
 * takes the driver longer than a launch: so a kernel makes them all. It is in PTX, which the driver itself compiles. */
#pragma once
#include "host/tensors.h"

typedef int result; /* CUresult: 0 is success */

typedef struct {
    result (*launch)(void *graph, void *stream);
    result (*copy)(uint64_t into, uint64_t out_of, size_t bytes, void *stream);
    result (*context_get)(void **context);
    result (*context_push)(void *context);
    result (*context_pop)(void **context);
    result (*error_string)(result code, const char **text);
    result (*launch_kernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **params,
                            void **extra);
    result (*module_load)(void **module, const void *image);
    result (*module_function)(void **function, void *module, const char *name);
} driver;

static int open_driver(driver *d, const char *library)
{
    static const char *const names[] = {
        "cuGraphLaunch", "cuMemcpyDtoDAsync_v2", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
        "cuGetErrorString", "cuLaunchKernel", "cuModuleLoadData", "cuModuleGetFunction",
    };
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void **calls = (void **)d;
    for (unsigned k = 0; k < sizeof names / sizeof *names; k++)
        if (!handle || !(calls[k] = dlsym(handle, names[k])))
            return PyErr_Format(PyExc_ImportError, "%s lacks %s", library, names[k]), 0;
    return 1;
}

static PyObject *driver_error(const driver *d, result code, const char *what)
{
    const char *text = NULL;
    if (d->error_string(code, &text) || !text)
        text = "unknown error";
    return PyErr_Format(PyExc_RuntimeError, "CUDA driver error %d in %s: %s", code, what, text);
}

enum { MOST_COPIES = 12, COPY_THREADS = 256, MOST_BLOCKS = 1024, UNIT = 16, LONG_COPY = 8 << 20 };

typedef struct {
    uint64_t into, out_of, bytes;
} one_copy;

/* Blocks (x, y) copy y: 16 bytes a thread and turn, then what is left, a byte a thread. Addresses are multiples of 16. */
static const char copy_kernel[] =
    ".version 7.0\n"
    ".target sm_80\n"
    ".address_size 64\n"
    ".visible .entry burnish_copies(.param .align 8 .b8 copies[288])\n"
    ".maxntid 256, 1, 1\n"
    "{\n"
    "  .reg .pred %p<4>;\n"
    "  .reg .b32 %r<16>;\n"
    "  .reg .b64 %d<16>;\n"
    "  mov.u32 %r0, %ctaid.y;\n"
    "  mul.wide.u32 %d0, %r0, 24;\n"
    "  mov.b64 %d1, copies;\n"
    "  add.s64 %d1, %d1, %d0;\n"
    "  ld.param.u64 %d2, [%d1];\n" /* into */
    "  ld.param.u64 %d3, [%d1+8];\n" /* out of */
    "  ld.param.u64 %d4, [%d1+16];\n" /* bytes */
    "  cvta.to.global.u64 %d2, %d2;\n"
    "  cvta.to.global.u64 %d3, %d3;\n"
    "  mov.u32 %r1, %ctaid.x;\n"
    "  mov.u32 %r2, %ntid.x;\n"
    "  mov.u32 %r3, %tid.x;\n"
    "  mad.lo.u32 %r4, %r1, %r2, %r3;\n" /* the thread among all of this copy */
    "  mov.u32 %r5, %nctaid.x;\n"
    "  mul.lo.u32 %r6, %r5, %r2;\n"
    "  mul.wide.u32 %d5, %r4, 16;\n" /* where it is */
    "  mul.wide.u32 %d6, %r6, 16;\n" /* how far it goes on */
    "  and.b64 %d7, %d4, -16;\n"
    "  setp.ge.u64 %p0, %d5, %d7;\n"
    "  @%p0 bra LAST;\n"
    "NEXT:\n"
    "  add.s64 %d8, %d3, %d5;\n"
    "  add.s64 %d9, %d2, %d5;\n"
    "  ld.global.v4.u32 {%r8, %r9, %r10, %r11}, [%d8];\n"
    "  st.global.v4.u32 [%d9], {%r8, %r9, %r10, %r11};\n"
    "  add.s64 %d5, %d5, %d6;\n"
    "  setp.lt.u64 %p1, %d5, %d7;\n"
    "  @%p1 bra NEXT;\n"
    "LAST:\n"
    "  cvt.u64.u32 %d10, %r4;\n"
    "  add.s64 %d10, %d10, %d7;\n"
    "  setp.ge.u64 %p2, %d10, %d4;\n"
    "  @%p2 bra DONE;\n"
    "  add.s64 %d11, %d3, %d10;\n"
    "  add.s64 %d12, %d2, %d10;\n"
    "  ld.global.u8 %r12, [%d11];\n"
    "  st.global.u8 [%d12], %r12;\n"
    "DONE:\n"
    "  ret;\n"
    "}\n";

_Static_assert(MOST_COPIES * sizeof(one_copy) == 288, "what the kernel is given");

/* load_copies(library): the kernel in the current context, as a number. */
static PyObject *load_copies(PyObject *module, PyObject *args)
{
    const char *library;
    driver d;
    void *image, *function;
    if (!PyArg_ParseTuple(args, "s", &library) || !open_driver(&d, library))
        return NULL;
    result code = d.module_load(&image, copy_kernel);
    if (!code)
        code = d.module_function(&function, image, "burnish_copies");
    return code ? driver_error(&d, code, "loading a kernel") : PyLong_FromVoidPtr(function);
}

/* All of them on a stream; by `kernel` where there is one and each is short and lies where that can reach it. */
static result make_copies(const driver *d, void *kernel, const one_copy *copies, unsigned count, void *stream)
{
    uint64_t longest = 0, places = 0;
    for (unsigned k = 0; k < count; k++) {
        places |= copies[k].into | copies[k].out_of;
        longest = copies[k].bytes > longest ? copies[k].bytes : longest;
    }
    if (count && kernel && !(places % UNIT) && longest <= LONG_COPY) {
        uint64_t blocks = (longest / UNIT + COPY_THREADS) / COPY_THREADS;
        void *params[] = {(void *)copies};
        return d->launch_kernel(kernel, blocks < MOST_BLOCKS ? (unsigned)blocks : MOST_BLOCKS, count, 1, COPY_THREADS,
                                1, 1, 0, stream, params, NULL);
    }
    result code = 0;
    for (unsigned k = 0; k < count && !code; k++)
        code = d->copy(copies[k].into, copies[k].out_of, copies[k].bytes, stream);
    return code;
}
