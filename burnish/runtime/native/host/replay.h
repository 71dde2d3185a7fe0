/* A captured program's call in C, as long as nothing is out of the ordinary: its graph is the one replayed last on this
 * stream or nobody has replayed another elsewhere, its arguments lie where they did, all results are new memory. Of
 * anything else it knows nothing: it returns None with nothing done, and Python (runtime/cuda/graphs.py) decides. */
#pragma once
#include "host/fresh.h"
#include "host/graphs.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Launch *launch; /* NULL once the graph is gone */
    Addresses *addresses;
    Fresh *fresh;
    PyObject *acquire, *release; /* the pool's lock: one graph at a time */
    PyObject *current_stream, *device;
    PyObject *inference; /* whether tensors are made for inference mode now */
    PyObject *lenders;   /* a list: graphs whose memory may be in use */
    PyObject *kept;      /* whose memory the following are */
    const int64_t *flag; /* not 0: a kernel of an earlier call has something to say; NULL: none ever has */
    int64_t *turn;       /* the stream of the pool's latest replay, and how many there were */
    int64_t *stamp;      /* which of them was this graph's latest */
    int ahead;           /* whether memory for the next results is asked for */
    PyObject *ready, *ready_mode; /* that memory, and in which mode it was made */
    int64_t ready_stream;
} Replay;

static int stream_now(const Replay *r, int64_t *stream)
{
    PyObject *found = PyObject_CallOneArg(r->current_stream, r->device);
    if (!found)
        return 0;
    *stream = (int64_t)(intptr_t)PyLong_AsVoidPtr(found);
    Py_DECREF(found);
    return !PyErr_Occurred();
}

/* Results for this call: those made ahead, if they were for a call like it. */
static PyObject *take_results(Replay *r, int64_t stream, PyObject *mode)
{
    PyObject *ready = r->ready;
    r->ready = NULL;
    if (ready && r->ready_stream == stream && r->ready_mode == mode)
        return ready;
    Py_XDECREF(ready);
    return new_tensors(r->fresh);
}

static void make_ready(Replay *r, int64_t stream, PyObject *mode)
{
    PyObject *made = new_tensors(r->fresh);
    if (!made)
        PyErr_Clear(); /* this call has its results: let the next one see for itself */
    Py_XSETREF(r->ready, made);
    Py_XSETREF(r->ready_mode, Py_NewRef(mode));
    r->ready_stream = stream;
}

/* The results; NULL without an error where this call is none of ours. */
static PyObject *replay_in_turn(Replay *r, PyObject *args)
{
    int64_t stream;
    if (!r->launch || !stream_now(r, &stream) || stream != r->turn[0] || !addresses_fit(r->addresses, args))
        return NULL;
    PyObject *mode = PyObject_CallNoArgs(r->inference);
    PyObject *results = mode ? take_results(r, stream, mode) : NULL;
    Launch *launch = (Launch *)Py_NewRef((PyObject *)r->launch);
    if (results && (!find_all(launch, args, results) || launch_found(launch, (void *)(intptr_t)stream)))
        Py_CLEAR(results);
    if (results) {
        *r->stamp = ++r->turn[1];
        if (PyList_SetSlice(args, 0, PyList_GET_SIZE(args), NULL))
            PyErr_Clear();
        if (r->ahead && r->launch)
            make_ready(r, stream, mode);
    }
    Py_DECREF(launch);
    Py_XDECREF(mode);
    return results;
}

static PyObject *replay_call(PyObject *self, PyObject *const *args, size_t count, PyObject *keywords)
{
    Replay *r = (Replay *)self;
    if (PyVectorcall_NARGS(count) != 1 || keywords || !PyList_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "one list is wanted");
    if (!r->launch || (r->flag && *r->flag) || PyList_GET_SIZE(r->lenders))
        Py_RETURN_NONE;
    PyObject *release = Py_NewRef(r->release), *has_turn = PyObject_CallOneArg(r->acquire, Py_False);
    if (has_turn != Py_True) { /* another thread's call: wait for it in Python */
        Py_DECREF(release);
        if (!has_turn)
            return NULL;
        Py_DECREF(has_turn);
        Py_RETURN_NONE;
    }
    Py_DECREF(has_turn);
    PyObject *results = replay_in_turn(r, args[0]), *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *done = PyObject_CallNoArgs(release);
    Py_DECREF(release);
    if (!done) {
        Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
        Py_XDECREF(results);
        return NULL;
    }
    Py_DECREF(done);
    PyErr_Restore(type, value, trace);
    if (results || type)
        return results;
    Py_RETURN_NONE;
}

