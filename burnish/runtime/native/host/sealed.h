/* Sealed calls: which program they go to by comparing them with calls that are known, argument by argument. */
#pragma once
#include "host/tensors.h"

#if PY_VERSION_HEX < 0x030c0000
#include <structmember.h>
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

enum { MOST_ARGUMENTS = 32, MOST_ROUTES = 16 };

/* -- signatures: what a sealed call looks at ----------------------------------------------------------------------- */

enum { TENSOR, VALUE, FLOAT, REFUSED, IDENTITY }; /* how an argument is compared; host.py tells it of types */

typedef struct {
    int kind;
    PyObject *held; /* the value, or the very object */
    double number;
    layout layout;
    uint64_t keys;
    int32_t dtype, device_type, device_index;
    int requires_grad;
    int same_as; /* the first argument that is this very tensor */
} expected;

typedef struct {
    PyObject_HEAD
    PyObject *run;
    PyObject *state;      /* ((function, its result), ...) */
    PyObject *attributes; /* ((object, name, the very object it is), ...) */
    PyObject *keywords;   /* names, in order */
    PyObject *tensors;    /* types that count as a tensor */
    Py_ssize_t positional, count;
    expected *arguments;
} Route;

static int wants_grad(PyObject *x)
{
    PyObject *found = PyObject_GetAttr(x, requires_grad);
    int wants = found == Py_True;
    if (found != Py_True && found != Py_False)
        wants = -1;
    Py_XDECREF(found);
    return wants;
}

static int describe(PyObject *x, expected *e, PyObject *kinds)
{
    PyObject *kind = PyDict_GetItemWithError(kinds, (PyObject *)Py_TYPE(x));
    e->kind = kind ? (int)PyLong_AsLong(kind) : PyTuple_Check(x) ? REFUSED : IDENTITY;
    if (PyErr_Occurred() || e->kind == REFUSED)
        return 0;
    if (e->kind == FLOAT)
        e->number = PyFloat_AS_DOUBLE(x);
    if (e->kind == VALUE || e->kind == IDENTITY)
        e->held = Py_NewRef(x);
    if (e->kind != TENSOR)
        return 1;
    void *t = tensor_of(x);
    e->keys = keys_of(x);
    e->requires_grad = wants_grad(x);
    return e->requires_grad >= 0 && take_layout(x, &e->layout) && !torch.dtype(t, &e->dtype)
           && !torch.device_type(t, &e->device_type) && !torch.device_index(t, &e->device_index);
}

static int is_tensor(const Route *r, PyObject *x)
{
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(r->tensors); k++)
        if ((PyObject *)Py_TYPE(x) == PyTuple_GET_ITEM(r->tensors, k))
            return 1;
    return 0;
}

static int tensor_fits(const Route *r, Py_ssize_t n, PyObject *const *args)
{
    const expected *e = r->arguments + n;
    PyObject *x = args[n];
    int32_t dtype, type, index;
    if (!is_tensor(r, x) || keys_of(x) != e->keys || !has_layout(x, &e->layout, 0)) /* keys first: odd kinds end here */
        return 0;
    void *t = tensor_of(x);
    if (torch.dtype(t, &dtype) || torch.device_type(t, &type) || torch.device_index(t, &index))
        return 0;
    if (dtype != e->dtype || type != e->device_type || index != e->device_index)
        return 0;
    for (Py_ssize_t k = 0; k < n; k++)
        if (r->arguments[k].kind == TENSOR && (args[k] == x) != (r->arguments[k].same_as == e->same_as))
            return 0;
    return wants_grad(x) == e->requires_grad;
}

static int argument_fits(const Route *r, Py_ssize_t n, PyObject *const *args)
{
    const expected *e = r->arguments + n;
    PyObject *x = args[n];
    switch (e->kind) {
    case TENSOR:
        return tensor_fits(r, n, args);
    case FLOAT: {
        if (!PyFloat_CheckExact(x))
            return 0;
        double number = PyFloat_AS_DOUBLE(x);
        return !memcmp(&number, &e->number, sizeof number) || (number != number && e->number != e->number);
    }
    case VALUE:
        return x == e->held || (Py_TYPE(x) == Py_TYPE(e->held) && PyObject_RichCompareBool(x, e->held, Py_EQ) == 1);
    }
    return x == e->held;
}

static int state_fits(const Route *r)
{
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(r->attributes); k++) {
        PyObject *each = PyTuple_GET_ITEM(r->attributes, k);
        PyObject *found = PyObject_GetAttr(PyTuple_GET_ITEM(each, 0), PyTuple_GET_ITEM(each, 1));
        int same = found == PyTuple_GET_ITEM(each, 2);
        Py_XDECREF(found);
        if (!same)
            return 0;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(r->state); k++) {
        PyObject *each = PyTuple_GET_ITEM(r->state, k);
        PyObject *found = PyObject_CallNoArgs(PyTuple_GET_ITEM(each, 0));
        int same = found == PyTuple_GET_ITEM(each, 1);
        Py_XDECREF(found);
        if (!same)
            return 0;
    }
    return 1;
}

