# SPDX-License-Identifier: Apache-2.0
"""Our training step against the fastest one written by hand.

    python -m benchmarks.step_time --devices=1 --mode=spmd

Both do the same steps on the same batch, in turns; their losses must agree to
1e-5. Prints the ratio of the times.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import measure

# Steps whose losses are compared, and from which a style is chosen.
_CHECKED = 3


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--devices', type=int, default=1)
  parser.add_argument('--mode', choices=('spmd', 'pmap'), default='spmd')
  parser.add_argument('--rounds', type=int, default=15)
  args = parser.parse_args()
  measure.on_cpu_devices(args.devices)
  ours = _Ours(args.mode)
  twins = {str(t.style): t for t in _twins(ours)}
  losses = [ours.step() for _ in range(_CHECKED)]
  for name, twin in twins.items():
    _check_losses(losses, [twin.step() for _ in range(_CHECKED)], name)
  trial = measure.in_turns({name: twin.step for name, twin in twins.items()}, 3)
  best = min(trial, key=lambda name: min(trial[name].cpu))
  times = measure.in_turns(
    {'ours': ours.step, 'twin': twins[best].step}, args.rounds
  )
  measure.report(
    'step_time',
    {
      'mode': args.mode,
      'devices': args.devices,
      'ratio': measure.ratio(times['ours'].wall, times['twin'].wall),
      'cpu_ratio': measure.ratio(times['ours'].cpu, times['twin'].cpu),
      'ours': measure.summary(times['ours'].wall),
      'twin': measure.summary(times['twin'].wall),
      'ours_cpu': measure.summary(times['ours'].cpu),
      'twin_cpu': measure.summary(times['twin'].cpu),
      'twin_style': best,
    },
  )


class _Ours:
  """The experiment's own compiled step."""

  def __init__(self, mode: str):
    import jax

    from benchmarks import experiments
    from pax import partitioning
    from praxis import py_utils

    experiment = {
      'spmd': experiments.Lm4x256Spmd,
      'pmap': experiments.Lm4x256,
    }[mode]()
    task_p = experiment.task()
    self.optimizer_p = task_p.train.learner.optimizer
    # Reaches rates that move the losses within the steps that are compared.
    self.optimizer_p.lr_schedule.warmup_steps = 4
    self.batch = measure.random_lm_batch(
      experiment.GLOBAL_BATCH_SIZE,
      experiment.MAX_SEQ_LEN,
      experiment.VOCAB_SIZE,
    )
    partitioner = partitioning.create_partitioner(
      task_p, py_utils.NestedMap(self.batch)
    )
    self.mesh = partitioner.mesh
    self.is_spmd = partitioner.is_spmd
    self.key = jax.random.PRNGKey(0)
    self.state = partitioner.initialize(self.key)
    self._step = partitioner.train_step()
    self.placed = partitioner.put_batch(py_utils.NestedMap(self.batch))

  def step(self) -> float:
    self.state, output = self._step(self.state, self.placed, self.key)
    return float(output.loss)

  @property
  def rows(self) -> tuple[str, ...]:
    """The mesh axes that split the batch."""
    return tuple(self.mesh.axis_names)

  def placement(self, *axes: Any) -> Any:
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(self.mesh, PartitionSpec(*axes))

  def shardings(self, params: Any, split: bool) -> Any:
    """Returns where to put these, matrices split as ours are or whole."""
    from jax.tree_util import keystr, tree_map_with_path

    dims = params['table'].shape[0]

    def sharding(path: Any, x: Any) -> Any:
      name = keystr(path[-1:], simple=True)
      if not split or name not in ('table', 'qkv', 'post', 'w1', 'w2'):
        return self.placement()
      axes = [None] * x.ndim
      axes[x.shape.index(dims)] = 'data'
      return self.placement(*axes)

    return tree_map_with_path(sharding, params)


class _Twin:
  """The step written by hand, in one style, placed like ours."""

  def __init__(self, style: Any, params: Any, ours: _Ours):
    import jax
    import optax

    from benchmarks import twin

    self.style = style
    opt = ours.optimizer_p
    schedule = twin.Schedule(
      peak=opt.learning_rate,
      warmup=opt.lr_schedule.warmup_steps,
      decay_start=opt.lr_schedule.decay_start,
      decay_end=opt.lr_schedule.decay_end,
      min_ratio=opt.lr_schedule.min_ratio,
    )
    tx = twin.optimizer(schedule)
    if style.scan:
      params = jax.jit(twin.stacked)(params)
    placed = ours.shardings(params, style.split)
    everywhere = ours.placement()
    states = optax.tree.map_params(
      tx,
      lambda _, sharding: sharding,
      jax.eval_shape(tx.init, params),
      placed,
      transform_non_params=lambda _: everywhere,
    )
    # The step donates its arguments, so they must not be ours.
    copy = jax.jit(lambda p: jax.tree.map(lambda x: x + 0, p))
    self.params = jax.device_put(copy(params), placed)
    self.state = jax.jit(tx.init, out_shardings=states)(self.params)
    self.batch = jax.device_put(ours.batch, ours.placement(ours.rows))
    with jax.set_mesh(ours.mesh):
      jitted = jax.jit(
        twin.make_step(tx, style),
        donate_argnums=(0, 1),
        out_shardings=(placed, states, everywhere),
      )
      self._step = jitted.lower(self.params, self.state, self.batch).compile()

  def step(self) -> float:
    self.params, self.state, loss = self._step(
      self.params, self.state, self.batch
    )
    return float(loss)


def _twins(ours: _Ours) -> list[_Twin]:
  from benchmarks import twin

  params = twin.params_of(ours.state.mdl_vars)
  rows = ours.rows if ours.mesh.size > 1 else ()
  styles = [
    twin.Style(scan=scan, remat=remat, split=split, rows=rows)
    for scan, remat in ((False, False), (True, True), (True, False))
    for split in ((False, True) if rows and ours.is_spmd else (False,))
  ]
  return [_Twin(style, params, ours) for style in styles]


def _check_losses(ours: list[float], twins: list[float], name: str) -> None:
  largest = max(abs(a - b) / abs(b) for a, b in zip(ours, twins, strict=True))
  if not largest < 1e-5:
    raise SystemExit(f'losses differ by {largest}: {ours}, {name}: {twins}')


if __name__ == '__main__':
  main()
