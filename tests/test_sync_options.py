"""Options of dense synchronisation: what is refused, in one clear line, and what they make of a strategy."""

from types import SimpleNamespace

import pytest

from fsbench.errors import UserError
from fsbench.options import Spec
from fsbench.plugins import create
from fsbench_strategies.sync.exchange import Cost

SHARE = "expected more than 0 and at most 1"


def created(spec):
    return create("sync", Spec.parse(spec))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("alpha=0", f"alpha is 0.0, {SHARE}"),
        ("alpha=1.1", f"alpha is 1.1, {SHARE}"),
        ("duty=1.5", f"duty is 1.5, {SHARE}"),
        ("min_interval=-1", "min_interval is -1.0, expected 0 seconds or more"),
        ("write_back=push", "write_back"),
    ],
)
@pytest.mark.parametrize("shadow", ["shadow-ma", "shadow-bmuf", "shadow-easgd"])
def test_wrong_options_of_the_background_are_refused(shadow, option, message):
    refused(f"{shadow}:{option}", message)


@pytest.mark.parametrize("foreground", ["fr-ma", "fr-bmuf", "fr-easgd", "local-sgd", "diloco"])
def test_wrong_options_of_the_foreground_are_refused(foreground):
    refused(f"{foreground}:every=0", "every is 0, expected at least 1")
    refused(f"{foreground}:alpha=2", f"alpha is 2.0, {SHARE}")


@pytest.mark.parametrize("sync", ["shadow-bmuf", "fr-bmuf", "diloco"])
def test_wrong_options_of_block_momentum_are_refused(sync):
    refused(f"{sync}:momentum=1", "momentum is 1.0, expected at least 0 and less than 1")
    refused(f"{sync}:momentum=-0.1", "momentum is -0.1, expected at least 0 and less than 1")
    refused(f"{sync}:step_size=0", "step_size is 0.0, expected more than 0")


@pytest.mark.parametrize("sync", ["shadow-easgd", "fr-easgd"])
def test_wrong_options_of_elastic_averaging_are_refused(sync):
    refused(f"{sync}:servers=0", "servers is 0, expected 1 to 64")
    refused(f"{sync}:servers=65", "servers is 65, expected 1 to 64")
    refused(f"{sync}:order=pull-push", "order")


def refused(spec, message):
    with pytest.raises(UserError, match=message) as error:
        created(spec)
    assert len(str(error.value).splitlines()) == 1


def test_elastic_averaging_asks_for_its_servers_and_nothing_else_does():
    assert created("shadow-easgd").roles() == created("fr-easgd").roles() == {"sync-server": 1}
    assert created("shadow-easgd:servers=3").roles() == {"sync-server": 3}
    assert {*map(str, (created(name).roles() for name in ("shadow-ma", "fr-bmuf", "diloco")))} == {"{}"}


def test_only_elastic_averaging_syncs_rank_by_rank():
    apart = {"shadow-easgd", "fr-easgd"}
    for name in ("none", "allreduce", "shadow-ma", "shadow-bmuf", "fr-ma", "fr-bmuf", "local-sgd", "diloco", *apart):
        assert created(name).together == (name not in apart)


def test_the_pause_keeps_rounds_within_the_duty():
    def pause(options):
        strategy = created(f"shadow-ma:{options}")
        strategy.exchange = SimpleNamespace(cost=Cost(cpu_s=0.004, wall_s=0.010))
        return strategy._pause()

    assert pause("duty=0.05") == pytest.approx(0.004 / 0.05 - 0.010)
    assert pause("duty=0.9") == 0  # it took longer than that anyway
    assert pause("duty=1") == 0
    assert pause("duty=0.05,min_interval=0.5") == 0.5
