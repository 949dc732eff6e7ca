# SPDX-License-Identifier: Apache-2.0
"""Step time and MFU of a 1.3B language model on one GPU.

    python -m benchmarks.gpu_lm --rounds=10

`nvidia.NVIDIA1_3B` on unpacked rows: in bfloat16 with cuDNN's attention and
with XLA's, and in fp8; compared with JAX and Optax only and, where
PyTorch is installed, under torch.compile. All programs alternate in a process.
"""

# bazel: deps=//pax/tasks:experiments
from __future__ import annotations

import argparse
import os
from typing import Any

# All programs share the memory of the GPU, PyTorch too.
os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')

import jax

from benchmarks import gpu_twins, measure
from pax import partitioning
from pax.summaries import mfu
from pax.tasks.lm.params import nvidia
from praxis import py_utils
from praxis.layers.checkpoint_policy import AutodiffCheckpointType

_FULL = gpu_twins.Sizes(
  layers=24, dims=2048, heads=16, vocab=51200, rows=8, length=2048
)
# To run the whole program on a CPU.
_TINY = gpu_twins.Sizes(
  layers=2, dims=64, heads=2, vocab=512, rows=2, length=32
)
_WARM_UP_STEPS = 3


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rounds', type=int, default=10)
  parser.add_argument('--tiny', action='store_true', help='small sizes')
  args = parser.parse_args()
  sizes = _TINY if args.tiny else _FULL
  device = jax.devices()[0]
  ours = {
    'cudnn': _Ours(sizes, USE_CUDNN_FLASH_ATTENTION=True),
    'einsum': _Ours(sizes),
    'cudnn_fp8': _Ours(sizes, USE_CUDNN_FLASH_ATTENTION=True, USE_FP8=True),
  }
  runs = {name: program.step for name, program in ours.items()}
  runs['jax_twin'] = gpu_twins.jax_step(sizes)
  try:
    torch_device = 'cuda' if device.platform == 'gpu' else 'cpu'
    runs['torch_twin'] = gpu_twins.torch_step(sizes, torch_device)
  except ImportError as error:
    print(f'no torch_twin: {error}', flush=True)
  losses = {
    name: [run() for _ in range(_WARM_UP_STEPS)] for name, run in runs.items()
  }
  times = measure.alternate(runs, args.rounds)
  flops = ours['cudnn'].flops
  peak = mfu.peak_flops([device]).flops
  for name, seconds in times.items():
    summary = measure.summary(seconds.wall)
    rate = flops / (summary['median_ms'] / 1e3)
    measure.report(
      'gpu_lm',
      {
        'program': name,
        'device': device.device_kind,
        'tokens': sizes.rows * sizes.length,
        'tflops': round(rate / 1e12, 2),
        'bfloat16_mfu': round(rate / peak, 4) if peak else None,
        'ratio_to_jax_twin': measure.ratio(
          seconds.wall, times['jax_twin'].wall
        ),
        'losses': losses[name],
        **summary,
      },
    )


class _Ours:
  """The compiled step of NVIDIA1_3B with other constants."""

  def __init__(self, sizes: gpu_twins.Sizes, **constants: Any):
    experiment = nvidia.NVIDIA1_3B()
    for name, value in {
      'MODEL_DIMS': sizes.dims,
      'HIDDEN_DIMS': sizes.hidden,
      'NUM_HEADS': sizes.heads,
      'DIMS_PER_HEAD': sizes.dims // sizes.heads,
      'NUM_LAYERS': sizes.layers,
      'VOCAB_SIZE': sizes.vocab,
      'MAX_SEQ_LEN': sizes.length,
      'PERCORE_BATCH_SIZE': sizes.rows,
      'ICI_MESH_SHAPE': [1, 1, 1],
      'PACKED_INPUT': False,
      'ATTEN_LOGIT_CAP': 0.0,
      'CHECKPOINT_POLICY': AutodiffCheckpointType.SAVE_EVERYTHING,
      **constants,
    }.items():
      setattr(experiment, name, value)
    experiment.validate()
    batch = measure.random_lm_batch(sizes.rows, sizes.length, sizes.vocab)
    batch['ids'], batch['labels'] = sizes.batch()
    # One example a row.
    batch['segment_ids'][:] = 1
    batch['segment_pos'][:] = range(sizes.length)
    partitioner = partitioning.partition_task(
      experiment.task(), py_utils.NestedMap(batch), devices=jax.devices()[:1]
    )
    self._key = jax.random.PRNGKey(0)
    self._state = partitioner.initialize(self._key)
    self._batch = partitioner.put_batch(py_utils.NestedMap(batch))
    self._step = partitioner.train_step()
    self.flops = mfu.model_flops(
      partitioner.var_weight_hparams,
      batch_size=sizes.rows,
      seq_len=sizes.length,
    ).flops_per_step

  def step(self) -> float:
    """Runs a step to its end and returns the loss."""
    self._state, output = self._step(self._state, self._batch, self._key)
    return float(output.loss)


if __name__ == '__main__':
  main()
