# SPDX-License-Identifier: Apache-2.0
"""Parameters, FLOPs, memory and HLO of the model of an experiment.

pax model_analysis --exp=... --usage=params|flops|memory|hlo|fprop
"""

from __future__ import annotations

import dataclasses
import math
import pprint
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pax.partitioning import memory
from pax.runner import command_line
from pax.tools import abstract_experiment, flops, tool
from praxis import base_layer, py_utils, value_domains

_USAGE = """\
Analyses the model of an experiment on simulated devices. Only fprop allocates
memory.

  pax model_analysis --exp=tasks.lm.params.lm_cloud.LmCloudSpmd2B --usage=params

  params   each variable: path, shape, size, and whether it is trainable
  flops    floating point operations of one forward pass
  memory   bytes of the train state on each device
  hlo      the train step as StableHLO, before the compiler
  fprop    runs one forward pass on zeros (also called debug)"""

_GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(abstract_experiment.ExperimentOptions):
  """The flags of this tool."""

  usage: str = command_line.flag(
    'flops',
    'What',
    'One of params, flops, memory, hlo, fprop, debug.',
    domain=value_domains.OneOf(
      ('params', 'flops', 'memory', 'hlo', 'fprop', 'debug')
    ),
  )
  fprop_func: str = command_line.flag(
    'compute_predictions', 'What', 'Method of the model to run or count.'
  )
  bs: int = command_line.flag(
    -1,
    'What',
    'Rows per device (PERCORE_BATCH_SIZE); -1: unchanged.',
    domain=value_domains.interval(ge=-1),
  )
  debug_file_pattern: str = command_line.flag(
    '', 'What', 'Files of the training input for fprop, in place of zeros.'
  )
  output: str = command_line.flag('-', 'Output', 'File of the result.')


class ExperimentParser:
  """Analyses one experiment."""

  def __init__(
    self,
    exp_name: str | None,
    bs: int = -1,
    debug_file_pattern: str = '',
    seed: int = 1202,
    settings: Sequence[str] = (),
    *,
    fdl: Sequence[str] = (),
    trust_foreign_files: bool = False,
  ):
    """Declares the experiment.

    Args:
      exp_name: its name, as in --exp; None: `fdl` makes the experiment.
      bs: rows per device; -1: unchanged.
      debug_file_pattern: files of the training input for `fprop`.
      seed: of the variables of `fprop`.
      settings: values of --set.
      fdl: values of --fdl.
      trust_foreign_files: see `ExperimentOptions`.
    """
    if bs != -1:
      settings = (*settings, f'PERCORE_BATCH_SIZE={bs}')
    options = abstract_experiment.ExperimentOptions(
      exp=exp_name,
      fdl=tuple(fdl),
      set=tuple(settings),
      trust_foreign_files=trust_foreign_files,
    )
    self._declared = abstract_experiment.declare(options)
    self.exp_name = self._declared.name
    self._seed = seed
    if debug_file_pattern:
      _set_files(self._declared.tree.train_input, debug_file_pattern)
    self._reads_data = bool(debug_file_pattern)
    self._partitioner = self._declared.partitioner()

  def get_flops(self, fprop_func: str = 'compute_predictions') -> str:
    """Returns FLOPs of a pass over the global batch, also by primitive."""
    shapes = self._partitioner.state_metadata.mdl_vars
    counts = flops.count(
      self._model_method(fprop_func), shapes, self._partitioner.input_spec
    )
    total = sum(counts.values())
    lines = [f'##### {self.exp_name} #####', '']
    lines += [f'GFLOPS = {total / 1e9:.2f}', '']
    lines += [
      f'{name:<24}{count / 1e9:16.4f}' for name, count in counts.items()
    ]
    return '\n'.join(lines)

  def fprop(self, fprop_func: str = 'compute_predictions') -> str:
    """Runs one forward pass on zeros or data; returns shapes of the batch."""
    partitioner = self._partitioner
    batch = self._batch()
    state = partitioner.initialize(jax.random.key(self._seed))
    method = jax.jit(self._model_method(fprop_func))
    out = partitioner.run_on_mesh(method, state.mdl_vars, batch)
    jax.block_until_ready(out)
    shapes = pprint.pformat(jax.tree.map(jnp.shape, batch))
    return f'input: {shapes}\nFProp finishes successfully.'

  def print_variables_info(self) -> str:
    """Returns one line for each variable, and the totals."""
    (learner,) = self._partitioner.task.learners
    declarations = self._partitioner.var_weight_hparams
    trained = learner.bprop_mask(declarations)
    rows: list[tuple[str, str, str, str]] = []
    totals: dict[str, int] = {}
    for path, weight in py_utils.tree_paths(declarations):
      shape = tuple(weight.full_shape)
      kind = _kind(path, trained)
      totals[kind] = totals.get(kind, 0) + math.prod(shape)
      rows.append((path, str(shape), str(math.prod(shape)), kind))
    lines = _table(rows)
    lines += ['=' * max(map(len, lines))]
    lines += [f'Total #params (all): {sum(totals.values())}']
    lines += [f'Total #params ({k}): {n}' for k, n in totals.items()]
    return '\n'.join(lines)

  def memory(self) -> str:
    """Returns bytes of the train state on the device with most of it."""
    partitioner = self._partitioner
    state = memory.state_bytes_per_device(partitioner.state_metadata)
    weights = memory.state_bytes_per_device(partitioner.state_metadata.mdl_vars)
    return '\n'.join([
      f'mesh                   {dict(partitioner.mesh.shape)}',
      f'variables per device   {weights / _GIB:10.4f} GiB',
      f'train state per device {state / _GIB:10.4f} GiB',
    ])  # fmt: skip

  def hlo(self) -> str:
    """Returns the train step as StableHLO."""
    return self._partitioner.train_step().lower().as_text()

  def _model_method(self, name: str) -> Callable[[Any, Any], Any]:
    model = self._partitioner.task.model
    if not callable(getattr(model, name, None)):
      raise ValueError(
        f'--fprop_func={name} is no method of {type(model).__name__}; try'
        ' compute_predictions'
      )
    context = base_layer.JaxContext.HParams(do_eval=True)

    def method(mdl_vars: Any, batch: Any) -> Any:
      with base_layer.JaxContext.new_context(hparams=context):
        return model.apply(
          mdl_vars,
          batch,
          method=name,
          rngs={base_layer.RANDOM: jax.random.key(self._seed)},
          mutable=True,
        )

    return method

  def _batch(self) -> Any:
    if self._reads_data:
      batch = self._declared.tree.train_input.Instantiate().get_next_padded()
      return self._partitioner.put_batch(batch)
    return jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding),
      self._partitioner.input_spec,
    )


