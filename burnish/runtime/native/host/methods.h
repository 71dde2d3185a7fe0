/* Whether classes still have the methods that a frame was compiled with. */
#pragma once
#include "host/sealed.h" /* names of members, in older Pythons */

/* While a class has the version that it had, Python itself looks for nothing anew in it: its own cache of attributes goes
 * by this number, no two classes ever have the same, and 0 is none. So what has been found once is found again, if the
 * metaclass has kept its version, too, and looks up attributes in the ordinary way. */
typedef struct {
    PyObject *owner, *function, *code; /* weak references: a guard must not keep what may keep the compiled object */
    PyObject *name, *part;             /* `part` leads from what the class gives to the function: "" for that itself */
    unsigned int version, metaclass_version;
    PyTypeObject *wrapper; /* in which the class has the function, NULL for that itself, */
    Py_ssize_t at;         /* and where in it */
} method;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *entries; /* ((class, name, part, function, its code), ...), objects by weak references */
    PyObject *held;    /* what is asked before */
    Py_ssize_t count;
    method *methods;
} Methods;

static PyObject *referent(PyObject *reference)
{
    PyObject *x = ((PyWeakReference *)reference)->wr_object;
    return x == Py_None || Py_REFCNT(x) <= 0 ? NULL : x;
}

static int has_its_code(const method *m, PyObject *function)
{
    return ((PyFunctionObject *)function)->func_code == referent(m->code);
}

static PyObject *in_wrapper(PyObject *raw, Py_ssize_t at)
{
    return *(PyObject **)((char *)raw + at);
}

static Py_ssize_t place_in(PyTypeObject *wrapper, const char *name)
{
    PyObject *member = PyObject_GetAttrString((PyObject *)wrapper, name);
    if (!member)
        PyErr_Clear();
    int is_member = member && Py_TYPE(member) == &PyMemberDescr_Type;
    Py_ssize_t at = is_member ? ((PyMemberDescrObject *)member)->d_member->offset : 0;
    Py_XDECREF(member);
    return at;
}

/* Called after the method was found: what tells the next time that it would be. */
static void remember_place(method *m, PyTypeObject *owner, PyObject *function)
{
    PyTypeObject *metaclass = Py_TYPE(owner);
    m->version = 0;
    if (metaclass->tp_getattro != PyType_Type.tp_getattro)
        return;
    PyObject *above = _PyType_Lookup(metaclass, m->name);
    if (above && (Py_TYPE(above)->tp_descr_set || Py_TYPE(above)->tp_flags & Py_TPFLAGS_HEAPTYPE))
        return; /* it may answer for the class */
    PyObject *raw = _PyType_Lookup(owner, m->name);
    if (!raw)
        return;
    m->wrapper = NULL;
    if (raw != function) {
        PyTypeObject *kind = Py_TYPE(raw);
        if (kind != &PyStaticMethod_Type && kind != &PyClassMethod_Type && kind != &PyProperty_Type)
            return;
        m->at = place_in(kind, kind == &PyProperty_Type ? "fget" : "__func__");
        if (!m->at || in_wrapper(raw, m->at) != function)
            return;
        m->wrapper = kind;
    }
    m->metaclass_version = metaclass->tp_version_tag;
    m->version = m->metaclass_version ? owner->tp_version_tag : 0;
}

static PyObject *found_now(const method *m, PyObject *owner)
{
    PyObject *found = PyObject_GetAttr(owner, m->name);
    if (!found || !PyUnicode_GET_LENGTH(m->part))
        return found;
    PyObject *part = PyObject_GetAttr(found, m->part);
    Py_DECREF(found);
    return part;
}

/* As Python code would ask: 1, 0, or -1 with an exception. */
static int is_found_anew(method *m, PyObject *owner)
{
    Py_INCREF(owner);
    PyObject *found = found_now(m, owner);
    int same = found && found == referent(m->function) && has_its_code(m, found);
    if (same)
        remember_place(m, (PyTypeObject *)owner, found);
    Py_XDECREF(found);
    Py_DECREF(owner);
    if (!found && !PyErr_ExceptionMatches(PyExc_AttributeError))
        return -1;
    PyErr_Clear();
    return same;
}

