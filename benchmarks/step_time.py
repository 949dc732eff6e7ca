# SPDX-License-Identifier: Apache-2.0
"""Time of a training step, relative to the fastest hand-written ones.

    python -m benchmarks.step_time --devices=1 --mode=spmd --length=2048

One baseline keeps the logits of all tokens, the other computes its loss in
chunks. The programs alternate on the same batch; their losses must agree to
1e-5.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import measure

# Steps whose losses are compared, and that select the fastest style.
_CHECKED = 3
_TOKENS = 2048
_LOSS_CHUNKS = 8


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--devices', type=int, default=1)
  parser.add_argument('--mode', choices=('spmd', 'pmap'), default='spmd')
  parser.add_argument('--rounds', type=int, default=15)
  parser.add_argument(
    '--length', type=int, default=256, help=f'of a row; {_TOKENS} tokens a step'
  )
  args = parser.parse_args()
  measure.on_cpu_devices(args.devices)
  ours = PaxStep(args.mode, args.length)
  baselines = {str(b.style): b for b in _baselines(ours)}
  losses = [ours.step() for _ in range(_CHECKED)]
  for name, baseline in baselines.items():
    _check_losses(losses, [baseline.step() for _ in range(_CHECKED)], name)
  trial = measure.alternate(
    {name: baseline.step for name, baseline in baselines.items()}, 3
  )

  def fastest(loss_chunks: int) -> str:
    names = [n for n, b in baselines.items() if b.loss_chunks == loss_chunks]
    return min(names, key=lambda name: min(trial[name].cpu))

  best, chunked = fastest(1), fastest(_LOSS_CHUNKS)
  runs = {'baseline': baselines[best], 'chunked': baselines[chunked]}
  baselines.clear()
  times = measure.alternate(
    {'ours': ours.step} | {name: run.step for name, run in runs.items()},
    args.rounds,
  )

  def ratios(name: str) -> tuple[float, float]:
    ours, theirs = times['ours'], times[name]
    return (
      measure.ratio(ours.wall, theirs.wall),
      measure.ratio(ours.cpu, theirs.cpu),
    )

  ratio, cpu_ratio = ratios('baseline')
  chunked_ratio, chunked_cpu_ratio = ratios('chunked')
  measure.report(
    'step_time',
    {
      'mode': args.mode,
      'devices': args.devices,
      'length': args.length,
      'ratio': ratio,
      'cpu_ratio': cpu_ratio,
      'chunked_ratio': chunked_ratio,
      'chunked_cpu_ratio': chunked_cpu_ratio,
      'ours': measure.summary(times['ours'].wall),
      'baseline': measure.summary(times['baseline'].wall),
      'chunked': measure.summary(times['chunked'].wall),
      'ours_cpu': measure.summary(times['ours'].cpu),
      'baseline_cpu': measure.summary(times['baseline'].cpu),
      'chunked_cpu': measure.summary(times['chunked'].cpu),
      'baseline_style': best,
      'chunked_style': chunked,
    },
  )


class PaxStep:
  """The compiled step of the experiment."""

  def __init__(self, mode: str, length: int, tokens: int = _TOKENS):
    import jax

    from benchmarks import experiments
    from pax import partitioning
    from praxis import py_utils

    experiment = {
      'spmd': experiments.Lm4x256Spmd,
      'pmap': experiments.Lm4x256,
    }[mode]()
    experiment.MAX_SEQ_LEN = length
    experiment.GLOBAL_BATCH_SIZE = max(jax.device_count(), tokens // length)
    task_p = experiment.task()
    self.optimizer_p = task_p.train.learner.optimizer
    # A short warm-up, so that the compared losses change.
    self.optimizer_p.lr_schedule.warmup_steps = 4
    self.batch = measure.random_lm_batch(
      experiment.GLOBAL_BATCH_SIZE,
      experiment.MAX_SEQ_LEN,
      experiment.VOCAB_SIZE,
    )
    partitioner = partitioning.partition_task(
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
    """Mesh axes that shard the batch."""
    return tuple(self.mesh.axis_names)

  def placement(self, *axes: Any) -> Any:
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(self.mesh, PartitionSpec(*axes))

  def shardings(self, params: Any, split: bool) -> Any:
    """Returns shardings of `params`; `split` shards matrices like Pax."""
    from jax.tree_util import keystr, tree_map_with_path

    dims = params['table'].shape[0]

    def sharding(path: Any, x: Any) -> Any:
      name = keystr(path[-1:], simple=True)
      if not split or name not in ('table', 'qkv', 'post', 'w1', 'w2'):
        return self.placement()
      axes: list[str | None] = [None] * x.ndim
      axes[x.shape.index(dims)] = 'data'
      return self.placement(*axes)

    return tree_map_with_path(sharding, params)


class _Baseline:
  """The hand-written step in one style, with the same placement."""

  def __init__(self, style: Any, params: Any, ours: PaxStep):
    import jax
    import optax

    from benchmarks import baseline_lm

    self.style = style
    self.loss_chunks = style.loss_chunks
    opt = ours.optimizer_p
    schedule = baseline_lm.Schedule(
      peak=opt.learning_rate,
      warmup=opt.lr_schedule.warmup_steps,
      decay_start=opt.lr_schedule.decay_start,
      decay_end=opt.lr_schedule.decay_end,
      min_ratio=opt.lr_schedule.min_ratio,
    )
    tx = baseline_lm.optimizer(schedule)
    if style.scan:
      params = jax.jit(baseline_lm.stacked)(params)
    placed = ours.shardings(params, style.split)
    replicated = ours.placement()
    states = optax.tree.map_params(
      tx,
      lambda _, sharding: sharding,
      jax.eval_shape(tx.init, params),
      placed,
      transform_non_params=lambda _: replicated,
    )
    # The step donates its arguments, so it needs copies.
    copy = jax.jit(lambda p: jax.tree.map(lambda x: x + 0, p))
    self.params = jax.device_put(copy(params), placed)
    self.state = jax.jit(tx.init, out_shardings=states)(self.params)
    self.batch = jax.device_put(ours.batch, ours.placement(ours.rows))
    with jax.set_mesh(ours.mesh):
      jitted = jax.jit(
        baseline_lm.make_step(tx, style),
        donate_argnums=(0, 1),
        out_shardings=(placed, states, replicated),
      )
      self._step = jitted.lower(self.params, self.state, self.batch).compile()

  def step(self) -> float:
    self.params, self.state, loss = self._step(
      self.params, self.state, self.batch
    )
    return float(loss)


def _baselines(ours: PaxStep) -> list[_Baseline]:
  from benchmarks import baseline_lm

  params = baseline_lm.params_of(ours.state.mdl_vars)
  rows = ours.rows if ours.mesh.size > 1 else ()
  styles = [
    baseline_lm.Style(
      scan=scan, remat=remat, split=split, loss_chunks=chunks, rows=rows
    )
    for chunks in (1, _LOSS_CHUNKS)
    for scan, remat in ((False, False), (True, True), (True, False))
    for split in ((False, True) if rows and ours.is_spmd else (False,))
  ]
  return [_Baseline(style, params, ours) for style in styles]


def _check_losses(ours: list[float], baseline: list[float], name: str) -> None:
  largest = max(
    abs(a - b) / abs(b) for a, b in zip(ours, baseline, strict=True)
  )
  if not largest < 1e-5:
    raise SystemExit(f'losses differ by {largest}: {ours}, {name}: {baseline}')


if __name__ == '__main__':
  main()
