"""Goldens of models that compute complex numbers: rotary embeddings, filters of frequencies, spectrograms, writes
through real and imaginary parts.

    python -m headwater_tools.complex_numbers goldens/complex/

Every model returns a scalar first, and is written in both forms, with its golden. Complex numbers are recorded as pairs.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from .writes import write


class Rotary(nn.Module):
    """Attention with rotary embeddings as Llama's first code has them, by a buffer of complex numbers."""

    def __init__(self, heads=2, width=8, length=5):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(heads * width, heads * width, bias=False) for _ in range(3))
        angles = torch.outer(torch.arange(length), 1.0 / 100 ** (torch.arange(0, width, 2) / width))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))

    def rotated(self, x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.freqs_cis[None, :, None, :]).flatten(3).type_as(x)

    def forward(self, x):
        q, k, v = (m(x).view(*x.shape[:2], self.heads, -1) for m in (self.q, self.k, self.v))
        q, k = self.rotated(q).transpose(1, 2), self.rotated(k).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        return y.pow(2).mean(), y


class FNet(nn.Module):
    """Layers that mix tokens by the real part of a transform (Lee-Thorp et al. 2021)."""

    def __init__(self, width=6):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dense = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x):
        for norm, dense in zip(self.norms, self.dense, strict=True):
            mixed = torch.fft.fftn(x, dim=(1, 2)).real
            x = norm(x + mixed)
            x = x + F.gelu(dense(x))
            x = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2, norm="ortho").real
        return x.pow(2).mean(), x


class GFNet(nn.Module):
    """A filter of frequencies with weights in pairs of real numbers (Rao et al. 2021)."""

    def __init__(self, size=5, width=3):
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.randn(size, size // 2 + 1, width, 2))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        y = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        y = y * torch.view_as_complex(self.weight)
        y = torch.fft.irfft2(y, s=(self.size, self.size), dim=(1, 2), norm="ortho")
        return self.head(y).sin().mean(), y


class FNO(nn.Module):
    """A spectral convolution with complex weights (Li et al. 2020): products of low frequencies, zeros elsewhere."""

    def __init__(self, channels=3, modes=2):
        super().__init__()
        self.modes = modes
        scale = 1 / channels
        self.low, self.high = (
            nn.Parameter(scale * torch.randn(channels, channels, modes, modes, dtype=torch.cfloat)) for _ in range(2)
        )
        self.skip = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(*spectrum.shape, dtype=torch.cfloat)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.low)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.high)
        y = torch.fft.irfft2(out, s=x.shape[-2:])
        return F.gelu(y + self.skip(x)).pow(2).mean(), y


