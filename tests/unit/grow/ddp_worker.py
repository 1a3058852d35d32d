"""One of two ranks that train a growing network together; writes what it ended with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from slurm_rl.grow import Grower, deepen, places, widen


class Alternating:
    """Only the first rank's word counts: the other wants something else each time."""

    name = "alternating"

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def choose(self, state: Any) -> Any:
        if self.rank:
            raise RuntimeError("the second rank is never asked")
        epoch = len(state.metrics)
        return state.choices[(epoch // 2) % len(state.choices)] if epoch % 2 == 0 else None


def main(rank: int, scratch: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{scratch}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    model: Any = DistributedDataParallel(bare)
    x, y = torch.randn(32, 6), torch.arange(32) % 3
    model.eval()
    before = model(x)
    assert places(model) == places(bare)
    for grown in (widen(model, "0", to=9), deepen(model, after="3")):
        assert isinstance(grown, DistributedDataParallel)
        torch.testing.assert_close(grown.eval()(x), before)

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    grower = Grower(model, optimizer, policy=Alternating(rank), epochs=8, checkpoint=scratch / "checkpoint.pt")
    losses = []
    while grower.more:
        model = grower.model.train()
        mine = slice(rank * 16, rank * 16 + 16)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[mine]), y[mine])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        grower.step(loss, {"accuracy": 0.5})
    assert grower.problem == "", grower.problem
    assert isinstance(grower.model, DistributedDataParallel)
    state = {k: v for k, v in grower.model.module.state_dict().items() if "running" not in k}
    torch.save({"state": state, "steps": grower.record.steps, "losses": losses}, scratch / f"rank{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