static int route_fits(const Route *r, PyObject *const *args, Py_ssize_t positional, PyObject *keywords)
{
    if (positional != r->positional || (keywords ? PyTuple_GET_SIZE(keywords) : 0) != r->count - r->positional)
        return 0;
    for (Py_ssize_t k = 0; k < r->count - positional; k++) {
        PyObject *given = PyTuple_GET_ITEM(keywords, k), *known = PyTuple_GET_ITEM(r->keywords, k);
        if (given != known && PyUnicode_Compare(given, known))
            return 0;
    }
    int fits = 1;
    for (Py_ssize_t k = 0; fits && k < r->count; k++)
        fits = argument_fits(r, k, args);
    fits = fits && state_fits(r);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return -1; /* the user's interrupt */
        PyErr_Clear(); /* what raises does not fit, and is asked again by those who say so */
    }
    return fits;
}

static int route_clear(PyObject *self)
{
    Route *r = (Route *)self;
    Py_CLEAR(r->run);
    Py_CLEAR(r->state);
    Py_CLEAR(r->attributes);
    Py_CLEAR(r->keywords);
    Py_CLEAR(r->tensors);
    for (Py_ssize_t k = 0; r->arguments && k < r->count; k++)
        Py_CLEAR(r->arguments[k].held);
    return 0;
}

static int route_traverse(PyObject *self, visitproc visit, void *arg)
{
    Route *r = (Route *)self;
    Py_VISIT(r->run);
    Py_VISIT(r->state);
    Py_VISIT(r->attributes);
    for (Py_ssize_t k = 0; r->arguments && k < r->count; k++)
        Py_VISIT(r->arguments[k].held);
    return 0;
}

static void route_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    route_clear(self);
    PyMem_Free(((Route *)self)->arguments);
    Py_TYPE(self)->tp_free(self);
}

static int pairs_are(PyObject *tuple, Py_ssize_t size)
{
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); k++)
        if (!PyTuple_Check(PyTuple_GET_ITEM(tuple, k)) || PyTuple_GET_SIZE(PyTuple_GET_ITEM(tuple, k)) != size)
            return 0;
    return 1;
}

static int take_arguments(Route *r, PyObject *positional, PyObject *keywords, PyObject *kinds)
{
    PyObject *values[MOST_ARGUMENTS], *name, *value;
    Py_ssize_t n = PyTuple_GET_SIZE(positional), at = 0;
    r->positional = n;
    r->count = n + PyDict_GET_SIZE(keywords);
    if (r->count > MOST_ARGUMENTS || !(r->arguments = PyMem_Calloc(r->count + 1, sizeof *r->arguments)))
        return 0;
    for (Py_ssize_t k = 0; k < n; k++)
        values[k] = PyTuple_GET_ITEM(positional, k);
    for (Py_ssize_t k = 0; PyDict_Next(keywords, &at, &name, &value); k++) {
        PyTuple_SET_ITEM(r->keywords, k, Py_NewRef(name));
        values[n++] = value;
    }
    for (int k = 0; k < n; k++) {
        if (!describe(values[k], r->arguments + k, kinds))
            return 0;
        r->arguments[k].same_as = k;
        for (int j = 0; r->arguments[k].kind == TENSOR && j < k; j++)
            if (values[j] == values[k]) {
                r->arguments[k].same_as = j;
                break;
            }
    }
    return 1;
}

static PyObject *route_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *positional, *keywords, *kinds, *tensors, *state, *attributes, *run;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O", &PyTuple_Type, &positional, &PyDict_Type, &keywords, &PyDict_Type,
                          &kinds, &PyTuple_Type, &tensors, &PyTuple_Type, &state, &PyTuple_Type, &attributes, &run))
        return NULL;
    if (!pairs_are(state, 2) || !pairs_are(attributes, 3) || keys_at < 0)
        return PyErr_Format(PyExc_TypeError, "not what a route is made of");
    Route *r = (Route *)type->tp_alloc(type, 0);
    if (!r)
        return NULL;
    r->run = Py_NewRef(run);
    r->state = Py_NewRef(state);
    r->attributes = Py_NewRef(attributes);
    r->tensors = Py_NewRef(tensors);
    r->keywords = PyTuple_New(PyDict_GET_SIZE(keywords));
    if (!r->keywords || !take_arguments(r, positional, keywords, kinds)) {
        Py_DECREF(r);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "an argument that is not compared here");
    }
    return (PyObject *)r;
}

static PyTypeObject RouteType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Route",
    .tp_doc = "Route(args, kwargs, kinds, tensor types, state, attributes, run): calls like this one go to `run`",
    .tp_basicsize = sizeof(Route),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = route_new,
    .tp_dealloc = route_dealloc,
    .tp_traverse = route_traverse,
    .tp_clear = route_clear,
};

/* -- the sealed entrance ------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *otherwise;    /* takes every call that no route fits */
    PyObject *set_callback; /* Dynamo's set_eval_frame */
    PyObject *unmet;        /* what a route raises before it has done anything, for inputs that it is not for, */
    PyObject *refused;      /* and what takes such a call */
    Route *routes[MOST_ROUTES];
    Py_ssize_t count;
} Sealed;

