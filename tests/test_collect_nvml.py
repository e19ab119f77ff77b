"""Samples of a GPU: whatever NVML refuses is a reason in the record, never a zero and never the end of a run."""

from __future__ import annotations

import json
import sys
import threading
from types import SimpleNamespace

import pytest

from fsbench.collect import nvml as collector
from fsbench.collect.nvml import Sampler, find, sampling
from fsbench.collect.nvml_questions import QUESTIONS
from fsbench.metrics.gpus import GpuSamples, Sample, enter_gpus, gpu_use
from fsbench.metrics.sheet import Sheet
from fsbench.results.schema import METRICS
from tests.fake_nvml import LOST, NO_PERMISSION, NOT_SUPPORTED, FakeNvml

EVER = 2**63
GPU = SimpleNamespace(type="cuda")
OF_GPUS = ("power_w_mean", "energy_j", "sm_util_mean", "sm_clock_mhz_mean", "throttled_share")


def sampler(nvml, *, mig=False, **options):
    return Sampler(nvml, "GPU-a", "a", mig=mig, **options)


def sampled(nvml, *, takes=3, **options):
    """What is known after some samples."""
    one = sampler(nvml, **options)
    for _ in range(takes):
        one.take()
    return one.samples()


def use(samples):
    return gpu_use(samples, 0, EVER)


def entered(*samples, spans=None):
    sheet = Sheet()
    described = enter_gpus(sheet, samples, spans or [(0, EVER)] * len(samples))
    return sheet, described


@pytest.fixture
def machine(monkeypatch):
    """`machine(nvml, uuid)`: one where pynvml is `nvml`, and torch's device has that UUID."""

    def install(nvml, uuid="a"):
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(collector, "uuid_of", lambda device: uuid)
        return nvml

    return install


class TestAGpuThatAnswers:
    def test_every_question_has_a_figure_in_the_unit_of_its_name(self):
        known = use(sampled(FakeNvml()))
        assert known.missing == {}
        assert known.figures.keys() == {question.name for question in QUESTIONS}
        assert known.figures["sm_util"] == {"mean": 0.5, "least": 0.5, "most": 0.5}
        assert known.figures["power_w"]["mean"] == 400
        assert known.figures["memory_used_mib"]["most"] == 1024

    def test_levels_are_means_over_the_samples(self):
        nvml = FakeNvml()
        one = sampler(nvml)
        for milliwatts in (100_000, 300_000):
            nvml.answers["nvmlDeviceGetPowerUsage"] = milliwatts
            one.take()
        assert use(one.samples()).figures["power_w"] == {"mean": 200, "least": 100, "most": 300}

    def test_counters_are_what_they_grew_by_also_where_they_were_reset(self):
        nvml = FakeNvml()
        one = sampler(nvml)
        for millijoules in (1000, 3000, 500, 1500):
            nvml.answers["nvmlDeviceGetTotalEnergyConsumption"] = millijoules
            one.take()
        assert use(one.samples()).figures["energy_j"]["total"] == pytest.approx(3)

    def test_a_counter_beyond_32_bits_is_no_missing_answer(self):
        assert use(sampled(FakeNvml(nvmlDeviceGetTotalEnergyConsumption=2**33))).figures["energy_j"]["total"] == 0

    def test_a_set_clock_or_an_idle_gpu_is_not_throttled_and_heat_is(self):
        idle, clocks_set, heat = 0x1, 0x2, 0x40
        shares = use(sampled(FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=idle | clocks_set))).figures
        assert shares["throttle_reasons"] == {"any": 0}
        shares = use(sampled(FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=idle | heat))).figures
        assert shares["throttle_reasons"] == {"any": 1, "hw_thermal_slowdown": 1}

    def test_the_old_name_of_the_throttle_reasons_does_too(self):
        nvml = FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=0x4)
        del nvml.answers["nvmlDeviceGetCurrentClocksEventReasons"]
        assert use(sampled(nvml)).figures["throttle_reasons"] == {"any": 1, "sw_power_cap": 1}

    def test_only_samples_of_the_measured_steps_count(self):
        taken = [Sample(at, {"power_w": watts}) for at, watts in ((1, 100), (5, 200), (9, 700))]
        samples = GpuSamples("a", 1, 0.1, {"power_w": "gauge"}, {}, taken, 0)
        assert gpu_use(samples, 2, 9).figures["power_w"]["mean"] == 200
        assert gpu_use(samples, 6, 8).missing == {"power_w": "no sample in the measured steps"}


