# SPDX-License-Identifier: Apache-2.0
"""Writes the configuration of a run to files of the job directory."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import fiddle as fdl
import jax
from absl import logging
from fiddle import daglish

from pax import experiment_vars_summary
from pax.files import side_files
from pax.inputs.seqio import configs as seqio_configs
from pax.runner.run_config import RunConfig
from praxis import base_hyperparams, lingvo_lib, pax_fiddle

Config = pax_fiddle.Config
to_text = base_hyperparams.nested_struct_to_text

_RULE = '-' * 40


class UnnamedValueError(ValueError):
  """The configuration has a value that JSON cannot hold, such as a lambda."""


def write_before_build(
  job_log_dir: str,
  experiment: type,
  tree: Config[RunConfig],
  prefix: str = '',
) -> None:
  """Writes the constants, the configuration as text, and `config.json`.

  Args:
    job_log_dir: the directory of the job.
    experiment: the class of the experiment.
    tree: the configuration.
    prefix: of the file names, for jobs of other modes in one directory.
  """
  if jax.process_index() != 0:
    return
  for name, text in (
    (
      'experiment_cls_vars.txt',
      experiment_vars_summary.get_cls_vars_summary(experiment),
    ),
    ('model_params.txt', config_text(tree)),
  ):
    _write(job_log_dir, f'{prefix}{name}', text)
  name = f'{prefix}config.json'
  try:
    _write(job_log_dir, name, dump_config(tree))
  except UnnamedValueError as e:
    logging.warning(
      '%s is not written, and --fdl=config_file cannot repeat this run: %s',
      name,
      e,
    )
    # That of an earlier start would be taken for this one.
    path = pathlib.Path(job_log_dir) / name
    with side_files.tolerate_errors(path):
      path.unlink(missing_ok=True)


def write_after_build(
  job_log_dir: str, tree: Config[RunConfig], task: Any, input_spec: Any
) -> None:
  """Writes the spec of a batch, and the model with inherited fields.

  Args:
    job_log_dir: the directory of the job.
    tree: the configuration.
    task: the task of that configuration, built.
    input_spec: shapes and dtypes of a training batch of one host.
  """
  if jax.process_index() != 0:
    return
  _write(job_log_dir, 'input_specs.json', spec_json(tree, input_spec))
  _write(
    job_log_dir,
    'post_init_model_params.txt',
    post_init_text(task, input_spec),
  )


def write_export_files(
  job_log_dir: str, files: Mapping[str, str | pathlib.Path]
) -> None:
  """Writes the files of an export of the model that are no weights.

  Args:
    job_log_dir: the directory of the job.
    files: see `BaseExperiment.export_files`.
  """
  if not files or jax.process_index() != 0:
    return
  # Most jobs do not need the layers of Hugging Face's models.
  from pax.huggingface import side_folder

  side_folder.write_of_experiment(files, pathlib.Path(job_log_dir))


def config_text(tree: Config[RunConfig]) -> str:
  """Returns the inputs, then the task, one field per line."""
  sections = [('Train input', tree.train_input)] if tree.train_input else []
  sections += [(f'Eval input {c.name}', c) for c in tree.eval_inputs]
  sections += [(f'Decode input {c.name}', c) for c in tree.decode_inputs]
  sections += [('Task', tree.task)]
  return '\n'.join(
    f'{title}\n{_RULE}\n{to_text(config)}' for title, config in sections
  )


def dump_config(tree: Config[RunConfig]) -> str:
  """Returns `tree` as JSON, for `load_config`, with SeqIO tasks by name.

  Raises:
    UnnamedValueError: a value can neither be written nor imported by name.
  """
  from fiddle.experimental import serialization

  def replace(value: Any, state: daglish.State) -> Any:
    if lingvo_lib.is_params(value):
      return fdl.Config(
        lingvo_lib.params_from_text, value.cls, value.ToTextWithTypes()
      )
    return state.map_children(value) if state.is_traversable(value) else value

  if lingvo_lib.is_imported():
    tree = daglish.MemoizedTraversal.run(replace, tree)
  tree = seqio_configs.convert_seqio_tasks(tree)
  try:
    text = serialization.dump_json(tree)
  except (
    AttributeError,
    ImportError,
    serialization.PyrefPolicyError,
    serialization.UnserializableValueError,
  ) as e:
    reason = ' '.join(str(e).split())
    raise UnnamedValueError(
      f'a value is neither a literal nor importable by name: {reason}; use a'
      ' function of a module, or a Config'
    ) from e
  return json.dumps(json.loads(text), indent=1)


def load_config(text: str) -> Config[RunConfig]:
  """Returns the tree of a JSON text of `dump_config`, which is code."""
  from fiddle.experimental import serialization

  def replace(value: Any, state: daglish.State) -> Any:
    if (
      isinstance(value, fdl.Config)
      and fdl.get_callable(value) is lingvo_lib.params_from_text
    ):
      return fdl.build(value)
    return state.map_children(value) if state.is_traversable(value) else value

  tree = serialization.load_json(text)
  if lingvo_lib.is_imported():
    tree = daglish.MemoizedTraversal.run(replace, tree)
  return tree


def spec_json(tree: Config[RunConfig], input_spec: Any) -> str:
  """Returns shapes and dtypes of a training batch of one host, as JSON."""
  leaves = jax.tree_util.tree_flatten_with_path(input_spec)[0]
  batch = {
    jax.tree_util.keystr(path, simple=True, separator='.'): {
      'shape': list(leaf.shape),
      'dtype': str(leaf.dtype),
    }
    for path, leaf in leaves
  }
  return json.dumps({tree.train_input.name or 'train': batch}, indent=2)


def post_init_text(task: Any, input_spec: Any) -> str:
  """Returns the configuration of each layer of the model, as inherited."""
  model = task.model
  batch = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), input_spec
  )
  return to_text(model.abstract_init_with_mdl_config(batch))


def _write(job_log_dir: str, name: str, text: str) -> None:
  path = pathlib.Path(job_log_dir) / name
  side_files.write_text(path, text, is_durable=False)
