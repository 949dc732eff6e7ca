# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of one family with the praxis on the path; writes results.

    PYTHONPATH=CHECKOUTS python record.py --family=linears --output=DIR
    PYTHONPATH=. python record.py ... --output=DIR2 --variables=DIR

The first creates variables, the second loads them. `run.py` starts both.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import pathlib
import re
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable
from typing import Any

_TESTS = pathlib.Path(__file__).absolute().parents[2]
if 'tests' not in sys.modules and __name__ == '__main__':
  # `tests` without the repository's root on the path, where our praxis is.
  sys.modules['tests'] = types.ModuleType('tests')
  sys.modules['tests'].__path__ = [str(_TESTS)]

import flax.core  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from tests.compare.upstream import cases as cases_lib  # noqa: E402
from tests.compare.upstream import flatten as flatten_lib  # noqa: E402
from tests.compare.upstream import results as results_lib  # noqa: E402

_MESH_SHAPE = [1, 2, 2]
_MESH_AXES = ['replica', 'data', 'mdl']
_MUTABLE = [
  'non_trainable',
  'aux_loss',
  'summaries',
  'intermediates',
  'decoder_cache',
  'prefix_decoder_cache',
  'batch_stats',
]
_PartitionSpec = jax.sharding.PartitionSpec
_KEYS = ('params', 'random', 'dropout')