class TestWhatIsMissing:
    @pytest.mark.parametrize(
        ("fault", "reason"), [(NO_PERMISSION, "NVML: Insufficient Permissions"), (NOT_SUPPORTED, "NVML: Not Supported")]
    )
    def test_a_question_that_is_refused_has_the_reason_and_the_others_their_figures(self, fault, reason):
        known = use(sampled(FakeNvml(nvmlDeviceGetPowerUsage=fault)))
        assert known.missing == {"power_w": reason}
        assert known.figures["sm_util"]["mean"] == 0.5

    def test_one_that_is_refused_is_not_asked_again(self):
        nvml = FakeNvml(nvmlDeviceGetPowerUsage=NO_PERMISSION)
        sampled(nvml, takes=5)
        assert nvml.asked.count(("nvmlDeviceGetPowerUsage", "GPU-a")) == 1

    @pytest.mark.parametrize("nothing", [None, "N/A", 2**32 - 1, 2**64 - 1])
    def test_success_without_a_value_is_missing_and_not_a_number(self, nothing):
        known = use(sampled(FakeNvml(nvmlDeviceGetPowerUsage=nothing)))
        assert "not available" in known.missing["power_w"]
        assert "power_w" not in known.figures

    def test_a_module_without_the_call_is_too_old(self):
        nvml = FakeNvml()
        del nvml.answers["nvmlDeviceGetTotalEnergyConsumption"]
        assert use(sampled(nvml)).missing["energy_j"].startswith("nvidia-ml-py is too old: ")

    def test_a_field_that_is_refused_is_missing(self):
        refused = [SimpleNamespace(nvmlReturn=3, value=None)]
        missing = use(sampled(FakeNvml(nvmlDeviceGetFieldValues=refused))).missing
        assert missing == {"nvlink_sent_kib": "NVML: 3", "nvlink_received_kib": "NVML: 3"}

    def test_a_gpu_that_vanishes_has_no_figures_and_the_reason_says_when(self):
        nvml = FakeNvml()
        one = sampler(nvml)
        one.take()
        one.take()
        nvml.answers = dict.fromkeys(nvml.answers, LOST)
        one.take()
        known = use(one.samples())
        assert known.figures == {}
        assert set(known.missing.values()) == {"after 2 samples: NVML: GPU is lost"}

    def test_one_that_vanishes_after_the_measured_steps_keeps_its_figures(self):
        taken = [Sample(1, {"power_w": 100}), Sample(2, {"power_w": 100}), Sample(3, {})]
        samples = GpuSamples("a", 1, 0.1, {"power_w": "gauge"}, {"power_w": "after 2 samples: lost"}, taken, 0)
        assert gpu_use(samples, 0, 3).figures["power_w"]["mean"] == 100

    def test_a_part_of_a_gpu_says_so(self):
        known = use(sampled(FakeNvml(nvmlDeviceGetUtilizationRates=NOT_SUPPORTED), mig=True))
        assert known.missing == {"sm_util": "NVML: Not Supported (on a MIG device)"}

    def test_samples_that_the_ring_dropped_are_told(self):
        samples = sampled(FakeNvml(), takes=5, capacity=2)
        assert (len(samples.taken), samples.dropped) == (2, 3)
        assert set(use(samples).missing.values()) == {"samples of the measured steps were dropped"}


class TestWhichDevice:
    def test_it_is_found_by_uuid_wherever_nvml_has_it(self):
        nvml = FakeNvml("GPU-b", "GPU-c", "GPU-a")
        assert find(nvml, "a") == ("GPU-a", False)

    def test_a_mig_device_is_found_by_its_own_uuid(self):
        assert find(FakeNvml("GPU-a", "MIG-part"), "part") == ("MIG-part", True)

    def test_a_gpu_that_is_split_into_parts_says_so(self):
        assert find(FakeNvml("GPU-a", mig=True), "a") == ("GPU-a", True)

    def test_a_gpu_older_than_mig_is_none(self):
        nvml = FakeNvml("GPU-a")
        nvml.nvmlDeviceGetMigMode = lambda handle: (_ for _ in ()).throw(NOT_SUPPORTED)
        assert find(nvml, "a") == ("GPU-a", False)

    @pytest.mark.parametrize("uuid", [None, "z"])
    def test_one_that_is_not_there_is_a_reason(self, machine, uuid):
        nvml = machine(FakeNvml("GPU-a"), uuid)
        with sampling(GPU) as one:
            assert "UUID" in one.samples().reason
        assert nvml.open == 0

    def test_torch_tells_the_uuid_whatever_the_mask(self, monkeypatch):
        torch = pytest.importorskip("torch")
        by_mask = ["second", "first"]
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=by_mask[device.index])
        )
        assert collector.uuid_of(torch.device("cuda", 1)) == "first"
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace())
        assert collector.uuid_of(torch.device("cuda", 0)) is None


