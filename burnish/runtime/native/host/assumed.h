/* What a graph takes for granted of its inputs, looked at before each call: burnish/assumptions.py in C.
 *
 * It says yes only where `Assumptions.unmet` says "", and may say no where that would say yes: then Python is asked. A
 * tensor that passed is remembered by the words of its header, so that two hundred parameters are a few hundred
 * comparisons. */
#pragma once
#include "host/sealed.h"

enum { MOST_FACTORS = 4, INLINE_DIMENSIONS = 5, SIZES_WORDS = 1 + 2 * INLINE_DIMENSIONS, MOST_KIND_WORDS = 6 };

#define UNKNOWN INT64_MIN

typedef struct {
    int64_t coefficient;
    Py_ssize_t count;
    Py_ssize_t symbols[MOST_FACTORS];
} term;

typedef struct {
    Py_ssize_t count; /* of terms; -1: not looked at */
    term *terms;
} size;

typedef struct {
    enum { OTHER_INPUT, NUMBER_INPUT, TENSOR_INPUT } kind;
    size *sizes; /* the number; or a tensor's sizes, then its strides */
    int64_t dim, offset;
    uint64_t keys;
    int32_t dtype, device_type, device_index, itemsize;
    int requires_grad, written, is_fixed; /* -1: either; fixed: no symbols in its sizes */
    PyTypeObject *type; /* of the tensor that passed last, and its header */
    uint64_t header[SIZES_WORDS + MOST_KIND_WORDS];
    uint64_t data; /* where that one's memory was: of its storage, and its place there; then from where to where */
    int64_t place;
    uint64_t begin, end;
    int moved, is_new; /* than the last one */
} input;

typedef struct {
    PyObject_HEAD
    PyObject *tensors; /* types that count as a tensor */
    Py_ssize_t count, symbols;
    input *inputs;
    int64_t *least, *values; /* of symbols */
    uint64_t ignored; /* dispatch keys that say nothing of memory */
    int writes;
} Assumed;

/* -- sizes --------------------------------------------------------------------------------------------------------- */

/* None, an int, or ((coefficient, symbol, ...), ...) */
static int take_size(PyObject *given, size *s, Py_ssize_t symbols)
{
    if (given == Py_None) {
        s->count = -1;
        return 1;
    }
    int plain = PyLong_Check(given);
    if (!plain && !PyTuple_Check(given))
        return 0;
    s->count = plain ? 1 : PyTuple_GET_SIZE(given);
    if (!(s->terms = PyMem_Calloc(s->count + 1, sizeof *s->terms)))
        return 0;
    for (Py_ssize_t k = 0; k < s->count; k++) {
        PyObject *each = plain ? NULL : PyTuple_GET_ITEM(given, k);
        if (each && (!PyTuple_Check(each) || !PyTuple_GET_SIZE(each) || PyTuple_GET_SIZE(each) > 1 + MOST_FACTORS))
            return 0;
        term *t = s->terms + k;
        t->coefficient = PyLong_AsLongLong(plain ? given : PyTuple_GET_ITEM(each, 0));
        t->count = plain ? 0 : PyTuple_GET_SIZE(each) - 1;
        for (Py_ssize_t j = 0; j < t->count; j++) {
            t->symbols[j] = PyLong_AsSsize_t(PyTuple_GET_ITEM(each, 1 + j));
            if (t->symbols[j] < 0 || t->symbols[j] >= symbols)
                return 0;
        }
    }
    return !PyErr_Occurred();
}

static int is_number(const size *s)
{
    return s->count == 1 && !s->terms->count;
}

static int is_symbol(const size *s)
{
    return s->count == 1 && s->terms->count == 1 && s->terms->coefficient == 1;
}

/* A size that is just a symbol gives it its value. */
static void bind(Assumed *a, const size *s, int64_t found)
{
    if (is_symbol(s) && a->values[s->terms->symbols[0]] == UNKNOWN)
        a->values[s->terms->symbols[0]] = found;
}

