"""`burnish.load`: a compiled object from a pack, without compiling, tracing or TorchDynamo."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from burnish.api import compile, function_behind, original_of
from burnish.capture.entry.any_entrance import AnyEntrance
from burnish.capture.entry.calling_frame import frame_calling, frame_copying
from burnish.capture.gc_pause import patience
from burnish.capture.restore import NotWarm
from burnish.errors import BadOptionValue, FallbackWarning, Mismatch, NotCompilable, PackDamaged, PackDiffers, warn
from burnish.handle import Handle, Settings
from burnish.identity import module_behind
from burnish.packs import container, factors, serving
from burnish.packs.container import HOST, Content, library_for
from burnish.packs.data import PackedVariant, decoded
from burnish.packs.entrance import PackEntrance, UnpackedEntrance
from burnish.packs.loaded_code import PackedCode
from burnish.packs.signing import require_signature
from burnish.runtime.build.library_loading import CannotLoad
from burnish.runtime.cache.data import NotData
from burnish.runtime.host.extension import host_from
from burnish.runtime.signatures import KeyFile

Model = TypeVar("Model", bound=Callable[..., Any])


def load(
    path: str | os.PathLike[str],
    model: Model,
    *,
    missing: Literal["compile", "error"] = "compile",
    strict: bool = False,
    verify_key: KeyFile | None = None,
    **settings: Any,
) -> Model:
    """`model`, compiled, with the programs of a pack (`burnish.pack`): nothing is traced or built, and no compiler is
    needed. `model` is the same model, with whatever weights.

    The object is sealed (`compiled.burnish.seal` says what a call checks): a call for which nothing was packed runs in
    eager and is counted in `burnish.stats`; with `strict=True` it raises SealedError. `settings` are arguments of
    `burnish.compile`: `sample`, `verify`, `gate`, `name` and so on.

    The model's code, structure and attributes, the versions of burnish, torch and Python and the processor are compared
    with the pack's. If one differs, the model is compiled instead, with a warning that names it; `missing="error"`
    raises PackDiffers with all of them. A file that is not what `burnish.pack` wrote raises PackDamaged.

    A pack contains machine code, which runs in this process: load packs from sources that you trust. With `verify_key`,
    the file of an ed25519 public key (PEM), a pack that was not signed with the private one raises PackUnsigned."""
    if missing not in ("compile", "error"):
        raise BadOptionValue("missing", missing, "'compile' or 'error'")
    model = original_of(model)
    if isinstance(model, (torch.jit.ScriptModule, type)) or not callable(model):
        raise NotCompilable(model)
    chosen = _chosen(settings, missing)
    if chosen.disable:
        return compile(model, **settings)
    check = partial(require_signature, str(path), verify_key) if verify_key is not None else None
    content = container.read(Path(path), check)
    try:
        with patience.asked():
            return _loaded(_Pack(str(path), content), model, chosen, strict)
    except PackDiffers as difference:
        if missing == "error":
            raise
        warn(f"burnish: compiled instead of loaded: {difference}", FallbackWarning)
        return compile(model, **settings)


# Arguments of `burnish.compile` that say how to compile.
_OF_COMPILING = ("fullgraph", "dynamic", "mode", "background", "budget", "tuning", "regions")


def _chosen(settings: Mapping[str, Any], missing: str) -> Settings:
    """An argument that nothing would follow is refused."""
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    for name in settings:
        if name not in fields:
            raise TypeError(f"load() got an unexpected keyword argument {name!r}")
    chosen = Settings(**settings)
    if chosen.backend not in (None, "burnish"):
        raise BadOptionValue("backend", chosen.backend, "left out: a pack has programs of burnish's own")
    if chosen.shapes is not None:
        raise BadOptionValue("shapes", chosen.shapes, "left out: the shapes are those with which it was packed")
    if missing == "error":
        for name in _OF_COMPILING:
            if settings.get(name, fields[name]) != fields[name]:
                raise BadOptionValue(name, settings[name], "left out with missing='error': nothing is compiled")
    chosen.resolved()
    return chosen


def _loaded(pack: _Pack, model: Any, settings: Settings, strict: bool) -> Any:
    frames = cache(partial(_frame, model))
    pack.require_this_machine()
    variants = pack.variants()
    pack.require_model(variants, frames)

    def entrance(handle: Handle, target: Any) -> AnyEntrance:
        if target is not handle.eager:
            return UnpackedEntrance(target, handle.log)
        if (host := pack.content.members.get(library_for(pack.target.level, HOST))) is not None:
            host_from(lambda: host, handle.log)
        frame = frames(variants[0].identity.calls_target)
        codes = partial(_codes, pack, variants, frames, handle)
        return PackEntrance(target, frame, codes, handle.options, handle.log, strict)

    handle = Handle(model, settings, entrance)
    return module_behind(handle) if isinstance(model, torch.nn.Module) else function_behind(handle)


def _frame(model: Any, calls_target: bool) -> types.FunctionType:
    if calls_target or not isinstance(model, types.FunctionType):
        return frame_calling(model)
    return frame_copying(model)


def _no_graph() -> Callable[..., Any]:
    raise AssertionError("a graph is not needed to look at guards")


def _codes(
    pack: _Pack,
    variants: Sequence[PackedVariant],
    frames: Callable[[bool], types.FunctionType],
    handle: Handle,
) -> list[PackedCode]:
    graphs = [pack.graph(each, handle) for each in variants]
    return [
        PackedCode(each, frames(each.identity.calls_target), partial(_itself, graph))
        for each, graph in zip(variants, graphs, strict=True)
    ]


def _itself(graph: Callable[..., Any]) -> Callable[..., Any]:
    return graph


class _Pack:
    def __init__(self, path: str, content: Content) -> None:
        """Raises PackDamaged."""
        self.path = path
        self.content = content
        try:
            self._factors = factors.Factors.from_json(content.manifest["factors"])
        except (ValueError, TypeError, KeyError):
            raise PackDamaged(path, "its manifest states no factors") from None
        self._here = factors.current()

    def require_this_machine(self) -> None:
        if found := tuple(factors.differences(self._factors, self._here)):
            raise PackDiffers(self.path, found)

    @property
    def target(self) -> factors.Target:
        """The machine code to use; `require_this_machine` has found that there is one."""
        found = factors.target_here(self._factors, self._here)
        assert found is not None
        return found

    def variants(self) -> list[PackedVariant]:
        """Raises PackDamaged."""
        names = sorted(name for name in self.content.members if name.startswith("variants/"))
        try:
            found = [decoded(self.content.members[name]) for name in names]
        except NotData as error:
            raise PackDamaged(self.path, f"a variant cannot be read ({error})") from None
        if not found:
            raise PackDamaged(self.path, "it has no variants")
        for each in found:
            self._require_sources(each)
            library = library_for(self.target.level, each.library) if each.library else ""
            for member in filter(None, (each.program, library)):
                if member not in self.content.members:
                    raise PackDamaged(self.path, f"it has no {member[:80]}")
        return found

    def _require_sources(self, variant: PackedVariant) -> None:
        try:
            _ = variant.sources
        except NotData as error:
            raise PackDamaged(self.path, f"a variant cannot be read ({error})") from None

    def require_model(self, variants: Sequence[PackedVariant], frames: Callable[[bool], types.FunctionType]) -> None:
        """Raises PackDiffers if no variant is for this model, with what differs for the first."""
        first: tuple[Mismatch, ...] = ()
        for each in variants:
            try:
                found = tuple(PackedCode(each, frames(each.identity.calls_target), _no_graph).model_mismatches())
            except NotWarm as why:
                found = (Mismatch("modules", "loaded", str(why)),)
            except Exception as error:  # names of nothing, and whatever the user's own classes raise
                found = (Mismatch("the model", "comparable", f"cannot be compared: {type(error).__name__}: {error}"),)
            if not found:
                return
            first = first or found
        raise PackDiffers(self.path, first)

    def graph(self, variant: PackedVariant, handle: Handle) -> Callable[..., Any]:
        members: Mapping[str, bytes] = self.content.members
        level = self.target.level
        same = factors.is_same_processor(self._factors, self._here)
        verdict = None if level else variant.verdict  # other machine code than that which was judged
        verdicts = serving.PackedVerdict(verdict, same)
        try:
            serving.load_runtime(members, level)
            return serving.graph_function(variant, members, level, verdicts, handle.options, handle.log)
        except CannotLoad as error:
            raise PackDiffers(self.path, [Mismatch("libraries", "built", f"cannot be loaded: {error}")]) from None
        except (NotData, NotWarm) as error:
            raise PackDamaged(self.path, f"a program cannot be read ({error})") from None
