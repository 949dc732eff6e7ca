# SPDX-License-Identifier: Apache-2.0
"""Draws the configuration of an experiment.

pax graph --exp=... --output=model.svg
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import fiddle as fdl

from pax.files import storage
from pax.inputs.seqio import configs as seqio_configs
from pax.runner import command_line
from pax.tools import abstract_experiment, tool
from pax.tools.fiddler import config_normalization
from praxis import value_domains

if TYPE_CHECKING:
  import graphviz

_USAGE = """\
Draws the configuration of an experiment with Graphviz.

  pax graph --exp=tasks.lm.params.lm_cloud.LmCloudSpmd2B --output=model.dot
  pax graph --exp=tasks.lm.params.lm_cloud.LmCloudSpmd2B --output=model.svg

The suffix of the file is the format: .dot is Graphviz's text; .svg, .png and
.pdf need Graphviz's program `dot` on this machine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(abstract_experiment.ExperimentOptions):
  """The flags of this tool."""

  output: str = command_line.flag(
    '-', 'Output', 'File of the picture; - is standard output, in dot format.'
  )
  part: str = command_line.flag(
    'task.model', 'What', 'Path of the Config to draw, such as task.'
  )
  max_depth: int = command_line.flag(
    4,
    'What',
    'Number of levels to draw.',
    domain=value_domains.interval(ge=1),
  )
  max_str_length: int = command_line.flag(
    100,
    'What',
    'Truncate values longer than this.',
    domain=value_domains.interval(ge=1),
  )
  keep_defaults: bool = command_line.flag(
    False, 'What', 'Also draw fields that are at their defaults.'
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Draws the picture; returns the exit code.

  Raises:
    ValueError: there is no such Config, or Graphviz's `dot` is missing.
  """
  options = command_line.parse(Options, argv, _USAGE)
  part = _config_at(abstract_experiment.declare(options).tree, options.part)
  picture = render(
    part,
    max_depth=options.max_depth,
    max_str_length=options.max_str_length,
    remove_defaults=not options.keep_defaults,
  )
  suffix = storage.require_local(options.output, '--output').suffix
  if suffix in ('', '.dot', '.gv'):
    abstract_experiment.write(options.output, picture.source)
    return 0
  if not shutil.which('dot'):
    raise ValueError(
      f'--output={options.output} needs the program `dot`; install Graphviz,'
      ' or use a file name that ends in .dot'
    )
  picture.render(outfile=options.output, cleanup=True)
  return 0


def render(
  config: Any,
  *,
  max_depth: int | None = 4,
  max_str_length: int | None = 100,
  remove_defaults: bool = True,
  convert_dataclasses: bool = True,
  remove_sharding_annotations: bool = False,
  unshare_sharding_config: bool = True,
) -> graphviz.Graph:
  """Returns the picture of a Config.

  Args:
    config: the Config to draw.
    max_depth: number of levels; None draws all.
    max_str_length: longer values are truncated; None keeps them.
    remove_defaults: see TaskNormalizer, as for the fields below.
    convert_dataclasses: see TaskNormalizer.
    remove_sharding_annotations: see TaskNormalizer.
    unshare_sharding_config: see TaskNormalizer.
  """
  from fiddle import graphviz as fiddle_graphviz

  normalize = config_normalization.TaskNormalizer(
    remove_defaults=remove_defaults,
    convert_dataclasses=convert_dataclasses,
    wrap_nested_maps=False,
    remove_sharding_annotations=remove_sharding_annotations,
    unshare_sharding_config=unshare_sharding_config,
  )
  config = normalize(seqio_configs.convert_seqio_tasks(config))
  return fiddle_graphviz.render(
    config, max_depth=max_depth, max_str_length=max_str_length
  )


def _config_at(tree: Any, path: str) -> Any:
  value = tree
  for name in filter(None, path.split('.')):
    value = getattr(value, name, None)
  if not isinstance(value, fdl.Buildable):
    raise ValueError(
      f'--part={path} is no Config of the experiment; try task,'
      ' task.model or train_input'
    )
  return value


if __name__ == '__main__':
  tool.run_console(main)
