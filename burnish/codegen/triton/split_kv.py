"""Split-KV attention → one Triton kernel: a program takes a split of one key head for all the queries that
share it.

Queries of all heads of a group are rows of one tile, so each key and value is read once. The mask of the whole split is
read first, and only keys from the first visible one to the last are read. So the cost depends on the cache's filled
length, not on its capacity. Blocks in that range are prefetched without checking the mask. A split of one block is read
at once, which is faster than reading its mask. It must be prefetched before the queries are ready: later loads queue
behind the matrices that the following kernels prefetch.
"""

from __future__ import annotations

from burnish.codegen.signature import Signature
from burnish.codegen.triton.attend import LOG2_E, condition, masked, scores_text
from burnish.codegen.triton.body import NotPrintable
from burnish.codegen.triton.launch import Launch, power_of_two
from burnish.codegen.triton.loop import AHEAD, TritonKernel
from burnish.codegen.triton.scalar import MEMORY_TYPE, STORED_TYPE
from burnish.device import Gpu
from burnish.ir.dtypes import DType
from burnish.ir.reference import UNSEEN
from burnish.schedule.kernels import KEY_BLOCK, AttendSplits, Operand

_INT32 = 2**31 - 1
_LEAST = 16  # rows and columns of a product on tensor cores
_MOST_ROWS = 128
_SECTOR = 32  # elements apart that are asked for ahead
_MOST_STAGES = 4  # blocks of keys and values of which one is worked on and the others are under way
_MOST_LOOKED_AT = 1 << 15  # elements of a mask that a program holds


def print_split_attention(kernel: AttendSplits, gpu: Gpu, overlapped: bool = False) -> TritonKernel:
    """`overlapped`: the kernel is there before the one ahead of it ends."""
    operands = (*kernel.inputs, kernel.sums, kernel.most, kernel.totals)
    if not all(isinstance(n, int) for o in operands for n in (*o.shape, *o.strides, o.offset)):
        raise NotPrintable("split attention of sizes known only at launch")
    if not kernel.inputs[0].shape[2] or _rows(kernel) > _MOST_ROWS:
        raise NotPrintable("split attention of so many queries")
    return _Printer(kernel, gpu, overlapped).print()


def _rows(kernel: AttendSplits) -> int:
    """Queries that share a key head."""
    (_, heads, queries, _), (_, shared, _, _) = kernel.inputs[0].shape, kernel.inputs[1].shape
    assert isinstance(heads, int) and isinstance(queries, int) and isinstance(shared, int)
    return heads // shared * queries