class TestARun:
    def test_on_a_cpu_needs_none_of_it(self):
        with sampling(SimpleNamespace(type="cpu")) as one:
            pass
        sheet, described = entered(one.samples(), one.samples())
        assert sheet.missing == dict.fromkeys(OF_GPUS, "trained on CPU")
        assert described == []

    def test_without_the_module_completes(self, machine):
        machine(None)  # what makes an import fail
        with sampling(GPU) as one:
            pass
        assert one.samples().reason == "nvidia-ml-py is not installed; pip install 'fsbench[gpu]'"

    def test_without_a_driver_completes(self, machine):
        nvml = machine(FakeNvml())
        nvml.nvmlInit = lambda: (_ for _ in ()).throw(NOT_SUPPORTED)
        with sampling(GPU) as one:
            pass
        assert one.samples().reason == "NVML: Not Supported"

    def test_is_sampled_at_its_begin_and_its_end_however_short(self, machine):
        nvml = machine(FakeNvml())
        with sampling(GPU) as one:
            pass
        assert len(one.samples().taken) >= 2
        assert nvml.open == 0

    def test_that_fails_leaves_no_thread_and_no_open_nvml(self, machine):
        nvml = machine(FakeNvml())
        with pytest.raises(KeyError), sampling(GPU):
            raise KeyError
        assert nvml.open == 0
        assert [thread.name for thread in threading.enumerate() if thread.name == "nvml"] == []


class TestTheRecord:
    def test_its_metrics_are_those_of_the_schema(self):
        sheet, _ = entered(sampled(FakeNvml()))
        assert sheet.metrics.keys() == set(OF_GPUS) <= METRICS.keys()
        assert sheet.missing == {}

    def test_power_is_the_sum_and_utilisation_the_mean_of_all_gpus(self):
        ranks = [sampled(FakeNvml()), Sampler(FakeNvml(), "GPU-b", "b", mig=False)]
        ranks[1].take()
        ranks[1].take()
        sheet, described = entered(ranks[0], ranks[1].samples())
        assert sheet.metrics["power_w_mean"] == 800
        assert sheet.metrics["sm_util_mean"] == 0.5
        assert [gpu["ranks"] for gpu in described] == [[0], [1]]

    def test_a_gpu_that_two_ranks_share_counts_once(self):
        sheet, described = entered(sampled(FakeNvml()), sampled(FakeNvml()))
        assert sheet.metrics["power_w_mean"] == 400
        assert [gpu["ranks"] for gpu in described] == [[0, 1]]

    def test_a_metric_is_missing_if_that_of_one_gpu_is(self):
        denied = sampler(FakeNvml(nvmlDeviceGetPowerUsage=NO_PERMISSION))
        denied._device = "b"
        denied.take()
        denied.take()
        sheet, _ = entered(sampled(FakeNvml()), denied.samples())
        assert sheet.missing == {"power_w_mean": "rank 1: NVML: Insufficient Permissions"}

    def test_processes_of_others_are_counted_and_not_those_of_the_run(self):
        mine = sampled(FakeNvml(nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=1)]))
        seen = [SimpleNamespace(pid=mine.pid), SimpleNamespace(pid=1), SimpleNamespace(pid=2)]
        _, (gpu,) = entered(sampled(FakeNvml(nvmlDeviceGetComputeRunningProcesses=seen)))
        assert gpu["foreign_processes"] == 2

    def test_process_ids_of_another_namespace_are_told_from_strangers(self):
        _, (gpu,) = entered(sampled(FakeNvml(nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=1)])))
        assert "foreign_processes" not in gpu
        assert "none of this run" in gpu["missing"]["processes"]

    def test_it_holds_what_json_can(self):
        _, described = entered(sampled(FakeNvml(nvmlDeviceGetTemperature=NOT_SUPPORTED)))
        assert json.loads(json.dumps(described, allow_nan=False)) == described
