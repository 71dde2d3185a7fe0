/* A CUDA graph launched with the copies around it, through the driver. Its few functions are looked up in the library
 * that is given, and declared here, so that no CUDA header is needed. */
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
} driver;

typedef struct {
    Py_ssize_t position; /* among arguments or results */
    uint64_t address;    /* of the graph's own memory */
    size_t bytes;
    layout layout;
} copy;

typedef struct {
    PyObject_HEAD
    driver calls;
    void *context, *graph;
    Py_ssize_t in, back, out;
    copy *copies; /* `in` into the graph's memory, then `back` to arguments, then `out` to results */
    uint64_t *theirs;
} Launch;

static int open_driver(driver *d, const char *library)
{
    static const char *const names[] = {
        "cuGraphLaunch", "cuMemcpyDtoDAsync_v2", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
        "cuGetErrorString",
    };
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void **calls = (void **)d;
    for (unsigned k = 0; k < sizeof names / sizeof *names; k++)
        if (!handle || !(calls[k] = dlsym(handle, names[k])))
            return PyErr_Format(PyExc_ImportError, "%s lacks %s", library, names[k]), 0;
    return 1;
}

static result launch_now(const Launch *l, void *stream)
{
    const driver *d = &l->calls;
    const copy *c = l->copies;
    const uint64_t *theirs = l->theirs;
    void *current = NULL;
    result code = d->context_get(&current);
    if (code)
        return code;
    int elsewhere = current != l->context;
    if (elsewhere && (code = d->context_push(l->context)))
        return code;
    for (Py_ssize_t k = 0; k < l->in && !code; k++, c++, theirs++)
        code = c->bytes ? d->copy(c->address, *theirs, c->bytes, stream) : 0;
    if (!code)
        code = d->launch(l->graph, stream);
    for (Py_ssize_t k = 0; k < l->back + l->out && !code; k++, c++, theirs++)
        code = c->bytes ? d->copy(*theirs, c->address, c->bytes, stream) : 0;
    if (elsewhere)
        d->context_pop(&current);
    return code;
}

/* Where the tensors of a list lie that are copied; 0 if one is not laid out like the graph's. */
static int find(const copy *c, uint64_t *theirs, Py_ssize_t count, PyObject *tensors)
{
    for (Py_ssize_t k = 0; k < count; k++, c++, theirs++) {
        if (c->position >= PyList_GET_SIZE(tensors))
            return 0;
        PyObject *x = PyList_GET_ITEM(tensors, c->position);
        *theirs = address_of(x);
        if ((!*theirs && c->bytes) || !has_layout(x, &c->layout, 1))
            return 0;
    }
    return 1;
}

/* (arguments, results, stream): copies in, the graph, copies back and out. False, with nothing done, where a tensor
 * is laid out in another way. The caller sees to it that there is one at a time. */
static PyObject *launch_run(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Launch *l = (Launch *)self;
    if (count != 3 || !PyList_Check(args[0]) || !PyList_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "two lists and a stream are wanted");
    void *stream = PyLong_AsVoidPtr(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (!find(l->copies, l->theirs, l->in + l->back, args[0])
        || !find(l->copies + l->in + l->back, l->theirs + l->in + l->back, l->out, args[1]))
        Py_RETURN_FALSE;
    result code;
    Py_BEGIN_ALLOW_THREADS
    code = launch_now(l, stream);
    Py_END_ALLOW_THREADS
    if (!code)
        Py_RETURN_TRUE;
    const char *text = NULL;
    if (l->calls.error_string(code, &text) || !text)
        text = "unknown error";
    return PyErr_Format(PyExc_RuntimeError, "CUDA driver error %d in the launch of a graph: %s", code, text);
}

static int take_copies(PyObject *list, copy *into)
{
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(list); k++, into++) {
        unsigned long long bytes;
        PyObject *own;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, k), "nOK", &into->position, &own, &bytes))
            return 0;
        into->bytes = (size_t)bytes;
        into->address = address_of(own);
        if (into->position < 0 || (!into->address && bytes) || !take_layout(own, &into->layout))
            return PyErr_Format(PyExc_ValueError, "a tensor that is not copied here"), 0;
    }
    return 1;
}

static void launch_dealloc(PyObject *self)
{
    PyMem_Free(((Launch *)self)->copies);
    PyMem_Free(((Launch *)self)->theirs);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *launch_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    const char *library;
    unsigned long long graph;
    PyObject *in, *back, *out;
    if (!PyArg_ParseTuple(args, "sKO!O!O!", &library, &graph, &PyList_Type, &in, &PyList_Type, &back, &PyList_Type,
                          &out))
        return NULL;
    Launch *l = (Launch *)type->tp_alloc(type, 0);
    if (!l)
        return NULL;
    l->graph = (void *)(uintptr_t)graph;
    l->in = PyList_GET_SIZE(in);
    l->back = PyList_GET_SIZE(back);
    l->out = PyList_GET_SIZE(out);
    Py_ssize_t count = l->in + l->back + l->out;
    l->copies = PyMem_Calloc(count + 1, sizeof *l->copies);
    l->theirs = PyMem_Calloc(count + 1, sizeof *l->theirs);
    int made = l->copies && l->theirs && open_driver(&l->calls, library) && take_copies(in, l->copies)
               && take_copies(back, l->copies + l->in) && take_copies(out, l->copies + l->in + l->back);
    if (made && !l->calls.context_get(&l->context) && l->context)
        return (PyObject *)l;
    Py_DECREF(l);
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "no context of the device is current");
}

static PyMethodDef launch_methods[] = {
    {"run", (PyCFunction)(void (*)(void))launch_run, METH_FASTCALL, "run(arguments, results, stream)"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject LaunchType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Launch",
    .tp_doc = "Launch(driver, graph, copies in, back, out); a copy is (position, the graph's own tensor, bytes)",
    .tp_basicsize = sizeof(Launch),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = launch_new,
    .tp_dealloc = launch_dealloc,
    .tp_methods = launch_methods,
};