static int size_fits(const Assumed *a, const size *s, int64_t found)
{
    if (s->count < 0)
        return 1;
    int64_t sum = 0;
    for (Py_ssize_t k = 0; k < s->count; k++) {
        int64_t product = s->terms[k].coefficient;
        for (Py_ssize_t j = 0; j < s->terms[k].count; j++) {
            int64_t value = a->values[s->terms[k].symbols[j]];
            if (value == UNKNOWN)
                return 1; /* nothing to compare with: Python would not, either */
            if (__builtin_mul_overflow(product, value, &product))
                return 0;
        }
        if (__builtin_add_overflow(sum, product, &sum))
            return 0;
    }
    return sum == found;
}

/* -- one tensor ---------------------------------------------------------------------------------------------------- */

/* A header is its sizes and strides, and what lies between its place in the storage and its dispatch keys: all but where
 * it lies. How many words the second part has; 0 if they are not known. */
static size_t kind_bytes(void)
{
    Py_ssize_t bytes = keys_at - offset_at;
    return sizes_at >= 0 && offset_at >= 0 && bytes > 0 && bytes <= MOST_KIND_WORDS * 8 ? (size_t)bytes : 0;
}

static int is_as_before(const input *e, PyObject *x)
{
    if (Py_TYPE(x) != e->type)
        return 0;
    const char *t = *(char **)tensor_of(x);
    const uint64_t *sizes = (const uint64_t *)(t + sizes_at), *kind = (const uint64_t *)(t + offset_at + 8);
    uint64_t differ = 0;
    for (int k = 0; k < SIZES_WORDS; k++)
        differ |= sizes[k] ^ e->header[k];
    for (Py_ssize_t k = 0; k < (keys_at - offset_at) / 8; k++)
        differ |= kind[k] ^ e->header[SIZES_WORDS + k];
    return !differ;
}

/* The next tensor like this one is known by its header. More dimensions than there is room for lie elsewhere. */
static void remember_header(input *e, PyObject *x)
{
    const char *t = *(char **)tensor_of(x);
    if (!e->is_fixed || e->dim > INLINE_DIMENSIONS || !kind_bytes())
        return;
    memcpy(e->header, t + sizes_at, SIZES_WORDS * 8);
    memcpy(e->header + SIZES_WORDS, t + offset_at + 8, kind_bytes());
    Py_INCREF(Py_TYPE(x));
    Py_XSETREF(e->type, Py_TYPE(x));
}

static int is_of_kind(const Assumed *a, const input *e, PyObject *x)
{
    int32_t dtype, type, index;
    int64_t dim;
    int known = 0;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(a->tensors); k++)
        known |= (PyObject *)Py_TYPE(x) == PyTuple_GET_ITEM(a->tensors, k);
    if (!known || (keys_of(x) & ~a->ignored) != e->keys)
        return 0;
    void *t = tensor_of(x);
    if (torch.dtype(t, &dtype) || torch.device_type(t, &type) || torch.device_index(t, &index) || torch.dim(t, &dim))
        return 0;
    return dtype == e->dtype && type == e->device_type && index == e->device_index && dim == e->dim;
}

/* `binding`: take symbols' values from it; else compare. */
static int sizes_fit(Assumed *a, const input *e, PyObject *x, int binding)
{
    int64_t *sizes, *strides;
    void *t = tensor_of(x);
    if (torch.sizes(t, &sizes) || torch.strides(t, &strides))
        return 0;
    for (int64_t k = 0; k < e->dim; k++) {
        const size *stride = e->sizes + e->dim + k;
        int is_single = is_number(e->sizes + k) && e->sizes[k].terms->coefficient == 1;
        if (binding) {
            bind(a, e->sizes + k, sizes[k]);
            if (!is_single)
                bind(a, stride, strides[k]);
        } else if (!size_fits(a, e->sizes + k, sizes[k]) || (!is_single && !size_fits(a, stride, strides[k])))
            return 0;
    }
    return 1;
}

