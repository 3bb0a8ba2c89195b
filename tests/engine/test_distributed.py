"""How processes find each other, and what they hand to each other and leave behind."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rankdet.engine import distributed
from rankdet.engine.distributed import (
    ALONE,
    Launch,
    PeerStopped,
    Processes,
    joined_processes,
    read_launch,
)
from rankdet.engine.reasons import Reasons
from rankdet.engine.train import _collecting_gradients
from rankdet.errors import ConfigError, TrainingError
from rankdet.losses.collectives import PeerError

WHERE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

# How a process was started


@pytest.mark.parametrize(
    "environment",
    [{}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "1", "RANK": "0"}, {"LOCAL_RANK": "3"}],
)
def test_a_process_that_nobody_launched_is_alone(environment: dict[str, str]) -> None:
    assert read_launch(environment) is None


def test_a_launch_is_read() -> None:
    ranks = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert read_launch(ranks | WHERE) == Launch(rank=5, local_rank=1, world_size=8)
    again = {"TORCHELASTIC_RESTART_COUNT": "2"}
    assert read_launch(ranks | WHERE | again) == Launch(5, 1, 8, num_restarts=2)


def test_slurm_says_which_of_the_processes_of_a_machine_this_is() -> None:
    launch = read_launch({"RANK": "5", "WORLD_SIZE": "8", "SLURM_LOCALID": "2"} | WHERE)
    assert launch is not None
    assert launch.local_rank == 2


def test_one_process_of_torchrun_is_a_world_of_one() -> None:
    assert read_launch({"RANK": "0", "WORLD_SIZE": "1"} | WHERE) == Launch(0, 0, 1)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE = 2, and RANK is not set"),
        ({"RANK": "0"}, "RANK is set, and WORLD_SIZE is not"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK = 2: expected less than WORLD_SIZE, which is 2"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK = 'x': expected a whole number of at least 0"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK = '-1': expected a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE = 'two': expected a whole number of"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE = '0': expected a whole number of at le"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE = '': expected a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", **WHERE, "MASTER_PORT": "p"}, "MASTER_PORT = 'p'"),
        ({"RANK": "0", "WORLD_SIZE": "2", **WHERE, "LOCAL_RANK": "p"}, "LOCAL_RANK = 'p'"),
        ({"RANK": "0", "WORLD_SIZE": "2", **WHERE, "LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE"),
    ],
)
def test_variables_that_make_no_sense_are_named(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}"):
        read_launch(environment)


# A process alone


def test_alone_everything_comes_back_as_it_was() -> None:
    layer, numbers = nn.Linear(1, 1), torch.ones(2)
    assert ALONE.is_first
    assert ALONE.is_alone
    assert ALONE.agreed_signal(None) is None
    assert ALONE.agreed_signal(15) == 15
    assert ALONE.sent(b"x") == b"x"
    assert ALONE.gathered(b"x") == [b"x"]
    assert ALONE.summed(numbers) is numbers
    assert ALONE.wrapped(layer) is layer
    ALONE.share_buffers(layer)
    with pytest.raises(KeyError), ALONE.together():
        raise KeyError


def test_alone_the_device_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with joined_processes("cuda:3") as processes:
        assert processes == Processes(device_name="cuda:3")


# A world of one: all of the machinery, in this process


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # to learn of a free port
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    del store


@pytest.mark.usefixtures("launched")
def test_a_world_meets_and_parts() -> None:
    with joined_processes("cpu") as processes:
        assert dist.is_initialized()
        assert not processes.is_alone
        assert (processes.rank, processes.world_size) == (0, 1)
        assert processes.device_name == "cpu"
        assert processes.agreed_signal(15) == 15
        assert processes.agreed_signal(None) is None
        assert [processes.sent(text) for text in (b"", b"abc")] == [b"", b"abc"]
        assert [processes.gathered(text) for text in (b"", b"abc")] == [[b""], [b"abc"]]
    assert not dist.is_initialized()


@pytest.mark.usefixtures("launched")
def test_a_world_that_has_met_already_stays_together() -> None:
    dist.init_process_group("gloo")
    for _ in range(2):
        with joined_processes("cpu") as processes:
            assert processes.group is not dist.group.WORLD
            assert processes.sent(b"abc") == b"abc"
    assert dist.is_initialized()
    dist.destroy_process_group()


@pytest.mark.usefixtures("launched")
def test_the_detector_is_wrapped_without_a_warning(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, images: torch.Tensor, targets: object = None) -> torch.Tensor:
            result: torch.Tensor = self.layer(images)
            return result

    detector = Detector()
    with joined_processes("cpu") as processes:
        wrapped = processes.wrapped(detector)
        for _ in range(2):
            wrapped(torch.ones(3, 2), None).sum().backward()
        assert detector.layer.weight.grad is not None
        assert detector.layer.weight.grad.tolist() == [[6.0, 6.0]]
        gradients = [parameter.grad for parameter in wrapped.parameters()]
        assert sum(gradient is not None for gradient in gradients) == 2  # not of the idle weight
        for is_last in (False, True):  # of the micro-batches of a step
            with _collecting_gradients(wrapped, is_last):
                assert wrapped.require_backward_grad_sync is is_last
        with _collecting_gradients(detector, is_last=False):
            pass
    assert capfd.readouterr().err == ""
    assert list(recwarn) == []


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PeerError("process 1: a"), "process 0 stops because of another: process 1: a"),
        (PeerStopped("process 1: b"), "process 0 stops because of another: process 1: b"),
        (RuntimeError("Gloo: Connection closed by peer"), "the processes do not reach each other"),
    ],
)
def test_what_another_process_did_is_a_training_error(error: Exception, words: str) -> None:
    with pytest.raises(TrainingError, match=words), joined_processes("cpu"):
        raise error
    dist.destroy_process_group()


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("error", [ValueError("own"), RuntimeError("own"), KeyboardInterrupt()])
def test_an_error_of_its_own_stays_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, joined_processes("cpu"):
        raise error
    assert caught.value is error
    dist.destroy_process_group()


def test_processes_that_cannot_meet_say_where(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "_TIMEOUT", distributed.timedelta(seconds=0.5))
    words = r"^process 1 of 2 cannot join the others at 127\.0\.0\.1:1: .*Check the address"
    with pytest.raises(TrainingError, match=words), joined_processes("cpu"):
        pytest.fail("they have met")


# Which device, and through what


def _devices(monkeypatch: pytest.MonkeyPatch, uuids: list[str]) -> None:
    """A machine with these GPUs."""
    chosen: list[int] = []

    def choose(name: str) -> None:
        chosen.append(torch.device(name).index or 0)

    class Properties:
        def __init__(self, index: int) -> None:
            self.uuid = uuids[index]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(torch.cuda, "set_device", choose)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: chosen[-1])
    monkeypatch.setattr(torch.cuda, "get_device_properties", Properties)


def _choices(name: str | None, local_ranks: list[int]) -> list[tuple[str | None, str]]:
    """What each process chooses, one after the other; the last of them knows all."""
    store, world_size = dist.HashStore(), len(local_ranks)
    store.set_timeout(distributed.timedelta(seconds=0.01))
    found: list[Any] = []
    for _ in range(2):  # the first time, the others are not there yet
        found.clear()
        for rank, local_rank in enumerate(local_ranks):
            try:
                launch = Launch(rank, local_rank, world_size)
                found.append(distributed._device_and_backend(store, launch, name))
            except RuntimeError:
                found.append(None)
    return found


def test_each_process_of_a_machine_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    _devices(monkeypatch, ["a", "b"])
    both = "cpu:gloo,cuda:nccl"
    for name in (None, "cuda"):
        assert _choices(name, [0, 1]) == [("cuda:0", both), ("cuda:1", both)]


def test_processes_that_share_a_gpu_talk_through_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    _devices(monkeypatch, ["a"])
    assert _choices(None, [0, 1]) == [("cuda:0", "gloo")] * 2
    _devices(monkeypatch, ["a", "b"])
    assert _choices("cuda:1", [0, 1]) == [("cuda:1", "gloo")] * 2  # as the user says


def test_on_a_cpu_they_talk_through_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    _devices(monkeypatch, ["a", "b"])
    assert _choices("cpu", [0, 1]) == [("cpu", "gloo")] * 2
    _devices(monkeypatch, [])
    assert _choices(None, [0, 1]) == [(None, "gloo")] * 2


# Reasons


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> list[Reasons]:
    """Of three processes in one store that is always there."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr("rankdet.engine.reasons._SECONDS_FOR_REASONS", 0.2)
    monkeypatch.setattr("rankdet.engine.reasons._SECONDS_FOR_TWINS", 0.2)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    return [Reasons(store, rank, 3) for rank in range(3)]


