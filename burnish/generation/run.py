"""One request from its prompt to its last token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from burnish.generation.buckets import chunks
from burnish.generation.ends import Ends
from burnish.generation.look import Look
from burnish.generation.pace import Pace
from burnish.generation.programs import Programs
from burnish.generation.request import Request
from burnish.generation.stats import Record, Timing

Clock = Callable[[], float]


class Run:
    """Iterate over `tokens()`: new tokens [batch, n] on the host, as they become known. `ends` knows all of them."""

    def __init__(
        self,
        request: Request,
        programs: Programs,
        chunk_sizes: tuple[int, ...],
        held: int,
        record: Record,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.request = request
        self.programs = programs
        self.state = programs.state
        self.chunk_sizes = chunk_sizes
        self.held = held
        self.record = record
        self.clock = clock
        self.ends = Ends(request.batch, request.ends, request.pad, request.stops, request.tokenizer)
        self.launched = 0  # tokens chosen, or being chosen
        self._began = clock()
        self._token_s: list[float] = []
        self._first_s = 0.0
        self._looked = 0.0

    def tokens(self) -> Iterator[torch.Tensor]:
        with torch.no_grad():
            self._prefill()
            self._choose()
        yield self._seen(self._look(1))
        yield from self._on_host() if self.request.on_host else self._on_device()

    # -- the prompt ----------------------------------------------------------------------------------------------

    def _prefill(self) -> None:
        request, state = self.request, self.state
        ids, mask = _filled_up(request.ids, state.rows), _filled_up(request.mask, state.rows)
        state.choose_by(request.choice, request.how, list(request.ends), request.pad)
        state.begin(ids, mask, self.held, request.batch)
        if request.how.penalty:
            state.note_prompt(request.total)
        plan = chunks(request.total - self.held, self.held, state.capacity, self.chunk_sizes)
        self.record.eager_chunks += self.programs.prompt(plan, request.padded)
        self.record.prompt_tokens += (request.total - self.held) * request.batch

    # -- steps ---------------------------------------------------------------------------------------------------

    def _on_device(self) -> Iterator[torch.Tensor]:
        """The device runs ahead of the host: while it computes some steps, the host reads the previous ones."""
        pace = Pace(self.state.length.device.type == "cuda")
        waiting: Look | None = None
        while not self._is_done() or waiting is not None:
            look = self._launched(pace.steps(self._left())) if self._left() and not self._is_done() else None
            if waiting is None and pace.ahead and look is not None and not self._is_done():
                waiting = look
                continue
            shown = waiting if waiting is not None else look
            waiting = look if waiting is not None else None
            if shown is None:
                break
            if self._is_done():  # what ran ahead of the end
                self.record.wasted_steps += shown.steps
                continue
            before = self._looked
            tokens = self._seen(shown)
            pace.took(self._looked - before, shown.steps)
            yield tokens

    def _launched(self, steps: int) -> Look:
        with torch.no_grad():
            for _ in range(steps):
                self.programs.decode(self.request.how, self.request.padded)
            self.launched += steps - 1
            self.record.steps += steps
            return self._look(steps)

    def _on_host(self) -> Iterator[torch.Tensor]:
        """A step, then the code of the host on what came out of it."""
        device_chooses = self.request.processors is None
        while self._left() and not self._is_done():
            with torch.no_grad():
                self.programs.decode(self.request.how if device_chooses else None, self.request.padded)
                if not device_chooses:
                    self._choose()
                self.record.steps += 1
                self.record.host_steps += 1
                look = self._look(1)
            yield self._seen(look)

    def _choose(self) -> None:
        """The token that follows from `state.logits`."""
        state, request = self.state, self.request
        if request.processors is None:
            state.take(state.logits, request.how)
            return
        scores = state.logits.clone()
        so_far = state.tokens[: request.batch, : request.total + self.launched]
        scores[: request.batch] = request.processors(so_far, scores[: request.batch])
        state.take(scores, request.how)

    # -- what came out -------------------------------------------------------------------------------------------

    def _look(self, steps: int) -> Look:
        self.launched += 1
        last = self.request.total + self.launched
        return Look(self.state, self.request.batch, last - steps, last)

    def _seen(self, look: Look) -> torch.Tensor:
        tokens, told = self.ends.add(look.tokens())
        self.record.looks += 1
        self.record.wasted_steps += look.steps - tokens.shape[1]
        self._note_time(tokens.shape[1])
        if self.request.criteria and not self.ends.is_over:
            told += self.ends.stop(self._criteria())
        for row in told:
            self.state.finished[row].fill_(True)
        return tokens

    def _criteria(self) -> list[bool]:
        request = self.request
        so_far = self.state.tokens[: request.batch, : request.total + self.ends.columns]
        answers = torch.zeros(request.batch, dtype=torch.bool, device=so_far.device)
        for criterion in request.criteria:
            answers = answers | torch.as_tensor(criterion(so_far, None), device=so_far.device)
        return [bool(answer) for answer in answers.tolist()]

    def _left(self) -> int:
        return self.request.max_new - self.launched

    def _is_done(self) -> bool:
        late = self.request.max_time is not None and self.clock() - self._began > self.request.max_time
        return late or self.ends.is_over or self.ends.columns >= self.request.max_new

    def _note_time(self, tokens: int) -> None:
        now = self.clock()
        if self._looked:
            self._token_s += [(now - self._looked) / max(tokens, 1)] * tokens
        else:
            self._first_s = now - self._began
        self._looked = now

    def timing(self) -> Timing:
        return Timing(self._first_s, self._looked - self._began, self.ends.columns, tuple(self._token_s))


def _filled_up(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Rows that only fill up the batch are like the first: no row is empty."""
    missing = rows - tensor.shape[0]
    return torch.cat([tensor, tensor[:1].expand(missing, -1)]) if missing else tensor