class _LayerRun:
  """The variants of one layer case; variables are created once."""

  def __init__(
    self,
    case: cases_lib.LayerCase,
    variables: Any | None,
    upstream: results_lib.Outcome | None = None,
  ):
    """Prepares the runs.

    Args:
      case: The layer and its inputs.
      variables: The variables that upstream's run created, if this is ours.
      upstream: Its training outcome. Gradients are those of the outputs that it
        has, too.
    """
    # Device arrays: `x *= 2` in a layer would change numpy arrays in place.
    args, kwargs, init_args = jax.tree.map(
      lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x,
      (case.args, dict(case.kwargs), case.init_args),
    )
    self.case = dataclasses.replace(
      case, args=args, kwargs=kwargs, init_args=init_args
    )
    self._loaded = variables
    self._paths = upstream and upstream.leaves

  def run(self, variant: str) -> Any:
    return {
      cases_lib.VARIABLES: self._declared,
      cases_lib.MESH: functools.partial(self._declared, mesh=True),
      cases_lib.TRAIN: self._train,
      cases_lib.EVAL: self._eval,
      cases_lib.BFLOAT16: self._bfloat16,
    }[variant]()

  @functools.cached_property
  def variables(self) -> Any:
    """Upstream's initial variables with noise."""
    if self._loaded is not None:
      return jax.tree.map(jnp.asarray, _nest(self._loaded))
    from praxis import base_layer

    context = base_layer.JaxContext.HParams(do_eval=True)
    with base_layer.JaxContext.new_context(hparams=context):
      method, args, kwargs = self._init_call()
      layer = self._layer()
      variables = layer.init(
        _keys(), *args, method=_method(layer, method), **kwargs
      )
    variables = flax.core.unfreeze(variables)
    noisy = _with_noise(variables, self.case.name, self.case.noise)
    return jax.tree.map(jnp.asarray, noisy)

  def _layer(self, **fields: Any) -> Any:
    from praxis import base_layer

    cfg = self.case.config()
    for name, value in {'name': 'layer', **fields}.items():
      if not (name == 'name' and cfg.name):
        setattr(cfg, name, value)
    return base_layer.instantiate(cfg)

  def _init_call(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    case = self.case
    if case.init_args is not None:
      return case.init_method or '__call__', case.init_args, {}
    return case.init_method or case.method, case.args, dict(case.kwargs)

  def _declared(self, mesh: bool = False) -> Any:
    from praxis import base_layer

    fields = {}
    if mesh:
      fields = {'ici_mesh_shape': _MESH_SHAPE, 'mesh_axis_names': _MESH_AXES}
    layer = self._layer(**fields)
    method, args, kwargs = self._init_call()
    metadata = layer.abstract_init_with_metadata(
      *args, method=_method(layer, method), **kwargs
    )
    declared = jax.tree.map(_declaration, metadata, is_leaf=_is_declaration)
    if not mesh:
      return {'metadata': declared}
    specs = base_layer.var_partition_specs(metadata, _MESH_SHAPE, _MESH_AXES)
    specs = jax.tree.map(
      lambda spec: str(list(flatten_lib.significant_entries(spec))),
      specs,
      is_leaf=lambda x: isinstance(x, _PartitionSpec),
    )
    return {'metadata': declared, 'specs': specs}

  def _apply(
    self, layer: Any, variables: Any, args: Any, kwargs: Any, do_eval: bool
  ) -> tuple[Any, Any]:
    from praxis import base_layer

    context = base_layer.JaxContext.HParams(
      do_eval=do_eval, summary_verbosity=4
    )
    with base_layer.JaxContext.new_context(hparams=context):
      return layer.apply(
        variables,
        *args,
        method=_method(layer, self.case.method),
        rngs=_keys(),
        mutable=_MUTABLE,
        **kwargs,
      )

  def _eval(self) -> Any:
    case = self.case
    outputs, updated = self._apply(
      self._layer(), self.variables, case.args, case.kwargs, do_eval=True
    )
    updated = {k: v for k, v in updated.items() if k != 'params'}
    return {'outputs': outputs, 'updated': updated}

  def _bfloat16(self) -> Any:
    case = self.case
    args, kwargs = jax.tree.map(_to_bfloat16, (case.args, dict(case.kwargs)))
    layer = self._layer(fprop_dtype=jnp.bfloat16)
    outputs, _ = self._apply(layer, self.variables, args, kwargs, do_eval=True)
    return {'outputs': outputs}

  def _train(self) -> Any:
    """Returns outputs, collections, and gradients of parameters and inputs."""
    layer, case = self._layer(), self.case
    variables = dict(self.variables)
    params = variables.pop('params', {})
    inputs = (case.args, dict(case.kwargs))
    leaves, treedef = jax.tree.flatten(inputs)
    is_float = [_is_differentiated(x) for x in leaves]

    def loss(params: Any, float_leaves: list[Any]) -> Any:
      rest = iter(float_leaves)
      merged = [
        next(rest) if is_f else x
        for is_f, x in zip(is_float, leaves, strict=True)
      ]
      args, kwargs = jax.tree.unflatten(treedef, merged)
      outputs, updated = self._apply(
        layer, {'params': params, **variables}, args, kwargs, do_eval=False
      )
      updated = {k: v for k, v in updated.items() if k != 'params'}
      flat = jax.tree.leaves_with_path((outputs, updated.get('aux_loss')))
      if self._paths is not None:
        flat = [x for x in flat if _result_path(x[0]) in self._paths]
      # Keyed by path: the two sides may order keys differently.
      terms = [
        _weighted_sum(jax.tree_util.keystr(path, simple=True), x)
        for path, x in flat
        if _is_float(x)
      ]
      return sum(terms, jnp.zeros(())), (outputs, updated)

    float_leaves = [
      jnp.asarray(x) for is_f, x in zip(is_float, leaves, strict=True) if is_f
    ]
    grads, (outputs, updated) = jax.grad(
      loss, argnums=(0, 1), has_aux=True, allow_int=True
    )(params, float_leaves)
    return {
      'outputs': outputs,
      'updated': updated,
      'grads': {'params': _without_float0(grads[0]), 'inputs': grads[1]},
    }


def _result_path(path: Any) -> str:
  """Returns the recorded path of a leaf of (outputs, auxiliary losses)."""
  root, *keys = path
  text = ('outputs', 'updated.aux_loss')[root.idx]
  for key in keys:
    if isinstance(key, jax.tree_util.SequenceKey):
      text += f'[{key.idx}]'
    else:
      text += f'.{key.name if hasattr(key, "name") else key.key}'
  return text


def _is_declaration(x: Any) -> bool:
  return hasattr(x, 'collections') and hasattr(x, 'full_shape')


def _declaration(hparams: Any) -> dict[str, Any]:
  """Returns what a WeightHParams means, not how it is spelled."""
  return {
    'shape': f'{[int(d) for d in hparams.full_shape]}',
    'prefix': f'{list(hparams.repeat_prefix or ())}',
    'dtype': str(jnp.dtype(hparams.dtype)),
    'init': hparams.init,
    'collections': ' '.join(sorted(hparams.collections or ())),
  }


def _without_float0(tree: Any) -> Any:
  def replace(x: Any) -> Any:
    return None if x.dtype == jax.dtypes.float0 else x

  return jax.tree.map(replace, tree)


def _is_float(x: Any) -> bool:
  return hasattr(x, 'dtype') and jnp.issubdtype(x.dtype, jnp.floating)


def _is_differentiated(x: Any) -> bool:
  """Whether `x` is an input with values, not paddings or a mask."""
  if not _is_float(x):
    return False
  x = np.asarray(x, np.float32)
  return not np.isin(x, (0.0, 1.0)).all() and np.abs(x).max(initial=0) < 1e6


def _to_bfloat16(x: Any) -> Any:
  return jnp.asarray(x, jnp.bfloat16) if _is_float(x) else x


def _weighted_sum(path: str, x: Any) -> Any:
  phase = cases_lib.seed_of(path) % 997
  weights = np.cos(phase + np.arange(x.size)).reshape(x.shape)
  x = jnp.where(jnp.abs(x) < 1e4, x, 0.0)  # Masked scores are near -inf.
  return jnp.sum(x.astype(jnp.float32) * weights.astype(np.float32))


def _keys() -> dict[str, Any]:
  root = jax.random.PRNGKey(20)
  return {name: jax.random.fold_in(root, i) for i, name in enumerate(_KEYS)}


def _method(layer: Any, method: Any) -> Any:
  return getattr(layer, method) if isinstance(method, str) else method


def _with_noise(variables: Any, name: str, scale: float) -> Any:
  """Returns variables to which nothing is constant or zero by accident.

  Non-trainable floats only grow, so that variances stay positive.
  """
  rng = np.random.default_rng(cases_lib.seed_of(name))

  def add(path: Any, x: Any) -> Any:
    x = np.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.integer) and path[0].key == 'params':
      return _random_integers(rng, x)  # Quantized weights start as zeros.
    if not jnp.issubdtype(x.dtype, jnp.floating) or not scale:
      return x
    noise = scale * rng.standard_normal(x.shape)
    if path[0].key != 'params':
      noise = np.abs(noise)
    return (x + noise.astype(x.dtype)).astype(x.dtype)

  return jax.tree_util.tree_map_with_path(add, variables)


