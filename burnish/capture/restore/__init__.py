"""Warm starts without TorchDynamo and AOTAutograd: their results for a frame in an earlier process, stored as data.

    frame.py          the stored form of a frame, its key, storing it, and rebuilding Dynamo's cache entry from it
    guards.py         Dynamo's guards: stored as sources and kinds, rebuilt from the live values, and compared
    code_identity.py  whether a class, a function or a code object is the same as in another process
    graph_source.py   a captured graph as Python text: eager's form of it
    training.py       forward and backward programs as one autograd function

Nothing is unpickled. A frame is stored only if all of it can be represented in this form, and is used only if
everything that determined it is the same. Otherwise the reason is reported.
"""


class NotWarm(Exception):
    """The reason why a frame is not stored, or a stored frame cannot be used."""
