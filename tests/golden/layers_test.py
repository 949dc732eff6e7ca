# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: deps=//tests/golden:layer_cases
# bazel: size=medium
"""What each layer declares and returns, as text that changes visibly.

    UPDATE_GOLDEN=1 pytest tests/golden/layers_test.py    # accepts it as it is

The cases stand in `tests/golden/layer_cases`, a module for each room. A line
for a variable says its collection and path, dtype and shape, initialiser and
split over a mesh of replica, data and mdl. Nothing is allocated or compiled.
"""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, py_utils
from tests.golden import layer_case, layer_cases

_FOLDER = pathlib.Path(__file__).parent / 'layers'
_MESH = {
  'ici_mesh_shape': [1, 2, 2],
  'mesh_axis_names': ['replica', 'data', 'mdl'],
}


def _rooms() -> list[str]:
  return sorted(m.name for m in pkgutil.iter_modules(layer_cases.__path__))


@functools.cache
def _cases(room: str) -> dict[str, layer_case.Case]:
  return importlib.import_module(f'{layer_cases.__name__}.{room}').CASES


def _layer(case: layer_case.Case, **fields: Any) -> base_layer.BaseLayer:
  return case.config.clone().set(name='layer', **fields).Instantiate()


def _variable_lines(case: layer_case.Case) -> Iterator[str]:
  declared = _layer(case, **_MESH).abstract_init_with_metadata(
    *case.args, method=_method(case), **case.kwargs
  )
  for path, weight in py_utils.tree_paths(declared):
    shape = ','.join(map(str, weight.full_shape))
    init = f'{weight.init.method}({weight.init.scale:g})'
    split = weight.full_split_dims_mapping
    yield f'{path} : {np.dtype(weight.dtype)}[{shape}] {init} {split}'


def _method(case: layer_case.Case) -> Any:
  return case.method and getattr(type(_layer(case)), case.method)


def _returned(case: layer_case.Case, dtype: jnp.dtype) -> Any:
  """Returns the abstract output for inputs and arithmetic in `dtype`."""
  layer = _layer(case, fprop_dtype=dtype)
  is_array = lambda x: isinstance(x, jax.ShapeDtypeStruct)
  cast = lambda x: (
    jax.ShapeDtypeStruct(x.shape, dtype)
    if is_array(x) and x.dtype == jnp.float32
    else x
  )
  args, kwargs = jax.tree.map(cast, (case.args, case.kwargs))
  leaves, tree = jax.tree.flatten((args, kwargs))
  arrays = [leaf for leaf in leaves if is_array(leaf)]

  def call(*arrays: jax.Array) -> Any:
    found = iter(arrays)
    filled = [next(found) if is_array(leaf) else leaf for leaf in leaves]
    args, kwargs = jax.tree.unflatten(tree, filled)
    method = _method(case)
    init = layer.init(jax.random.key(0), *args, method=method, **kwargs)
    output, _ = layer.apply(
      init,
      *args,
      method=method,
      mutable=True,
      rngs={base_layer.RANDOM: jax.random.key(1)},
      **kwargs,
    )
    return output

  return jax.eval_shape(call, *arrays)


def _lines(room: str) -> Iterator[str]:
  for name, case in _cases(room).items():
    yield f'# {name}'
    yield from _variable_lines(case)
    for dtype in (jnp.float32, jnp.bfloat16):
      for path, x in py_utils.tree_paths(_returned(case, dtype)):
        shape = ','.join(map(str, x.shape))
        yield f'-> in {np.dtype(dtype)} {path} : {x.dtype}[{shape}]'
    yield ''


@pytest.mark.parametrize('room', _rooms())
def test_declares_and_returns_the_golden_text(room):
  text = '\n'.join(_lines(room))
  golden = _FOLDER / f'{room}.txt'
  if os.environ.get('UPDATE_GOLDEN') == '1':
    golden.parent.mkdir(exist_ok=True)
    golden.write_text(text)
  assert golden.exists(), f'run UPDATE_GOLDEN=1 pytest {__file__}'
  assert text == golden.read_text()


def test_no_golden_text_is_left_over():
  assert sorted(p.stem for p in _FOLDER.iterdir()) == _rooms()