class AFNO(nn.Module):
    """Mixing in blocks of frequencies by real and imaginary parts (Guibas et al. 2021)."""

    def __init__(self, width=4, blocks=2):
        super().__init__()
        self.blocks = blocks
        self.w = nn.Parameter(0.5 * torch.randn(2, blocks, width // blocks, width // blocks))
        self.b = nn.Parameter(0.1 * torch.randn(2, blocks, width // blocks))

    def forward(self, x):
        b, h, w, c = x.shape
        z = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        z = z.reshape(b, h, w // 2 + 1, self.blocks, c // self.blocks)
        re = torch.einsum("...bi,bio->...bo", z.real, self.w[0]) - torch.einsum("...bi,bio->...bo", z.imag, self.w[1])
        im = torch.einsum("...bi,bio->...bo", z.imag, self.w[0]) + torch.einsum("...bi,bio->...bo", z.real, self.w[1])
        z = F.softshrink(torch.stack([re + self.b[0], im + self.b[1]], dim=-1), 0.01)
        z = torch.view_as_complex(z).reshape(b, h, w // 2 + 1, c)
        y = torch.fft.irfft2(z, s=(h, w), dim=(1, 2), norm="ortho") + x
        return y.pow(2).mean(), y


class Spectrogram(nn.Module):
    """Magnitudes of a short-time transform, and the signal from frequencies that a mask weighs."""

    def __init__(self, size=8):
        super().__init__()
        self.size = size
        self.dense = nn.Linear(size // 2 + 1, size // 2 + 1)
        self.register_buffer("window", torch.hann_window(size))

    def forward(self, x):
        z = torch.stft(x, self.size, hop_length=3, window=self.window, return_complex=True)
        mask = self.dense(z.abs().transpose(1, 2)).sigmoid().transpose(1, 2)
        y = torch.istft(z * mask, self.size, hop_length=3, window=self.window, length=x.shape[-1])
        short = torch.stft(
            y, self.size, win_length=6, window=self.window[:6], center=False, normalized=True, return_complex=True
        )
        sides = torch.stft(y[0], 4, window=torch.ones(4), onesided=False, pad_mode="constant", return_complex=True)
        return y.pow(2).mean() + torch.log(short.abs() + 1e-3).mean() + sides.abs().mean(), y


class Weighted(nn.Module):
    """`body` computes with a complex weight `w` and a real one `r`."""

    def __init__(self, body, *shape):
        super().__init__()
        self.w = nn.Parameter(torch.randn(*shape, dtype=torch.cfloat))
        self.r = nn.Parameter(torch.randn(*shape))
        self.body = body

    def forward(self, x):
        return self.body(x, self.w, self.r)


def arithmetic(x, w, r):
    z = torch.complex(x, r) * w + 0.5 * w.conj() - w * (0.5 - 2j)
    z = z / (w * w + 3) + x / (w + 4) - (1 - w) * r + z.reciprocal() * 0.1
    z = torch.exp(z * 0.1) + torch.log(z + 5) - z.square() * 1j + w**3 / 8 + z / 2 + z / (r * r + 1)
    return (z * z.conj()).real.sum() + z.angle().sum() + (z.abs() ** 1.5).mean() + torch.rsub(z, 1j, alpha=2).imag.sum()


def products(x, w, r):
    """Products of matrices and vectors, and sums."""
    z = torch.complex(x, r)
    y = z @ w.mT + torch.einsum("ij,kj->ik", z, w.conj()) + torch.einsum("ij->i", w) + z @ w.mH
    total = torch.vdot(w[0], z[1]) + torch.dot(z[0], w[2]) + y.sum() + z.mean(0).sum() + (z[0, 0] * w[0, 0]).sum()
    batch = torch.bmm(z[None], w.t()[None]).mean((1, 2), keepdim=True)
    norms = torch.linalg.vector_norm(z, dim=1).sum() + torch.linalg.vector_norm(w) + z.cumsum(1).abs().sum()
    return (y.abs() ** 2).mean() + total.abs() + batch.abs().sum() + norms + (z @ w[0]).real.sum()


def shapes(x, w, r):
    """Moves and views."""
    z = torch.complex(x, r * 2) * w
    a = torch.cat([z, w.flip(0), r], -1).transpose(0, 1).reshape(-1, 2)[1:].unsqueeze(0).expand(2, -1, -1)
    b = torch.stack([z, w], -1).permute(2, 0, 1).contiguous().flatten(1)[:, ::2].roll(1, 1)
    c = F.pad(z, (1, 2)).repeat(1, 2)[:, torch.tensor([0, 3, 1])].squeeze(0) + w.index_select(1, torch.tensor([1, 0, 1]))
    d, e = torch.where(r > 0, z, w).masked_fill(x > 0.5, 0.25), torch.where(x > 0, w, torch.zeros_like(w))
    f = z.unflatten(1, (1, -1)).movedim(0, -1).split([1, 4], 1)[1].chunk(2, 1)[0].unbind(0)[0]
    parts = [a.mean(), b.sum(), c.sum(), d.sum(), e.sum(), f.sum(), torch.ones_like(z).sum()]
    return sum((k + 1) * p.abs() ** 2 for k, p in enumerate(parts))


def writes(x, w, r):
    """Through real and imaginary parts, slices and copies; conjugates that follow what they show."""
    z = torch.zeros(4, 5, dtype=torch.cfloat)
    z[1:].copy_(w[1:])
    z.real.add_(x)
    z.imag[:, 1:3].mul_(r[:, 1:3])
    z[0] = x[0]
    flat, conj = z.view(-1), z.conj()
    flat[2:4].add_(w[0, :2])
    torch.view_as_real(z)[2, :, 1].fill_(0.5)
    y = torch.full((4, 5), 1 - 1j, dtype=torch.cfloat)
    y[torch.tensor([0, 2])] = w[:2]
    y.index_put_((torch.tensor([1]),), w[3:], accumulate=True)
    y[3].fill_(2j)
    y.mul_(w).sub_(z, alpha=0.5).div_(2)
    made = x.to(torch.cfloat) + z.to(torch.complex128).to(torch.complex64)
    return (conj * y * w).real.sum() + (z * z).imag.sum() + (made * w).abs().sum()


def transforms(x, w, r):
    """Every spelling, size and norm of a transform."""
    z = torch.complex(x, r) * w
    sizes = dict(n=3), dict(n=8, norm="ortho"), dict(dim=0, norm="forward")
    total = 0
    for k, options in enumerate(sizes):
        for f in (torch.fft.fft, torch.fft.ifft):
            total = total + (k + 1) * (f(z, **options).abs() ** 2).sum() + f(x * r, **options).real.sum()
        for f in (torch.fft.rfft, torch.fft.ihfft):
            total = total + (f(x * r, **options) * (k + 2j)).abs().sum()
        for f in (torch.fft.irfft, torch.fft.hfft):
            total = total + (f(z, **options) ** 2).sum() * (k + 1)
    cube = torch.stack([z, z * w, w.conj()])
    several = dict(), dict(s=(3, 4)), dict(dim=(0, 2), norm="ortho"), dict(s=(4, 6), dim=(2, 1), norm="forward")
    for k, options in enumerate(several):
        for f in (torch.fft.fftn, torch.fft.ifftn):
            total = total + (f(cube, **options).abs() ** 2).sum() + f(cube.real, **options).imag.sum() * (k + 1)
        for f in (torch.fft.rfftn, torch.fft.ihfftn):
            total = total + (f(cube.real, **options).abs() ** 2).sum() * (k + 1)
        for f in (torch.fft.irfftn, torch.fft.hfftn):
            total = total + (f(cube, **options) ** 2).sum()
    shifted = torch.fft.ifftshift(torch.fft.fftshift(cube, (0, 2))) * torch.fft.fftfreq(5) + torch.fft.rfftfreq(9, 0.5)
    return 1e-3 * (total + shifted.abs().sum())


WEIGHTED = (arithmetic, products, shapes, writes, transforms)


def models():
    """Name to module, inputs and dynamic shapes."""
    torch.manual_seed(0)
    found = {body.__name__: (Weighted(body, 4, 5), (torch.randn(4, 5),), None) for body in WEIGHTED}
    batch = torch.export.Dim("batch", min=1, max=64)
    found["rotary"] = Rotary(), (torch.randn(2, 5, 16),), {"x": {0: batch}}
    found["fnet"] = FNet(), (torch.randn(2, 5, 6),), {"x": {0: batch}}
    found["gfnet"] = GFNet(), (torch.randn(2, 5, 5, 3),), {"x": {0: batch}}
    found["fno"] = FNO(), (torch.randn(2, 3, 6, 5),), None
    found["afno"] = AFNO(), (torch.randn(2, 3, 4, 4),), None
    found["spectrogram"] = Spectrogram(), (torch.randn(2, 21),), None
    return found


if __name__ == "__main__":
    write(models(), sys.argv[1], intermediates="all", steps=10)
