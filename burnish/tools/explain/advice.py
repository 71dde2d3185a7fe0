"""Maps TorchDynamo's reason for a graph break or a recompile to advice for the user."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    kind: str
    text: str


@dataclass(frozen=True)
class _Rule:
    kind: str
    reason: str  # a pattern for Dynamo's reason
    text: str
    code: str = ""  # a pattern for the line of code, where the reason alone does not tell


_BREAKS: tuple[_Rule, ...] = (
    _Rule(
        "numpy", "", "Use torch's own function for it (torch.linalg, torch.fft, …), or call NumPy before or after the "
        "model; @burnish.disable keeps such a part out as one piece.", r"\b(np|numpy|scipy)\.",
    ),
    _Rule(
        "print", r"builtin operator `print`",
        "Remove the print, or guard it: if not torch.compiler.is_compiling(): print(…). To see a value in compiled "
        "code, return it.",
    ),
    _Rule(
        "logging", r"logging\.Logger|`_?warnings\.warn",
        "Log before or after the call, or guard it: if not torch.compiler.is_compiling(): ….",
    ),
    _Rule(
        "data-dependent branch", r"generic_jump|[Dd]ata-dependent (branching|jump)|control flow",
        "Compute both sides and choose: torch.where(condition, a, b). Where a side is costly: torch.cond(condition, f, "
        "g, operands). A loop that ends by its data: a fixed number of steps with a mask.",
    ),
    _Rule(
        "reading a number", r"Tensor\.item\(\)|_local_scalar_dense|Tensor\.tolist\(\)|Tensor\.numpy\(\)",
        "Keep it a tensor of no dimensions: arithmetic, torch.where and indexing take one. If it is for logging, "
        "return it and read it outside.",
    ),
    _Rule(
        "shape from data", r"Dynamic shape operator|nonzero|output shape depends on",
        "Keep the shape: multiply by the mask, or torch.where(mask, x, 0), and divide by mask.sum() where a mean is "
        "wanted; torch.topk for a fixed number of the largest.",
    ),
    _Rule(
        "graph break on purpose", r"torch\._dynamo\.graph_break\(\)|User-inserted graph break",
        "It is asked for in the code: remove the call.",
    ),
    _Rule(
        "kept out on purpose", r"torch\.compiler\.disable|_dynamo\.disable|forbid_in_graph",
        "The function is kept out by a decorator: remove it if it can be captured, or call it outside the model.",
    ),
    _Rule(
        "random numbers of Python", r"Random\.|`random\.",
        "Draw with torch.rand or torch.randint, or pass the number in as an argument.",
    ),
    _Rule(
        "files and system calls", r"`open`|TextIOWrapper|posix\.|socket|serialization|`input`",
        "Read or write before or after the model is called, and pass the result in.",
    ),
    _Rule("time", r"`time\.", "Take the time outside: what it measures in compiled code is not the model's parts."),
    _Rule(
        "custom autograd function", r"autograd\.Function|autograd function",
        "Register it as an operator (torch.library.custom_op and register_autograd): then it is one node of the graph.",
    ),
    _Rule(
        "context manager", r"[Cc]ontext manager|GenericContextWrapping|`with`",
        "Enter it around the call of the model instead of inside it.",
    ),
    _Rule(
        "generator", r"[Gg]enerator|yield",
        "Build a list instead of yielding, so that nothing is suspended between two operations.",
    ),
    _Rule(
        "C extension", r"C/C\+\+|pybind|builtin `|marked as skipped",
        "Wrap it with torch.library.custom_op (with a fake implementation), or move the call out of the model.",
    ),
    _Rule(
        "unsupported builtin", r"builtin|Unsupported (method|function) call|trace method",
        "Write that line with tensor operations and plain Python, or move it out of the model.",
    ),
)  # fmt: skip

_RECOMPILES: tuple[_Rule, ...] = (
    _Rule(
        "another size", r"size mismatch",
        "Compile with dynamic=True (one compile for all sizes), or torch._dynamo.mark_dynamic(x, dim), or pad to a few "
        "sizes.",
    ),
    _Rule("another layout", r"stride mismatch", "Call .contiguous() before the model: one layout for every call."),
    _Rule("another type", r"dtype mismatch", "Cast before the model, or accept one compile for each type."),
    _Rule("another device", r"device mismatch|device index", "Move the inputs before the call."),
    _Rule(
        "gradients wanted or not", r"requires_grad mismatch",
        "Pass it the same way each time: .detach() what needs no gradient.",
    ),
    _Rule(
        "grad mode", r"GLOBAL_STATE changed: grad_mode|grad_mode",
        "Training and inference are two compiles. If only one is meant, call it always under torch.no_grad().",
    ),
    _Rule("other global state", r"GLOBAL_STATE changed", "Set it (autocast, default type, deterministic mode) once."),
    _Rule(
        "train and eval", r"\.training ==", "train() and eval() are two compiles, once each. Do not switch every call.",
    ),
    _Rule(
        "number of items", r"\blen\(", "Pass a stacked tensor, or lists of one length: each length is a compile.",
    ),
    _Rule(
        "another object", r"check_obj_id|___check_type_id|is not|object id",
        "The model reads an object that was replaced: keep one object and change what is in it.",
    ),
    _Rule(
        "a Python number that changes", r"== -?\d+(\.\d+)?(e-?\d+)?\s*$",
        "Each value is a compile: make it a tensor (torch.tensor(n), a buffer for an attribute), or mark it dynamic.",
    ),
    _Rule(
        "a Python value that changes", r"==|in \{|not in ",
        "Each value is a compile: pass what depends on it instead, or make one model for each value.",
    ),
)  # fmt: skip

_DEFAULT_BREAK = Advice(
    "other", "Move the line out of the compiled function, or keep that part out with @burnish.disable."
)
_DEFAULT_RECOMPILE = Advice("other", "Keep what the check names the same from call to call.")


def break_advice(reason: str, code: str = "") -> Advice:
    return _first(_BREAKS, reason, code) or _DEFAULT_BREAK


def recompile_advice(check: str) -> Advice:
    return _first(_RECOMPILES, check, "") or _DEFAULT_RECOMPILE


def _first(rules: tuple[_Rule, ...], reason: str, code: str) -> Advice | None:
    for rule in rules:
        if re.search(rule.code, code) if rule.code else re.search(rule.reason, reason):
            return Advice(rule.kind, rule.text)
    return None
