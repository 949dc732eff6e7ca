# SPDX-License-Identifier: Apache-2.0
"""Runs programs over inputs on one state, and tells what they found."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pax import io_utils, summaries, train_states
from pax.programs import program
from pax.programs.decode import SingleTaskDecodeProgram
from pax.programs.eval import BaseEvalProgram

TrainState = train_states.TrainState

OutputT = TypeVar(
  'OutputT', program.EvalProgramOutput, program.DecodeProgramOutput
)

_MODES = io_utils.EvaluationMode
# Whether the outputs of an input are there already.
IsDone = Callable[[io_utils.EvaluationMode, str], bool]

# What a person wants to see of an evaluation.
_HEADLINES = ('bits_per_byte',)


def _nothing_is_done(mode: io_utils.EvaluationMode, name: str) -> bool:
  return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes:
  """The programs of a job that go over inputs, set up."""

  evals: Sequence[BaseEvalProgram] = ()
  decodes: Sequence[SingleTaskDecodeProgram] = ()
  writer: summaries.Writer
  progress: summaries.Progress
  # Called before every batch; what it raises ends the pass.
  before_batch: Callable[[int], None]

  def __post_init__(self) -> None:
    program.check_unique_names([p.input for p in self.evals])
    program.check_unique_names([p.input for p in self.decodes])
    for kind, programs in (('eval', self.evals), ('decode', self.decodes)):
      for one in programs:
        one.before_batch = self._watch(f'{kind} {one.input.name}', one.input)

  def evaluate(
    self, state: TrainState, step: int, is_done: IsDone = _nothing_is_done
  ) -> dict[str, program.EvalProgramOutput]:
    """Evaluates the state on all inputs; returns what programs said.

    Inputs of which `is_done` says so are left out.
    """
    found = {}
    for name, one in self._due(_MODES.EVAL, state, step, is_done):
      began = time.monotonic()
      out = one.run(state, step)
      out = found[name] = _with_speed(out, out.num_eval_steps, began)
      self.writer.write(step, out.scalars, split=f'eval_test_{name}')
      self._tell(step, headline(name, out))
    return found

  def decode(
    self, state: TrainState, step: int, is_done: IsDone = _nothing_is_done
  ) -> dict[str, program.DecodeProgramOutput]:
    """Decodes all inputs by the state; returns what programs said.

    Inputs of which `is_done` says so are left out.
    """
    found = {}
    for name, one in self._due(_MODES.DECODE, state, step, is_done):
      began = time.monotonic()
      out = one.run(state, step)
      out = found[name] = _with_speed(out, out.num_decode_steps, began)
      self.writer.write(step, out.scalars, split=f'decode_test_{name}')
      self.progress.print(
        f'step {step}  decoded {name}: {out.num_decode_steps} batches'
      )
    return found

  def shutdown(self) -> None:
    """Ends the programs."""
    for one in (*self.evals, *self.decodes):
      one.shutdown()

  def _due(
    self,
    mode: io_utils.EvaluationMode,
    state: TrainState,
    step: int,
    is_done: IsDone,
  ) -> Iterator[tuple[str, Any]]:
    """The programs that are to run, by the name of their input."""
    for one in self.evals if mode is _MODES.EVAL else self.decodes:
      name = one.input.name
      if not one.should_run(state, step):
        continue
      if is_done(mode, name):
        self.progress.print(f'step {step}  {mode} {name}: written before')
      else:
        yield name, one

  def _tell(self, step: int, shown: Mapping[str, float]) -> None:
    parts = '  '.join(f'{name} {value:.4f}' for name, value in shown.items())
    self.progress.print(f'step {step}  {parts}')

  def _watch(self, label: str, inp: Any) -> Callable[[int], None]:
    wanted = None if inp.reset_for_eval else inp.eval_loop_num_batches
    total = wanted if wanted and wanted > 0 else None

    def before_batch(done: int) -> None:
      self.before_batch(done)
      self.progress.batches(label, done, total)

    return before_batch


def _with_speed(out: OutputT, count: int, began: float) -> OutputT:
  """The output, with the batches a second since `began`."""
  if not count:
    return out
  rate = count / (time.monotonic() - began)
  scalars = out.scalars | {summaries.tags.STEPS_PER_SEC: rate}
  return dataclasses.replace(out, steps_per_sec=rate, scalars=scalars)


def headline(name: str, out: program.EvalProgramOutput) -> dict[str, float]:
  """The loss, and what else is shown of an evaluation, by name."""
  loss = out.scalars.get(summaries.tags.LOSS, math.nan)
  metrics = out.eval_metrics or {}
  shown = {f'{name} loss': loss}
  shown |= {f'{name} {k}': metrics[k] for k in _HEADLINES if k in metrics}
  return {k: v for k, v in shown.items() if math.isfinite(v)}
