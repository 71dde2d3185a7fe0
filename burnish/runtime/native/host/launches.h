/* A segment of kernel launches (cuda/launch.c) with a call's own addresses put in first. Nothing of CUDA is needed here:
 * the function that launches is given by its address. */
#pragma once
#include "host/tensors.h"

typedef struct {
    Py_ssize_t position; /* among arguments or results */
    int64_t *slot;       /* of the segment's table */
} put;

typedef struct {
    PyObject_HEAD
    int (*launch)(const void *segment);
    const void *segment;
    uint64_t alignment; /* of every address that a kernel is given */
    Py_ssize_t in, out;
    put *puts; /* `in` arguments, then `out` results */
    PyObject *kept;
} Segment;

enum { NOT_LAUNCHED = -1 };

static int put_addresses(const put *p, Py_ssize_t count, PyObject *tensors, uint64_t alignment)
{
    for (const put *end = p + count; p < end; p++) {
        int given = p->position < PySequence_Fast_GET_SIZE(tensors);
        uint64_t address = given ? address_of(PySequence_Fast_GET_ITEM(tensors, p->position)) : 0;
        if (!address || address % alignment)
            return 0;
        *p->slot = (int64_t)address;
    }
    return 1;
}

/* (arguments, results): the driver's error code, or NOT_LAUNCHED where a tensor has no address that kernels take. The
 * caller sees to it that there is one at a time. */
static PyObject *segment_run(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const Segment *s = (const Segment *)self;
    if (count != 2 || !is_row(args[0]) || !is_row(args[1]))
        return PyErr_Format(PyExc_TypeError, "two lists are wanted");
    int code = NOT_LAUNCHED;
    if (put_addresses(s->puts, s->in, args[0], s->alignment)
        && put_addresses(s->puts + s->in, s->out, args[1], s->alignment)) {
        Py_BEGIN_ALLOW_THREADS /* the driver waits where a stream has too much to do */
        code = s->launch(s->segment);
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromLong(code);
}

static int take_puts(PyObject *list, int64_t *table, put *into)
{
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(list); k++, into++) {
        Py_ssize_t slot;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, k), "nn", &into->position, &slot))
            return 0;
        if (into->position < 0 || slot < 0)
            return PyErr_Format(PyExc_ValueError, "a position or a slot below 0"), 0;
        into->slot = table + slot;
    }
    return 1;
}

static void segment_dealloc(PyObject *self)
{
    PyMem_Free(((Segment *)self)->puts);
    Py_XDECREF(((Segment *)self)->kept);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *segment_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    unsigned long long launch, segment, table, alignment;
    PyObject *in, *out, *kept;
    if (!PyArg_ParseTuple(args, "KKKKO!O!O", &launch, &segment, &table, &alignment, &PyList_Type, &in, &PyList_Type,
                          &out, &kept))
        return NULL;
    Segment *s = (Segment *)type->tp_alloc(type, 0);
    if (!s)
        return NULL;
    s->launch = (int (*)(const void *))(uintptr_t)launch;
    s->segment = (const void *)(uintptr_t)segment;
    s->alignment = alignment ? alignment : 1;
    s->in = PyList_GET_SIZE(in);
    s->out = PyList_GET_SIZE(out);
    s->puts = PyMem_Calloc(s->in + s->out + 1, sizeof *s->puts);
    s->kept = Py_NewRef(kept);
    int64_t *slots = (int64_t *)(uintptr_t)table;
    if (s->puts && take_puts(in, slots, s->puts) && take_puts(out, slots, s->puts + s->in))
        return (PyObject *)s;
    Py_DECREF(s);
    return PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

static PyMethodDef segment_methods[] = {
    {"run", (PyCFunction)(void (*)(void))segment_run, METH_FASTCALL, "run(arguments, results)"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject SegmentType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Segment",
    .tp_doc = "Segment(launch, segment, table, alignment, arguments, results, kept): the first three are addresses; of "
              "an argument and a result (position, slot of the table)",
    .tp_basicsize = sizeof(Segment),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = segment_new,
    .tp_dealloc = segment_dealloc,
    .tp_methods = segment_methods,
};
