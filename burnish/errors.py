"""One class per failure. A message says what happened, where in the user's code if known, and how to fix it."""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_MOST_SHOWN = 8  # differences in a message


class BurnishError(RuntimeError):
    """The base of everything burnish raises, so that one `except` clause can distinguish our failures from the
    model's."""


class FallbackWarning(UserWarning):
    """Code that could not be compiled runs in eager: right results, no speed-up."""


class RecompileWarning(UserWarning):
    """Something that changes from call to call makes each call compile."""


class UnknownTorchWarning(UserWarning):
    """torch is newer than those that this burnish was tested with."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn the user about a problem that only costs speed. Where all warnings are errors (`python -W error`), the
    warning is shown and not raised, because the call must still return eager's result. A filter that names the category
    raises."""
    try:
        warnings.warn(message, category, stacklevel=3)
    except category as made_an_error:
        if any(action == "error" and named is category for action, _, named, *_ in warnings.filters):
            raise
        with contextlib.suppress(Exception):  # the program may have put its own function there
            warnings.showwarning(made_an_error, category, __file__, 0)
    except Exception:  # of such a function
        pass


# -- mistakes in a call to burnish: raised at once ---------------------------------------------------------------


class UsageError(BurnishError, ValueError):
    """An argument is not what it should be. (torch.compile raises RuntimeError for these: so is this one.)"""


def _did_you_mean(guess: str | None, valid: Sequence[str]) -> str:
    hint = f"Did you mean {guess!r}? " if guess else ""
    return f"{hint}Valid: {', '.join(valid)}."


class ModeWithOptions(UsageError):
    def __init__(self) -> None:
        super().__init__("mode= and options= cannot be given together: a mode is a set of options. Pass one of them.")


class UnknownMode(UsageError):
    def __init__(self, mode: str, guess: str | None, valid: Sequence[str]) -> None:
        super().__init__(f"unknown mode {mode!r}. {_did_you_mean(guess, valid)}")
        self.guess = guess


class UnknownOption(UsageError):
    def __init__(self, option: str, guess: str | None, valid: Sequence[str]) -> None:
        super().__init__(f"unknown option {option!r}. {_did_you_mean(guess, valid)}")
        self.guess = guess


class UnknownBackend(UsageError):
    def __init__(self, backend: str, guess: str | None, valid: Sequence[str]) -> None:
        super().__init__(f"unknown backend {backend!r}. {_did_you_mean(guess, valid)}")
        self.guess = guess


class BadOptionValue(UsageError):
    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value!r} is not valid: it must be {expected}.")


