/* New tensors for a call's results, without a pass through Python for each. */
#pragma once
#include "host/tensors.h"

static struct {
    int (*empty)(int64_t dim, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,
                 int32_t device_index, void **tensor);
    int (*release)(void *tensor);
    PyObject *(*wrap)(const void *tensor); /* a Python object of a C++ tensor */
} torch_new;

/* make_with(torch's library, its library for Python): from now on `Fresh` can be had. */
static PyObject *host_make_with(PyObject *module, PyObject *args)
{
    static const char *const names[] = {"aoti_torch_empty_strided", "aoti_torch_delete_tensor_object",
                                        "_Z16THPVariable_WrapRKN2at10TensorBaseE"};
    const char *libraries[2];
    if (!PyArg_ParseTuple(args, "ss", &libraries[0], &libraries[1]))
        return NULL;
    void *found[3];
    for (int k = 0; k < 3; k++) {
        void *handle = dlopen(libraries[k / 2], RTLD_NOW | RTLD_LOCAL);
        if (!handle || !(found[k] = dlsym(handle, names[k])))
            return PyErr_Format(PyExc_ImportError, "%s lacks %s", libraries[k / 2], names[k]);
    }
    memcpy(&torch_new, found, sizeof found);
    Py_RETURN_NONE;
}

typedef struct {
    layout layout;
    int32_t dtype, device_type, device_index;
} form;

typedef struct {
    PyObject_VAR_HEAD
    vectorcallfunc call;
    form forms[];
} Fresh;

static PyObject *new_tensor(const form *f)
{
    void *made = NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS /* whoever has the allocator may wait for Python */
    code = torch_new.empty(f->layout.dim, f->layout.sizes, f->layout.strides, f->dtype, f->device_type,
                           f->device_index, &made);
    Py_END_ALLOW_THREADS
    if (code)
        return NULL;
    PyObject *x = torch_new.wrap(made);
    torch_new.release(made);
    return x;
}

/* A tuple of new tensors; NULL, with no error set unless Python has one, where there is no memory for them. */
static PyObject *new_tensors(const Fresh *f)
{
    PyObject *out = PyTuple_New(Py_SIZE(f));
    for (Py_ssize_t k = 0; out && k < Py_SIZE(f); k++) {
        PyObject *x = new_tensor(f->forms + k);
        if (!x)
            Py_CLEAR(out);
        else
            PyTuple_SET_ITEM(out, k, x);
    }
    return out;
}

static PyObject *fresh_call(PyObject *self, PyObject *const *args, size_t count, PyObject *keywords)
{
    if (PyVectorcall_NARGS(count) || keywords)
        return PyErr_Format(PyExc_TypeError, "nothing is wanted");
    PyObject *made = new_tensors((const Fresh *)self);
    if (made || PyErr_Occurred())
        return made;
    Py_RETURN_NONE;
}

static PyObject *fresh_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *like;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &like))
        return NULL;
    if (!torch_new.wrap)
        return PyErr_Format(PyExc_ImportError, "tensors cannot be made here");
    Fresh *self = (Fresh *)type->tp_alloc(type, PyList_GET_SIZE(like));
    if (!self)
        return NULL;
    self->call = fresh_call;
    for (Py_ssize_t k = 0; k < Py_SIZE(self); k++) {
        PyObject *x = PyList_GET_ITEM(like, k);
        form *f = self->forms + k;
        if (!PyObject_TypeCheck(x, tensor_base) || !take_layout(x, &f->layout)
            || torch.dtype(tensor_of(x), &f->dtype) || torch.device_type(tensor_of(x), &f->device_type)
            || torch.device_index(tensor_of(x), &f->device_index)) {
            Py_DECREF(self);
            return PyErr_Format(PyExc_ValueError, "a tensor that is not made here");
        }
    }
    return (PyObject *)self;
}

static PyTypeObject FreshType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Fresh",
    .tp_doc = "Fresh(tensors)(): a tuple of new ones like them; None where there is no memory",
    .tp_basicsize = sizeof(Fresh),
    .tp_itemsize = sizeof(form),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = fresh_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Fresh, call),
};
