"""Transformers on tokens: GPT-2, Llama 3.2 1B, an encoder-decoder, and a mixture of experts with a fixed routing."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def token_loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy in float32."""
    return F.cross_entropy(scores.flatten(0, -2).float(), targets.flatten())


class Attention(nn.Module):
    """Multi-head attention; queries and, with `cross`, other keys and values."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, cross: bool = False, dropout: float = 0.0):
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.queries = nn.Linear(width, width) if cross else None
        self.inputs = nn.Linear(width, (2 if cross else 3) * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        given = self.inputs(x if memory is None else memory).chunk(3 if memory is None else 2, dim=-1)
        parts = given if self.queries is None else (self.queries(x), *given)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Feedforward(nn.Sequential):
    """Four times as wide inside."""

    def __init__(self, width: int, activation: nn.Module):
        super().__init__(nn.Linear(width, 4 * width), activation, nn.Linear(4 * width, width))


class Block(nn.Module):
    """Attention and feedforward, each behind a norm and added to its input; with `cross`, attention to a memory too."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, cross: bool = False, dropout: float = 0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal, dropout=dropout)
        self.norm_cross = nn.LayerNorm(width) if cross else None
        self.cross = Attention(width, heads, cross=True, dropout=dropout) if cross else None
        self.feedforward = Feedforward(width, nn.GELU())
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        if self.norm_cross is not None and self.cross is not None:
            x = x + self.dropout(self.cross(self.norm_cross(x), memory))
        return x + self.dropout(self.feedforward(self.norm2(x)))


class Tokens(nn.Module):
    """Embeddings of tokens and of their places."""

    def __init__(self, vocabulary: int, length: int, width: int, dropout: float):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.token(tokens) + self.place(places))


class Gpt(nn.Module):
    """GPT-2 small: pre-norm blocks, dropout of 0.1, the head tied to the embedding."""

    def __init__(self, layers: int = 12, width: int = 768, vocabulary: int = 50257, length: int = 1024):
        super().__init__()
        self.tokens = Tokens(vocabulary, length, width, 0.1)
        self.blocks = nn.Sequential(*(Block(width, width // 64, causal=True, dropout=0.1) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.blocks(self.tokens(tokens)))
        return token_loss(F.linear(x, self.tokens.token.weight), targets)


class EncoderDecoder(nn.Module):
    """The base Transformer of 2017 with pre-norm blocks; both sides share the embedding, which is the head too."""

    def __init__(self, layers: int = 6, width: int = 512, vocabulary: int = 32000, length: int = 256):
        super().__init__()
        self.tokens = Tokens(vocabulary, length, width, 0.1)
        self.encoder = nn.Sequential(*(Block(width, width // 64, dropout=0.1) for _ in range(layers)))
        self.decoder = nn.ModuleList(
            Block(width, width // 64, causal=True, cross=True, dropout=0.1) for _ in range(layers)
        )
        self.norm_memory, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, source: torch.Tensor, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        memory = self.norm_memory(self.encoder(self.tokens(source)))
        x = self.tokens(tokens)
        for block in self.decoder:
            x = block(x, memory)
        return token_loss(F.linear(self.norm(x), self.tokens.token.weight), targets)


class GroupedAttention(nn.Module):
    """Causal attention with rotary positions, in which several heads of queries share a head of keys and values."""

    def __init__(self, width: int, heads: int, groups: int):
        super().__init__()
        self.head = width // heads
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, groups * self.head, bias=False)
        self.values = nn.Linear(width, groups * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        parts = (self.queries(x), self.keys(x), self.values(x))
        q, k, v = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts)
        q, k = rotated(q, cosine, sine), rotated(k, cosine, sine)
        grouped = q.dtype is not torch.float32  # flash attention takes groups, the kernel for float32 does not
        if not grouped:
            k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.out(mixed.transpose(1, 2).flatten(2))


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary positions, halves rotated as in Llama."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Two of eight experts a token. The routing is fixed: `tokens` says which tokens each expert gets, all as many."""

    def __init__(self, width: int, inner: int, experts: int, tokens: int):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Gated(width, inner) for _ in range(experts))
        self.register_buffer("tokens", torch.zeros(experts, 2 * tokens // experts, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weights = self.router(flat).softmax(-1, dtype=torch.float32).to(x.dtype)
        mixed = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mine = self.tokens[number]
            found = expert(flat.index_select(0, mine))
            mixed = mixed.index_add(0, mine, found * weights[:, number].index_select(0, mine).unsqueeze(-1))
        return mixed.view_as(x)


class Decoder(nn.Module):
    """Llama's decoder; with `experts` the feedforward is a mixture of so many, as in Mixtral."""

    def __init__(
        self,
        layers: int = 16,
        width: int = 2048,
        heads: int = 32,
        groups: int = 8,
        inner: int = 8192,
        vocabulary: int = 128256,
        length: int = 2048,
        experts: int = 0,
        batch: int = 1,
    ):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            feedforward = Experts(width, inner, experts, batch * length) if experts else Gated(width, inner)
            parts = {
                "norm1": nn.RMSNorm(width),
                "attention": GroupedAttention(width, heads, groups),
                "norm2": nn.RMSNorm(width),
                "feedforward": feedforward,
            }
            self.layers.append(nn.ModuleDict(parts))
        self.norm = nn.RMSNorm(width)
        for name in ("cosine", "sine"):
            self.register_buffer(name, torch.zeros(length, width // heads))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens)
        cosine, sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        for layer in self.layers:
            x = x + layer["attention"](layer["norm1"](x), cosine, sine)
            x = x + layer["feedforward"](layer["norm2"](x))
        return token_loss(F.linear(self.norm(x), self.token.weight), targets)
