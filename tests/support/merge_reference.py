"""Every merge method once more, on whole tensors in float64, by the formulas of papers and mergekit.

No pieces, no histograms, no matrices of dot products: nothing of the code under test.
"""

import math

import numpy as np


def norm(v):
    return math.sqrt(math.fsum((v.ravel() * v.ravel()).tolist()))


def dot(a, b):
    return math.fsum((a.ravel() * b.ravel()).tolist())


def linear(base, xs, p, each, draw):
    w = [e["weight"] for e in each]
    total = sum(a * x for a, x in zip(w, xs, strict=True))
    return total / sum(w) if p["normalize"] else total


def passthrough(base, xs, p, each, draw):
    return xs[0] * each[0]["scale"]


def slerp(base, xs, p, each, draw):
    t, a, b = p["t"], base, xs[0]
    c = dot(a / norm(a) if norm(a) > 1e-8 else a, b / norm(b) if norm(b) > 1e-8 else b)
    if abs(c) > 0.9995:
        return (1 - t) * a + t * b
    th = math.acos(c)
    return math.sin(th * (1 - t)) / math.sin(th) * a + math.sin(th * t) / math.sin(th) * b


def great_circle(t, a, b):
    c = dot(a / max(norm(a), 1e-7), b / max(norm(b), 1e-7))
    th = math.acos(min(1, max(-1, c)))
    if abs(math.sin(th)) < 1e-8:
        return (1 - t) * a + t * b
    return (math.sin((1 - t) * th) * a + math.sin(t * th) * b) / math.sin(th)


def nuslerp(base, xs, p, each, draw):
    w = [e["weight"] for e in each]
    t = 0.5 if abs(sum(w)) < 1e-6 else w[1] / sum(w)
    a, b = (xs[0], xs[1]) if base is None else (xs[0] - base, xs[1] - base)
    if p["nuslerp_flatten"] or not a.ndim:
        out = great_circle(t, a, b)
    else:
        out = np.empty_like(a)
        columns = p["nuslerp_row_wise"] and a.ndim > 1
        for place in np.ndindex(a.shape[1:] if columns else a.shape[:-1]):
            at = (slice(None), *place) if columns else place
            out[at] = great_circle(t, a[at], b[at])
    return out if base is None else out + base


def multislerp(base, xs, p, each, draw):
    vs = xs if base is None else [x - base for x in xs]
    w = np.array([e["weight"] for e in each])
    if p["normalize_weights"]:
        w = w / w.sum()
    norms = [norm(v) for v in vs]
    units = [v / (n + p["eps"]) for v, n in zip(vs, norms, strict=True)]
    mean = sum(a * u for a, u in zip(w, units, strict=True))
    if norm(mean) < p["eps"]:
        out = sum(a * v for a, v in zip(w, vs, strict=True))
    else:
        mean = mean / norm(mean)
        tangent = sum(a * (u - dot(u, mean) * mean) for a, u in zip(w, units, strict=True))
        length = norm(tangent) + p["eps"]
        out = mean * math.cos(length) + tangent * (math.sin(length) / length)
        out = out * sum(a * n for a, n in zip(w, norms, strict=True))
    return out if base is None else out + base


def karcher(base, xs, p, each, draw):
    tol, norms = p["tol"], [norm(x) for x in xs]
    units = [x / n for x, n in zip(xs, norms, strict=True) if n > tol]
    if not units:
        return np.zeros_like(xs[0])
    u = sum(units) / len(units)
    u = units[0] if norm(u) < tol else u / norm(u)
    for _ in range(p["max_iter"]):
        step = np.zeros_like(u)
        for one in units:
            c = min(1, max(-1, dot(u, one)))
            th = math.acos(c)
            if th >= tol and math.sin(th):
                step = step + th / math.sin(th) * (one - c * u) / len(units)
        if norm(step) < tol:
            break
        u = math.cos(norm(step)) * u + math.sin(norm(step)) * step / norm(step)
        u = u / max(norm(u), tol)
    return u * sum(norms) / len(norms)


def keep_ranks(d, start, end):
    order = np.argsort(np.abs(d).astype(np.float32).ravel(), kind="stable")
    mask = np.zeros(d.size, bool)
    mask[order[start:end]] = True
    return mask.reshape(d.shape)


def thin_magnitude(d, e, draw):
    return keep_ranks(d, d.size - max(int(e["density"] * d.size), 1), d.size)


def thin_outliers(d, e, draw):
    kept = max(int(e["density"] * d.size), 1)
    top = min(int(e["gamma"] * d.size), d.size - kept)
    return keep_ranks(d, d.size - top - kept, d.size - top)


def thin_random(d, e, draw):
    return draw(d.size).reshape(d.shape) < e["density"]


def thin_ranks(d, e, draw):
    rows = d.reshape(-1, d.shape[-1]) if d.ndim else d.reshape(1, 1)
    ranks = np.argsort(np.argsort(np.abs(rows), axis=1, kind="stable"), axis=1)
    along = ranks / (rows.shape[1] - 1) if rows.shape[1] > 1 else np.full(rows.shape, 0.5)
    chance = e["density"] - e["epsilon"] + 2 * e["epsilon"] * along
    return (draw(d.size).reshape(rows.shape) < chance).reshape(d.shape)


