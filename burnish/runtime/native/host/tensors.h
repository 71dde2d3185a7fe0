/* Tensors seen from C: where they lie and how they are laid out.
 *
 * Nothing of torch is included or linked. `open` is given the library that holds torch's stable C functions, where in a
 * Python tensor the C++ one lies, and where in that its dispatch keys are: burnish/runtime/host/extension.py finds these places
 * out by looking at tensors whose answers it knows, and does without these files where it cannot. Where a tensor's memory
 * is noted it finds out, too; that is used to see quickly that nothing moved, and may stay unknown. */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MOST_DIMENSIONS = 16 };

static struct {
    int (*data)(void *tensor, void **address); /* each returns 0 for success */
    int (*dim)(void *tensor, int64_t *count);
    int (*sizes)(void *tensor, int64_t **sizes);
    int (*strides)(void *tensor, int64_t **strides);
    int (*dtype)(void *tensor, int32_t *code);
    int (*device_type)(void *tensor, int32_t *code);
    int (*device_index)(void *tensor, int32_t *index);
} torch;

static Py_ssize_t tensor_at = -1, keys_at = -1;
static Py_ssize_t storage_at = -1, offset_at = -1, data_at = -1; /* of a tensor the first two, of its storage the last */
static Py_ssize_t sizes_at = -1; /* in a tensor: how many dimensions, five sizes and five strides, if there is room */
static PyTypeObject *tensor_base;
static PyObject *requires_grad;

static PyObject *host_open(PyObject *module, PyObject *args)
{
    static const char *const names[] = {
        "aoti_torch_get_data_ptr", "aoti_torch_get_dim", "aoti_torch_get_sizes", "aoti_torch_get_strides",
        "aoti_torch_get_dtype", "aoti_torch_get_device_type", "aoti_torch_get_device_index",
    };
    const char *library;
    PyObject *base;
    Py_ssize_t tensor, keys, storage, offset, data, sizes;
    if (!PyArg_ParseTuple(args, "sO!nnnnnn", &library, &PyType_Type, &base, &tensor, &keys, &storage, &offset, &data,
                          &sizes))
        return NULL;
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void **calls = (void **)&torch;
    for (unsigned k = 0; k < sizeof names / sizeof *names; k++)
        if (!handle || !(calls[k] = dlsym(handle, names[k])))
            return PyErr_Format(PyExc_ImportError, "%s lacks %s", library, names[k]);
    if (!requires_grad && !(requires_grad = PyUnicode_InternFromString("requires_grad")))
        return NULL;
    Py_INCREF(base);
    Py_XSETREF(tensor_base, (PyTypeObject *)base);
    tensor_at = tensor;
    keys_at = keys;
    storage_at = storage;
    offset_at = offset;
    data_at = data;
    sizes_at = sizes;
    Py_RETURN_NONE;
}

/* A list or a tuple, whose items are there without asking. */
static int is_row(PyObject *x)
{
    return PyList_Check(x) || PyTuple_Check(x);
}

static void *tensor_of(PyObject *x)
{
    return (char *)x + tensor_at;
}

static uint64_t keys_of(PyObject *x)
{
    return *(uint64_t *)(*(char **)tensor_of(x) + keys_at);
}

/* The address of a tensor's first element; 0 for anything else. */
static uint64_t address_of(PyObject *x)
{
    void *address = NULL;
    if (!PyObject_TypeCheck(x, tensor_base) || torch.data(tensor_of(x), &address))
        return 0;
    return (uint64_t)(uintptr_t)address;
}

typedef struct {
    int64_t dim;
    int64_t sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
} layout;

/* Whether x has this layout; strides of dimensions without a second element say nothing if `loosely`. */
static int has_layout(PyObject *x, const layout *l, int loosely)
{
    void *t = tensor_of(x);
    int64_t dim, *sizes, *strides;
    if (torch.dim(t, &dim) || dim != l->dim || torch.sizes(t, &sizes) || torch.strides(t, &strides))
        return 0;
    for (int64_t k = 0; k < dim; k++)
        if (sizes[k] != l->sizes[k] || (strides[k] != l->strides[k] && !(loosely && sizes[k] <= 1)))
            return 0;
    return 1;
}

