/* The host's part of a call as a Python extension. burnish/capture/host.py loads it. */
#include "host/graphs.h"
#include "host/launches.h"
#include "host/replay.h"
#include "host/sealed.h"
#include "host/tensors.h"

static PyMethodDef functions[] = {
    {"open", host_open, METH_VARARGS, "open(torch's library, base of tensors, where a tensor is, where its keys are)"},
    {"make_with", host_make_with, METH_VARARGS, "make_with(torch's library, its library for Python)"},
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
            || PyModule_AddType(module, &ReplayType)
            || PyModule_AddIntMacro(module, MOST_ROUTES)))
        Py_CLEAR(module);
    return module;
}