/* Whether its elements may share memory: a dimension does not step over all that the narrower ones span. */
static int meets_itself(int64_t dim, const int64_t *sizes, const int64_t *strides)
{
    int meets = 0;
    for (int64_t k = 0; k < dim; k++) {
        int64_t reach = 0;
        for (int64_t j = 0; j < dim; j++)
            if (strides[j] < strides[k] || (strides[j] == strides[k] && j > k))
                reach += (sizes[j] - 1) * strides[j];
        if (!sizes[k])
            return 0;
        meets |= sizes[k] > 1 && strides[k] <= reach;
    }
    return meets;
}

/* Where its elements lie, if it is not where the last one was. */
static int find_memory(input *e, PyObject *x)
{
    uint64_t data = 0;
    int64_t place = 0, *sizes, *strides;
    int knows = storage_at >= 0 && memory_of(x, &data, &place);
    e->moved = !knows || data != e->data || place != e->place || !e->is_fixed;
    if (!e->moved)
        return 1;
    void *t = tensor_of(x);
    if (torch.sizes(t, &sizes) || torch.strides(t, &strides))
        return 0;
    if (e->written && !e->is_fixed && meets_itself(e->dim, sizes, strides))
        return 0;
    e->begin = e->end = address_of(x);
    int64_t steps = 0;
    int is_empty = 0;
    for (int64_t k = 0; k < e->dim; k++) {
        is_empty |= !sizes[k];
        steps += (sizes[k] - 1) * strides[k];
    }
    if (!is_empty)
        e->end += (uint64_t)(steps + 1) * e->itemsize;
    e->data = data;
    e->place = place;
    return 1;
}

/* -- all of them --------------------------------------------------------------------------------------------------- */

static int lie_apart(Assumed *a, PyObject *args)
{
    for (Py_ssize_t k = 0; k < a->count; k++) {
        input *e = a->inputs + k;
        if (e->kind == TENSOR_INPUT && !find_memory(e, PyList_GET_ITEM(args, k)))
            return 0;
    }
    for (Py_ssize_t k = 0; k < a->count; k++) {
        const input *e = a->inputs + k;
        if (e->kind != TENSOR_INPUT || !e->moved)
            continue; /* against those that did not move either, it was looked at then */
        for (Py_ssize_t j = 0; j < a->count; j++) {
            const input *o = a->inputs + j;
            if (j != k && o->kind == TENSOR_INPUT && (e->written || o->written) && e->begin < o->end && o->begin < e->end) {
                for (Py_ssize_t i = 0; i < a->count; i++)
                    a->inputs[i].data = 0, a->inputs[i].place = -1; /* look at all of them the next time */
                return 0;
            }
        }
    }
    return 1;
}

static int place_fits(const input *e, PyObject *x)
{
    uint64_t data;
    int64_t place;
    return storage_at >= 0 && memory_of(x, &data, &place) && place == e->offset;
}

/* All but its sizes, which may need those of others. */
static int input_fits(const Assumed *a, const input *e, PyObject *x)
{
    if (e->kind == OTHER_INPUT)
        return !PyObject_TypeCheck(x, tensor_base);
    if (e->kind == NUMBER_INPUT)
        return PyLong_CheckExact(x);
    return PyObject_TypeCheck(x, tensor_base) && is_of_kind(a, e, x);
}

static int all_sizes_fit(Assumed *a, PyObject *args)
{
    for (Py_ssize_t k = 0; k < a->symbols; k++)
        a->values[k] = UNKNOWN;
    for (Py_ssize_t k = 0; a->symbols && k < a->count; k++) {
        const input *e = a->inputs + k;
        PyObject *x = PyList_GET_ITEM(args, k);
        if (e->kind == NUMBER_INPUT)
            bind(a, e->sizes, PyLong_AsLongLong(x));
        else if (e->kind == TENSOR_INPUT && !e->is_fixed && !sizes_fit(a, e, x, 1))
            return 0;
    }
    for (Py_ssize_t k = 0; k < a->symbols; k++)
        if (a->values[k] != UNKNOWN && a->values[k] < a->least[k])
            return 0;
    for (Py_ssize_t k = 0; k < a->count; k++) {
        input *e = a->inputs + k;
        PyObject *x = PyList_GET_ITEM(args, k);
        if (e->kind == NUMBER_INPUT && !size_fits(a, e->sizes, PyLong_AsLongLong(x)))
            return 0;
        if (e->kind != TENSOR_INPUT || !e->is_new)
            continue;
        if (!sizes_fit(a, e, x, 0))
            return 0;
        remember_header(e, x);
    }
    return 1;
}

