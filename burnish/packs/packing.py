"""`burnish.pack`: what a compiled object has compiled, as one file."""

from __future__ import annotations

import os
import types
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from burnish.api import handle_of
from burnish.assumptions import Assumptions
from burnish.capture.entry.calling_frame import frame_calling
from burnish.capture.entry.frame_compiler import FrameCompiler
from burnish.capture.entry.frame_values import free_variables
from burnish.capture.entry.method_guards import methods_mark
from burnish.capture.entry.unguarded import unwrapped
from burnish.capture.restore import NotWarm, code_identity
from burnish.capture.restore.frame import KIND, StoredFrame, stored_frame
from burnish.codegen.c.compiled_unit import CUnit
from burnish.codegen.c.split_unit import in_parts
from burnish.errors import CannotPack, FallbackWarning, warn
from burnish.handle import Handle
from burnish.packs import container, factors
from burnish.packs.bytecode import CannotKeep, globals_read, kept_code
from burnish.packs.container import HOST, RUNTIME, RUNTIME_F64
from burnish.packs.data import CodeIdentity, PackedVariant, Results, codec
from burnish.packs.entrance import PackEntrance
from burnish.packs.guard_texts import CannotRead, guards_of
from burnish.packs.loaded_code import PackedCode
from burnish.packs.places import GLOBAL, ROOT, NotAPlace, PlaceTable
from burnish.packs.signing import signature_of
from burnish.runtime.build.shared_library import COMPILERS, CSource, native_bytes, shared_bytes
from burnish.runtime.cache import stored_program
from burnish.runtime.cache.data import NotData
from burnish.runtime.cache.deferred_writes import later
from burnish.runtime.cache.store import Cache, open_cache
from burnish.runtime.host.extension import host_bytes, host_library
from burnish.runtime.signatures import KeyFile
from burnish.torch_private.without_dynamo import is_of_dynamo
from burnish.trust.variant import Variant

_NOT_STORED = "frame not stored: "


@dataclass(frozen=True)
class Packed:
    """What `burnish.pack` has written."""

    path: Path
    bytes: int
    variants: tuple[str, ...]  # their inputs
    left_out: tuple[str, ...]  # variants that are not in it, each with the reason

    def __str__(self) -> str:
        lines = [f"{self.path}: {len(self.variants)} variants, {self.bytes / 1e6:.1f} MB"]
        lines += [f"  {each}" for each in self.variants]
        lines += [f"  left out: {each}" for each in self.left_out]
        return "\n".join(lines)


class _LeftOut(Exception):
    """Why a variant is not packed."""


def pack(
    compiled: Any,
    path: str | os.PathLike[str],
    *,
    sign: KeyFile | None = None,
    targets: Sequence[str] = (factors.NATIVE,),
) -> Packed:
    """Write what `compiled` (of `burnish.compile`) has compiled so far to one file, for `burnish.load` in another
    process: programs, guards, the gate's verdicts and machine code. Weights are not in it.

    Call the object with the inputs that it will get, then pack it. A variant that cannot be packed is left out with a
    warning; if none can, or if the object has graph breaks, CannotPack says why. Packs are for inference on a CPU.

    `targets` are the processors that it is for: "native" is this one, "x86-64-v3" all with AVX2, "x86-64-v4" all with
    AVX-512, and so on (burnish.processor.LEVELS). The best that fits is loaded. Code that was not made for this
    processor is compared with eager, and raced, where it is first called.

    `sign` is the file of an ed25519 private key (PEM). Who loads the pack with the public key as `verify_key=` knows
    that it is the one that was signed."""
    handle = handle_of(compiled)
    stated = factors.for_targets(targets)
    later.finish()
    frame, compiler = _compiled_frame(handle)
    members: dict[str, bytes] = {}
    variants: list[PackedVariant] = []
    left_out: list[str] = []
    for entry in compiler.ready(frame.__code__):
        try:
            variants.append(_Packing(handle, frame, compiler, stated.targets, members, len(variants)).variant(entry))
        except (_LeftOut, CannotKeep, CannotRead, NotAPlace, NotWarm, NotData) as why:
            left_out.append(str(why))
    if not variants:
        raise CannotPack(handle.name, left_out or ["nothing is compiled: call it with the inputs it will get"])
    for reason in left_out:
        warn(f"burnish: a variant of {handle.name} is not packed: {reason}", FallbackWarning)
    members |= _host(handle, stated.targets)
    manifest = {
        "format": 1,
        "name": handle.name,
        "factors": stated.to_json(),
        "variants": [_described(each) for each in variants],
    }
    body = container.packed(manifest, members)
    data = container.sealed(body, signature_of(body, sign) if sign is not None else b"")
    try:
        container.write(Path(path), data)
    except container.TooLarge as why:
        raise CannotPack(handle.name, [str(why)]) from None
    return Packed(Path(path), len(data), tuple(each.summary for each in variants), tuple(left_out))