static int is_unchanged(method *m)
{
    PyObject *owner = referent(m->owner), *function = referent(m->function);
    if (!owner || !function)
        return 0;
    PyTypeObject *class = (PyTypeObject *)owner;
    if (!m->version || class->tp_version_tag != m->version
        || Py_TYPE(owner)->tp_version_tag != m->metaclass_version)
        return is_found_anew(m, owner);
    if (m->wrapper) { /* which can be made to hold something else */
        PyObject *raw = _PyType_Lookup(class, m->name);
        if (!raw || Py_TYPE(raw) != m->wrapper || in_wrapper(raw, m->at) != function)
            return is_found_anew(m, owner);
    }
    return has_its_code(m, function);
}

static PyObject *methods_call(PyObject *self, PyObject *const *args, size_t count, PyObject *keywords)
{
    Methods *all = (Methods *)self;
    if (!all->held) /* taken apart by gc */
        return Py_NewRef(Py_False);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(all->held); k++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(all->held, k));
        int holds = answer ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(answer);
        if (holds < 0 && PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
            holds = 0;
        }
        if (holds <= 0)
            return holds ? NULL : Py_NewRef(Py_False);
    }
    for (Py_ssize_t k = 0; k < all->count; k++) {
        int same = is_unchanged(all->methods + k);
        if (same <= 0)
            return same ? NULL : Py_NewRef(Py_False);
    }
    return Py_NewRef(Py_True);
}

static int methods_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Methods *)self)->entries);
    Py_VISIT(((Methods *)self)->held);
    return 0;
}

static int methods_clear(PyObject *self)
{
    ((Methods *)self)->count = 0;
    Py_CLEAR(((Methods *)self)->held);
    Py_CLEAR(((Methods *)self)->entries);
    return 0;
}

static void methods_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    methods_clear(self);
    PyMem_Free(((Methods *)self)->methods);
    Py_TYPE(self)->tp_free(self);
}

static int take_method(method *m, PyObject *entry)
{
    if (!PyTuple_Check(entry)
        || !PyArg_ParseTuple(entry, "OUUOO", &m->owner, &m->name, &m->part, &m->function, &m->code))
        return 0;
    if (!PyWeakref_Check(m->owner) || !PyWeakref_Check(m->function) || !PyWeakref_Check(m->code))
        return 0;
    PyObject *owner = referent(m->owner), *function = referent(m->function);
    return (!owner || PyType_Check(owner)) && (!function || PyFunction_Check(function));
}

static PyObject *methods_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *entries, *held;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &entries, &PyTuple_Type, &held))
        return NULL;
    Methods *all = (Methods *)type->tp_alloc(type, 0);
    if (!all)
        return NULL;
    all->call = methods_call;
    all->entries = Py_NewRef(entries);
    all->held = Py_NewRef(held);
    if (!(all->methods = PyMem_Calloc(PyTuple_GET_SIZE(entries) + 1, sizeof *all->methods))) {
        Py_DECREF(all);
        return PyErr_NoMemory();
    }
    for (; all->count < PyTuple_GET_SIZE(entries); all->count++)
        if (!take_method(all->methods + all->count, PyTuple_GET_ITEM(entries, all->count))) {
            Py_DECREF(all);
            PyErr_Clear();
            return PyErr_Format(PyExc_TypeError, "a class, a name, a part, a function and its code are wanted");
        }
    return (PyObject *)all;
}

static PyTypeObject MethodsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Methods",
    .tp_doc = "Methods(((class, name, part, function, code), ...), held)(): whether all that is held says yes, and each"
              " class has each function still, with its code; objects by weak references",
    .tp_basicsize = sizeof(Methods),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = methods_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Methods, call),
    .tp_dealloc = methods_dealloc,
    .tp_traverse = methods_traverse,
    .tp_clear = methods_clear,
};