/* 1 if every assumption holds of the list. */
static int assumed_fits(Assumed *a, PyObject *args)
{
    if (!PyList_Check(args) || PyList_GET_SIZE(args) != a->count)
        return 0;
    int news = 0;
    for (Py_ssize_t k = 0; k < a->count; k++) {
        input *e = a->inputs + k;
        PyObject *x = PyList_GET_ITEM(args, k);
        e->is_new = !is_as_before(e, x);
        news |= e->is_new;
        if (e->is_new && !input_fits(a, e, x))
            return 0;
        if (e->kind == TENSOR_INPUT
            && ((e->offset >= 0 && !place_fits(e, x)) || (e->requires_grad >= 0 && wants_grad(x) != e->requires_grad)))
            return 0;
    }
    return (!news || all_sizes_fit(a, args)) && (!a->writes || lie_apart(a, args));
}

/* -- the type ------------------------------------------------------------------------------------------------------ */

/* None; a size; or (a tensor like it, its itemsize, sizes, strides, offset, written, requires_grad) */
static int take_input(Assumed *a, input *e, PyObject *given)
{
    if (given == Py_None)
        return 1;
    if (PyLong_Check(given) || !PyTuple_Check(given) || !PyTuple_GET_SIZE(given)
        || !PyObject_TypeCheck(PyTuple_GET_ITEM(given, 0), tensor_base)) {
        e->kind = NUMBER_INPUT;
        e->dim = 1;
        return (e->sizes = PyMem_Calloc(2, sizeof *e->sizes)) && take_size(given, e->sizes, a->symbols);
    }
    PyObject *like, *sizes, *strides;
    long long offset;
    if (!PyArg_ParseTuple(given, "OiO!O!Lpi", &like, &e->itemsize, &PyTuple_Type, &sizes, &PyTuple_Type, &strides, &offset, &e->written,
                          &e->requires_grad))
        return 0;
    void *t = tensor_of(like);
    e->kind = TENSOR_INPUT;
    e->offset = offset;
    e->dim = PyTuple_GET_SIZE(sizes);
    e->place = -1;
    e->keys = keys_of(like) & ~a->ignored;
    a->writes |= e->written;
    if (torch.dtype(t, &e->dtype) || torch.device_type(t, &e->device_type) || torch.device_index(t, &e->device_index)
        || PyTuple_GET_SIZE(strides) != e->dim || !(e->sizes = PyMem_Calloc(2 * e->dim + 1, sizeof *e->sizes)))
        return 0;
    e->is_fixed = 1;
    for (int64_t k = 0; k < e->dim; k++) {
        if (!take_size(PyTuple_GET_ITEM(sizes, k), e->sizes + k, a->symbols)
            || !take_size(PyTuple_GET_ITEM(strides, k), e->sizes + e->dim + k, a->symbols))
            return 0;
        e->is_fixed &= is_number(e->sizes + k) && is_number(e->sizes + e->dim + k);
    }
    return 1;
}