class CacheUrl(UsageError):
    """`cache=` names a store that cannot be used."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"cache={url!r} cannot be used: {reason}. It takes a URL that fsspec knows, and a key: cache_verify_key "
            "(BURNISH_CACHE_VERIFY_KEY) is the file of a public key whose entries are used, cache_sign "
            "(BURNISH_CACHE_SIGN) that of the private key which signs what is stored. See docs/operations.md."
        )


class BadShapes(UsageError):
    """`shapes=` of burnish.compile is not what it should be."""

    def __init__(self, value: object, reason: str, guess: str | None = None) -> None:
        hint = f" Did you mean {guess!r}?" if guess else ""
        super().__init__(f"shapes: {value!r} is not valid: {reason}.{hint}")
        self.guess = guess


class BadTrace(UsageError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"cannot use {name} as a trace of sizes: {reason}. A trace is a JSON list with the sizes of each call: "
            '[{"batch": 2, "sequence": 57}, ...].'
        )


class BadWarmup(UsageError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot warm up: {reason}.")


class BadDistribution(UsageError):
    def __init__(self, text: str, kinds: Sequence[str]) -> None:
        super().__init__(
            f"{text!r} is no distribution of sizes. Write KIND:LOW-HIGH, such as lognormal:8-512, with a name for all "
            f"dimensions but the sequence: lognormal:8-512,batch=uniform:1-8. Kinds: {', '.join(kinds)}."
        )


class NotCompilable(UsageError, TypeError):
    def __init__(self, what: object) -> None:
        super().__init__(
            f"burnish.compile takes a function or a torch.nn.Module, not {type(what).__name__}. "
            "Pass the object whose call does the work, or use it as a decorator: @burnish.compile."
        )


class NotCompiled(UsageError, TypeError):
    def __init__(self, what: object) -> None:
        super().__init__(f"this {type(what).__name__} was not compiled by burnish: pass what burnish.compile returned.")


class NothingToSeal(UsageError):
    def __init__(self, name: str, ours: bool) -> None:
        reason = (
            f"{name} has compiled nothing yet: call it with the inputs it will get, then seal it"
            if ours
            else f"{name} is not compiled by burnish's own backend, which is the one that can be sealed"
        )
        super().__init__(f"cannot seal: {reason}.")


class CannotPickle(BurnishError, pickle.PicklingError):
    def __init__(self, what: str, reason: BaseException) -> None:
        super().__init__(
            f"compiled {what} pickles as its eager original plus its settings, and the original does not pickle: "
            f"{reason}. Save its state_dict() instead, and call burnish.compile on a freshly built model after loading."
        )


# -- failures while compiling: the capture layer turns these into eager, a warning and a count -------------------


class CompileError(BurnishError):
    """A stage failed on this graph. `way_out` tells the user how to fix it."""

    def __init__(self, stage: str, reason: str, way_out: str = "") -> None:
        super().__init__(f"{stage}: {reason}" + (f" ({way_out})" if way_out else ""))
        self.stage = stage
        self.reason = reason
        self.way_out = way_out


class CompilerMissing(CompileError):
    def __init__(self, tried: Sequence[str] = ("cc", "gcc", "clang")) -> None:
        super().__init__(
            "build",
            f"no C compiler found (tried {', '.join(tried)})",
            "install gcc or clang, or name one with BURNISH_CC",
        )


class CompilerFailed(CompileError):
    def __init__(self, command: str, status: str, printed: str, kept: Path | None = None) -> None:
        super().__init__(
            "build",
            f"`{command}` ended with {status}: {printed}",
            "check that the compiler works on its own, or name another with BURNISH_CC; "
            + (f"its source is in {kept}" if kept else "BURNISH_DUMP=DIR keeps its source"),
        )
        self.command = command
        self.status = status
        self.printed = printed


class LibraryUnloadable(CompileError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            "build",
            f"the compiler built {name!r}, and it cannot be loaded: {reason}",
            "check that the compiler builds for this machine, or name another with BURNISH_CC",
        )


class NoRoomToBuild(CompileError):
    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            "build",
            f"nowhere to build: {'; '.join(problems)}",
            "free some disk, or point BURNISH_CACHE_DIR or TMPDIR at one with room",
        )


class NativeSourceMissing(CompileError):
    def __init__(self, directory: Path) -> None:
        super().__init__("build", f"no C sources in {directory}", "burnish is not installed whole: install it again")


# -- graph breaks under fullgraph=True --------------------------------------------------------------------------


class GraphBreakError(BurnishError):
    """`fullgraph=True` and the model cannot be captured in one graph; `file` and `line` are the user's own."""

    def __init__(self, file: str | None, line: int | None, reason: str, hint: str = "") -> None:
        self.file = file
        self.line = line
        self.reason = reason
        self.hint = hint
        place = f"{file}:{line}" if file else "the compiled call"
        way_out = hint or "rewrite that line, or pass fullgraph=False to let burnish split the graph there"
        super().__init__(f"graph break at {place} while fullgraph=True: {reason}. Way out: {way_out}.")


class SealedError(BurnishError):
    """A strictly sealed object got a call that eager would have to serve."""

    def __init__(self, name: str, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{name or 'a compiled object'} is sealed, and this call is not for what was compiled: {reason}. Way out: "
            "warm up with such a call before sealing, or seal without strict=True to let eager serve it."
        )


# -- packs --------------------------------------------------------------------------------------------------------


class Mismatch(NamedTuple):
    """One factor of a pack, as stored and as it is now."""

    factor: str
    stored: str
    current: str

    def __str__(self) -> str:
        return f"{self.factor}: {_brief(self.stored)} in the pack, {_brief(self.current)} here"


def _brief(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:157]}..."


class PackError(BurnishError):
    """The base of what `burnish.load` raises for a pack that it does not use."""


class PackDamaged(PackError):
    """The file is not a pack, or not the one that was written."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} cannot be loaded: {reason}. Way out: copy it again, or write it again: burnish.pack.")


class PackDiffers(PackError):
    """The pack is for another machine, other versions or another model; `differences` lists each factor."""

    def __init__(self, path: str, differences: Sequence[Mismatch]) -> None:
        self.path = path
        self.differences = tuple(differences)
        shown = "; ".join(map(str, self.differences[:_MOST_SHOWN]))
        more = len(self.differences) - _MOST_SHOWN
        super().__init__(
            f"{path} does not fit: {shown}{f'; and {more} more' if more > 0 else ''}. Way out: pack again with what is "
            "used here, or let burnish.load(..., missing='compile') compile."
        )


class PackUnsigned(PackError):
    """A signature is asked for, and the pack has none, or one of another key."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} is not loaded: {reason}. Way out: sign it: burnish.pack(..., sign=KEYFILE).")