/* The graph is gone. */
static PyObject *replay_end(PyObject *self, PyObject *none)
{
    Replay *r = (Replay *)self;
    Py_CLEAR(r->launch);
    Py_CLEAR(r->ready);
    Py_RETURN_NONE;
}

static PyObject *replay_ready(PyObject *self, PyObject *none)
{
    PyObject *ready = ((Replay *)self)->ready;
    return Py_NewRef(ready ? ready : Py_None);
}

static int replay_clear(PyObject *self)
{
    Replay *r = (Replay *)self;
    Py_CLEAR(r->launch);
    Py_CLEAR(r->addresses);
    Py_CLEAR(r->fresh);
    Py_CLEAR(r->acquire);
    Py_CLEAR(r->release);
    Py_CLEAR(r->current_stream);
    Py_CLEAR(r->device);
    Py_CLEAR(r->inference);
    Py_CLEAR(r->lenders);
    Py_CLEAR(r->kept);
    Py_CLEAR(r->ready);
    Py_CLEAR(r->ready_mode);
    return 0;
}

static int replay_traverse(PyObject *self, visitproc visit, void *arg)
{
    Replay *r = (Replay *)self;
    Py_VISIT(r->acquire);
    Py_VISIT(r->release);
    Py_VISIT(r->lenders);
    Py_VISIT(r->kept);
    Py_VISIT(r->ready);
    return 0;
}

static void replay_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    replay_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *replay_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *launch, *addresses, *fresh, *acquire, *release, *stream, *device, *inference, *lenders, *kept;
    unsigned long long flag, turn, stamp;
    int ahead;
    if (!PyArg_ParseTuple(args, "O!O!O!OOOOOO!KKKpO", &LaunchType, &launch, &AddressesType, &addresses, &FreshType,
                          &fresh, &acquire, &release, &stream, &device, &inference, &PyList_Type, &lenders, &flag,
                          &turn, &stamp, &ahead, &kept))
        return NULL;
    Replay *r = (Replay *)type->tp_alloc(type, 0);
    if (!r)
        return NULL;
    r->call = replay_call;
    r->launch = (Launch *)Py_NewRef(launch);
    r->addresses = (Addresses *)Py_NewRef(addresses);
    r->fresh = (Fresh *)Py_NewRef(fresh);
    r->acquire = Py_NewRef(acquire);
    r->release = Py_NewRef(release);
    r->current_stream = Py_NewRef(stream);
    r->device = Py_NewRef(device);
    r->inference = Py_NewRef(inference);
    r->lenders = Py_NewRef(lenders);
    r->kept = Py_NewRef(kept);
    r->flag = (const int64_t *)(uintptr_t)flag;
    r->turn = (int64_t *)(uintptr_t)turn;
    r->stamp = (int64_t *)(uintptr_t)stamp;
    r->ahead = ahead;
    return (PyObject *)r;
}

static PyMethodDef replay_methods[] = {
    {"end", replay_end, METH_NOARGS, "The graph is gone: every call returns None."},
    {"ready", replay_ready, METH_NOARGS, "Memory for the next results, if there is some."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject ReplayType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "burnish_host.Replay",
    .tp_doc = "Replay(launch, addresses, fresh, acquire, release, current stream, device, inference, lenders, flag, turn, "
              "stamp, ahead, kept)(arguments): results, or None where Python must decide",
    .tp_basicsize = sizeof(Replay),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = replay_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Replay, call),
    .tp_dealloc = replay_dealloc,
    .tp_traverse = replay_traverse,
    .tp_clear = replay_clear,
    .tp_methods = replay_methods,
};