def test_a_reason_is_found_by_the_others(reasons: list[Reasons]) -> None:
    reasons[0].leave("")
    reasons[2].leave("ValueError: out of luck")
    assert reasons[0].of_others() == "process 2: ValueError: out of luck"
    assert reasons[1].of_others() == "process 2: ValueError: out of luck"


def test_those_that_left_nothing_have_ended(reasons: list[Reasons]) -> None:
    assert reasons[0].of_others().startswith("processes 1, 2 have ended: it was killed, or")
    reasons[2].leave("")
    assert reasons[0].of_others().startswith("process 1 has ended: it was killed, or")
    reasons[1].leave("")
    assert reasons[0].of_others().startswith("the processes do not reach each other any more")


def test_a_reason_that_process_0_has_too_need_not_be_said_twice(reasons: list[Reasons]) -> None:
    text = "DataError: " + "x" * 5000
    assert not reasons[1].is_said_by_first(text)
    reasons[0].leave("another")
    assert not reasons[1].is_said_by_first(text)
    reasons[0].leave(text)
    assert reasons[1].is_said_by_first(text)
    assert not reasons[0].is_said_by_first(text)  # it says it itself


def test_without_the_store_process_0_is_the_one_that_has_ended(
    reasons: list[Reasons], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")
    assert reasons[1].of_others().startswith("process 0 has ended: it was killed, or")
    assert not reasons[1].is_said_by_first("x")
    reasons[1].leave("x")
    reasons[1].close()
    assert capfd.readouterr().err == ""


def test_the_process_with_the_store_waits_for_the_others(
    reasons: list[Reasons], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    reasons[0].close()
    assert waits == []  # torchrun has it
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    reasons[0].close()
    assert waits
    reasons[1].close()
    reasons[2].close()
    waits.clear()
    reasons[0].close()
    assert waits == []
