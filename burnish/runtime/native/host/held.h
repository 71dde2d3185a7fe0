/* Whether objects are still what dictionaries hold: the parameters, buffers and modules that a sealed call has at hand. */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

/* Until 3.13 every dictionary has a number that changes with it, and no two have the same. */
#if PY_VERSION_HEX < 0x030e0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static uint64_t version_of(PyObject *dict)
{
    return ((PyDictObject *)dict)->ma_version_tag;
}
#pragma GCC diagnostic pop
enum { HAS_VERSIONS = 1 };
#else
static uint64_t version_of(PyObject *dict)
{
    return 0;
}
enum { HAS_VERSIONS = 0 };
#endif

typedef struct {
    PyObject *dict;
    uint64_t version;
} shelf;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *entries; /* ((dict, ((key, object), ...)), ...); a third item: the dictionary has nothing else */
    Py_ssize_t count;
    shelf *shelves;
} Held;

static int shelf_holds(PyObject *dict, PyObject *entry)
{
    PyObject *pairs = PyTuple_GET_ITEM(entry, 1);
    if (PyTuple_GET_SIZE(entry) == 3 && PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(pairs))
        return 0;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(pairs); k++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, k);
        PyObject *found = PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(pair, 0));
        PyObject *wanted = PyTuple_GET_ITEM(pair, 1);
        if (found != wanted && (found || wanted != Py_None)) /* None: nothing, as `get` has it */
            return 0;
    }
    return 1;
}

static int held_holds(Held *h)
{
    for (Py_ssize_t k = 0; k < h->count; k++) {
        shelf *s = h->shelves + k;
        uint64_t now = version_of(s->dict);
        if (HAS_VERSIONS && now == s->version)
            continue;
        if (!shelf_holds(s->dict, PyTuple_GET_ITEM(h->entries, k)))
            return 0;
        s->version = now; /* something else in it has changed */
    }
    return 1;
}

static PyObject *held_call(PyObject *self, PyObject *const *args, size_t count, PyObject *keywords)
{
    int holds = held_holds((Held *)self);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(holds);
}

static int held_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Held *)self)->entries);
    return 0;
}

static int held_clear(PyObject *self)
{
    ((Held *)self)->count = 0;
    Py_CLEAR(((Held *)self)->entries);
    return 0;
}

static void held_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    held_clear(self);
    PyMem_Free(((Held *)self)->shelves);
    Py_TYPE(self)->tp_free(self);
}

static int is_shelf(PyObject *x)
{
    if (!PyTuple_Check(x) || PyTuple_GET_SIZE(x) < 2 || PyTuple_GET_SIZE(x) > 3)
        return 0;
    if (!PyDict_Check(PyTuple_GET_ITEM(x, 0)))
        return 0;
    PyObject *pairs = PyTuple_GET_ITEM(x, 1);
    if (!PyTuple_Check(pairs))
        return 0;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(pairs); k++)
        if (!PyTuple_Check(PyTuple_GET_ITEM(pairs, k)) || PyTuple_GET_SIZE(PyTuple_GET_ITEM(pairs, k)) != 2)
            return 0;
    return 1;
}

static PyObject *held_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *entries;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &entries))
        return NULL;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(entries); k++)
        if (!is_shelf(PyTuple_GET_ITEM(entries, k)))
            return PyErr_Format(PyExc_TypeError, "a dictionary and pairs of keys and objects are wanted");
    Held *h = (Held *)type->tp_alloc(type, 0);
    if (!h)
        return NULL;
    h->call = held_call;
    h->entries = Py_NewRef(entries);
    if (!(h->shelves = PyMem_Calloc(PyTuple_GET_SIZE(entries) + 1, sizeof *h->shelves))) {
        Py_DECREF(h);
        return PyErr_NoMemory();
    }
    for (h->count = 0; h->count < PyTuple_GET_SIZE(entries); h->count++) {
        PyObject *dict = PyTuple_GET_ITEM(PyTuple_GET_ITEM(entries, h->count), 0);
        h->shelves[h->count] = (shelf){dict, UINT64_MAX}; /* looked at in the first call */
    }
    return (PyObject *)h;
}

static PyTypeObject HeldType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Held",
    .tp_doc = "Held(((dict, ((key, object), ...)), ...))(): whether each dictionary has each object under its key; with a "
              "third item, (dict, pairs, True), also whether it has nothing else",
    .tp_basicsize = sizeof(Held),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = held_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Held, call),
    .tp_dealloc = held_dealloc,
    .tp_traverse = held_traverse,
    .tp_clear = held_clear,
};
