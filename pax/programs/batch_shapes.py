# SPDX-License-Identifier: Apache-2.0
"""Shapes of the batches of an input, as declared and as read."""

from __future__ import annotations

import jax

from pax import xla_passthrough
from pax.steps import Batch
from praxis import base_input


def batch_spec(inp: base_input.BaseInput) -> Batch:
  """Returns shapes and dtypes of a batch of this host.

  Raises:
    ValueError: the input is empty.
  """
  batch = inp.peek_padded()
  if batch is None:
    raise ValueError(f'the input {inp.name!r} has no batch')
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)


def check_numbers(name: str, spec: Batch) -> None:
  """Checks that a training batch has no text, which devices cannot hold.

  Args:
    name: The input.
    spec: Shapes and dtypes of its batch.

  Raises:
    ValueError: It has text.
  """
  _, texts, _ = xla_passthrough.split_out_xla_unsupported_batch(spec)
  if texts:
    raise ValueError(
      f'a batch of the training input {name!r} must have numbers only, got text'
      f' in {sorted(texts)}; leave it out in get_next (inputs of evaluation and'
      ' decoding may have it)'
    )


def check_spec(actual: Batch, declared: Batch) -> None:
  """Compares the spec of a batch with that of the specs provider.

  Raises:
    ValueError: they differ.
  """

  def shapes(tree: Batch) -> dict[str, str]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
      jax.tree_util.keystr(path, simple=True, separator='.'): (
        f'{leaf.dtype}{list(leaf.shape)}'
      )
      for path, leaf in leaves
    }

  actual_shapes, declared_shapes = shapes(actual), shapes(declared)
  if actual_shapes != declared_shapes:
    raise ValueError(
      f'the first training batch must be {declared_shapes}, the spec of the'
      f' input specs provider, got {actual_shapes}; correct the provider, or'
      ' set task.train.enforce_input_specs=False'
    )
