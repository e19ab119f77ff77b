"""All dense parameters of a module in one buffer, and their gradients in another."""

from __future__ import annotations

import torch


class FlatParameters:
    """Points a module's trainable parameters and their gradients into two flat buffers, for good.

    Whoever writes `values` writes the parameters, and autograd does not notice: a background thread may write between
    another thread's forward and backward. Module buffers stay where they are.

    `values`, `gradients`: [numel], of the parameters' dtype and device.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        parameters = [p for p in module.parameters() if p.requires_grad]
        sizes = [p.numel() for p in parameters]
        empty = [torch.empty(0)]
        self.values = torch.cat([p.detach().flatten() for p in parameters] or empty)
        self.gradients = torch.zeros_like(self.values)
        views = zip(self.values.split(sizes), self.gradients.split(sizes), strict=True)
        for parameter, (value, gradient) in zip(parameters, views, strict=True):
            parameter.data = value.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)

    def state_of(self, module: torch.nn.Module, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """The module's state dict as if `values` [numel] were its parameters. They and buffers are copies."""
        state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        parts = values.to(self.values.device).split([p.numel() for _, p in named])
        return state | {name: part.view_as(p).clone() for (name, p), part in zip(named, parts, strict=True)}