/* A compiler around us must not take what runs here for its own. */
static PyObject *run_alone(Sealed *s, PyObject *run, PyObject *const *args, size_t count, PyObject *keywords)
{
    PyObject *prior = PyObject_CallOneArg(s->set_callback, Py_None);
    if (!prior)
        return NULL;
    PyObject *set_callback = Py_NewRef(s->set_callback);
    PyObject *result = PyObject_Vectorcall(run, args, count, keywords), *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *done = PyObject_CallOneArg(set_callback, prior);
    Py_DECREF(set_callback);
    Py_DECREF(prior);
    if (!done) {
        Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
        Py_XDECREF(result);
        return NULL;
    }
    Py_DECREF(done);
    PyErr_Restore(type, value, trace);
    return result;
}

static PyObject *sealed_call(PyObject *self, PyObject *const *args, size_t count, PyObject *keywords)
{
    Sealed *s = (Sealed *)self;
    for (Py_ssize_t k = 0; k < s->count; k++) {
        Route *r = (Route *)Py_NewRef(s->routes[k]); /* what it asks may take routes away */
        int fits = route_fits(r, args, PyVectorcall_NARGS(count), keywords);
        if (fits != 1) {
            Py_DECREF(r);
            if (fits < 0)
                return NULL;
            continue;
        }
        if (k && k < s->count && s->routes[k] == r) { /* one step to the front: frequent ones end up there */
            s->routes[k] = s->routes[k - 1];
            s->routes[k - 1] = r;
        }
        PyObject *result = run_alone(s, r->run, args, count, keywords);
        Py_DECREF(r);
        if (!result && PyErr_ExceptionMatches(s->unmet)) {
            PyErr_Clear();
            return PyObject_Vectorcall(s->refused, args, count, keywords);
        }
        return result;
    }
    return PyObject_Vectorcall(s->otherwise, args, count, keywords);
}

static PyObject *sealed_add(PyObject *self, PyObject *route)
{
    Sealed *s = (Sealed *)self;
    if (!PyObject_TypeCheck(route, &RouteType))
        return PyErr_Format(PyExc_TypeError, "a Route is wanted");
    Route *last = NULL;
    if (s->count == MOST_ROUTES)
        last = s->routes[--s->count];
    s->routes[s->count++] = (Route *)Py_NewRef(route);
    Py_XDECREF(last);
    Py_RETURN_NONE;
}

static PyObject *sealed_forget(PyObject *self, PyObject *none)
{
    Sealed *s = (Sealed *)self;
    while (s->count) {
        Route *last = s->routes[--s->count];
        Py_DECREF(last);
    }
    Py_RETURN_NONE;
}

static int sealed_clear(PyObject *self)
{
    Sealed *s = (Sealed *)self;
    Py_DECREF(sealed_forget(self, NULL));
    Py_CLEAR(s->otherwise);
    Py_CLEAR(s->set_callback);
    Py_CLEAR(s->unmet);
    Py_CLEAR(s->refused);
    return 0;
}

static int sealed_traverse(PyObject *self, visitproc visit, void *arg)
{
    Sealed *s = (Sealed *)self;
    for (Py_ssize_t k = 0; k < s->count; k++)
        Py_VISIT(s->routes[k]);
    Py_VISIT(s->otherwise);
    Py_VISIT(s->set_callback);
    Py_VISIT(s->refused);
    return 0;
}

static void sealed_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    sealed_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *sealed_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *otherwise, *set_callback, *unmet, *refused;
    if (!PyArg_ParseTuple(args, "OOOO", &otherwise, &set_callback, &unmet, &refused))
        return NULL;
    Sealed *s = (Sealed *)type->tp_alloc(type, 0);
    if (!s)
        return NULL;
    s->call = sealed_call;
    s->otherwise = Py_NewRef(otherwise);
    s->set_callback = Py_NewRef(set_callback);
    s->unmet = Py_NewRef(unmet);
    s->refused = Py_NewRef(refused);
    return (PyObject *)s;
}

static PyMethodDef sealed_methods[] = {
    {"add", sealed_add, METH_O, "A route; the least used one goes where there is no room."},
    {"forget", sealed_forget, METH_NOARGS, "All routes."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef sealed_members[] = {
    {"count", Py_T_PYSSIZET, offsetof(Sealed, count), Py_READONLY, "of routes"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject SealedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Sealed",
    .tp_doc = "Sealed(otherwise, set_eval_frame, unmet, refused): calls go to the route they fit, or to `otherwise`; to "
              "`refused` if that raises `unmet`",
    .tp_basicsize = sizeof(Sealed),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = sealed_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Sealed, call),
    .tp_dealloc = sealed_dealloc,
    .tp_traverse = sealed_traverse,
    .tp_clear = sealed_clear,
    .tp_methods = sealed_methods,
    .tp_members = sealed_members,
};

