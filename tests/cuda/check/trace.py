"""What the GPU does in a run, kernel by kernel, as CUPTI sees it: whose time it is, and how long nothing runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

__all__ = ["trace"]

_MAX_NAMES = 16


def trace(run: Callable[[], object], skipped: float = 0.4) -> dict[str, Any]:
    """Idle share of the device, and microseconds by kernel, of what follows the first `skipped` of the time.

    Kernels in graphs are listed individually. All kernels of the process are counted.
    """
    import torch
    from torch.autograd import DeviceType

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in profile.events()
        if event.device_type == DeviceType.CUDA
    )
    if not spans:
        return {"kernels": 0}
    first = spans[0][0] + skipped * (spans[-1][1] - spans[0][0])
    spans = [span for span in spans if span[0] >= first]
    busy, reached = 0.0, spans[0][0]
    totals: defaultdict[str, list[float]] = defaultdict(list)
    for begin, end, name in spans:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
        totals[name.replace("void ", "")[:60]].append(end - begin)
    length = reached - spans[0][0]
    largest = sorted(totals.items(), key=lambda item: -sum(item[1]))[:_MAX_NAMES]
    return {
        "kernels": len(spans),
        "us": round(length, 1),
        "idle": round(1 - busy / length, 4),
        "by kernel": {name: [len(times), round(sum(times) / len(times), 2)] for name, times in largest},
    }
