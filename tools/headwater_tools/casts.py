"""Small models that cast by hand, as public code does: what they mean in mixed precision, an export in float32 writes as
conversions of float32 to float32.

Each is `(module, args)` by name; the first output is the loss.
"""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 8


class T5Norm(nn.Module):
    """transformers' T5LayerNorm: the variance in float32, and the result in the dtype of the weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class LlamaNorm(nn.Module):
    """transformers' LlamaRMSNorm: to float32, and back to the dtype of the input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x.to(dtype)


class ApexNorm(nn.Module):
    """NVIDIA/apex#1652's manual RMS norm: all in float32, and back at the end."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.to(torch.float32)
        norm = wide.norm(2, dim=-1, keepdim=True) * WIDTH**-0.5
        return (self.weight * (wide / (norm + 1e-6))).type_as(x)


class Residual(nn.Module):
    """A norm between a projection and what is added to it."""

    def __init__(self, norm):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(WIDTH, WIDTH), norm, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = self.inner(x)
        return (h + self.outer(self.norm(h))).pow(2).mean()


class Attention(nn.Module):
    """Scores and softmax in float32, weights in the dtype of the queries."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = (q @ k.mT).float() * WIDTH**-0.5
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return (weights.to(q.dtype) @ v).pow(2).mean()


class Divergence(nn.Module):
    """vllm-project/speculators#788: a KL loss of logits in float32."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 16)

    def forward(self, x):
        log_p = F.log_softmax(self.student(x).float(), dim=-1)
        with torch.no_grad():
            q = F.softmax(self.teacher(x).float(), dim=-1)
        return F.kl_div(log_p, q, reduction="batchmean")


class CrossEntropy(nn.Module):
    """Logits in float32, as transformers' causal language models have them."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, WIDTH), nn.Linear(WIDTH, 16, bias=False)

    def forward(self, tokens):
        logits = self.head(self.embedding(tokens)).float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, 16), tokens[:, 1:].reshape(-1))


class Variance(nn.Module):
    """A variance far from 0, which 16 bits do not have the digits for."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        g = self.a(x).float() + 1000
        return (g - g.mean(-1, keepdim=True)).pow(2).mean()


class Router(nn.Module):
    """A mixture of experts whose router computes in float32."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        logits = self.gate(x).to(torch.float32)
        weights = F.softmax(logits, dim=-1, dtype=torch.float32)
        auxiliary = torch.logsumexp(logits, dim=-1).pow(2).mean()
        weights = weights.to(x.dtype)
        y = sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        return y.pow(2).mean() + 1e-2 * auxiliary


class Rotary(nn.Module):
    """Rotary angles in float32, cosine and sine in the dtype of the states."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("frequencies", 10000.0 ** -(torch.arange(0, WIDTH, 2).float() / WIDTH))

    def forward(self, x):
        angles = torch.arange(x.shape[1]).float()[:, None] * self.frequencies.float()
        angles = torch.cat([angles, angles], dim=-1)
        cos = angles.cos().to(x.dtype)
        sin = angles.sin().to(x.dtype)
        turn = lambda t: t * cos + torch.cat([-t[..., WIDTH // 2 :], t[..., : WIDTH // 2]], -1) * sin
        scores = turn(self.q(x)) @ turn(self.k(x)).mT
        return scores.softmax(-1).pow(2).mean()


class LayerScale(nn.Module):
    """A branch scaled in float32 and added in the dtype of the trunk."""

    def __init__(self):
        super().__init__()
        self.inner, self.a = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gamma = nn.Parameter(torch.full((WIDTH,), 1e-2))

    def forward(self, x):
        x = self.inner(x)
        y = self.a(x).float() * self.gamma.float()
        x = x + y.to(x.dtype)
        return x.pow(2).mean()


class Region(nn.Module):
    """A layer that autocast leaves alone."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = self.a(x)
        with torch.autocast("cpu", enabled=False):
            y = self.b(h.float())
        return (y + h).pow(2).mean()