def thinned(d, e, p, thin, draw):
    kept = np.where(thin(d, e, draw), d, 0)
    before, after = np.abs(d).sum(), np.abs(kept).sum()
    if p["rescale"] and before >= 1e-7 and after >= 1e-7:
        kept = kept * (before / after)
    return kept


def task(thin, *, signs):
    def merge(base, xs, p, each, draw):
        deltas = [x - base for x in xs]
        if thin is not None:
            for number, e in enumerate(each):
                if e["density"] < 1:
                    chances = lambda count, number=number: draw(number, count)  # noqa: E731
                    deltas[number] = thinned(deltas[number], e, p, thin, chances)
        w = [e["weight"] for e in each]
        parts = [a * d for a, d in zip(w, deltas, strict=True)]
        mixed, divisor = sum(parts), sum(w) if abs(sum(w)) >= 1e-8 else 1
        if signs:
            sign = np.where(mixed >= 0, 1, -1)
            masks = [np.sign(part) == sign for part in parts]
            mixed = sum(part * mask for part, mask in zip(parts, masks, strict=True))
            divisor = sum(a * mask for a, mask in zip(w, masks, strict=True))
            divisor = np.where(divisor == 0, 1, divisor)
        return base + p["lambda"] * (mixed / divisor if p["normalize"] else mixed)

    return merge


def sce(base, xs, p, each, draw):
    deltas = np.stack([x - base for x in xs])
    if p["select_topk"] < 1:
        var = deltas.var(axis=0)
        kept = int(np.count_nonzero(var) * p["select_topk"])
        mask = keep_ranks(var, var.size - kept, var.size) if kept else np.zeros(var.shape, bool)
        deltas = deltas * mask
    sign = np.where(deltas.sum(axis=0) >= 0, 1, -1)
    mask = np.sign(deltas) == sign
    squares = np.array([np.mean(d * d) for d in deltas])
    w = squares / squares.sum() if squares.sum() >= 1e-6 else np.full(len(xs), 1 / len(xs))
    w = w.reshape(-1, *[1] * base.ndim) * mask
    return base + (deltas * w).sum(axis=0) / np.maximum(w.sum(axis=0), 1e-6)


def agents(*, plus):
    def merge(base, xs, p, each, draw):
        deltas = [x - base for x in xs]
        own = [np.abs(d) > p["epsilon"] for d in deltas]
        count = sum(one.astype(int) for one in own)
        out = base.copy()
        for d, mine in zip(deltas, own, strict=True):
            factor = 1.0
            if plus:
                shared, alone = (mine & (count > 1)).sum(), (mine & (count == 1)).sum()
                ratio = shared / max(alone, p["epsilon"])
                factor = 1 + p["r"] * min(max(ratio, 0), p["alpha"])
            out = out + np.where(mine & (count == 1), d * factor, 0)
            out = out + np.where(mine & (count > 1), d / np.maximum(count, 1), 0)
        return out

    return merge


def model_stock(base, xs, p, each, draw):
    shape = (-1, base.shape[-1] if base.ndim else 1) if p["filter_wise"] else (1, -1)
    rows, split, out = base.reshape(shape), [x.reshape(shape) for x in xs], []
    for i, row in enumerate(rows):
        ds = [x[i] - row for x in split]
        cs = [
            min(1, max(-1, dot(ds[a], ds[b]) / max(norm(ds[a]) * norm(ds[b]), 1e-6)))
            for a in range(len(ds))
            for b in range(a)
        ]
        c, n = sum(cs) / len(cs), len(ds)
        t = n * c / (1 + (n - 1) * c)
        out.append(t * sum(x[i] for x in split) / n + (1 - t) * row)
    return np.stack(out).reshape(base.shape)


def nearswap(base, xs, p, each, draw):
    w = np.clip(p["t"] / np.maximum(np.abs(base - xs[0]), 1e-6), 0, 1)
    return w * xs[0] + (1 - w) * base


def arcee_fusion(base, xs, p, each, draw):
    def softmax(v):
        e = np.exp(v - v.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True) + 1e-8

    new, old = np.atleast_1d(xs[0]), np.atleast_1d(base)
    a, b = softmax(new), softmax(old)
    scores = np.abs(new - old) * (a * np.log(a / b)).sum(axis=-1)[..., None]
    scores = scores.astype(np.float32)
    ranked = np.sort(scores.ravel())
    low, mid, high = (float(ranked[int(q * (ranked.size - 1))]) for q in (0.25, 0.5, 0.75))
    mask = scores >= np.float32(mid + 1.5 * (high - low))
    return np.where(mask, new, old).reshape(base.shape)


METHODS = {
    "linear": linear,
    "passthrough": passthrough,
    "slerp": slerp,
    "nuslerp": nuslerp,
    "multislerp": multislerp,
    "karcher": karcher,
    "task_arithmetic": task(None, signs=False),
    "ties": task(thin_magnitude, signs=True),
    "dare_ties": task(thin_random, signs=True),
    "dare_linear": task(thin_random, signs=False),
    "breadcrumbs": task(thin_outliers, signs=False),
    "breadcrumbs_ties": task(thin_outliers, signs=True),
    "della": task(thin_ranks, signs=True),
    "della_linear": task(thin_ranks, signs=False),
    "sce": sce,
    "ram": agents(plus=False),
    "ramplus_tl": agents(plus=True),
    "model_stock": model_stock,
    "nearswap": nearswap,
    "arcee_fusion": arcee_fusion,
}
