/* Calls that go past everything compiled, to the original, but for one in a few. */
#pragma once
#include "host/sealed.h" /* names of members, in older Pythons */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *target;
    PyObject *look; /* takes one call in `every` */
    Py_ssize_t left, every;
} Bypass;

static PyObject *bypass_call(PyObject *self, PyObject *const *args, size_t count, PyObject *keywords)
{
    Bypass *a = (Bypass *)self;
    int looks = --a->left <= 0;
    if (looks)
        a->left = a->every; /* for other threads' calls, while this one lasts */
    PyObject *run = Py_NewRef(looks ? a->look : a->target);
    Py_INCREF(self); /* what is called may take it away */
    PyObject *result = PyObject_Vectorcall(run, args, count, keywords);
    if (looks)
        a->left = a->every; /* which a look may change */
    Py_DECREF(self);
    Py_DECREF(run);
    return result;
}

static int bypass_clear(PyObject *self)
{
    Bypass *a = (Bypass *)self;
    Py_CLEAR(a->target);
    Py_CLEAR(a->look);
    return 0;
}

static int bypass_traverse(PyObject *self, visitproc visit, void *arg)
{
    Bypass *a = (Bypass *)self;
    Py_VISIT(a->target);
    Py_VISIT(a->look);
    return 0;
}

static void bypass_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    bypass_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *bypass_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *target, *look;
    if (!PyArg_ParseTuple(args, "OO", &target, &look))
        return NULL;
    Bypass *a = (Bypass *)type->tp_alloc(type, 0);
    if (!a)
        return NULL;
    a->call = bypass_call;
    a->target = Py_NewRef(target);
    a->look = Py_NewRef(look);
    a->left = a->every = 1;
    return (PyObject *)a;
}

static PyMemberDef bypass_members[] = {
    {"every", Py_T_PYSSIZET, offsetof(Bypass, every), 0, "how many calls it is from one look to the next"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject BypassType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Bypass",
    .tp_doc = "Bypass(target, look): calls of `target`; one in `every`, and the first, goes to `look`",
    .tp_basicsize = sizeof(Bypass),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = bypass_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Bypass, call),
    .tp_dealloc = bypass_dealloc,
    .tp_traverse = bypass_traverse,
    .tp_clear = bypass_clear,
    .tp_members = bypass_members,
};
