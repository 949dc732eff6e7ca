# SPDX-License-Identifier: Apache-2.0
"""The quantization job: writes a checkpoint with quantized weights."""

from __future__ import annotations

import dataclasses

import jax

from pax import checkpoints, partitioning, summaries, train_states
from pax.checkpoints import paths
from pax.files import working_copy
from pax.programs.jobs import Outcome
from pax.programs.stopping.preemption import PreemptedError, PreemptionHandler
from praxis import base_layer

TrainState = train_states.TrainState


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeJob:
  """Converts the variables of one state to those of a quantized task."""

  job_log_dir: str
  # The task whose layers have mode MATERIALIZE, and that whose layers have mode
  # INFERENCE, on their meshes.
  float_partitioner: partitioning.Partitioner
  partitioner: partitioning.Partitioner
  # The eval state of the first.
  state: TrainState
  # Saves the eval state of the second.
  checkpointer: checkpoints.Checkpointer
  progress: summaries.Progress
  preemption: PreemptionHandler

  def run(self) -> Outcome:
    """Writes the checkpoint of the step of the state.

    Raises:
      ValueError: A layer does not return the variables that it declares.
    """
    try:
      self.preemption.raise_if_requested()
      state = quantize(self.state, self.float_partitioner, self.partitioner)
      self.checkpointer.save(int(state.step), state, force=True)
      self.checkpointer.wait()
      before, after = map(_num_mib, (self.state, state))
      folder = working_copy.origin(self.job_log_dir) / paths.CHECKPOINTS
      self.progress.print(
        f'wrote step {int(state.step)} into {folder}:'
        f' {before:.1f} MiB of variables became {after:.1f} MiB'
      )
    except PreemptedError:
      return Outcome.PREEMPTED
    finally:
      self.checkpointer.close()
      self.progress.close()
    return Outcome.DONE


def quantize(
  state: TrainState,
  float_partitioner: partitioning.Partitioner,
  partitioner: partitioning.Partitioner,
) -> TrainState:
  """Returns the eval state of a quantized task, on its devices.

  Args:
    state: The eval state of the float task.
    float_partitioner: The task whose layers have mode MATERIALIZE.
    partitioner: The task whose layers have mode INFERENCE.

  Raises:
    ValueError: A layer does not return the variables that it declares.
  """
  model = float_partitioner.task.model
  hparams = base_layer.JaxContext.HParams(do_eval=True)

  def convert(state: TrainState) -> TrainState:
    with base_layer.JaxContext.new_context(hparams=hparams):
      variables = model.apply(state.mdl_vars, method=model.quantize_weight)
    return state.replace(mdl_vars=variables)

  def convert_on_mesh() -> TrainState:
    declared = partitioner.eval_state_metadata
    _check_shapes(jax.eval_shape(convert, state), declared)
    shardings = jax.tree.map(lambda x: x.sharding, declared)
    return jax.jit(convert, out_shardings=shardings)(state)

  return float_partitioner.run_on_mesh(convert_on_mesh)


def _check_shapes(returned: TrainState, declared: TrainState) -> None:
  """Compares what the layers of a task return with what they declare.

  Raises:
    ValueError: They differ.
  """
  got, wanted = _shapes(returned), _shapes(declared)
  for name in [*wanted, *got]:
    if got.get(name) != wanted.get(name):
      raise ValueError(
        f'quantize_weight must return {name} with {wanted.get(name)}, which the'
        f' layer of mode INFERENCE declares, got {got.get(name)}; leave this'
        ' layer in float'
      )


def _shapes(state: TrainState) -> dict[str, str]:
  return {
    name: f'{x.dtype}{list(x.shape)}'
    for name, x in paths.flatten(state).items()
  }


def _num_mib(state: TrainState) -> float:
  return sum(x.nbytes for x in jax.tree.leaves(state.mdl_vars)) / 2**20
