# SPDX-License-Identifier: Apache-2.0
"""Compiles the train step for devices that need not be here."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from typing import Any

import jax

from pax import partitioning
from pax.aot import hlo

# From O0, the least that XLA can do, to O3; UNKNOWN is as every run has it.
_EFFORT = 'jax_optimization_level'
_LEAST = 'O0'

_SIZES = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}
# It says temporaries, and counts the arguments too.
_TEMPORARIES = re.compile(
  r'HLO temporaries \(([\d.]+)([KMGT]?)B?\) exceeds available HBM '
  r'\(([\d.]+)([KMGT]?)B?\)'
)
_USED = re.compile(r'Used ([\d.]+)([KMGT]?)B? of ([\d.]+)([KMGT]?)B? hbm')
# XLA's list of the largest allocations, an entry of several lines each.
_BUFFER = re.compile(
  r'\n\s*\d+\. Size: ([\d.]+)([KMGT]?)B?\n(.*?)(?=\n\s*={3,}|\n\s*\n|\Z)', re.S
)
_DETAILS = {
  'shape': re.compile(r'Shape: (\S+)'),
  'op_name': re.compile(r'op_name="([^"]*)"'),
  'what': re.compile(r'Allocation type: (.+)'),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffer:
  """One of the largest allocations of a step that does not fit."""

  num_bytes: float
  shape: str
  # Where in the model it is from, and what it is for.
  op_name: str
  what: str


class DoesNotFitError(ValueError):
  """The compiler finds no way to run the step in the memory of a device."""

  def __init__(self, message: str):
    super().__init__(message)
    # Bytes of all that the step holds, and of what there is; None where the
    # message does not tell.
    told = _USED.search(message) or _TEMPORARIES.search(message)
    self.needs, self.capacity = _numbers(told)
    self.buffers = _buffers(message)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """A compiled train step."""

  executable: jax.stages.Compiled
  module: hlo.Module
  # XLA's own account of its memory and its cost.
  memory: Any
  cost: dict[str, float]
  seconds: float


def compile_step(
  step: partitioning.PartitionedStep, *, quickly: bool = False
) -> Program:
  """Compiles a step for the devices of its mesh.

  `quickly` makes one that is not to be run, in a quarter of the time: the
  compiler tries less, and allocates some percent more or less.

  Raises:
    DoesNotFitError: no device can hold it.
  """
  began = time.monotonic()
  try:
    with _effort(_LEAST if quickly else None):
      # What is to be run the step keeps.
      executable = step.lower().compile() if quickly else step.compiled
  except jax.errors.JaxRuntimeError as e:
    if 'RESOURCE_EXHAUSTED' not in str(e):
      raise
    raise DoesNotFitError(str(e)) from e
  return Program(
    executable=executable,
    module=hlo.parse(executable.as_text()),
    memory=executable.memory_analysis(),
    cost=dict(executable.cost_analysis() or {}),
    seconds=time.monotonic() - began,
  )


@contextlib.contextmanager
def _effort(wanted: str | None) -> Iterator[None]:
  """Tells XLA meanwhile how hard to try to make the step fast."""
  before = getattr(jax.config, _EFFORT)
  jax.config.update(_EFFORT, before if wanted is None else wanted)
  try:
    yield
  finally:
    jax.config.update(_EFFORT, before)


def _numbers(
  found: re.Match[str] | None,
) -> tuple[float | None, float | None]:
  """Bytes wanted and bytes there."""
  if not found:
    return None, None
  used, used_unit, there, there_unit = found.groups()
  return float(used) * _SIZES[used_unit], float(there) * _SIZES[there_unit]


def _buffers(message: str) -> list[Buffer]:
  found = []
  for number, unit, details in _BUFFER.findall(message):
    told = {name: rx.search(details) for name, rx in _DETAILS.items()}
    found.append(
      Buffer(
        num_bytes=float(number) * _SIZES[unit],
        **{name: match[1] if match else '' for name, match in told.items()},
      )
    )
  return found
