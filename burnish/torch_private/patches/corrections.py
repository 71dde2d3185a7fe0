"""All that is replaced so that what Dynamo makes of a function does what the function does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from burnish.torch_private.patches.absent_attributes import guarding_absent_attributes
from burnish.torch_private.patches.autograd_functions import applying_functions, recording_results
from burnish.torch_private.patches.class_attributes import guarding_attributes_of_classes
from burnish.torch_private.patches.containers import bounding_deques, extending_lists, guarding_keys, noticing_order
from burnish.torch_private.patches.identity import guarding_identity
from burnish.torch_private.patches.left_to_eager import (
    leaving_contexts,
    leaving_exceptions_of_operations,
    leaving_grad_modes,
    leaving_lazy_modules,
    leaving_python_draws,
    leaving_texts_of_objects,
    leaving_unrecorded_checkpoints,
)
from burnish.torch_private.patches.numpy_numbers import keeping_numbers_of_numpy
from burnish.torch_private.patches.sets import keeping_order_of_sets
from burnish.torch_private.patches.tensor_facts import guarding_facts_of_tensors
from burnish.torch_private.patches.writes import (
    keeping_writes_to_numbers,
    leaving_writes_to_classes,
    noticing_other_shapes,
)

_CORRECTIONS = (
    keeping_writes_to_numbers,
    noticing_other_shapes,
    leaving_writes_to_classes,
    applying_functions,
    recording_results,
    leaving_contexts,
    leaving_exceptions_of_operations,
    leaving_grad_modes,
    leaving_lazy_modules,
    leaving_python_draws,
    leaving_texts_of_objects,
    leaving_exceptions_of_operations,
    leaving_unrecorded_checkpoints,
    keeping_numbers_of_numpy,
    noticing_order,
    bounding_deques,
    extending_lists,
    guarding_keys,
    guarding_absent_attributes,
    guarding_attributes_of_classes,
    guarding_identity,
    guarding_facts_of_tensors,
)


@contextlib.contextmanager
def tracing_as_eager_runs() -> Iterator[list[str]]:
    """All that is replaced so that what Dynamo makes of a function does what the function does. Gives a list that is
    empty as long as another process would do the same."""
    differs: list[str] = []
    with contextlib.ExitStack() as stack:
        for correction in _CORRECTIONS:
            stack.enter_context(correction())
        stack.enter_context(keeping_order_of_sets(lambda: differs.append("the order of a set of text")))
        yield differs