def _compiled_frame(handle: Handle) -> tuple[types.FunctionType, FrameCompiler]:
    if isinstance(handle.entrance, PackEntrance):
        raise CannotPack(handle.name, ["it was loaded from a pack: copy that file"])
    found = getattr(handle.entrance, "compiled", None)
    if found is None:
        raise CannotPack(handle.name, ["it is not compiled by burnish's own backend in this process"])
    if breaks := handle.log.graph_breaks:
        places = [f"a graph break at {each.file}:{each.line}: {each.reason}" for each in breaks[:3]]
        raise CannotPack(handle.name, places)
    compiled: tuple[types.FunctionType, FrameCompiler] = found
    return compiled


def _described(variant: PackedVariant) -> dict[str, Any]:
    """For people who read the manifest."""
    assumptions: Assumptions | None = variant.facts.assumptions
    return {
        "inputs": variant.summary,
        "assumptions": str(assumptions or "").splitlines()[:64],
        "guards": len(variant.guards.checks) + len(variant.guards.marks),
        "verdict": variant.verdict.speed if variant.verdict is not None else "",
        "error": variant.verdict.compiled_error if variant.verdict is not None else None,
    }


def _host(handle: Handle, targets: Sequence[factors.Target]) -> dict[str, bytes]:
    """The extension of the call path, without which calls are served in Python."""
    host_library(handle.options, handle.log)
    found = {container.library_for(each.level, HOST): host_bytes(handle.options, each.level) for each in targets}
    return {name: data for name, data in found.items() if data is not None}