class _Printer:
    def __init__(self, kernel: AttendSplits, gpu: Gpu, overlapped: bool) -> None:
        self.kernel = kernel
        self.gpu = gpu
        self.overlapped = overlapped
        self.one_block = kernel.length <= KEY_BLOCK
        self.q, self.k, self.v, *masks = kernel.inputs
        self.mask = masks[0] if masks else None
        self.signature = Signature()
        self.kinds: dict[str, DType] = {}
        self.lines: list[str] = []
        self.rows = _rows(kernel)
        self.width, self.keys = int(self.q.shape[3]), int(self.k.shape[2])  # type: ignore[arg-type]
        self.down, self.across = (max(_LEAST, power_of_two(n)) for n in (self.rows, self.width))
        steps = (0,) if self.mask is None else self.mask.strides[1 : 2 if self.q.shape[2] == 1 else 3]
        self.one_row = not any(steps)  # every query has the same mask

    def line(self, text: str, indent: int = 1) -> None:
        self.lines.append("    " * indent + text)

    def print(self) -> TritonKernel:
        batch, shared = self.k.shape[:2]
        assert isinstance(batch, int) and isinstance(shared, int)
        blocks = (("YBLOCK", self.down), ("DBLOCK", self.across))
        launch = Launch(batch * shared * self.kernel.splits, blocks, warps=8 if self.one_block else 4, stages=2)
        self._place(shared)
        self._loop_over_keys()
        self._finish()
        names = [*(f"p{k}" for k in range(len(self.signature.buffers))), "YBLOCK: tl.constexpr", "DBLOCK: tl.constexpr"]
        text = "\n".join(["@triton.jit", f"def @({', '.join(names)}):", *self.lines])
        types = tuple(f"*{MEMORY_TYPE[self.kinds[b]]}" for b in self.signature.buffers)
        return TritonKernel(text, self.signature, types, launch)

    def _stages(self) -> int:
        """As many as shared memory has room for, beside queries and weights."""
        assert self.q.dtype is not None
        item = self.q.dtype.itemsize
        each = 2 * KEY_BLOCK * self.across * item
        if self.mask is not None and not self.one_row:
            assert self.mask.dtype is not None
            each += self.down * KEY_BLOCK * max(item, self.mask.dtype.itemsize)
        room = self.gpu.shared_memory - self.down * (self.across + KEY_BLOCK) * item
        return max(2, min(_MOST_STAGES, 1 + room // each))

    # --- words --------------------------------------------------------------------------------------------------

    def base(self, o: Operand, head: str, first: int = 0) -> str:
        """Where an operand's [batch, head] begins; `first` is the dimension of the batch."""
        parts = [self._name(o), *([str(o.offset)] if o.offset else [])]
        wide = ".to(tl.int64)" if int(o.last) > _INT32 else ""  # type: ignore[arg-type]
        steps = zip(("batch", head), o.strides[first : first + 2], strict=True)
        parts += [f"{name}{wide} * {step}" for name, step in steps if step]
        return " + ".join(parts)

    def _name(self, o: Operand) -> str:
        assert o.dtype is not None
        self.kinds[o.buffer] = o.dtype
        if o.buffer not in self.signature.buffers:
            self.signature.buffers.append(o.buffer)
        return f"p{self.signature.buffers.index(o.buffer)}"

    def _place(self, shared: int) -> None:
        group = int(self.q.shape[1]) // shared  # type: ignore[arg-type]
        queries = int(self.q.shape[2])  # type: ignore[arg-type]
        self.line("program = tl.program_id(0)")
        self.line(f"piece = program % {self.kernel.splits}")
        self.line(f"shared = program // {self.kernel.splits} % {shared}")
        self.line(f"batch = program // {self.kernel.splits * shared}")
        self.line("row = tl.arange(0, YBLOCK)")
        self.line(f"head = shared * {group} + row // {queries}")
        self.line(f"y = row % {queries}")
        self.line("d = tl.arange(0, DBLOCK)")
        self.ym = "" if self.rows == self.down else f"(row < {self.rows})"
        self.dm = "" if self.width == self.across else f"(d < {self.width})"
        if self.overlapped and self.one_block:
            self._fetch()
        self.lines.append(AHEAD)
        at = f"y[:, None] * {self.q.strides[2]} + d[None, :] * {self.q.strides[3]}"
        q = f"tl.load({self.base(self.q, 'head[:, None]')} + {at}{masked(_down(self.ym), _across(self.dm))})"
        self.line(f"q = {q}")

    def _fetch(self) -> None:
        """Prefetch the split's keys and values into L2. Later writes of the previous kernel are still seen, because L2
        is shared by all multiprocessors."""
        length = self.kernel.length
        self.line(f"ahead = tl.minimum(piece * {length} + tl.arange(0, {KEY_BLOCK}), {self.keys - 1})")
        self.line(f"sector = tl.arange(0, {max(1, self.across // _SECTOR)}) * {_SECTOR}")
        for o in (self.k, self.v):
            at = f"ahead[:, None] * {o.strides[2]} + tl.minimum(sector, {self.width - 1})[None, :] * {o.strides[3]}"
            self.line(f"bn.fetch({self.base(o, 'shared')} + {at})")

    def _loop_over_keys(self) -> None:
        self.line('most = tl.full([YBLOCK], float("-inf"), tl.float32)')
        self.line("total = tl.zeros([YBLOCK], tl.float32)")
        self.line("acc = tl.zeros([YBLOCK, DBLOCK], tl.float32)")
        self.line(f"first = piece * {self.kernel.length}")
        whole = self.keys % self.kernel.length == 0
        end = f"first + {self.kernel.length}" if whole else f"tl.minimum(first + {self.kernel.length}, {self.keys})"
        self.line(f"end = {end}")
        indent = 1
        if not self.one_block:
            if self.mask is not None:
                self._look(self.mask)
            self.line(f"for start in tl.range(first, end, {KEY_BLOCK}, num_stages={self._stages()}):")
            indent = 2
        else:  # one block is read sooner than its mask is looked at
            self.line("start = first")
        self.line(f"x = start + tl.arange(0, {KEY_BLOCK})", indent)
        self.xm = "" if self.keys % KEY_BLOCK == 0 else f"(x < {self.keys})"
        if self.mask is not None:
            self._load_mask("mask", self.mask, "x", self.xm, indent)
        self._block(indent)

    def _look(self, m: Operand) -> None:
        """Only the blocks from the first key to the last that any query of the tile sees."""
        rows, length = 1 if self.one_row else max(_LEAST, power_of_two(self.rows)), power_of_two(self.kernel.length)
        if rows * length > _MOST_LOOKED_AT:
            return
        self.line(f"piece_keys = first + tl.arange(0, {length})")
        self._load_mask("seen", m, "piece_keys", "(piece_keys < end)", 1)
        seen = "seen.to(tl.int32)" if m.dtype is DType.bool else f"(seen > {UNSEEN}).to(tl.int32)"
        self.line(f"seen = {seen if self.one_row else f'tl.max({seen}, 0)'} > 0")
        self.line("end = tl.max(tl.where(seen, piece_keys + 1, first), 0)")
        self.line(f"first = tl.min(tl.where(seen, piece_keys, {self.keys}), 0) // {KEY_BLOCK} * {KEY_BLOCK}")

    def _load_mask(self, name: str, m: Operand, x: str, limit: str, indent: int) -> None:
        other = "False" if m.dtype is DType.bool else 'float("-inf")'
        if self.one_row:
            masks = condition(limit)
            at = f"{self.base(m, '0')} + {x} * {m.strides[3]}"
        else:
            masks = condition(_down(self.ym), _across(limit))
            at = f"{self.base(m, 'head[:, None]')} + y[:, None] * {m.strides[2]} + {x}[None, :] * {m.strides[3]}"
        self.line(f"{name} = tl.load({at}{masks}{f', other={other}' if masks else ''})", indent)
        if m.dtype is not DType.bool:
            self.line(f"{name} = {name}.to(tl.float32)", indent)

    def _block(self, indent: int) -> None:
        at_k = f"x[None, :] * {self.k.strides[2]} + d[:, None] * {self.k.strides[3]}"
        at_v = f"x[:, None] * {self.v.strides[2]} + d[None, :] * {self.v.strides[3]}"
        k_mask = masked(_across(self.xm), _down(self.dm))
        v_mask = masked(_down(self.xm), _across(self.dm))
        self.line(f"k = tl.load({self.base(self.k, 'shared')} + {at_k}{k_mask})", indent)
        self.line(f"v = tl.load({self.base(self.v, 'shared')} + {at_v}{v_mask})", indent)
        self.line(f"w = {scores_text(self.kernel.op, 'tl.dot(q, k)')}", indent)
        if self.mask is not None:
            mask = "mask[None, :]" if self.one_row else "mask"
            if self.mask.dtype is DType.bool:
                self.line(f'w = tl.where({mask}, w, float("-inf"))', indent)
            else:
                self.line(f'w = tl.where({mask} > {UNSEEN}, w + {mask} * {LOG2_E!r}, float("-inf"))', indent)
        if self.xm:
            self.line(f'w = tl.where({_across(self.xm)}, w, float("-inf"))', indent)
        self.line("higher = tl.maximum(most, tl.max(w, 1))", indent)
        self.line('level = tl.where(higher == float("-inf"), 0.0, higher)', indent)
        self.line("weight = bn.weight(libdevice.sub_rn(w, level[:, None]))", indent)
        self.line("kept = bn.weight(most - level)", indent)
        self.line("total = total * kept + tl.sum(weight, 1)", indent)
        assert self.v.dtype is not None
        self.line(f"acc = tl.dot(weight.to({STORED_TYPE[self.v.dtype]}), v, acc * kept[:, None])", indent)
        self.line("most = higher", indent)

    def _finish(self) -> None:
        kernel = self.kernel
        for o, value in ((kernel.most, "most"), (kernel.totals, "total")):
            at = f"piece * {o.strides[0]} + y * {o.strides[3]}"
            self.line(f"tl.store({self.base(o, 'head', 1)} + {at}, {value}{condition(self.ym)})")
        o = kernel.sums
        at = f"piece * {o.strides[0]} + y[:, None] * {o.strides[3]} + d[None, :] * {o.strides[4]}"
        masks = condition(_down(self.ym), _across(self.dm))
        self.line(f"tl.store({self.base(o, 'head[:, None]', 1)} + {at}, acc{masks})")


def _down(mask: str) -> str:
    return mask and f"{mask}[:, None]"


def _across(mask: str) -> str:
    return mask and f"{mask}[None, :]"
