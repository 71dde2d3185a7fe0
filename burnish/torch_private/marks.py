"""Attributes by which torch marks functions and graphs, and burnish does too."""

from __future__ import annotations

from burnish.torch_private.names import NO_REGIONS, PrivateName

_WRAPPERS_TRACED = "a compiled object inside another is a graph break"
_AS_IT_IS = "what torch.compile returned is compiled as it is"


def _disabled() -> object:
    from torch._dynamo import disable

    return disable(lambda: None)


def _boxed() -> object:
    from torch._functorch._aot_autograd.utils import make_boxed_func

    return make_boxed_func(lambda: None)


NAMES = (
    PrivateName(
        "torch._dynamo.utils.object_setattr_ignore_descriptor",
        "what Dynamo's code sets attributes with: sealed calls know a quicker way",
        fallback="sealed calls set them as open ones do",
    ),
    PrivateName(
        "torch._dynamo.disable._torchdynamo_orig_callable",
        "what a wrapper of Dynamo's is around",
        on=_disabled,
        fallback=_AS_IT_IS,
    ),
    PrivateName(
        "torch._dynamo.optimize._torchdynamo_inline",
        "what Dynamo traces in place of a wrapper",
        probed=False,
        fallback=_WRAPPERS_TRACED,
    ),
    PrivateName(
        "torch._dynamo.OptimizedModule._orig_mod",
        "the module that torch.compile was given",
        probed=False,
        fallback=_AS_IT_IS,
    ),
    PrivateName(
        "torch._functorch._aot_autograd.utils.make_boxed_func._boxed_call",
        "a program that takes its arguments in one list",
        on=_boxed,
    ),
    PrivateName(
        "torch.fx.Node._dynamo_source", "where an input of a graph comes from", probed=False, fallback=NO_REGIONS
    ),
    PrivateName(
        "torch.fx.GraphModule._param_name_to_source", "where parameters come from", probed=False, fallback=NO_REGIONS
    ),
)
