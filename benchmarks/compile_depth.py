# SPDX-License-Identifier: Apache-2.0
"""Compilation time as a function of the number of scanned layers.

    python -m benchmarks.compile_depth --depths 4 48

Traces and compiles the gradient of a language model of each depth, alternating,
in one process without a compilation cache. Prints the times of each depth and
their ratio to the smallest depth.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import measure
from praxis import base_layer, pax_fiddle
from praxis.layers import embedding_softmax, transformer_models, transformers
from praxis.nested_map import NestedMap

Config = pax_fiddle.Config
_DIMS, _HIDDEN, _HEADS, _VOCAB, _BATCH, _LENGTH = 64, 256, 4, 512, 2, 32


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--depths', type=int, nargs='+', default=[4, 48])
  parser.add_argument('--rounds', type=int, default=5)
  args = parser.parse_args()
  builds = {depth: _Build(depth) for depth in args.depths}
  for build in builds.values():
    build()
  times = measure.alternate(
    {str(depth): build for depth, build in builds.items()}, args.rounds
  )
  least = times[str(args.depths[0])]
  for depth in args.depths:
    own = times[str(depth)]
    measure.report(
      'compile_depth',
      {
        'depth': depth,
        'ratio': measure.ratio(own.wall, least.wall),
        'cpu_ratio': measure.ratio(own.cpu, least.cpu),
        'equations': builds[depth].equations,
        'trace_s': round(builds[depth].best_trace, 3),
        **measure.summary(own.wall),
      },
    )


@dataclasses.dataclass
class _Build:
  """Traces and compiles without caches at each call."""

  depth: int
  # Lines of the StableHLO program, and the fastest time to trace it.
  equations: int = 0
  best_trace: float = float('inf')

  def __post_init__(self) -> None:
    self._lm = _model(self.depth).Instantiate()
    ids = jax.ShapeDtypeStruct((_BATCH, _LENGTH), jnp.int32)
    self._batch = ids, jax.ShapeDtypeStruct(ids.shape, jnp.float32)
    declared = self._lm.abstract_init_with_metadata(*self._batch)
    self._params = jax.tree.map(
      lambda w: jax.ShapeDtypeStruct(w.full_shape, w.dtype),
      declared[base_layer.PARAMS],
      is_leaf=lambda x: isinstance(x, base_layer.WeightHParams),
    )

  def __call__(self) -> None:
    jax.clear_caches()
    start = time.perf_counter()
    lowered = jax.jit(jax.grad(self._loss)).lower(self._params, *self._batch)
    self.best_trace = min(self.best_trace, time.perf_counter() - start)
    self.equations = lowered.as_text().count('\n')
    lowered.compile()

  def _loss(self, params: Any, ids: jax.Array, paddings: jax.Array) -> Any:
    labels = NestedMap(class_ids=ids, class_weights=1.0 - paddings)
    variables = {base_layer.PARAMS: params}
    return self._lm.apply(variables, ids, paddings, labels).total_loss


def _model(depth: int) -> Config[transformer_models.TransformerLm]:
  block = Config(
    transformers.StackedTransformer,
    num_layers=1,
    num_heads=_HEADS,
    model_dims=_DIMS,
    hidden_dims=_HIDDEN,
  )
  return Config(
    transformer_models.TransformerLm,
    name='lm',
    model_dims=_DIMS,
    vocab_size=_VOCAB,
    softmax_tpl=Config(
      embedding_softmax.SharedEmbeddingSoftmax, xent_implementation='xla'
    ),
    stacked_transformer_tpl=Config(
      transformers.StackedTransformerRepeated, block=block, x_times=depth
    ),
  )


if __name__ == '__main__':
  main()