class Reductions(nn.Module):
    """Reductions whose dtype is given."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = self.a(x)
        y = h.sum(-1, dtype=torch.float32) + h.mean(-1, dtype=torch.float32) + h.cumsum(-1, dtype=torch.float32)[..., -1]
        y = y + F.softmax(h, -1, dtype=torch.float32).amax(-1) + torch.linalg.vector_norm(h, dim=-1, dtype=torch.float32)
        return (y + h.prod(-1, dtype=torch.float32)).pow(2).mean()


class Helper(nn.Module):
    """A conversion in a function, whose line an export does not have, and one to another tensor."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = self.a(x)
        y = centred(h)
        return (self.b(y.to(h)) + h).pow(2).mean()


def centred(h):
    wide = h.float() + 1000
    return wide - wide.mean(-1, keepdim=True)


class Masked(nn.Module):
    """Attention whose scores `mask` is put on: numbers as large as the dtype has them, and a row without any key."""

    def __init__(self):
        super().__init__()
        self.q, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def mask(self, scores, ok):
        return scores.masked_fill(~ok, torch.finfo(scores.dtype).min)

    def forward(self, x, ok):
        weights = self.mask(self.q(x) @ x.mT, ok).softmax(-1)
        return (weights @ self.v(x)).pow(2).mean()


class MaskedByFull(Masked):
    def mask(self, scores, ok):
        return torch.where(ok, scores, torch.full_like(scores, torch.finfo(scores.dtype).min))


class MaskedByScalar(Masked):
    def mask(self, scores, ok):
        return torch.where(ok, scores, torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype))


class MaskedByProduct(Masked):
    """transformers' extended attention mask."""

    def mask(self, scores, ok):
        bias = (1.0 - ok.to(dtype=scores.dtype)) * torch.finfo(scores.dtype).min
        return scores + bias


class MaskedAtMost(Masked):
    """transformers' OPT: no score below the least number."""

    def mask(self, scores, ok):
        scores = scores.masked_fill(~ok, -float("inf"))
        return torch.max(scores, torch.tensor(torch.finfo(scores.dtype).min))


class MaskedByClamp(Masked):
    def mask(self, scores, ok):
        return scores.masked_fill(~ok, -float("inf")).clamp(min=torch.finfo(scores.dtype).min)


class MaskedByBuffer(Masked):
    """A causal mask that is a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.triu(torch.full((6, 6), torch.finfo(torch.float32).min), 1))

    def mask(self, scores, ok):
        return scores + self.bias


def masks():
    """Models with masks, and their arguments, by name."""
    torch.manual_seed(0)
    states, ok = torch.randn(2, 6, WIDTH), torch.rand(2, 6, 6) < 0.6
    ok[0, 1] = False
    kinds = Masked, MaskedByFull, MaskedByScalar, MaskedByProduct, MaskedAtMost, MaskedByClamp, MaskedByBuffer
    return {f"mask_{kind.__name__.removeprefix('Masked').lower() or 'fill'}": (kind(), (states, ok)) for kind in kinds}


def models():
    """The models by name, with arguments that their seed makes."""
    torch.manual_seed(0)
    states, tokens = torch.randn(2, 6, WIDTH), torch.randint(0, 16, (2, 6))
    made = {
        "t5_norm": Residual(T5Norm()),
        "llama_norm": Residual(LlamaNorm()),
        "apex_norm": Residual(ApexNorm()),
        "attention": Attention(),
        "divergence": Divergence(),
        "cross_entropy": CrossEntropy(),
        "variance": Variance(),
        "router": Router(),
        "rotary": Rotary(),
        "layer_scale": LayerScale(),
        "region": Region(),
        "reductions": Reductions(),
        "helper": Helper(),
    }
    return {name: (module, (tokens if name == "cross_entropy" else states,)) for name, module in made.items()}
