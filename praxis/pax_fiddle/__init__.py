# SPDX-License-Identifier: Apache-2.0
"""Fiddle configuration of Pax; this module re-exports.

A configurable class declares its parameters as dataclass fields.
`Config(Linear)` holds values for them until `build` creates the object. The
Config in a template field is left for the owner to build; the one in an
instance field is built with its owner.
"""

# Names of Fiddle, so that user code imports only this module.
from fiddle import NO_VALUE as NO_VALUE
from fiddle import Buildable as Buildable
from fiddle import Tag as Tag
from fiddle import TaggedValue as TaggedValue
from fiddle import add_tag as add_tag
from fiddle import assign as assign
from fiddle import cast as cast
from fiddle import clear_tags as clear_tags
from fiddle import copy_with as copy_with
from fiddle import deepcopy_with as deepcopy_with
from fiddle import get_callable as get_callable
from fiddle import get_tags as get_tags
from fiddle import materialize_defaults as materialize_defaults
from fiddle import ordered_arguments as ordered_arguments
from fiddle import remove_tag as remove_tag
from fiddle import set_tagged as set_tagged
from fiddle import set_tags as set_tags

from praxis.pax_fiddle.autoconfig import auto_config as auto_config
from praxis.pax_fiddle.buildables import ArgFactory as ArgFactory
from praxis.pax_fiddle.buildables import CloneAndSetMixin as CloneAndSetMixin
from praxis.pax_fiddle.buildables import Config as Config
from praxis.pax_fiddle.buildables import Partial as Partial
from praxis.pax_fiddle.buildables import PaxArgFactory as PaxArgFactory
from praxis.pax_fiddle.buildables import PaxConfig as PaxConfig
from praxis.pax_fiddle.buildables import PaxPartial as PaxPartial
from praxis.pax_fiddle.buildables import (
  TypeOrCallableProducingT as TypeOrCallableProducingT,
)
from praxis.pax_fiddle.buildables import mesh_shape as mesh_shape
from praxis.pax_fiddle.buildables import owner_of as owner_of
from praxis.pax_fiddle.buildables import update_callable as update_callable
from praxis.pax_fiddle.fields import TagOrTags as TagOrTags
from praxis.pax_fiddle.fields import factory_field as factory_field
from praxis.pax_fiddle.fields import fdl_field as fdl_field
from praxis.pax_fiddle.fields import field as field
from praxis.pax_fiddle.fields import instance_field as instance_field
from praxis.pax_fiddle.fields import template_field as template_field
from praxis.pax_fiddle.instantiation import build as build
from praxis.pax_fiddle.instantiation import (
  build_with_empty_flax_module_stack as build_with_empty_flax_module_stack,
)
from praxis.pax_fiddle.instantiation import (
  copy_inheritable_base_layer_params as copy_inheritable_base_layer_params,
)
from praxis.pax_fiddle.instantiation import (
  empty_flax_module_stack as empty_flax_module_stack,
)
from praxis.pax_fiddle.instantiation import inherit as inherit
from praxis.pax_fiddle.instantiation import instantiate as instantiate
from praxis.pax_fiddle.metadata import DoNotBuild as DoNotBuild
from praxis.pax_fiddle.metadata import FieldMetadata as FieldMetadata
from praxis.pax_fiddle.metadata import field_has_tag as field_has_tag
from praxis.pax_fiddle.metadata import field_metadata as field_metadata
from praxis.pax_fiddle.metadata import fields_of as fields_of
from praxis.pax_fiddle.template_arguments import (
  TemplateWrapper as TemplateWrapper,
)
from praxis.pax_fiddle.template_arguments import (
  wrap_templates as wrap_templates,
)
from praxis.pax_fiddle.traversers import BasicTraversal as BasicTraversal
from praxis.pax_fiddle.traversers import MemoizedTraversal as MemoizedTraversal
from praxis.pax_fiddle.traversers import is_leaf as is_leaf
from praxis.pax_fiddle.traversers import iterate as iterate
from praxis.pax_fiddle.traversers import (
  register_dataclass as register_dataclass,
)
