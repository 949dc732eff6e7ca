# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding with weights of int8 and int4, relative to float32.

    python -m benchmarks.quantized_decode --rounds=5

The float model is quantized as `--mode=quantize` does it, with its table of
embeddings. The programs decode one batch of prompts.
"""

# bazel: deps=//benchmarks:experiments
from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import decode, experiments, measure
from praxis import pax_fiddle
from praxis.base_layer import JaxContext
from praxis.layers.quantization import quantize
from praxis.nested_map import NestedMap

_PROMPT = 32


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rows', type=int, default=1)
  parser.add_argument('--steps', type=int, default=64)
  parser.add_argument('--dims', type=int, default=1024)
  parser.add_argument('--rounds', type=int, default=5)
  args = parser.parse_args()
  model_p = _model(args.dims, args.steps)
  vocab = model_p.lm_tpl.vocab_size
  batch = NestedMap(
    jax.tree.map(
      jnp.asarray, measure.random_lm_batch(args.rows, _PROMPT, vocab)
    )
  )
  variables = jax.jit(model_p.Instantiate().init)(jax.random.key(0), batch)
  programs, sizes = {}, {}
  for name, bits in {'float32': None, 'int8': 8, 'int4': 4}.items():
    served_p, served = model_p, variables
    if bits is not None:
      served_p, served = _quantized(model_p, variables, bits)
    sizes[name] = sum(x.nbytes for x in jax.tree.leaves(served)) / 2**20
    programs[name] = _program(served_p, served, batch)
  times = measure.alternate(programs, args.rounds)
  for name in ('int8', 'int4'):
    measure.report(
      'quantized_decode',
      {
        'weights': name,
        'rows': args.rows,
        'dims': args.dims,
        'steps': args.steps,
        'ratio': measure.ratio(times[name].wall, times['float32'].wall),
        'cpu_ratio': measure.ratio(times[name].cpu, times['float32'].cpu),
        'memory_ratio': round(sizes[name] / sizes['float32'], 3),
        'ours': measure.summary(times[name].wall),
        'float32': measure.summary(times['float32'].wall),
      },
    )


def _model(dims: int, steps: int) -> pax_fiddle.Config:
  """Returns Lm4x256 with other dimensions and a greedy decoder."""

  class Model(experiments.Lm4x256):
    MODEL_DIMS = dims
    HIDDEN_DIMS = 4 * dims

  return decode.greedy(Model().task().model, steps)


def _quantized(
  model_p: pax_fiddle.Config, variables: Any, num_bits: int
) -> tuple[pax_fiddle.Config, Any]:
  """Returns the Config and the variables of the served model."""
  served_p = model_p.clone()
  quantize.set_transformer_quantization(
    served_p, num_bits=num_bits, quantize_embedding_softmax=True
  )
  float_p = served_p.clone()
  quantize.set_materialize_mode(float_p)
  model = float_p.Instantiate()
  with JaxContext.new_context(hparams=JaxContext.HParams(do_eval=True)):
    return served_p, jax.jit(
      lambda x: model.apply(x, method=model.quantize_weight)
    )(variables)


def _program(
  model_p: pax_fiddle.Config, variables: Any, batch: NestedMap
) -> Callable[[], Any]:
  """Returns a function that decodes the batch and waits for the result."""
  run = decode.compiled(model_p.Instantiate(), variables, batch)
  return lambda: jax.block_until_ready(run(variables, batch))


if __name__ == '__main__':
  main()