static int take_layout(PyObject *x, layout *l)
{
    void *t = tensor_of(x);
    int64_t *sizes, *strides;
    if (torch.dim(t, &l->dim) || l->dim > MOST_DIMENSIONS || torch.sizes(t, &sizes) || torch.strides(t, &strides))
        return 0;
    memcpy(l->sizes, sizes, l->dim * sizeof *sizes);
    memcpy(l->strides, strides, l->dim * sizeof *strides);
    return 1;
}

/* -- addresses ---------------------------------------------------------------------------------------------------- */

typedef struct {
    Py_ssize_t position;
    uint64_t address;
    PyTypeObject *type; /* of a tensor that was there, whose storage begins at `data`; NULL while none was seen */
    uint64_t data;
    int64_t offset; /* in elements */
} place;

typedef struct {
    PyObject_VAR_HEAD
    vectorcallfunc call;
    place places[];
} Addresses;

/* What a tensor notes of its memory; 0 if it has none. */
static int memory_of(PyObject *x, uint64_t *data, int64_t *offset)
{
    const char *t = *(char **)tensor_of(x), *storage = *(char **)(t + storage_at);
    if (!storage)
        return 0;
    *data = *(const uint64_t *)(storage + data_at);
    *offset = *(const int64_t *)(t + offset_at);
    return 1;
}

/* Three words instead of a call into torch: two hundred parameters are asked for in every call. */
static int is_where_it_was(const place *p, PyObject *x)
{
    uint64_t data;
    int64_t offset;
    return Py_TYPE(x) == p->type && memory_of(x, &data, &offset) && data == p->data && offset == p->offset;
}

/* Remember what the tensor, which lies at the place, notes, if that says where it lies. */
static void remember(place *p, PyObject *x)
{
    uint64_t data;
    int64_t offset;
    if (storage_at < 0 || !memory_of(x, &data, &offset) || (offset ? data >= p->address : data != p->address))
        return;
    if (offset && (p->address - data) % (uint64_t)offset)
        return;
    Py_INCREF(Py_TYPE(x));
    Py_XSETREF(p->type, Py_TYPE(x));
    p->data = data;
    p->offset = offset;
}

/* Whether each tensor of the list lies where it did. */
static int addresses_fit(Addresses *a, PyObject *tensors)
{
    Py_ssize_t given = PyList_GET_SIZE(tensors);
    for (place *p = a->places, *end = p + Py_SIZE(a); p < end; p++) {
        if (p->position >= given)
            return 0;
        PyObject *x = PyList_GET_ITEM(tensors, p->position);
        if (is_where_it_was(p, x))
            continue;
        if (address_of(x) != p->address)
            return 0;
        if (p->address)
            remember(p, x);
    }
    return 1;
}

static PyObject *addresses_call(PyObject *self, PyObject *const *args, size_t count, PyObject *keywords)
{
    if (PyVectorcall_NARGS(count) != 1 || keywords || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "one list is wanted");
        return NULL;
    }
    return PyBool_FromLong(addresses_fit((Addresses *)self, args[0]));
}

static PyObject *addresses_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *positions, *addresses;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &positions, &PyList_Type, &addresses))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(positions);
    Addresses *self = (Addresses *)type->tp_alloc(type, count);
    if (!self)
        return NULL;
    self->call = addresses_call;
    for (Py_ssize_t k = 0; k < count; k++) {
        Py_ssize_t position = PyLong_AsSsize_t(PyList_GET_ITEM(positions, k));
        if (position < 0 || position >= PyList_GET_SIZE(addresses)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_IndexError, "a position without an address");
            Py_DECREF(self);
            return NULL;
        }
        self->places[k] = (place){position, PyLong_AsUnsignedLongLong(PyList_GET_ITEM(addresses, position)), NULL, 0, 0};
    }
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void addresses_dealloc(PyObject *self)
{
    Addresses *a = (Addresses *)self;
    for (place *p = a->places, *end = p + Py_SIZE(a); p < end; p++)
        Py_XDECREF(p->type);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject AddressesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Addresses",
    .tp_doc = "Addresses(positions, addresses)(tensors): whether tensors[k] begins at addresses[k] for each position k",
    .tp_basicsize = sizeof(Addresses),
    .tp_itemsize = sizeof(place),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = addresses_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Addresses, call),
    .tp_dealloc = addresses_dealloc,
};

