# SPDX-License-Identifier: Apache-2.0
"""1D, 2D and 3D convolutions and convolution blocks."""

from praxis.alias_names import module_getattr
from praxis.layers.convolutions.conv import Conv2D as Conv2D
from praxis.layers.convolutions.conv import Conv3D as Conv3D
from praxis.layers.convolutions.conv_bn_act import ConvBNAct as ConvBNAct
from praxis.layers.convolutions.conv_bn_act import (
  ConvBNActWithPadding as ConvBNActWithPadding,
)
from praxis.layers.convolutions.depthwise import (
  BaseDepthwiseConv1D as BaseDepthwiseConv1D,
)
from praxis.layers.convolutions.depthwise import (
  DepthwiseConv1D as DepthwiseConv1D,
)
from praxis.layers.convolutions.light_conv import LightConv1D as LightConv1D
from praxis.layers.convolutions.padding import causal_padding as causal_padding

__getattr__ = module_getattr(__name__)