_USAGES: dict[str, Callable[[ExperimentParser, str], str]] = {
  'params': lambda parser, _: parser.print_variables_info(),
  'flops': lambda parser, method: parser.get_flops(method),
  'memory': lambda parser, _: parser.memory(),
  'hlo': lambda parser, _: parser.hlo(),
  'fprop': lambda parser, method: parser.fprop(method),
  'debug': lambda parser, method: parser.fprop(method),
}


def main(argv: Sequence[str] = sys.argv) -> int:
  """Writes the analysis; returns the exit code."""
  options = command_line.parse(Options, argv, _USAGE)
  parser = ExperimentParser(
    options.exp,
    options.bs,
    options.debug_file_pattern,
    settings=options.set,
    fdl=options.fdl,
    trust_foreign_files=options.trust_foreign_files,
  )
  text = _USAGES[options.usage](parser, options.fprop_func)
  abstract_experiment.write(options.output, text)
  return 0


def _set_files(config: Any, pattern: str) -> None:
  """Sets the files of an input, or of the input that it wraps."""
  inner = getattr(config, 'input', None) or config
  for name in ('file_pattern', 'input_file', 'files'):
    if hasattr(inner, name):
      setattr(inner, name, pattern)
      return
  raise ValueError(
    f'--debug_file_pattern={pattern}: the training input has none of the'
    ' fields file_pattern, input_file and files'
  )


def _kind(path: str, trained: Any) -> str:
  if path.startswith(f'{base_layer.NON_TRAINABLE}/'):
    return 'non_trainable'
  if not path.startswith(f'{base_layer.PARAMS}/'):
    return 'others'
  is_trained = dict(py_utils.tree_paths(trained)).get(path)
  return 'trainable' if is_trained else 'frozen'


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    '  '.join(
      f'{cell:<{width}}' for cell, width in zip(row, widths, strict=True)
    ).rstrip()
    for row in rows
  ]


if __name__ == '__main__':
  tool.run_console(main)