class _Packing:
    """Makes one variant."""

    def __init__(
        self,
        handle: Handle,
        frame: types.FunctionType,
        compiler: FrameCompiler,
        targets: Sequence[factors.Target],
        members: dict[str, bytes],
        number: int,
    ) -> None:
        self._handle = handle
        self._frame = frame
        self._compiler = compiler
        self._levels = [each.level for each in targets]
        self._members = members
        self._number = number
        self._cache: Cache = open_cache(handle.options)

    def variant(self, entry: Any) -> PackedVariant:
        stored, inference = self._stored(entry.code)
        self._require_packable(stored)
        live = self._live(entry.code)
        modules = dict(stored.guards.imports)
        code = kept_code(stored.code, self._frame.__code__, modules)
        left_out = [alias for alias, module in modules.items() if is_of_dynamo(module)]
        text = zlib.decompress(stored.guard_text).decode()
        read = tuple(sorted(globals_read(code)))
        places = PlaceTable()
        inputs = tuple(map(places.index, stored.graph.sources or ()))
        self._require_reachable(places, modules.keys() | dict(stored.used).keys())
        program, library, kernels, members = self._program(stored)
        variant = PackedVariant(
            CodeIdentity(stored.root, self._calls_target(), self._methods(), stored.traced, stored.names),
            Results(code, tuple(modules.items()), stored.used, read),
            guards_of(text, stored.marks, left_out, inference),
            stored.graph.eager,
            stored.graph.facts,
            tuple(places.nodes),
            inputs,
            stored.graph.static,
            stored.graph.written,
            program,
            library,
            kernels,
            live.gate if live.state == "compiled" and not live.is_provisional else None,
        )
        self._require_true_here(variant)
        name = f"variants/{self._number}.json"
        self._members |= {name: codec().dumps(variant), **members}
        return variant

    # -- what there is ---------------------------------------------------------------------------------------------

    def _stored(self, code: types.CodeType) -> tuple[StoredFrame, bool]:
        under = self._compiler.stored_under(code)
        data = self._cache.get(KIND, under.key) if under is not None else None
        if data is None or under is None:
            raise _LeftOut(self._why_not_stored())
        return stored_frame(data), under.inference

    def _why_not_stored(self) -> str:
        reasons = [text for text in Counter(self._handle.log.notices) if text.startswith(_NOT_STORED)]
        if reasons:
            return "; ".join(text.removeprefix(_NOT_STORED) for text in reasons)
        if not self._handle.options.warm_start or self._handle.options.disable_cache:
            return "its capture is not kept: compile with warm_start on and a cache"
        return f"its capture is not in the cache any more ({self._cache.unusable or 'call it in a new process'})"

    def _require_packable(self, stored: StoredFrame) -> None:
        graph = stored.graph
        if stored.breaks:
            raise _LeftOut("a graph break")
        if graph.training is not None or graph.facts.kind == "training":
            raise _LeftOut("a training step: packs are for inference; compile it under torch.no_grad()")
        if graph.device != "cpu":
            raise _LeftOut(f"it is for {graph.device}: packs are for CPUs")
        if graph.sources is None:
            raise _LeftOut("where its graph's inputs come from is not known")

    def _require_reachable(self, places: PlaceTable, added: Set[str]) -> None:
        """A call loads its inputs from the frame, without what Dynamo adds to the frame's globals."""
        found = [name for before, kind, name in places.nodes if before == ROOT and kind == GLOBAL and name in added]
        if found:
            raise _LeftOut(f"its graph has a tensor of another module's as an input ({found[0]})")

    def _live(self, code: types.CodeType) -> Variant:
        names = [name for name in code.co_names if name.startswith("__compiled_fn_")]
        call = unwrapped(self._frame.__globals__.get(names[0])) if names else None
        found = next((each for each in self._handle.log.variants() if each.call is call), None)
        if found is None:
            raise _LeftOut("its graph is not there any more")
        if found.engine != "burnish" and found.state != "on trial":
            reason = found.failure.reason if found.failure is not None else ""
            raise _LeftOut(f"{found.engine} serves it: {reason}")
        live: Variant = found
        return live

    def _calls_target(self) -> bool:
        """Whether the frame is our own, and not a copy of a function."""
        ours = frame_calling(self._handle.eager).__code__
        return code_identity.code_mark(ours) == code_identity.code_mark(self._frame.__code__)

    def _methods(self) -> str:
        frame = self._frame
        scope = free_variables(frame)
        return methods_mark(types.SimpleNamespace(f_locals=scope, f_code=frame.__code__, f_globals=frame.__globals__))

    def _program(self, stored: StoredFrame) -> tuple[str, str, int, dict[str, bytes]]:
        """The names of the program's member and of its library's, its kernels, and new members."""
        found = stored_program.unpacked(stored.graph.program, "cpu")
        unit, options = found.unit, self._handle.options
        assert isinstance(unit, CUnit)
        program, library = f"programs/{self._number}.json", ""
        members = {program: stored_program.without_text(found)}
        if unit.segments:
            library = f"libraries/{self._number}.so"
            source, parts = CSource(unit.text, "packed"), in_parts(unit.text, COMPILERS)
            build = partial(shared_bytes, source, options=options, cache=self._cache, parts=parts)
            members |= self._for_each_target(library, build)
        if unit.uses_library or unit.uses_double:
            members |= self._for_each_target(RUNTIME, partial(native_bytes, False, options, self._cache))
        if unit.uses_double:
            members |= self._for_each_target(RUNTIME_F64, partial(native_bytes, True, options, self._cache))
        return program, library, unit.kernels, members

    def _for_each_target(self, name: str, build: Callable[..., bytes | None]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for level in self._levels:
            data = build(level=level)
            if data is None:
                raise _LeftOut(f"its machine code{f' for {level}' if level else ''} could not be built")
            found[container.library_for(level, name)] = data
        return found

    # -- the proof -------------------------------------------------------------------------------------------------

    def _require_true_here(self, variant: PackedVariant) -> None:
        """What a pack says of the model must be true of this one, or it was read wrongly."""

        def no_graph() -> Callable[..., Any]:
            raise AssertionError

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Iterator[Any] = PackedCode(variant, self._frame, no_graph).model_mismatches()
            different = next(found, None)
        if different is not None:
            raise _LeftOut(f"the model has changed since it was compiled: {different}")
