"""Warm starts without TorchDynamo and AOTAutograd: what they made for a frame in an earlier process, as data.

    frame.py          what is stored of a frame, its key, storing it, and making Dynamo's own cache entry of it again
    guards.py         Dynamo's guards: stored as what they look at, made again from the live values, and compared
    code_identity.py  whether a class, a function or a code object is the one it was in another process
    graph_source.py   a captured graph as Python text: eager's form of it
    training.py       forward and backward programs as one function of autograd

Nothing is unpickled. A frame is stored only if all of it can be written down so, and is used only if everything that
decided it is the same; both say why not.
"""


class NotWarm(Exception):
    """Why a frame is not stored, or what is stored does not serve."""
