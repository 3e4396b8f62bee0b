"""A state-space model, and a graph network."""

from __future__ import annotations

from typing import Any

import torch
from bench.profiles.models.language import token_loss
from torch import nn
from torch.nn import functional as F  # noqa: N812


class StateSpace(nn.Module):
    """A Mamba-2 layer: a state per head decays from token to token, computed in chunks by matrix products."""

    def __init__(self, width: int, state: int, head: int = 64, chunk: int = 128):
        super().__init__()
        self.inner, self.state, self.head, self.chunk = 2 * width, state, head, chunk
        self.heads = self.inner // head
        self.norm = nn.RMSNorm(width)
        self.inputs = nn.Linear(width, 2 * self.inner + 2 * state + self.heads, bias=False)
        self.conv = nn.Conv1d(
            self.inner + 2 * state, self.inner + 2 * state, 4, padding=3, groups=self.inner + 2 * state
        )
        self.step, self.decay = nn.Parameter(torch.zeros(self.heads)), nn.Parameter(torch.zeros(self.heads))
        self.past = nn.Parameter(torch.zeros(self.heads))
        self.norm_out, self.out = nn.RMSNorm(self.inner), nn.Linear(self.inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, mixed, step = self.inputs(self.norm(x)).split(
            (self.inner, self.inner + 2 * self.state, self.heads), dim=-1
        )
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        values, into, out_of = mixed.split((self.inner, self.state, self.state), dim=-1)
        step = F.softplus(step.float() + self.step.float())
        values = values.unflatten(-1, (self.heads, self.head))
        found = self.scan(values * step.to(x.dtype)[..., None], -step * self.decay.float().exp(), into, out_of)
        found = (found + values * self.past[:, None]).flatten(2)
        return x + self.out(self.norm_out(found * F.silu(gate)))

    def scan(self, values: torch.Tensor, log_decay: torch.Tensor, into: torch.Tensor, out_of: torch.Tensor) -> Any:
        """The outputs of all tokens: within each chunk as attention, between the chunks by their states."""
        chunks = (-1, self.chunk)
        into, out_of = into.unflatten(1, chunks), out_of.unflatten(1, chunks)  # batch, chunk, token, state
        values = values.unflatten(1, chunks).transpose(2, 3)  # batch, chunk, head, token, channel
        decayed = log_decay.unflatten(1, chunks).transpose(2, 3).cumsum(-1)  # batch, chunk, head, token
        within = differences(decayed).exp().to(values.dtype)
        scores = (out_of @ into.transpose(2, 3)).unsqueeze(2) * within
        near = scores @ values
        last = (decayed[..., -1:] - decayed).exp().to(values.dtype)
        states = into.transpose(2, 3).unsqueeze(2) @ (values * last[..., None])  # batch, chunk, head, state, channel
        between = differences(F.pad(decayed[..., -1].transpose(1, 2).cumsum(-1), (1, 0))).exp().to(values.dtype)
        flat = F.pad(states.transpose(1, 2).flatten(3), (0, 0, 1, 0))  # batch, head, chunk, state x channel
        before = (between @ flat)[:, :, :-1].transpose(1, 2).unflatten(3, states.shape[3:])
        far = (out_of.unsqueeze(2) @ before) * decayed.exp().to(values.dtype)[..., None]
        return (near + far).transpose(2, 3).flatten(1, 2)


def differences(sums: torch.Tensor) -> torch.Tensor:
    """sums[i] - sums[j] for j <= i, else minus infinity."""
    later = torch.ones(sums.shape[-1], sums.shape[-1], dtype=torch.bool, device=sums.device).triu(1)
    return (sums[..., :, None] - sums[..., None, :]).masked_fill(later, float("-inf"))


class StateSpaceModel(nn.Module):
    """Layers of Mamba-2 between an embedding and the head that is tied to it."""

    def __init__(self, layers: int = 8, width: int = 1024, state: int = 64, vocabulary: int = 50280):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*(StateSpace(width, state) for _ in range(layers)))
        self.norm = nn.RMSNorm(width)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.layers(self.token(tokens)))
        return token_loss(F.linear(x, self.token.weight), targets)


class GatedLayer(nn.Module):
    """A layer of a gated graph convolution: edges weigh what a node hears of its neighbours, and are features too."""

    def __init__(self, width: int):
        super().__init__()
        self.own, self.heard = nn.Linear(width, width), nn.Linear(width, width)
        self.source, self.target, self.edge = (nn.Linear(width, width) for _ in range(3))
        self.norm_node, self.norm_edge = nn.BatchNorm1d(width), nn.BatchNorm1d(width)

    def forward(self, nodes: Any, edges: Any, sources: Any, targets: Any) -> tuple[Any, Any]:
        made = self.edge(edges) + self.source(nodes).index_select(0, sources)
        made = made + self.target(nodes).index_select(0, targets)
        weights = torch.sigmoid(made)
        zeros = torch.zeros_like(nodes, dtype=weights.dtype)
        heard = zeros.index_add(0, targets, weights * self.heard(nodes).index_select(0, sources))
        total = zeros.index_add(0, targets, weights)
        found = self.own(nodes) + heard / (total + 1e-6)
        return nodes + F.relu(self.norm_node(found)), edges + F.relu(self.norm_edge(made))


class GraphNetwork(nn.Module):
    """Gated graph convolutions that classify the nodes of one graph."""

    def __init__(self, layers: int = 10, width: int = 128, features: int = 100, classes: int = 47):
        super().__init__()
        self.start, self.edge = nn.Linear(features, width), nn.Linear(8, width)
        self.layers = nn.ModuleList(GatedLayer(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, features: Any, kinds: Any, sources: Any, targets: Any, labels: Any) -> torch.Tensor:
        nodes, edges = self.start(features[0]), self.edge(kinds)
        for layer in self.layers:
            nodes, edges = layer(nodes, edges, sources, targets)
        read = nodes.index_add(0, targets, edges)
        return F.cross_entropy(self.head(read).float(), labels)