def _random_integers(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
  info = jnp.iinfo(x.dtype)
  values = rng.integers(int(info.min), int(info.max) + 1, x.shape)
  return values.astype(x.dtype)


def _nest(flat: dict[str, Any]) -> dict[str, Any]:
  """Returns nested dicts of arrays keyed by paths joined with '/'."""
  nested: dict[str, Any] = {}
  for path, value in flat.items():
    *parents, last = path.split('/')
    node = nested
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = value
  return nested


def _unnest(tree: Any) -> dict[str, Any]:
  flat = flax.traverse_util.flatten_dict(tree, sep='/')
  return {k: np.asarray(v) for k, v in flat.items()}


def _error(error: BaseException) -> dict[str, Any]:
  names = [c.__name__ for c in type(error).__mro__]
  frames = traceback.format_exception(error)
  return {'types': names, 'message': str(error), 'traceback': ''.join(frames)}


def _outcome(function: Callable[[], Any]) -> results_lib.Outcome:
  try:
    flat = dict(flatten_lib.flatten(function()))
  except Exception as error:  # Whatever it is, it is compared.
    return results_lib.Outcome(error=_error(error))
  return results_lib.Outcome(leaves=flat)


def record(family: str, variables_dir: pathlib.Path | None, only: str) -> Any:
  """Returns (results, variables) of the family's cases."""
  module = importlib.import_module(f'tests.compare.upstream.families.{family}')
  given, upstream = {}, results_lib.Results()
  if variables_dir:
    given = results_lib.load_arrays(variables_dir)
    upstream = results_lib.load(variables_dir)
  results = results_lib.Results()
  variables = {}
  for case in module.family():
    if not re.search(only, case.name):
      continue
    start = time.monotonic()
    if isinstance(case, cases_lib.FunctionCase):
      results.add(
        case.name, _outcome(case.function), case.tolerance, case.match
      )
    else:
      trained = upstream.outcomes.get(f'{case.name}/{cases_lib.TRAIN}')
      run = _LayerRun(case, given.get(case.name), trained)
      for variant in case.variants:
        outcome = _outcome(functools.partial(run.run, variant))
        bf16 = variant == cases_lib.BFLOAT16
        tolerance = 1e-2 if bf16 else case.tolerance
        results.add(f'{case.name}/{variant}', outcome, tolerance)
      if 'variables' in vars(run):
        variables[case.name] = _unnest(run.variables)
    results.seconds[case.name] = time.monotonic() - start
  return results, variables


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('--family', required=True)
  parser.add_argument('--output', type=pathlib.Path, required=True)
  parser.add_argument('--variables', type=pathlib.Path)
  parser.add_argument('--only', default='')
  flags = parser.parse_args()
  warnings.simplefilter('ignore')
  results, variables = record(flags.family, flags.variables, flags.only)
  flags.output.mkdir(parents=True, exist_ok=True)
  results.save(flags.output)
  if flags.variables is None:
    results_lib.save_arrays(flags.output, variables)
  import praxis

  source = str(pathlib.Path(praxis.__path__[0]))
  (flags.output / 'source.json').write_text(json.dumps({'praxis': source}))


if __name__ == '__main__':
  main()
