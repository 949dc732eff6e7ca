# SPDX-License-Identifier: Apache-2.0
"""Draws the configuration of an experiment.

pax graph --exp=... --output=model.svg
"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from pax.runner import command_line
from pax.tools import abstract_experiment, tool
from pax.tools.fiddler import graphviz_utils

_USAGE = """\
Draws the configuration of an experiment with Graphviz.

  pax graph --exp=tasks.lm.params.lm_cloud.LmCloudSpmd2B --output=model.dot
  pax graph --exp=tasks.lm.params.lm_cloud.LmCloudSpmd2B --output=model.svg

The end of the name says what is written: dot is text that other programs draw;
svg, png and pdf are drawn here by the program `dot` of Graphviz."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(abstract_experiment.ExperimentOptions):
  """The flags of this tool."""

  output: str = command_line.flag(
    '-', 'Output', 'File for the picture; -: standard output, as dot.'
  )
  part: str = command_line.flag(
    'task.model', 'What', 'Path of what is drawn, from the whole: task, ...'
  )
  max_depth: int = command_line.flag(4, 'What', 'How many levels are drawn.')
  max_str_length: int = command_line.flag(100, 'What', 'Longer values are cut.')
  keep_defaults: bool = command_line.flag(
    False, 'What', 'Also draw fields that are at their defaults.'
  )


def main(argv: Sequence[str] = sys.argv) -> int:
  """Draws; returns the exit code."""
  options = command_line.parse(Options, argv, _USAGE)
  part = _part(abstract_experiment.declare(options).tree, options.part)
  picture = graphviz_utils.render(
    part,
    max_depth=options.max_depth,
    max_str_length=options.max_str_length,
    remove_defaults=not options.keep_defaults,
  )
  kind = pathlib.Path(options.output).suffix.removeprefix('.')
  if kind in ('', 'dot', 'gv'):
    abstract_experiment.write(options.output, picture.source)
    return 0
  if not shutil.which('dot'):
    raise ValueError(
      f'--output={options.output} needs the program `dot`; install Graphviz,'
      ' or give a name that ends in .dot'
    )
  picture.render(outfile=options.output, cleanup=True)
  return 0


def _part(tree: Any, path: str) -> Any:
  found = tree
  for name in filter(None, path.split('.')):
    found = getattr(found, name, None)
  if not isinstance(found, fdl.Buildable):
    raise ValueError(
      f'--part={path} is no Config of the experiment; try task,'
      ' task.model or train_input'
    )
  return found


if __name__ == '__main__':
  tool.console(main)