class BadKey(UsageError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"cannot use the key {path!r}: {reason}. Way out: openssl genpkey -algorithm ed25519 writes a private key, "
            "openssl pkey -pubout its public key."
        )


class CannotPack(UsageError):
    def __init__(self, name: str, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(f"{name} cannot be packed: {'; '.join(self.reasons)}.")


# -- the command line's TARGET ------------------------------------------------------------------------------------


class UnknownTarget(UsageError):
    def __init__(self, target: str, guess: str | None, valid: Sequence[str]) -> None:
        super().__init__(
            f"unknown target {target!r}. {_did_you_mean(guess, valid)} "
            "For a model of your own: FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION."
        )
        self.guess = guess


class BadTarget(UsageError):
    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"cannot use the target {target!r}: {reason.rstrip('.')}{'' if reason.endswith('?') else '.'}")


_NOT_THE_USERS = (str(Path(__file__).parent) + os.sep, str(Path(os.__file__).parent) + os.sep, "<")


def users_place(error: BaseException) -> str:
    """The innermost line of the user's that an exception came through, as "FILE:LINE"; empty where there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    installed = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
    users = [f"{f}:{n}" for f, n in lines if not f.startswith(_NOT_THE_USERS) and not any(i in f for i in installed)]
    return users[-1] if users else ""


def in_one_line(error: BaseException) -> str:
    """The first line of an exception, and its line in the user's code."""
    if isinstance(error, SystemExit):
        what = f"it ended the process (status {error.code})"
    elif isinstance(error, SyntaxError):
        what = f"{type(error).__name__}: {error.msg}"
    else:
        lines = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    place = users_place(error)
    return f"{what} (at {place})" if place else what


class TargetFailed(BurnishError):
    def __init__(self, target: str, doing: str, error: BaseException) -> None:
        super().__init__(f"the target {target!r} failed while {doing}: {in_one_line(error)}")


class MissingExtra(BurnishError, ImportError):
    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}, which is not installed. Try: pip install 'burnish[{extra}]'")
        self.extra = extra


class UnknownInputSet(UsageError):
    def __init__(self, name: str, guess: str | None, valid: Sequence[str]) -> None:
        super().__init__(f"unknown input set {name!r}. {_did_you_mean(guess, valid)}")


class TargetUnusable(UsageError):
    """The error that a child process found in the target, in its words."""


class TrialFailed(BurnishError):
    def __init__(self, target: str, status: int, output: str) -> None:
        super().__init__(f"measuring {target!r} failed: its process ended with status {status}, saying:\n{output}")
        self.status = status
        self.said = output


# -- burnish.generation -------------------------------------------------------------------------------------------


class CannotGenerate(BurnishError):
    """The model does not decode with a static cache. `generation` then decodes in eager, with this as the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this model cannot be decoded with a static cache: {reason}.")
        self.reason = reason


class NotACausalLM(UsageError, TypeError):
    def __init__(self, what: object, reason: str) -> None:
        super().__init__(
            f"generation.compile takes a decoder-only Hugging Face causal language model, and {type(what).__name__} "
            f"{reason}. For another kind of model, burnish.compile(model) compiles its calls."
        )


class UnsupportedGeneration(UsageError):
    def __init__(self, what: str, way_out: str = "call llm.eager.generate(...) for it") -> None:
        super().__init__(f"generation does not support {what}: {way_out}.")


class UnknownGenerationSetting(UsageError):
    def __init__(self, name: str, guess: str | None) -> None:
        hint = f" Did you mean {guess!r}?" if guess else ""
        super().__init__(f"generate() does not know {name!r}: it is no field of GenerationConfig.{hint}")
        self.guess = guess


class PromptTooLong(UsageError):
    def __init__(self, prompt: int, new: int, limit: int, why: str) -> None:
        super().__init__(
            f"{prompt} tokens of prompt and {new} new ones do not fit into a cache of {limit} ({why}). Shorten the "
            "prompt, ask for fewer tokens, or give generation.compile a larger max_length."
        )


class BatchTooLarge(UsageError):
    def __init__(self, batch: int, limit: int) -> None:
        super().__init__(
            f"a batch of {batch} sequences is more than {limit}. Split it, or give generation.compile a larger "
            "max_batch."
        )


class NothingToResume(UsageError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"resume=True, but {reason}. Call generate without resume first, with the same batch.")


class GenerationInterrupted(UsageError):
    def __init__(self) -> None:
        super().__init__(
            "this stream cannot go on: another request has begun meanwhile, and has taken over the cache. Read a "
            "stream to its end first, or compile the model a second time."
        )
