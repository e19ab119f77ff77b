"""Balanced batches without the suite: any map-style data set, any loop, no process group.

    lengths = np.array([len(history) for history in data])
    batches = BalancedBatches(data, lengths, ranks=8, rank=3, samples_per_rank=128, cost=transformer_cost(dim=256))

    loader = DataLoader(data, batch_sampler=batches, num_workers=4)       # PyTorch
    for indices in batches: step([data[i] for i in indices])              # plain Python
    BalancedBatches(data, lengths, ranks=comm.size, rank=comm.rank, ...)  # mpi4py
    tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=tf.TensorSpec([None], tf.int64))

Nothing is communicated: every rank computes every rank's batches from (seed, epoch, lengths) and takes its own. It
needs numpy only. `examples/balanced_*.py` are whole programs.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsbench.assignment import checked_assign, unheeded_options
from fsbench.axes import BatchMeta, Sharding
from fsbench.errors import Unsupported, UserError
from fsbench.options import Spec
from fsbench.per_sample import PerSample, from_lengths, read_lengths, size_of, whole
from fsbench.plugins import create

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


class GlobalCounts(NamedTuple):
    """What the ranks train together in one batch: the same on every rank."""

    samples: int
    targets: int


class BalancedBatches:
    """The indices of this rank's batches, all ranks' together of nearly equal cost: a `batch_sampler`.

    Batch k of an epoch is cut out of a *global batch*, `ranks * samples_per_rank` neighbours in the epoch's order; the
    sharding strategy only says which rank takes which of them. Within a batch indices keep the epoch's order. Without
    `shuffle` that is the data set's: samples sorted by time are trained in time, however they are balanced.

    Every sample of an epoch is in exactly one batch of one rank, and every rank gets as many batches. The last global
    batch holds what remains, spread as evenly as can be; with fewer samples than ranks, some ranks get the empty list
    there, and must still take part in the step (`drop_last` leaves it out). A strategy with free counts may give a
    rank fewer samples than another, or none, in any batch.

    **Gradients.** Balanced ranks train equally much work, not equally many targets, so a mean of the ranks' means is
    not the mean of the batch. Sum the loss over this rank's targets and divide by the targets of all ranks:

        for k, batch in enumerate(loader, batches.first):
            loss = model(batch).sum() * batches.ranks / batches.counts(k).targets  # DDP averages over ranks
            loss.backward()                                  # a reducer that sums wants no `batches.ranks`

    **Agreement.** All ranks must give the same arguments but for `rank`, and numbers that are equal to the bit: where
    CPUs differ, so do their powers and logarithms, and costs should be computed once and shared. `fingerprint` is equal
    on two ranks if they agree; compare it once, by whatever the ranks have to talk to each other.

    **Resuming.** `state_dict(trained=k + 1)` after step k. The number is asked for because workers prefetch: a
    `DataLoader` with workers has asked for `num_workers * prefetch_factor` batches that are not trained yet.

    Args:
        data: anything with `len()` and `[index]`; `range(n)` where there is no such object. Not a stream.
        lengths: [n], a number for each sample: its tokens, or any other measure of it; or a function of a sample that
            gives it. A function is called once for each sample of `data`, here, on every rank: a large data set is
            better served by an array that is computed once. Fractions count as tokens rounded up.
        ranks, rank: how many ranks train, and which one this is.
        samples_per_rank: of a batch, where counts are equal; of the average rank where they are not.
        sharding: a strategy as on the command line (`cost-aware`, `NAME:OPTION=VALUE`; see `fsbench list sharding`),
            or an object that is one. It is told no measured times: nothing is tuned, and all ranks agree.
        cost: the work in each sample, in any unit: [n], or a function from lengths to it, such as
            `transformer_cost(dim)`. The lengths themselves if not given.
        targets: label-carrying positions of each sample, for `counts`: [n], or a function from lengths to it. One each
            if not given.
        shuffle: another order in every epoch, a function of (seed, epoch).
        drop_last: leave out what does not fill a global batch.
        speeds: [ranks], relative speed of each rank; alike if not given.
        token_limit: most tokens that a rank can hold. Whether it is kept is up to the strategy.

    Raises:
        UserError: what is wrong with an argument; for a length, cost or target count that is negative or not finite,
            the index of its sample.
        Unsupported: the strategy cannot run on this machine.
    """

    def __init__(
        self,
        data: Any,
        lengths: ArrayLike | Callable[[Any], float],
        *,
        ranks: int,
        rank: int,
        samples_per_rank: int,
        sharding: str | Sharding = "cost-aware",
        cost: PerSample | None = None,
        targets: PerSample | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        speeds: ArrayLike | None = None,
        token_limit: int | None = None,
    ) -> None:
        self.ranks, self.rank = _whole("ranks", ranks, 1), _whole("rank", rank, 0)
        if self.rank >= self.ranks:
            raise UserError(f"rank is {rank}; expected 0 to {ranks - 1}")
        self.samples_per_rank, self.seed = _whole("samples_per_rank", samples_per_rank, 1), _whole("seed", seed, 0)
        self.samples = size_of(data)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self.sharding = _strategy(sharding)
        self._lengths = read_lengths(data, lengths, self.samples)
        costs = self._lengths if cost is None else from_lengths("cost", cost, self._lengths)
        self._costs = costs.astype(np.float64, copy=False)
        self._targets = None if targets is None else whole("targets", from_lengths("targets", targets, self._lengths))
        self._speeds = _read_speeds(speeds, self.ranks)
        self._token_limit = None if token_limit is None else _whole("token_limit", token_limit, 1)
        self._resumed = (0, 0)
        self.set_epoch(0)

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank."""
        whole, rest = divmod(self.samples, self.ranks * self.samples_per_rank)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's indices, batch by batch, from `first` to the end of the epoch.

        Raises:
            ValueError: what the strategy refuses, such as a token limit that it cannot keep, and one that it could.
        """
        # The order is kept, so that `set_epoch` disturbs no iteration under way.
        order, step = self._order, self.epoch * len(self)
        for k in range(self.first, len(self)):
            members = self._members(order, k)
            yield members[self._assign(members, step + k) == self.rank].tolist()

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of `iter`, `by_rank` and `counts`; an iteration under way is not disturbed.

        Every rank must choose the same, also without `shuffle`.
        """
        self.epoch = _whole("epoch", epoch, 0)
        self._order = _shuffled(self.samples, self.seed, epoch) if self.shuffle else None

    @property
    def first(self) -> int:
        """The batch at which `iter` begins: 0, except in the epoch that `load_state_dict` resumed."""
        epoch, trained = self._resumed
        return trained if epoch == self.epoch else 0

    def by_rank(self, k: int) -> list[Int64]:
        """The indices that each rank trains in batch k of this epoch: an int64 array a rank."""
        members = self._members(self._order, self._existing(k))
        assignment = self._assign(members, self.epoch * len(self) + k)
        ends = np.bincount(assignment, minlength=self.ranks).cumsum()
        return np.split(members[np.argsort(assignment, kind="stable")], ends[:-1])

    def counts(self, k: int) -> GlobalCounts:
        """Samples and targets of all ranks in batch k of this epoch: what gradients are divided by."""
        members = self._members(self._order, self._existing(k))
        targets = len(members) if self._targets is None else int(self._targets[members].sum())
        return GlobalCounts(len(members), targets)

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides which rank trains what, in any epoch."""
        kind = type(self.sharding)
        strategy = f"{kind.__module__}.{kind.__qualname__}", self.sharding.options
        options = (*self._order_of().values(), self.ranks, self.drop_last, self._token_limit, strategy)
        digest = hashlib.blake2b(repr(options).encode(), digest_size=16)
        for numbers in (self._lengths, self._costs, self._speeds):
            digest.update(np.ascontiguousarray(numbers, "<f8").tobytes())
        return digest.hexdigest()

    def state_dict(self, trained: int) -> dict[str, Any]:
        """What `load_state_dict` needs to go on in this epoch after its first `trained` batches."""
        return {"epoch": self.epoch, "trained": self._possible(trained), **self._order_of()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Chooses the epoch of `state` and begins it after the batches that were trained.

        The number of ranks may have changed, as long as the global batch has not.

        Raises:
            UserError: the state is about another order of samples: what differs.
        """
        if missing := ({"epoch", "trained", *self._order_of()} - dict(state or {}).keys()):
            raise UserError(
                f"the state to resume has no {', '.join(sorted(missing))}; expected what state_dict() gives"
            )
        for name, ours in self._order_of().items():
            if state[name] != ours:
                raise UserError(f"the state to resume has {name}={state[name]}, these batches have {name}={ours}")
        self._resumed = (_whole("epoch", state["epoch"], 0), self._possible(state["trained"]))
        self.set_epoch(state["epoch"])

    def _order_of(self) -> dict[str, Any]:
        """What decides which samples are in which global batch."""
        return {
            "samples": self.samples,
            "global_batch": self.ranks * self.samples_per_rank,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def _possible(self, trained: int) -> int:
        if _whole("trained", trained, 0) > len(self):
            raise UserError(f"trained is {trained}; expected 0 to {len(self)}, the batches of an epoch")
        return trained

    def _existing(self, k: int) -> int:
        if not 0 <= k < len(self):
            raise UserError(f"there is no batch {k}: an epoch has {len(self)}")
        return k

    def _members(self, order: Int64 | None, k: int) -> Int64:
        """The global batch: indices of its samples, in the epoch's order."""
        size = self.ranks * self.samples_per_rank
        places = np.arange(k * size, min((k + 1) * size, self.samples))
        return places if order is None else order[places]

    def _assign(self, members: Int64, step: int) -> Int64:
        """The rank of each sample of a global batch, int64[n]."""
        n = len(members)
        arrival = n // self.ranks + (np.arange(self.ranks) < n % self.ranks)
        return checked_assign(
            self.sharding,
            BatchMeta(
                costs=self._costs[members],
                tokens=np.ceil(self._lengths[members]).astype(np.int64),
                bytes=np.zeros(n, np.int64),  # any rank reads any sample: nothing is sent
                source=np.repeat(np.arange(self.ranks, dtype=np.int32), arrival),
                ranks=self.ranks,
                speeds=self._speeds,
                token_limit=self._token_limit,
                step=step,
            ),
        )


def _strategy(sharding: str | Sharding) -> Sharding:
    strategy: Sharding = create("sharding", Spec.parse(sharding)) if isinstance(sharding, str) else sharding
    name = sharding if isinstance(sharding, str) else type(sharding).__name__
    if not isinstance(strategy, Sharding):
        raise UserError(f"sharding is {name}; expected the name of a strategy, or an object that is one")
    if unheeded := unheeded_options(strategy):
        raise UserError(f"sharding {name}: {unheeded[0]} is for fsbench run; give cost=, speeds= or token_limit= here")
    if reason := strategy.requirements():
        raise Unsupported(f"sharding {name}: {reason}")
    if type(strategy).reads is not Sharding.reads:
        raise UserError(f"sharding {name} changes which samples are in a global batch; here they stay: take another")
    return strategy


def _read_speeds(given: ArrayLike | None, ranks: int) -> Float64:
    """float64[ranks], relative to the fastest, as strategies have it."""
    try:
        speeds = np.ones(ranks) if given is None else np.asarray(given, np.float64)
    except (TypeError, ValueError):
        speeds = np.empty(0)
    if speeds.shape != (ranks,) or not (np.isfinite(speeds) & (speeds > 0)).all():
        raise UserError(f"speeds are {given!r}; expected {ranks} finite numbers > 0, one a rank")
    relative = speeds / speeds.max()
    if not relative.all():
        raise UserError(f"speeds are {given!r}; the slowest is too slow beside the fastest for a float")
    return relative


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name} is {value!r}; expected a whole number, at least {least}") from None
    if number < least:
        raise UserError(f"{name} is {number}; expected at least {least}")
    return number


def _shuffled(n: int, seed: int, epoch: int) -> Int64:
    """A random order of 0..n-1, int64[n].

    From the bit generator itself: its stream is the same in every release of numpy, that of `permutation` need not be.
    """
    bits = np.random.PCG64(np.random.SeedSequence((seed, epoch))).random_raw(n)
    return np.argsort(bits, kind="stable")
