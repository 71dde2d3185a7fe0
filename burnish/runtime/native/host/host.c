/* The host's part of a call as a Python extension. burnish/runtime/host/extension.py loads it. */
#include "host/bypass.h"
#include "host/assumed.h"
#include "host/graphs.h"
#include "host/held.h"
#include "host/launches.h"
#include "host/methods.h"
#include "host/replay.h"
#include "host/sealed.h"
#include "host/tensors.h"

/* set_in_dict(object, name, value): what torch._dynamo.utils.object_setattr_ignore_descriptor does, by which Dynamo's code
 * fills every attribute of an object that it builds. */
static PyObject *set_in_dict(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "an object, a name and a value are wanted");
    PyObject *dict = PyObject_GenericGetDict(args[0], NULL);
    if (dict) {
        int failed = PyObject_SetItem(dict, args[1], args[2]);
        Py_DECREF(dict);
        return failed ? NULL : Py_NewRef(Py_None);
    }
    PyErr_Clear(); /* an object that keeps its attributes elsewhere */
    PyObject *utils = PyImport_ImportModule("torch._dynamo.utils");
    PyObject *own = utils ? PyObject_GetAttrString(utils, "object_setattr_ignore_descriptor") : NULL;
    PyObject *done = own ? PyObject_Vectorcall(own, args, 3, NULL) : NULL;
    Py_XDECREF(utils);
    Py_XDECREF(own);
    return done;
}

static PyMethodDef functions[] = {
    {"open", host_open, METH_VARARGS, "open(torch's library, base of tensors, where a tensor is, where its keys are)"},
    {"make_with", host_make_with, METH_VARARGS, "make_with(torch's library, its library for Python)"},
    {"set_in_dict", (PyCFunction)(void (*)(void))set_in_dict, METH_FASTCALL, "set_in_dict(object, name, value)"},
    {"load_copies", load_copies, METH_VARARGS, "load_copies(driver): the kernel that copies, in the current context"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "burnish_host", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyObject *PyInit_burnish_host(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module
        && (PyModule_AddType(module, &AddressesType) || PyModule_AddType(module, &RouteType)
            || PyModule_AddType(module, &SealedType) || PyModule_AddType(module, &LaunchType)
            || PyModule_AddType(module, &SegmentType) || PyModule_AddType(module, &FreshType)
            || PyModule_AddType(module, &ReplayType) || PyModule_AddType(module, &AssumedType)
            || PyModule_AddType(module, &CheckedType) || PyModule_AddType(module, &HeldType)
            || PyModule_AddType(module, &BypassType) || PyModule_AddType(module, &MethodsType)
            || PyModule_AddIntMacro(module, MOST_ROUTES)))
        Py_CLEAR(module);
    return module;
}
