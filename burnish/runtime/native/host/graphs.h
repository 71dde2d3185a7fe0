/* A CUDA graph launched with the copies around it, through the driver. */
#pragma once
#include "host/copies.h"

typedef struct {
    Py_ssize_t position; /* among arguments or results */
    uint64_t address;    /* of the graph's own memory */
    size_t bytes;
    layout layout;
} copy;

typedef struct {
    PyObject_HEAD
    driver calls;
    void *context, *graph, *kernel; /* the kernel copies; NULL where the driver does */
    Py_ssize_t in, back, out;
    copy *copies; /* `in` into the graph's memory, then `back` to arguments, then `out` to results */
    uint64_t *theirs;
} Launch;

static result copy_all(const Launch *l, Py_ssize_t first, Py_ssize_t count, int inwards, void *stream)
{
    one_copy copies[MOST_COPIES] = {{0, 0, 0}};
    unsigned n = 0;
    for (Py_ssize_t k = first; k < first + count; k++) {
        const copy *c = l->copies + k;
        uint64_t theirs = l->theirs[k];
        if (c->bytes)
            copies[n++] = inwards ? (one_copy){c->address, theirs, c->bytes} : (one_copy){theirs, c->address, c->bytes};
    }
    return make_copies(&l->calls, l->kernel, copies, n, stream);
}

static result launch_now(const Launch *l, void *stream)
{
    const driver *d = &l->calls;
    void *current = NULL;
    result code = d->context_get(&current);
    if (code)
        return code;
    int elsewhere = current != l->context;
    if (elsewhere && (code = d->context_push(l->context)))
        return code;
    code = copy_all(l, 0, l->in, 1, stream);
    if (!code && l->graph)
        code = d->launch(l->graph, stream);
    if (!code)
        code = copy_all(l, l->in, l->back + l->out, 0, stream);
    if (elsewhere)
        d->context_pop(&current);
    return code;
}

/* Where the tensors of a list or tuple lie that are copied; 0 if one is not laid out like the graph's. */
static int find(const copy *c, uint64_t *theirs, Py_ssize_t count, PyObject *tensors)
{
    for (Py_ssize_t k = 0; k < count; k++, c++, theirs++) {
        if (c->position >= PySequence_Fast_GET_SIZE(tensors))
            return 0;
        PyObject *x = PySequence_Fast_GET_ITEM(tensors, c->position);
        *theirs = address_of(x);
        if ((!*theirs && c->bytes) || !has_layout(x, &c->layout, 1))
            return 0;
    }
    return 1;
}

static int find_all(const Launch *l, PyObject *arguments, PyObject *results)
{
    Py_ssize_t given = l->in + l->back;
    return find(l->copies, l->theirs, given, arguments) && find(l->copies + given, l->theirs + given, l->out, results);
}

/* What was found, and the graph. */
static result launch_found(const Launch *l, void *stream)
{
    result code;
    Py_BEGIN_ALLOW_THREADS /* the driver waits where a stream has too much to do */
    code = launch_now(l, stream);
    Py_END_ALLOW_THREADS
    if (code)
        driver_error(&l->calls, code, "the launch of a graph");
    return code;
}

/* (arguments, results, stream): copies in, the graph, copies back and out. False, with nothing done, where a tensor
 * is laid out in another way. The caller sees to it that there is one at a time. */
static PyObject *launch_run(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const Launch *l = (const Launch *)self;
    if (count != 3 || !is_row(args[0]) || !is_row(args[1]))
        return PyErr_Format(PyExc_TypeError, "two lists and a stream are wanted");
    void *stream = PyLong_AsVoidPtr(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (!find_all(l, args[0], args[1]))
        Py_RETURN_FALSE;
    if (launch_found(l, stream))
        return NULL;
    Py_RETURN_TRUE;
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
    unsigned long long graph, kernel = 0;
    PyObject *in, *back, *out;
    if (!PyArg_ParseTuple(args, "sKO!O!O!|K", &library, &graph, &PyList_Type, &in, &PyList_Type, &back, &PyList_Type,
                          &out, &kernel))
        return NULL;
    Launch *l = (Launch *)type->tp_alloc(type, 0);
    if (!l)
        return NULL;
    l->graph = (void *)(uintptr_t)graph;
    l->kernel = (void *)(uintptr_t)kernel;
    l->in = PyList_GET_SIZE(in);
    l->back = PyList_GET_SIZE(back);
    l->out = PyList_GET_SIZE(out);
    Py_ssize_t count = l->in + l->back + l->out;
    l->copies = PyMem_Calloc(count + 1, sizeof *l->copies);
    l->theirs = PyMem_Calloc(count + 1, sizeof *l->theirs);
    if (l->in > MOST_COPIES || l->back + l->out > MOST_COPIES) {
        Py_DECREF(l);
        return PyErr_Format(PyExc_ValueError, "more copies than one kernel makes");
    }
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
    .tp_doc = "Launch(driver, graph, copies in, back, out, kernel); a copy is (position, the graph's own tensor, bytes); the "
              "graph and the kernel that copies are the driver's handles, or 0 for none",
    .tp_basicsize = sizeof(Launch),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = launch_new,
    .tp_dealloc = launch_dealloc,
    .tp_methods = launch_methods,
};