static void assumed_dealloc(PyObject *self)
{
    Assumed *a = (Assumed *)self;
    for (Py_ssize_t k = 0; a->inputs && k < a->count; k++) {
        input *e = a->inputs + k;
        for (int64_t n = 0; e->sizes && n < (e->kind == TENSOR_INPUT ? 2 * e->dim : 1); n++)
            PyMem_Free(e->sizes[n].terms);
        PyMem_Free(e->sizes);
        Py_XDECREF(e->type);
    }
    PyMem_Free(a->inputs);
    PyMem_Free(a->least);
    PyMem_Free(a->values);
    Py_XDECREF(a->tensors);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *assumed_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *inputs, *least, *tensors;
    unsigned long long ignored;
    if (!PyArg_ParseTuple(args, "O!O!O!K", &PyTuple_Type, &inputs, &PyTuple_Type, &least, &PyTuple_Type, &tensors, &ignored))
        return NULL;
    Assumed *a = (Assumed *)type->tp_alloc(type, 0);
    if (!a)
        return NULL;
    a->tensors = Py_NewRef(tensors);
    a->ignored = ignored;
    a->symbols = PyTuple_GET_SIZE(least);
    a->inputs = PyMem_Calloc(PyTuple_GET_SIZE(inputs) + 1, sizeof *a->inputs);
    a->least = PyMem_Calloc(a->symbols + 1, sizeof *a->least);
    a->values = PyMem_Calloc(a->symbols + 1, sizeof *a->values);
    int good = keys_at >= 0 && a->inputs && a->least && a->values;
    for (Py_ssize_t k = 0; good && k < a->symbols; k++)
        a->least[k] = PyLong_AsLongLong(PyTuple_GET_ITEM(least, k));
    for (; good && a->count < PyTuple_GET_SIZE(inputs); a->count++)
        if (!take_input(a, a->inputs + a->count, PyTuple_GET_ITEM(inputs, a->count))) {
            a->count++; /* what it has taken is given back, too */
            good = 0;
            break;
        }
    if (good && !PyErr_Occurred())
        return (PyObject *)a;
    Py_DECREF(a);
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "not what assumptions are made of");
}

static PyObject *assumed_hold(PyObject *self, PyObject *args)
{
    int fits = assumed_fits((Assumed *)self, args);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(fits);
}

static PyMethodDef assumed_methods[] = {
    {"hold", assumed_hold, METH_O, "hold(inputs): whether all are known to hold of the list"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject AssumedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Assumed",
    .tp_doc = "Assumed(inputs, least values of symbols, tensor types, ignored dispatch keys)",
    .tp_basicsize = sizeof(Assumed),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = assumed_new,
    .tp_dealloc = assumed_dealloc,
    .tp_methods = assumed_methods,
};

/* -- a program behind its assumptions ------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Assumed *assumed;
    PyObject *run, *otherwise; /* the latter takes what is not known to fit */
} Checked;

static PyObject *checked_call(PyObject *self, PyObject *const *args, size_t count, PyObject *keywords)
{
    Checked *c = (Checked *)self;
    if (PyVectorcall_NARGS(count) != 1 || keywords)
        return PyErr_Format(PyExc_TypeError, "one list is wanted");
    int fits = assumed_fits(c->assumed, args[0]);
    if (PyErr_Occurred())
        PyErr_Clear(), fits = 0;
    return PyObject_CallOneArg(fits ? c->run : c->otherwise, args[0]);
}

static int checked_clear(PyObject *self)
{
    Checked *c = (Checked *)self;
    Py_CLEAR(c->assumed);
    Py_CLEAR(c->run);
    Py_CLEAR(c->otherwise);
    return 0;
}

static int checked_traverse(PyObject *self, visitproc visit, void *arg)
{
    Checked *c = (Checked *)self;
    Py_VISIT(c->run);
    Py_VISIT(c->otherwise);
    return 0;
}

static void checked_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    checked_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *checked_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *assumed, *run, *otherwise;
    if (!PyArg_ParseTuple(args, "O!OO", &AssumedType, &assumed, &run, &otherwise))
        return NULL;
    Checked *c = (Checked *)type->tp_alloc(type, 0);
    if (!c)
        return NULL;
    c->call = checked_call;
    c->assumed = (Assumed *)Py_NewRef(assumed);
    c->run = Py_NewRef(run);
    c->otherwise = Py_NewRef(otherwise);
    return (PyObject *)c;
}

static PyTypeObject CheckedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Checked",
    .tp_doc = "Checked(assumed, run, otherwise)(inputs): run(inputs) where all assumptions hold, else otherwise(inputs)",
    .tp_basicsize = sizeof(Checked),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = checked_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Checked, call),
    .tp_dealloc = checked_dealloc,
    .tp_traverse = checked_traverse,
    .tp_clear = checked_clear,
};
